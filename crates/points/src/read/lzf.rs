//! LZF, the compression of `binary_compressed` clouds: runs of literal bytes and copies of
//! what came before.

/// Unpacks, given how long the result is; otherwise the byte of `packed` where it went wrong.
pub(crate) fn unpack(packed: &[u8], length: usize) -> Result<Vec<u8>, usize> {
    let mut out: Vec<u8> = Vec::new();
    let mut at = 0;
    while let Some(&control) = packed.get(at) {
        let start = at;
        at += 1;
        if control < 32 {
            let end = at + usize::from(control) + 1;
            out.extend(packed.get(at..end).ok_or(start)?);
            at = end;
        } else {
            let mut count = usize::from(control >> 5);
            if count == 7 {
                count += usize::from(*packed.get(at).ok_or(start)?);
                at += 1;
            }
            let low = usize::from(*packed.get(at).ok_or(start)?);
            at += 1;
            let back = (usize::from(control & 31) << 8 | low) + 1;
            let from = out.len().checked_sub(back).ok_or(start)?;
            for index in from..from + count + 2 {
                // What is copied may itself just have been written.
                let byte = *out.get(index).ok_or(start)?;
                out.push(byte);
            }
        }
        if out.len() > length {
            return Err(start);
        }
    }
    if out.len() == length { Ok(out) } else { Err(packed.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_copies_that_overlap() {
        // "ab", then a copy of six bytes from two back.
        assert_eq!(unpack(&[1, b'a', b'b', 0b100_00000, 1], 8).unwrap(), b"abababab");
        // A long copy has its length in a byte of its own.
        assert_eq!(unpack(&[0, b'x', 0b111_00000, 3, 0], 13).unwrap(), [b'x'; 13]);
        assert_eq!(unpack(&[], 0).unwrap(), b"");
    }

    #[test]
    fn what_is_cut_or_lies_is_refused() {
        assert_eq!(unpack(&[5, b'a'], 6), Err(0));
        assert_eq!(unpack(&[0, b'a', 0b001_00000], 4), Err(2));
        assert_eq!(unpack(&[0, b'a', 0b001_00000, 1], 4), Err(2));
        assert_eq!(unpack(&[1, b'a', b'b'], 1), Err(0));
        assert_eq!(unpack(&[0, b'a'], 2), Err(2));
    }
}
