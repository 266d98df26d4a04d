//! Numbers and text, in the several spellings that the protocols have for them.

use super::arena::PickleNode;
use super::reader::bad;
use plimsoll_machine::error::Result;

/// An integer in little-endian two's complement, of any length.
pub(super) fn long(bytes: &[u8]) -> PickleNode<'_> {
    let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
    let fill = if negative { 0xff } else { 0 };
    let (low, high) = bytes.split_at(bytes.len().min(8));
    let mut word = [fill; 8];
    word[..low.len()].copy_from_slice(low);
    let value = i64::from_le_bytes(word);
    if high.iter().all(|&b| b == fill) && (value < 0) == negative {
        PickleNode::Int(value)
    } else {
        PickleNode::BigInt(bytes)
    }
}

/// `I` and `L` lines: decimal, with an optional L; `00` and `01` are booleans under `I`.
pub(super) fn decimal<'a>(line: &[u8], at: usize) -> Result<PickleNode<'a>> {
    let text = std::str::from_utf8(line).unwrap_or("?").trim();
    let digits = text.strip_suffix('L').unwrap_or(text);
    if let Ok(value) = digits.parse::<i64>() {
        return Ok(PickleNode::Int(value));
    }
    let wide = digits.parse::<i128>().map_err(|_| {
        bad(at, format!("{:?} is not an integer of at most 128 bits", shorten(text)))
    })?;
    Ok(PickleNode::OwnedBigInt(wide.to_le_bytes().into()))
}

/// An `F` line.
pub(super) fn float<'a>(line: &[u8], at: usize) -> Result<PickleNode<'a>> {
    let text = std::str::from_utf8(line).unwrap_or("?").trim();
    let value = text.parse::<f64>();
    value
        .map(PickleNode::Float)
        .map_err(|_| bad(at, format!("{:?} is not a number", shorten(text))))
}

/// Text that should be UTF-8. Python writes lone surrogates too (odd file names in a
/// traceback): those become U+FFFD, for no reader of a traceback can do better.
pub(super) fn text(bytes: &[u8]) -> PickleNode<'_> {
    match std::str::from_utf8(bytes) {
        Ok(text) => PickleNode::Text(text),
        Err(_) => PickleNode::OwnedText(String::from_utf8_lossy(bytes).into()),
    }
}

/// A Python 2 `str`: text where it is text, otherwise bytes.
pub(super) fn old_string(bytes: &[u8]) -> PickleNode<'_> {
    std::str::from_utf8(bytes).map_or(PickleNode::Bytes(bytes), PickleNode::Text)
}

/// An `S` line: a Python literal in quotes.
pub(super) fn quoted(line: &[u8], at: usize) -> Result<PickleNode<'_>> {
    let inner = match line.trim_ascii() {
        [q @ (b'\'' | b'"'), inner @ .., end] if q == end => inner,
        _ => return Err(bad(at, "a STRING without its quotes")),
    };
    if !inner.contains(&b'\\') {
        return Ok(old_string(inner));
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'n') => out.push(b'\n'),
            Some(b'r') => out.push(b'\r'),
            Some(b't') => out.push(b'\t'),
            Some(b'x') => {
                let pair = [rest.next().unwrap_or(b'?'), rest.next().unwrap_or(b'?')];
                let byte = hex(&pair).ok_or_else(|| bad(at, "\\x without two hex digits"))?;
                out.push(byte as u8);
            }
            Some(plain @ (b'\\' | b'\'' | b'"')) => out.push(plain),
            _ => return Err(bad(at, "an escape in a STRING that Python 2 does not write")),
        }
    }
    Ok(match String::from_utf8(out) {
        Ok(text) => PickleNode::OwnedText(text.into()),
        Err(other) => PickleNode::OwnedBytes(other.into_bytes().into()),
    })
}

/// A `V` line: Latin-1 with `\uXXXX` and `\UXXXXXXXX`.
pub(super) fn raw_unicode(line: &[u8], at: usize) -> Result<PickleNode<'_>> {
    if line.is_ascii() && !line.contains(&b'\\') {
        return Ok(text(line));
    }
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let [first, tail @ ..] = rest {
        let digits = match (first, tail.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                out.push(char::from(*first));
                rest = tail;
                continue;
            }
        };
        let code = tail.get(1..=digits).and_then(hex);
        let code = code.ok_or_else(|| bad(at, format!("\\u without {digits} hex digits")))?;
        out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
        rest = tail.get(digits + 1..).unwrap_or_default();
    }
    Ok(PickleNode::OwnedText(out.into()))
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0u32, |sum, &d| Some(sum << 4 | char::from(d).to_digit(16)?))
}

/// What a message may quote of an untrusted file: little, and no control characters.
pub(super) fn shorten(text: &str) -> String {
    let mut out: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    if text.chars().nth(60).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longs_of_every_length() {
        for (bytes, value) in [
            (&[][..], 0),
            (&[0xff], -1),
            (&[0xff, 0], 255),
            (&[0x00, 0x80], -32768),
            (&[0xff; 8], -1),
            (&[0xff; 20], -1),
            (&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1),
        ] {
            assert!(matches!(long(bytes), PickleNode::Int(v) if v == value), "{bytes:?}");
        }
        let past = [0, 0, 0, 0, 0, 0, 0, 0x80, 0];
        assert!(matches!(long(&past), PickleNode::BigInt(b) if b == past));
    }

    #[test]
    fn old_spellings_of_text() {
        let text = |node: Result<PickleNode<'_>>| match node {
            Ok(PickleNode::Text(t)) => t.to_string(),
            Ok(PickleNode::OwnedText(t)) => t.to_string(),
            other => format!("{other:?}"),
        };
        assert_eq!(text(quoted(b"'a\\n\\x41\\''", 0)), "a\nA'");
        assert_eq!(text(raw_unicode(b"\\u00e9\xe9\\U0001f600\\n", 0)), "éé😀\\n");
        assert!(quoted(b"'a", 0).is_err());
        assert!(quoted(b"'", 0).is_err());
        assert!(raw_unicode(b"\\u12", 0).is_err());
    }
}
