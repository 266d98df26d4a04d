//! What can go wrong between a source and its detections.

use plimsoll_models::ModelError;

use crate::engine::said::{cause, is_out_of_memory};

/// The result of every fallible call in this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
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

impl From<ModelError> for Error {
    fn from(ModelError { model, why }: ModelError) -> Error {
        Error::Model { model, why }
    }
}

impl Error {
    /// The error with what an engine said cut to its cause; as text it has the whole.
    #[must_use]
    pub fn brief(&self) -> String {
        match self {
            Error::Unavailable { what, why } => format!("{what} is not available: {}", cause(why)),
            Error::Model { model, why } => format!("model {model}: {}", cause(why)),
            Error::Engine { engine, why } => format!("{engine} failed: {}", cause(why)),
            Error::Source { .. }
            | Error::Vanished { .. }
            | Error::Frame { .. }
            | Error::Memory(_) => self.to_string(),
        }
    }

    /// Whether memory was refused, as far as the error says.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Error::Memory(error) => error.is_out_of_memory(),
            Error::Unavailable { why, .. }
            | Error::Model { why, .. }
            | Error::Engine { why, .. } => is_out_of_memory(why),
            Error::Source { .. } | Error::Vanished { .. } | Error::Frame { .. } => false,
        }
    }
}
