//! The wire format of protobuf over a file: fields one by one, their bytes on demand.

use std::io::{Read, Seek, SeekFrom};

use super::OnnxError;

/// The longest name.
pub(super) const LONGEST_TEXT: usize = 4096;

/// A field of a message.
#[derive(Debug, Clone, Copy)]
pub(super) enum WireField {
    /// A number of variable length.
    Number(u64),
    /// A text, a message or packed numbers, up to this place in the file.
    Bytes(u64),
    /// Four bytes.
    Fixed(u32),
    /// Eight bytes that nothing here needs.
    Long,
}

/// A place in a file.
pub(super) struct Wire<F> {
    file: F,
    pub(super) at: u64,
    pub(super) length: u64,
}

impl<F: Read + Seek> Wire<F> {
    pub(super) fn new(mut file: F) -> Result<Wire<F>, OnnxError> {
        let length = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Wire { file, at: 0, length })
    }

    pub(super) fn damaged(&self, what: &'static str) -> OnnxError {
        OnnxError::Damaged { what, at: self.at }
    }

    /// The next field of a message that ends at `end`. Whoever gets bytes must read them or
    /// go to their end.
    pub(super) fn next(&mut self, end: u64) -> Result<Option<(u64, WireField)>, OnnxError> {
        if self.at >= end {
            return Ok(None);
        }
        let key = self.varint()?;
        let field = match key & 7 {
            0 => WireField::Number(self.varint()?),
            1 => {
                self.array::<8>()?;
                WireField::Long
            }
            2 => {
                let length = self.varint()?;
                let stop = self.at.checked_add(length).filter(|&stop| stop <= end);
                WireField::Bytes(stop.ok_or_else(|| self.past(length, end))?)
            }
            5 => WireField::Fixed(u32::from_le_bytes(self.array()?)),
            _ => return Err(self.damaged("a field of unknown kind")),
        };
        match key >> 3 {
            0 => Err(self.damaged("a field without a number")),
            number => Ok(Some((number, field))),
        }
    }

    /// A length past its end: of the file, when the message is the file itself.
    fn past(&self, length: u64, end: u64) -> OnnxError {
        match self.at.checked_add(length) {
            // A length that a whole file could have: the download is incomplete.
            Some(need) if end == self.length && need < 1 << 32 => {
                OnnxError::Truncated { name: "the file".to_string(), have: self.length, need }
            }
            _ => self.damaged("an early end"),
        }
    }

    pub(super) fn go(&mut self, place: u64) -> Result<(), OnnxError> {
        let step = place as i64 - self.at as i64;
        self.file.seek_relative(step)?;
        self.at = place;
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], OnnxError> {
        if self.length.saturating_sub(self.at) < N as u64 {
            return Err(self.damaged("an early end"));
        }
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    pub(super) fn varint(&mut self) -> Result<u64, OnnxError> {
        let (mut value, at) = (0u64, self.at);
        for index in 0..10 {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7f) << (7 * index).min(63);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(OnnxError::Damaged { what: "a number without an end", at })
    }

    /// The bytes up to `end`, of which there are at most `most`.
    pub(super) fn bytes(&mut self, end: u64, most: usize) -> Result<Vec<u8>, OnnxError> {
        let length = usize::try_from(end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        if length > most {
            return Err(OnnxError::TooMuch { what: "bytes in a text", limit: most });
        }
        let mut bytes = vec![0; length];
        self.file.read_exact(&mut bytes)?;
        self.at = end;
        Ok(bytes)
    }

    pub(super) fn text(&mut self, end: u64) -> Result<String, OnnxError> {
        self.long_text(end, LONGEST_TEXT)
    }

    /// A text of at most `longest` bytes.
    pub(super) fn long_text(&mut self, end: u64, longest: usize) -> Result<String, OnnxError> {
        String::from_utf8(self.bytes(end, longest)?)
            .map_err(|_| self.damaged("a text that is not UTF-8"))
    }
}
