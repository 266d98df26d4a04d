//! What can go wrong between a source and its detections.

use plimsoll_models::ModelError;

use crate::engine::messages::{cause, is_out_of_memory};

/// The result of every fallible call in this library.
pub type InferResult<T> = Result<T, InferError>;

/// Why a call was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InferError {
    /// Something that this machine does not have.
    #[error("{what} is not available: {why}")]
    Unavailable {
        /// What was wanted.
        what: String,
        /// Why it cannot be had, with the remedy.
        why: String,
    },
    /// A model that cannot be used.
    #[error("model {model}: {why}")]
    Model {
        /// The file, or the name of an embedded one.
        model: String,
        /// What is wrong with it.
        why: String,
    },
    /// A source that cannot be opened or has ended for a reason.
    #[error("source {source_name}: {why}")]
    Source {
        /// As the user wrote it, without passwords and tokens.
        source_name: String,
        /// What is wrong with it, with the remedy.
        why: String,
    },
    /// A source that was there when it was opened and is not any more.
    #[error("source {source_name} has vanished: {why}")]
    Vanished {
        /// As the user wrote it, without passwords and tokens.
        source_name: String,
        /// What is missing.
        why: String,
    },
    /// One frame that cannot be used; the next one may.
    #[error("frame {frame}: {why}")]
    Frame {
        /// Its name or number in the source.
        frame: String,
        /// What is wrong with it.
        why: String,
    },
    /// The engine failed while it ran.
    #[error("{engine} failed: {why}")]
    Engine {
        /// Which engine.
        engine: String,
        /// What it said.
        why: String,
    },
    /// Memory was refused, or a value is out of its range.
    #[error(transparent)]
    Memory(#[from] plimsoll::Error),
}

impl From<ModelError> for InferError {
    fn from(ModelError { model, why }: ModelError) -> InferError {
        InferError::Model { model, why }
    }
}

impl InferError {
    /// The error with what an engine said cut to its cause; as text it has the whole.
    #[must_use]
    pub fn brief(&self) -> String {
        match self {
            InferError::Unavailable { what, why } => {
                format!("{what} is not available: {}", cause(why))
            }
            InferError::Model { model, why } => format!("model {model}: {}", cause(why)),
            InferError::Engine { engine, why } => format!("{engine} failed: {}", cause(why)),
            InferError::Source { .. }
            | InferError::Vanished { .. }
            | InferError::Frame { .. }
            | InferError::Memory(_) => self.to_string(),
        }
    }

    /// Whether memory was refused, as far as the error says.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            InferError::Memory(error) => error.is_out_of_memory(),
            InferError::Unavailable { why, .. }
            | InferError::Model { why, .. }
            | InferError::Engine { why, .. } => is_out_of_memory(why),
            InferError::Source { .. } | InferError::Vanished { .. } | InferError::Frame { .. } => {
                false
            }
        }
    }
}
