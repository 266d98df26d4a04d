//! Lines of text at the start of a file, counted, and rows of numbers.

use super::flaw::{Flaw, Read};

/// Goes through a file by lines, knowing where it is.
#[derive(Debug)]
pub(crate) struct CloudLines<'a> {
    bytes: &'a [u8],
    /// The byte that comes next.
    pub(crate) at: usize,
    /// The line that was read last; the first is 1.
    pub(crate) number: usize,
}

/// Longer lines are no header and no point.
const MOST_LINE: usize = 1 << 20;
/// What comments begin with, in .ply and .pcd.
const COMMENTS: [&str; 3] = ["comment ", "obj_info ", "#"];

impl<'a> CloudLines<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> CloudLines<'a> {
        CloudLines { bytes, at: 0, number: 0 }
    }

    /// The next line without its end, or nothing where there are no more.
    pub(crate) fn next(&mut self) -> Read<Option<&'a str>> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let window = rest.get(..MOST_LINE).unwrap_or(rest);
        let end = window.iter().position(|byte| *byte == b'\n');
        let length = match end {
            Some(end) => end,
            None if window.len() == rest.len() => rest.len(),
            None => return Err(Flaw::on(self.number, "a line of more than a million bytes")),
        };
        self.at += length + usize::from(end.is_some());
        let line = rest.get(..length).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.text(line).map(Some)
    }

    /// What is written there. A comment may be in any encoding, as nobody reads it.
    fn text(&self, line: &'a [u8]) -> Read<&'a str> {
        let error = match std::str::from_utf8(line) {
            Ok(text) => return Ok(text),
            Err(error) => error,
        };
        let start = line.get(..error.valid_up_to()).and_then(|start| str::from_utf8(start).ok());
        start
            .filter(|start| COMMENTS.iter().any(|word| start.starts_with(word)))
            .ok_or_else(|| Flaw::on(self.number, "it is not text"))
    }

    /// The next line that says something.
    pub(crate) fn next_full(&mut self) -> Read<Option<&'a str>> {
        while let Some(line) = self.next()? {
            if !line.trim().is_empty() {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }

    /// A flaw on the line that was read last.
    pub(crate) fn flaw(&self, why: impl Into<String>) -> Flaw {
        Flaw::on(self.number.max(1), why)
    }
}

/// A number of a line of text, rounded to single precision from double, as binary ones are.
pub(crate) fn number(word: &str) -> Option<f32> {
    word.parse::<f64>().ok().map(|value| value as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_may_be_in_any_encoding() {
        let mut lines =
            CloudLines::new(b"comment by M\xfcller\r\n# M\xfcller\nproperty M\xfcller\n");
        assert_eq!(lines.next().unwrap(), Some("comment by M"));
        assert_eq!(lines.next().unwrap(), Some("# M"));
        assert_eq!(lines.next().unwrap_err(), Flaw::on(3, "it is not text"));
    }
}
