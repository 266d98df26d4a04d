//! KITTI's `.bin`: x, y, z and intensity as little-endian floats, and nothing else.

use super::FileShape;
use super::columns::{CloudColumn, ColumnType, gather};
use super::flaw::{Flaw, Read};

const POINT: usize = 16;

/// Points and features, of a file of this many bytes.
pub(crate) fn shape(length: usize) -> Read<FileShape> {
    let over = length % POINT;
    if over != 0 {
        let why = format!("{over} bytes are left over; a point has four floats, 16 bytes");
        return Err(Flaw::at(length - over, why));
    }
    Ok(FileShape { counts: vec![(length / POINT) as u64], features: 1, stacked: false })
}

/// The floats.
pub(crate) fn read(bytes: &[u8]) -> Read<Vec<Vec<f32>>> {
    shape(bytes.len())?;
    let column = |index: usize| CloudColumn {
        start: 4 * index,
        step: POINT,
        kind: ColumnType::F32,
        big: false,
    };
    let columns = [0, 1, 2, 3].map(column);
    Ok(vec![gather(bytes, &columns, bytes.len() / POINT)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_sixteen_bytes() {
        let bytes: Vec<u8> = (0..8).flat_map(|v| (v as f32).to_le_bytes()).collect();
        assert_eq!(read(&bytes).unwrap()[0][4..], [4.0, 5.0, 6.0, 7.0]);
        let flaw = read(&bytes[..30]).unwrap_err();
        assert_eq!(flaw, Flaw::at(16, flaw.why.clone()));
        assert_eq!(shape(0).unwrap().counts, [0]);
    }
}
