//! A cloud: points as floats, one after the other, wherever they lie.

use std::ops::Range;
use std::sync::Arc;

use memmap2::Mmap;
use plimsoll::{Error, Result};

/// Points of single precision: x, y, z and features of each, one point after the other.
///
/// Cheap to copy: the floats are shared, and may be a file that is mapped and not in memory.
#[derive(Debug, Clone)]
pub struct Cloud {
    floats: Arc<Floats>,
    range: Range<usize>,
    stride: usize,
}

#[derive(Debug)]
enum Floats {
    Owned(Vec<f32>),
    /// A file whose bytes are floats of this machine's own form, at these places.
    Mapped(Mmap, Range<usize>),
}

impl Floats {
    fn as_slice(&self) -> &[f32] {
        match self {
            Floats::Owned(floats) => floats,
            // Checked when it was made; nothing rather than a panic all the same.
            Floats::Mapped(map, range) => map
                .get(range.clone())
                .and_then(|bytes| bytemuck::try_cast_slice(bytes).ok())
                .unwrap_or_default(),
        }
    }
}

impl Cloud {
    /// Points that are in memory: `3 + features` floats each.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where the floats do not make whole points.
    pub fn from_points(floats: Vec<f32>, features: usize) -> Result<Cloud> {
        let stride = features.saturating_add(3);
        if !floats.len().is_multiple_of(stride) {
            return Err(Error::Config {
                field: "points",
                value: format!("{} floats", floats.len()),
                range: "a multiple of 3 + features",
            });
        }
        let range = 0..floats.len();
        Ok(Cloud { floats: Arc::new(Floats::Owned(floats)), range, stride })
    }

    /// The clouds of a mapped file, `points` points each; none where its bytes do not lie as
    /// floats must.
    pub(crate) fn mapped(
        map: Mmap,
        bytes: Range<usize>,
        clouds: usize,
        points: usize,
        stride: usize,
    ) -> Option<Vec<Cloud>> {
        let floats: &[f32] = bytemuck::try_cast_slice(map.get(bytes.clone())?).ok()?;
        let each = points.checked_mul(stride)?;
        if floats.len() != each.checked_mul(clouds)? || cfg!(target_endian = "big") {
            return None;
        }
        let floats = Arc::new(Floats::Mapped(map, bytes));
        let one = |cloud: usize| Cloud {
            floats: Arc::clone(&floats),
            range: cloud * each..(cloud + 1) * each,
            stride,
        };
        Some((0..clouds).map(one).collect())
    }

    /// All floats, `stride` for each point.
    #[must_use]
    pub fn floats(&self) -> &[f32] {
        self.floats.as_slice().get(self.range.clone()).unwrap_or_default()
    }

    /// Floats of a point: three coordinates and its features.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Numbers of a point beside its coordinates.
    #[must_use]
    pub fn features(&self) -> usize {
        self.stride - 3
    }

    /// How many points.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len() / self.stride
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Whether the points are read from a file where they lie.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        matches!(*self.floats, Floats::Mapped(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_that_are_no_whole_points_are_refused() {
        assert!(Cloud::from_points(vec![0.0; 7], 0).is_err());
        let cloud = Cloud::from_points(vec![0.0; 8], 1).unwrap();
        assert_eq!((cloud.len(), cloud.features(), cloud.is_empty()), (2, 1, false));
        assert!(Cloud::from_points(Vec::new(), 5).unwrap().is_empty());
    }
}
