//! GGUF: what a language model in llama.cpp's format will take, from its header alone.
//!
//! A file is a header (keys and values, then the list of tensors) followed by data. Only the
//! header is read, and long lists in it are skipped, so a file of 70 GB costs a few thousand
//! small reads and no more memory than its list of tensors. The header says where every tensor
//! ends, so a truncated download is recognised.
//!
//! - `read` ([`GgufHeader`]): the header, checked: no tensors overlap or end behind the file.
//!   `tensors` has their sums, `keys` the keys of one architecture.
//! - `model` ([`GgufModel`]): what the numbers mean. `layers` works out what each layer keeps
//!   while it runs; facts about families that are not in the file are in `families::gguf`.
//! - `write` ([`GgufWriter`]): writes headers, for tests.

mod keys;
mod layers;
mod model;
mod read;
mod tensors;
mod write;

use std::io;
use std::path::{Path, PathBuf};

use plimsoll_machine::files;

pub use model::GgufModel;
pub use read::{GgufHeader, GgufValue};
pub use tensors::GgufTensors;
pub use write::GgufWriter;

/// Why a file is no GGUF file, or none that is read here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The bytes cannot be what a writer meant.
    #[error("not a GGUF file, or a damaged one: {what} at byte {at}")]
    Damaged {
        /// What was found.
        what: String,
        /// Where, counted from the start of the file.
        at: u64,
    },
    /// The header is whole, and the data is not.
    #[error(
        "the file is truncated: it has {have} of {need} bytes ({percent} %); download it again",
        percent = have.saturating_mul(100) / (*need).max(1)
    )]
    Truncated {
        /// Bytes that are there.
        have: u64,
        /// Bytes that the header speaks of.
        need: u64,
    },
    /// More than any model has.
    #[error("the file has more {what} than {limit}")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// The most that is read.
        limit: u64,
    },
    /// A number that an estimate needs is missing or cannot be.
    #[error("the header's {key} {why}")]
    Key {
        /// The key, without the architecture in front.
        key: String,
        /// What is wrong with it.
        why: String,
    },
    /// A part of a split model is missing.
    #[error("part of the model is missing: {}: {why}", path.display())]
    Part {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        why: String,
    },
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads a model: one file, or all parts of one that was split (`…-00001-of-00003.gguf`).
///
/// # Errors
/// When a file is missing, damaged or truncated, or holds more than is sensible.
pub fn open(path: &Path) -> Result<GgufModel, GgufError> {
    let mut header = GgufHeader::read(files::open(path)?)?;
    for part in siblings(path, &header)? {
        let why = |error: GgufError| GgufError::Part { path: part.clone(), why: error.to_string() };
        let file = files::open(&part).map_err(|error| why(error.into()))?;
        let other = GgufHeader::read(file).map_err(why)?;
        header.tensors.add(other.tensors);
        header.file_bytes = header.file_bytes.saturating_add(other.file_bytes);
    }
    GgufModel::new(&header)
}

/// The other parts of a split model, by llama.cpp's way to name them.
fn siblings(path: &Path, header: &GgufHeader) -> Result<Vec<PathBuf>, GgufError> {
    /// More files than any model was ever split into.
    const MOST_PARTS: u64 = 1024;
    let count = header.number("split.count").unwrap_or(1);
    if count <= 1 {
        return Ok(Vec::new());
    }
    if count > MOST_PARTS {
        return Err(GgufError::TooMuch { what: "parts", limit: MOST_PARTS });
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let own = header.number("split.no").unwrap_or(0);
    let suffix = |number: u64| format!("-{number:05}-of-{count:05}.gguf");
    let Some(stem) = name.strip_suffix(&suffix(own + 1)) else {
        let why = format!("says it is part {} of {count}, and is not named so", own + 1);
        return Err(GgufError::Key { key: "split.count".to_string(), why });
    };
    if own != 0 {
        let first = path.with_file_name(format!("{stem}{}", suffix(1)));
        let why =
            format!("says it is part {} of {count}; give the first, {}", own + 1, first.display());
        return Err(GgufError::Key { key: "split.no".to_string(), why });
    }
    Ok((2..=count).map(|part| path.with_file_name(format!("{stem}{}", suffix(part)))).collect())
}

#[cfg(test)]
mod tests;
