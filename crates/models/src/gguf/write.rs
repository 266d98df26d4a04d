//! Headers of our own: a model file without its data, for tests and examples.
//!
//! The data is a hole in the file: a model of 70 GB takes a few KiB on disk.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use crate::{ElementType, ModelShape};

use super::GgufValue;

const ALIGNMENT: u64 = 32;

/// Collects keys and tensors, and writes the header.
#[derive(Debug, Clone, Default)]
pub struct GgufWriter {
    keys: Vec<u8>,
    key_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    data: u64,
}

impl GgufWriter {
    /// A header that names its architecture.
    #[must_use]
    pub fn new(architecture: &str) -> GgufWriter {
        GgufWriter::default()
            .with("general.architecture", GgufValue::Text(architecture.to_string()))
    }

    /// The header of a plain model of this shape, with all its tensors.
    #[must_use]
    pub fn of_shape(architecture: &str, shape: &ModelShape) -> GgufWriter {
        let number = |n: u64| GgufValue::Number(i64::try_from(n).unwrap_or(i64::MAX));
        let mut writer = GgufWriter::new(architecture);
        for (key, value) in [
            ("block_count", shape.layers),
            ("embedding_length", shape.hidden),
            ("feed_forward_length", shape.intermediate),
            ("attention.head_count", shape.heads),
            ("attention.head_count_kv", shape.kv_heads),
            ("context_length", shape.context),
        ] {
            writer = writer.with(&format!("{architecture}.{key}"), number(value));
        }
        if let Some(width) = shape.head_dim {
            for key in ["attention.key_length", "attention.value_length"] {
                writer = writer.with(&format!("{architecture}.{key}"), number(width));
            }
        }
        if shape.experts > 1 {
            writer = writer
                .with(&format!("{architecture}.expert_count"), number(shape.experts))
                .with(&format!("{architecture}.expert_used_count"), number(shape.experts_used))
                .with(
                    &format!("{architecture}.expert_feed_forward_length"),
                    number(shape.intermediate),
                );
        }
        if shape.parallel_residual {
            writer = writer.with(&format!("{architecture}.use_parallel_residual"), number(1));
        }
        for tensor in shape.tensors() {
            writer = writer.tensor(&tensor.name, tensor.element, &[tensor.columns, tensor.rows]);
        }
        writer
    }

    /// The same with a key more.
    #[must_use]
    pub fn with(mut self, key: &str, value: GgufValue) -> GgufWriter {
        text(&mut self.keys, key);
        match value {
            GgufValue::Number(n) => {
                self.keys.extend(11u32.to_le_bytes());
                self.keys.extend(n.to_le_bytes());
            }
            GgufValue::Float(n) => {
                self.keys.extend(12u32.to_le_bytes());
                self.keys.extend(n.to_le_bytes());
            }
            GgufValue::Text(value) => {
                self.keys.extend(8u32.to_le_bytes());
                text(&mut self.keys, &value);
            }
            GgufValue::Numbers(list) => {
                self.keys.extend(9u32.to_le_bytes());
                self.keys.extend(11u32.to_le_bytes());
                self.keys.extend((list.len() as u64).to_le_bytes());
                self.keys.extend(list.iter().flat_map(|n| n.to_le_bytes()));
            }
            // A list of so many empty texts.
            GgufValue::Skipped(count) => {
                self.keys.extend(9u32.to_le_bytes());
                self.keys.extend(8u32.to_le_bytes());
                self.keys.extend(count.to_le_bytes());
                self.keys.extend((0..count).flat_map(|_| 0u64.to_le_bytes()));
            }
        }
        self.key_count += 1;
        self
    }

    /// The same with a tensor more, behind those that are there.
    #[must_use]
    pub fn tensor(self, name: &str, element: ElementType, extents: &[u64]) -> GgufWriter {
        let offset = self.data.next_multiple_of(ALIGNMENT);
        self.tensor_at(name, element, extents, offset)
    }

    /// The same with a tensor at this offset, wherever that is.
    #[must_use]
    pub fn tensor_at(
        mut self,
        name: &str,
        element: ElementType,
        extents: &[u64],
        offset: u64,
    ) -> GgufWriter {
        text(&mut self.tensors, name);
        self.tensors.extend(u32::try_from(extents.len()).unwrap_or(u32::MAX).to_le_bytes());
        self.tensors.extend(extents.iter().flat_map(|n| n.to_le_bytes()));
        self.tensors.extend(element.to_ggml().to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        let elements = extents.iter().fold(1u64, |all, &n| all.saturating_mul(n));
        self.data = offset.saturating_add(element.bytes_for(elements).get());
        self.tensor_count += 1;
        self
    }

    /// The header's bytes, with the padding behind it.
    #[must_use]
    pub fn header(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(self.tensor_count.to_le_bytes());
        bytes.extend(self.key_count.to_le_bytes());
        bytes.extend(&self.keys);
        bytes.extend(&self.tensors);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT as usize), 0);
        bytes
    }

    /// The length that the whole file has.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.header().len() as u64 + self.data
    }

    /// Writes the header and leaves a hole where the data would be.
    ///
    /// # Errors
    /// When the file cannot be written, or its system has no holes of that size.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(&self.header())?;
        file.set_len(self.file_bytes())
    }
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}
