//! What a machine is and does: its memory, GPUs, board and processes, and when its memory
//! runs out.
//!
//! [`platform`] reads what the system says of its memory, [`machine`] whether a GPU shares it,
//! and [`probe`] samples everything that a monitor shows. Files are read under a root, so that
//! a recorded machine can be examined anywhere; drivers are asked with a timeout, as they hang.
//!
//! This crate is the lowest of the library but one (`plimsoll-cuda`), so it also has what all
//! the others share: amounts of memory ([`units`]), errors ([`error`]), and text and files of
//! strangers ([`text`], [`files`], [`zip_directory`]).

pub mod error;
pub mod files;
pub mod machine;
pub mod platform;
pub mod probe;
pub mod sys;
pub mod text;
pub mod units;
pub mod zip_directory;

pub use error::{Error, Result};
pub use machine::{MemoryInfo, is_jetson, is_unified, memory_info};
pub use units::{Bytes, format_bytes};
