//! What a model says of itself, for engines and reports.

use std::collections::BTreeMap;

use crate::onnx::{OnnxHeader, ValueInfo};
use crate::{ModelError, ModelResult};

/// What a model says of itself.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelInfo {
    /// The file, or the name of an embedded model.
    pub name: String,
    /// The name of its input.
    pub input: String,
    /// The extents of its input, `[1, 3, 640, 640]`; 0 where one is not fixed.
    pub input_shape: Vec<usize>,
    /// Rows and columns that it wants; `None` where any will do.
    pub input_size: Option<(usize, usize)>,
    /// How many inputs it has; a detector has one.
    pub inputs: usize,
    /// ONNX's number for the type of the input's elements; 1 is f32.
    pub input_element: u64,
    /// The names and shapes of its outputs; 0 where an extent is not fixed.
    pub outputs: Vec<(String, Vec<usize>)>,
    /// The metadata in the file: `names`, `stride`, `task`, …
    pub metadata: BTreeMap<String, String>,
    /// Bytes of the file.
    pub bytes: u64,
}

impl ModelInfo {
    /// Whether it can run at a size that is asked for.
    ///
    /// # Errors
    /// [`ModelError`] where it has another, with both sizes.
    pub fn check_size(&self, wanted: Option<(usize, usize)>) -> ModelResult<()> {
        let (Some(wanted), Some(has)) = (wanted, self.input_size) else { return Ok(()) };
        if wanted == has {
            return Ok(());
        }
        let text = |(rows, columns): (usize, usize)| format!("{rows}x{columns}");
        let (wanted, has) = (text(wanted), text(has));
        let why = format!(
            "it takes images of {has} only, and {wanted} was asked for; leave --imgsz out, or \
             export the model for {wanted}"
        );
        Err(ModelError { model: self.name.clone(), why })
    }
}

/// What the header of an ONNX file says of the model in it.
pub(super) fn from_header(header: OnnxHeader, name: String, bytes: u64) -> ModelInfo {
    let shape = |value: &ValueInfo| -> Vec<usize> {
        value.shape.iter().flatten().map(|extent| extent.unwrap_or(0)).collect()
    };
    let inputs = header.inputs.len();
    let input = header.inputs.into_iter().next().unwrap_or_default();
    let input_shape = shape(&input);
    let input_size = match input_shape[..] {
        [_, _, rows, columns] if rows > 0 && columns > 0 => Some((rows, columns)),
        _ => None,
    };
    ModelInfo {
        name,
        input: input.name,
        input_shape,
        input_size,
        inputs,
        input_element: input.element,
        outputs: header.outputs.iter().map(|out| (out.name.clone(), shape(out))).collect(),
        metadata: header.metadata,
        bytes,
    }
}
