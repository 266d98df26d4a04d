//! A language model as the header of a GGUF file describes it.

use crate::ModelShape;

use super::GgufError;
use super::keys::GgufKeys;
use super::layers::LayerNumbers;
use super::read::GgufHeader;
use super::tensors::GgufTensors;

/// A model as its header describes it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GgufModel {
    /// The family: `llama`, `gemma3`, …
    pub architecture: String,
    /// What it calls itself.
    pub name: Option<String>,
    /// Its tensors.
    pub tensors: GgufTensors,
    /// The length of the file, or of all parts.
    pub file_bytes: u64,
    /// The context that it was trained for.
    pub trained_context: Option<u64>,
    /// Its shape with what each layer keeps, for the context, types and micro-batch to be set;
    /// `None` where the file is no language model and has weights alone.
    pub shape: Option<ModelShape>,
    /// What the estimate leaves out or takes for granted.
    pub notes: Vec<String>,
}

impl GgufModel {
    /// What a header means.
    ///
    /// # Errors
    /// [`GgufError::Key`] where a number that is needed is missing or cannot be.
    pub fn new(header: &GgufHeader) -> Result<GgufModel, GgufError> {
        let architecture = header.text("general.architecture").unwrap_or("unknown").to_string();
        let keys = GgufKeys { header, architecture: &architecture };
        let mut notes = Vec::new();
        let shape = match keys.number("block_count")? {
            Some(_) => Some(LayerNumbers::new(&keys)?.shape(&mut notes)?),
            None => {
                notes.push(format!(
                    "the header of this {architecture} file has no block_count: only weights are counted"
                ));
                None
            }
        };
        Ok(GgufModel {
            name: header.text("general.name").map(str::to_string),
            tensors: header.tensors.clone(),
            file_bytes: header.file_bytes,
            trained_context: keys.number("context_length")?,
            shape,
            notes,
            architecture,
        })
    }
}
