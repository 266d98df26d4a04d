//! How far an estimate may be off, and why that is believed.

/// What a measured peak is expected to lie between.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EstimateRange {
    /// The least.
    pub low_bytes: u64,
    /// The most: what has to fit.
    pub high_bytes: u64,
    /// Whether models of this kind were measured.
    pub checked: bool,
    /// What the range rests on.
    pub basis: String,
}

impl EstimateRange {
    /// The widest range of what was not checked, in thousandths either way.
    pub const UNCHECKED: u64 = 250;
    /// The widest range of what was checked.
    pub const CHECKED: u64 = 50;

    /// A range around a total of which models like it were measured: as many thousandths either
    /// way, and no more than [`EstimateRange::CHECKED`].
    #[must_use]
    pub fn checked(total: u64, thousandths: u64, basis: impl Into<String>) -> EstimateRange {
        EstimateRange::checked_between(total, (thousandths, thousandths), basis)
    }

    /// The same with another reach below than above.
    #[must_use]
    pub fn checked_between(
        total: u64,
        (below, above): (u64, u64),
        basis: impl Into<String>,
    ) -> EstimateRange {
        let reach = (below.min(Self::CHECKED), above.min(Self::CHECKED));
        EstimateRange::around(total, reach, true, basis.into())
    }

    /// A range around a total that no measurement of its kind stands behind.
    #[must_use]
    pub fn unchecked(total: u64, basis: impl Into<String>) -> EstimateRange {
        EstimateRange::around(total, (Self::UNCHECKED, Self::UNCHECKED), false, basis.into())
    }

    /// The same, its upper end raised by what may be there besides.
    #[must_use]
    pub fn with_more(mut self, bytes: u64) -> EstimateRange {
        self.high_bytes = self.high_bytes.saturating_add(bytes);
        self
    }

    fn around(
        total: u64,
        (below, above): (u64, u64),
        checked: bool,
        basis: String,
    ) -> EstimateRange {
        let part = |share: u64| {
            let bytes = u128::from(total) * u128::from(share) / 1000;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        EstimateRange {
            low_bytes: part(1000 - below),
            high_bytes: part(1000 + above),
            checked,
            basis,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_never_wider_than_promised() {
        let range = EstimateRange::checked(1000, 90, "runs");
        assert_eq!((range.low_bytes, range.high_bytes, range.checked), (950, 1050, true));
        let range = EstimateRange::checked(1000, 10, "runs").with_more(7);
        assert_eq!((range.low_bytes, range.high_bytes), (990, 1017));
        let range = EstimateRange::checked_between(1000, (20, 90), "runs");
        assert_eq!((range.low_bytes, range.high_bytes), (980, 1050));
        let range = EstimateRange::unchecked(1000, "none");
        assert_eq!((range.low_bytes, range.high_bytes, range.checked), (750, 1250, false));
        assert_eq!(EstimateRange::unchecked(u64::MAX, "").high_bytes, u64::MAX);
    }
}
