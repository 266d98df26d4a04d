//! What can go wrong, classified by what the caller can do about it.
//!
//! The one distinction that matters most for memory is *full now*
//! ([`Error::OutOfMemory`]: free something, shrink the chunk, try again) against
//! *can never fit* ([`Error::NeverFits`]: retrying is pointless). Everything that
//! halves, retries or falls back does so only on the first.

use plimsoll_cuda::{CudaError, CudaRefusal};

use crate::units::Bytes;

/// The result of every fallible call in this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Full now: the same request can succeed after something else is freed.
    #[error(
        "out of memory on {memory}: {requested} asked for, {available} available now; \
         free something, ask for less, or work in smaller chunks"
    )]
    OutOfMemory {
        /// Which memory refused.
        memory: String,
        /// What was asked for.
        requested: Bytes,
        /// What could have been had.
        available: Bytes,
    },
    /// Can never fit: larger than the memory would be if it were empty.
    #[error(
        "{requested} can never fit on {memory}: its capacity is {capacity}; \
         ask for less or choose a larger memory"
    )]
    NeverFits {
        /// Which memory refused.
        memory: String,
        /// What was asked for.
        requested: Bytes,
        /// The most that this memory can ever hand out.
        capacity: Bytes,
    },
    /// The block was not handed out by this memory.
    #[error("a block of another memory was given to {memory}; return it where it was allocated")]
    ForeignBlock {
        /// The memory that was given the block.
        memory: String,
    },
    /// The block was handed out by this memory, and has been returned already.
    #[error("block {id} of {memory} was returned before; each block is returned once")]
    AlreadyFreed {
        /// The memory that the block was returned to.
        memory: String,
        /// The number that the block was handed out under.
        id: u64,
    },
    /// A configuration value is out of its range.
    #[error("{field} is {value}; it must be {range}")]
    Config {
        /// The name of the field, as it is written in code and flags.
        field: &'static str,
        /// What it was set to.
        value: String,
        /// What it may be.
        range: &'static str,
    },
    /// Something that this machine, library or device does not have.
    #[error("{what} is not available: {why}")]
    Unavailable {
        /// What was wanted.
        what: String,
        /// Why it cannot be had, with the remedy where there is one.
        why: String,
    },
    /// A device or system call failed for a reason other than memory.
    #[error("{call} failed: {why}")]
    Device {
        /// The call.
        call: &'static str,
        /// The reason that the device gave.
        why: String,
    },
    /// Not possible while a graph is being captured.
    #[error("{what} is not possible while a capture is under way; end the capture first")]
    Capturing {
        /// What was tried.
        what: &'static str,
    },
    /// Bytes from outside that are not what they should be.
    #[error("{what}: {why}")]
    Malformed {
        /// What was read, with the line or byte where reading stopped.
        what: String,
        /// What was wrong there.
        why: String,
    },
}

impl From<CudaRefusal> for Error {
    fn from(refused: CudaRefusal) -> Error {
        Error::Device { call: refused.call, why: refused.why }
    }
}

impl From<CudaError> for Error {
    fn from(error: CudaError) -> Error {
        match error {
            CudaError::Unavailable { what, why } => Error::Unavailable { what, why },
            CudaError::Refused(refused) => refused.into(),
            CudaError::Compiler { call, why } => Error::Device { call, why },
            other => Error::Device { call: "CUDA", why: other.to_string() },
        }
    }
}

impl Error {
    /// Whether the same request may succeed later: halve, wait or fall back.
    #[must_use]
    pub fn is_full_now(&self) -> bool {
        matches!(self, Error::OutOfMemory { .. })
    }

    /// Whether memory was refused at all, now or for ever.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Error::OutOfMemory { .. } | Error::NeverFits { .. })
    }
}
