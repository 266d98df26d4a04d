//! Python's pickle format, read as data.
//!
//! A pickle is a program for a small stack machine, and in Python two of its
//! instructions import a name and call it: opening an untrusted file runs its author's
//! code. This interpreter has no such instruction. It knows how to *describe* a call
//! ([`PickleValue::Call`]) and nothing in it could make one, so a hostile file can at worst
//! be refused.
//!
//! What a file may hold is the caller's choice. [`Policy::DataOnly`] is for files that
//! are plain data by design, such as PyTorch's memory snapshots: a file that names any
//! code is refused, with the name. [`Policy::Inert`] is for checkpoints, which name
//! classes on every page: names, calls and objects are kept as data for the caller to
//! recognise.
//!
//! ```
//! use plimsoll_models::pickle::{Pickle, Policy};
//!
//! // pickle.dumps({"size": 512}, protocol=2)
//! let bytes = b"\x80\x02}q\x00X\x04\x00\x00\x00sizeq\x01M\x00\x02s.";
//! let pickle = Pickle::parse(bytes, Policy::DataOnly)?;
//! assert_eq!(pickle.root().get("size").and_then(|size| size.as_u64()), Some(512));
//!
//! // os.system("true"), protocol 0
//! let hostile = b"cos\nsystem\n(S'true'\ntR.";
//! let refused = Pickle::parse(hostile, Policy::DataOnly).unwrap_err();
//! assert!(refused.to_string().contains("os.system"));
//! # Ok::<(), plimsoll_models::Error>(())
//! ```
//!
//! # Bounds
//!
//! Every opcode takes at least a byte and makes at most one value, so memory is linear
//! in the file; [`PickleLimits`] sets the ceiling. A memory snapshot takes about three times
//! its size: text and bytes are borrowed from the file, small integers are shared, a
//! value is 24 bytes and a mention of it is four. Lengths are compared with the file
//! before anything is made from them. Nothing here recurses, at whatever depth, and a
//! list that holds itself is only a number that points back: reading ends, dropping
//! frees all. A caller that walks a file of unknown shape must expect such loops; see
//! [`PickleRef::place`].
//!
//! # Coverage
//!
//! All opcodes of protocols 0 to 5, save those whose meaning lies outside the file:
//! EXT1, EXT2 and EXT4 (Python's extension registry), NEXT_BUFFER and READONLY_BUFFER
//! (buffers carried elsewhere). Those, and unknown opcodes, are errors that say where.
//! Python 2's `str` is text where it is UTF-8 and bytes otherwise; integers of protocol
//! 0 may have 128 bits; lone surrogates become U+FFFD.

mod arena;
mod code;
mod machine;
mod opcode;
mod reader;
mod scalar;
#[cfg(test)]
mod tests;
mod value;

pub use value::{Instance, PickleItems, PicklePairs, PickleRef, PickleValue};

use arena::{NodeIndex, PickleArena};
use plimsoll_machine::error::Result;

/// What a pickle may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Plain data. The first name, call, object or persistent id is an error.
    DataOnly,
    /// Names, calls, objects and persistent ids too, kept as data and never acted on.
    Inert,
}

/// The most that is made from one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PickleLimits {
    /// Values, at 24 bytes each.
    pub nodes: u32,
    /// Mentions of values in containers, at 4 bytes each.
    pub items: u32,
    /// Remembered values, at 4 bytes each.
    pub memo: u32,
    /// Values on the stack at once, at 4 bytes each.
    pub stack: u32,
}

impl Default for PickleLimits {
    /// Room for a snapshot of about a gigabyte.
    fn default() -> PickleLimits {
        PickleLimits { nodes: 1 << 27, items: 1 << 29, memo: 1 << 27, stack: 1 << 26 }
    }
}

/// A pickle that has been read: all of its values, and which of them is the answer.
#[derive(Debug)]
pub struct Pickle<'a> {
    arena: PickleArena<'a>,
    root: NodeIndex,
    end: usize,
}

impl<'a> Pickle<'a> {
    /// Reads one pickle from the beginning of `bytes`, within [`PickleLimits::default`].
    pub fn parse(bytes: &'a [u8], policy: Policy) -> Result<Pickle<'a>> {
        Pickle::parse_within(bytes, policy, PickleLimits::default())
    }

    /// Reads one pickle from the beginning of `bytes`.
    pub fn parse_within(
        bytes: &'a [u8],
        policy: Policy,
        limits: PickleLimits,
    ) -> Result<Pickle<'a>> {
        let (pickle, read) = Pickle::parse_partly(bytes, policy, limits);
        read.map(|()| pickle)
    }

    /// Reads as far as it goes: everything that was made until the end or the first fault,
    /// and that fault. Python obeys a broken file up to there too, so what such a file names
    /// is worth knowing. After a fault the root is `None`.
    pub fn parse_partly(
        bytes: &'a [u8],
        policy: Policy,
        limits: PickleLimits,
    ) -> (Pickle<'a>, Result<()>) {
        machine::PickleMachine::new(bytes, policy, limits).run()
    }

    /// The value that was pickled.
    #[must_use]
    pub fn root(&self) -> PickleRef<'_> {
        PickleRef::new(self, self.root)
    }

    /// Every value that the pickle made, whether the answer holds it or not: what a file
    /// names and throws away is still what it names.
    pub fn values(&self) -> impl Iterator<Item = PickleRef<'_>> {
        // No more than a u32 can count are ever made.
        (0..self.arena.nodes.len() as u32).map(|place| PickleRef::new(self, place))
    }

    /// Where this pickle ends in its bytes: old PyTorch files hold several in a row.
    #[must_use]
    pub fn end(&self) -> usize {
        self.end
    }
}
