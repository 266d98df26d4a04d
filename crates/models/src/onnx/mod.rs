//! ONNX files: one reader for the header and for the graph.
//!
//! ```text
//! file ─→ wire ─→ parse ─→ OnnxHeader   inputs, outputs, metadata
//!                      └─→ OnnxGraph    operators, tensors, sizes of weights
//! ```
//!
//! An ONNX file is one protobuf message. A generated parser would build all of it, weights
//! included. `wire` steps through the fields instead and skips by its length what is not needed,
//! so a model of gigabytes costs a few thousand small reads. Nothing in the file is trusted:
//! every length is checked against what is left, and what is collected is bounded.
//!
//! `parse` reads the messages; its `OnnxScope` decides whether the graph's operators and weights
//! are read or skipped. `order` sorts operators where the file does not. [`super::walk`] works
//! out shapes and memory from the graph.

mod element;
mod graph;
mod header;
mod order;
mod parse;
mod wire;

use std::io;

pub use element::{F32, bytes_of, element_bits, element_name};
pub use graph::{
    DeclaredExtent, OnnxAttribute, OnnxGraph, OnnxNode, OnnxValue, OnnxWeight, ValueId,
};
pub use header::{OnnxHeader, ValueInfo};

/// Why an ONNX file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnnxError {
    /// The bytes cannot be what a writer meant.
    #[error("not an ONNX file, or a damaged one: {what} at byte {at}")]
    Damaged {
        /// What was found.
        what: &'static str,
        /// Where, counted from the start of the file.
        at: u64,
    },
    /// The message has no graph in it.
    #[error("not an ONNX file: no graph in it")]
    NoGraph,
    /// The file ends before what it promises.
    #[error("{name} is truncated: it has {have} of {need} bytes; download it again")]
    Truncated {
        /// The file, or `the file`.
        name: String,
        /// Bytes that are there.
        have: u64,
        /// Bytes that are needed.
        need: u64,
    },
    /// More than any model has.
    #[error("the file has more {what} than {limit}")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// The most that is read.
        limit: usize,
    },
    /// The graph cannot be: a node reads what nobody makes, or an input is fixed otherwise.
    #[error("{0}")]
    Wrong(String),
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[cfg(test)]
mod tests;
