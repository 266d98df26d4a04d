//! Bits into voxels.

/// A float for each bit, 1 or 0, as many as `out` has.
#[inline(always)]
pub(crate) fn floats(words: &[u64], out: &mut [f32]) {
    for (word, out) in words.iter().zip(out.chunks_mut(64)) {
        for (bit, voxel) in out.iter_mut().enumerate() {
            *voxel = (word >> bit & 1) as u32 as f32;
        }
    }
}

/// A byte for each bit.
#[inline(always)]
pub(crate) fn bytes(words: &[u64], out: &mut [u8]) {
    for (word, out) in words.iter().zip(out.chunks_mut(64)) {
        for (bit, voxel) in out.iter_mut().enumerate() {
            *voxel = (word >> bit & 1) as u8;
        }
    }
}
