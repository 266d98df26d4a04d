//! Bytes with a position. Every length that the file declares is compared with what is
//! left of it before anything is made from it.

use plimsoll_machine::error::{Error, Result};

/// An error at a byte of the pickle.
pub(super) fn bad(at: usize, why: impl Into<String>) -> Error {
    Error::Malformed { what: format!("pickle, byte {at}"), why: why.into() }
}

pub(super) struct PickleReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> PickleReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> PickleReader<'a> {
        PickleReader { bytes, at: 0 }
    }

    /// The offset of the next byte.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// How long the whole input is.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    fn left(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// The next `n` bytes.
    pub(super) fn take(&mut self, n: u64) -> Result<&'a [u8]> {
        let left = self.left();
        let taken = usize::try_from(n).ok().and_then(|n| left.get(..n)).ok_or_else(|| {
            let left = left.len();
            bad(self.at, format!("{n} bytes announced, {left} left: the file is cut short"))
        })?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64)?);
        Ok(out)
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// The one number that pickle writes with its high byte first.
    pub(super) fn f64_big_endian(&mut self) -> Result<f64> {
        Ok(f64::from_be_bytes(self.array()?))
    }

    /// Bytes with their count before them in one, four or eight bytes.
    pub(super) fn counted(&mut self, width: Width) -> Result<&'a [u8]> {
        let n = match width {
            Width::One => self.u8()?.into(),
            Width::Four => self.u32()?.into(),
            Width::Eight => self.u64()?,
        };
        self.take(n)
    }

    /// The rest of a line, without its newline.
    pub(super) fn line(&mut self) -> Result<&'a [u8]> {
        let end = self.left().iter().position(|&b| b == b'\n');
        let end = end.ok_or_else(|| bad(self.at, "a line without an end: cut short"))?;
        let line = self.take(end as u64)?;
        self.at += 1;
        Ok(line)
    }
}

/// How many bytes a count is written in.
#[derive(Clone, Copy)]
pub(super) enum Width {
    One,
    Four,
    Eight,
}
