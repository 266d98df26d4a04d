//! Quantities of memory: one type, one way to write them, one way to read them.
//!
//! `8GiB` and `512MiB` are binary, `8GB` and `512MB` are decimal, a bare number is
//! bytes. Everything is a `u64`, so nothing wraps at 2³² or 2³¹ elements.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Rem, Sub, SubAssign};
use std::str::FromStr;

use crate::error::Error;

/// A number of bytes.
///
/// ```
/// use plimsoll_machine::Bytes;
/// assert_eq!("8GiB".parse::<Bytes>()?, Bytes::gib(8));
/// assert_eq!("8GB".parse::<Bytes>()?, Bytes(8_000_000_000));
/// assert_eq!(Bytes::mib(1536).to_string(), "1.50 GiB");
/// # Ok::<(), plimsoll_machine::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 20] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("pib", 1 << 50),
    ("eib", 1 << 60),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("pb", 1_000_000_000_000_000),
    ("eb", 1_000_000_000_000_000_000),
    ("ki", 1 << 10),
    ("mi", 1 << 20),
    ("gi", 1 << 30),
    ("ti", 1 << 40),
    ("pi", 1 << 50),
    ("ei", 1 << 60),
    ("b", 1),
    ("", 1),
];

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);
    /// As many as can be counted: "no limit".
    pub const MAX: Bytes = Bytes(u64::MAX);

    /// This many KiB.
    #[must_use]
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n << 10)
    }

    /// This many MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    /// This many GiB.
    #[must_use]
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n << 30)
    }

    /// The plain number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// In MiB, for printing and arithmetic with ratios.
    #[must_use]
    pub fn as_mib(self) -> f64 {
        self.0 as f64 / (1u64 << 20) as f64
    }

    /// In GiB, for printing and arithmetic with ratios.
    #[must_use]
    pub fn as_gib(self) -> f64 {
        self.0 as f64 / (1u64 << 30) as f64
    }

    /// A share of it, rounded down: `Bytes::gib(10).fraction(0.7)`.
    #[must_use]
    pub fn fraction(self, share: f64) -> Bytes {
        Bytes((self.0 as f64 * share) as u64)
    }

    /// Rounded up to a multiple of `step`; stays at the maximum where that would overflow.
    #[must_use]
    pub const fn round_up(self, step: u64) -> Bytes {
        match self.0.checked_next_multiple_of(step) {
            Some(n) => Bytes(n),
            None => Bytes::MAX,
        }
    }

    /// The sum, or the maximum where it would overflow.
    #[must_use]
    pub const fn saturating_add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }

    /// The difference, or none where it would be negative.
    #[must_use]
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// The difference, or nothing where it would be negative.
    #[must_use]
    pub const fn checked_sub(self, other: Bytes) -> Option<Bytes> {
        match self.0.checked_sub(other.0) {
            Some(bytes) => Some(Bytes(bytes)),
            None => None,
        }
    }

    /// The product, or the maximum where it would overflow.
    #[must_use]
    pub const fn saturating_mul(self, n: u64) -> Bytes {
        Bytes(self.0.saturating_mul(n))
    }
}

/// A number of bytes as text with its unit: `1.50 GiB`. The same as `Bytes`' own Display.
#[must_use]
pub fn format_bytes(bytes: impl Into<Bytes>) -> String {
    bytes.into().to_string()
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            n if n < 1 << 10 => format!("{n} B"),
            n => {
                let (unit, scale) =
                    [("EiB", 60), ("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)]
                        .into_iter()
                        .find(|(_, shift)| n >> shift > 0)
                        .unwrap_or(("KiB", 10));
                format!("{:.2} {unit}", n as f64 / (1u64 << scale) as f64)
            }
        };
        f.pad(&text)
    }
}

impl FromStr for Bytes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || Error::Config {
            field: "size",
            value: format!("{text:?}"),
            range: "a number below 2^64 bytes with an optional unit, such as 8GiB, 512MiB, 8GB or 4096",
        };
        let lower = text.trim().to_ascii_lowercase().replace('_', "");
        let end = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
        let (number, unit) = lower.split_at(end);
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(bad)?;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(*scale).map(Bytes).ok_or_else(bad);
        }
        let value = number.parse::<f64>().map_err(|_| bad())? * *scale as f64;
        // 2^64 as f64 is exact, so everything below it converts without wrapping.
        if value.is_finite() && (0.0..18_446_744_073_709_551_616.0).contains(&value) {
            Ok(Bytes(value.round() as u64))
        } else {
            Err(bad())
        }
    }
}

impl From<u64> for Bytes {
    fn from(n: u64) -> Bytes {
        Bytes(n)
    }
}

impl From<usize> for Bytes {
    fn from(n: usize) -> Bytes {
        Bytes(n as u64)
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.0 += other.0;
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0 - other.0)
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Bytes) {
        self.0 -= other.0;
    }
}

impl Mul<u64> for Bytes {
    type Output = Bytes;
    fn mul(self, n: u64) -> Bytes {
        Bytes(self.0 * n)
    }
}

impl Div<u64> for Bytes {
    type Output = Bytes;
    fn div(self, n: u64) -> Bytes {
        Bytes(self.0 / n)
    }
}

impl Rem<u64> for Bytes {
    type Output = u64;
    fn rem(self, n: u64) -> u64 {
        self.0 % n
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(parts: I) -> Bytes {
        parts.fold(Bytes::ZERO, Bytes::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            ("8gib", 8 << 30),
            ("8 GiB", 8 << 30),
            ("8GB", 8_000_000_000),
            ("512MiB", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("4_096", 4096),
            ("0", 0),
            ("16Gi", 16 << 30),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", "GiB", "-1", "8 parsecs", "1e9GiB", "99999999999TiB", "NaN", "1..5GiB", "inf"]
        {
            assert!(text.parse::<Bytes>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn printed_sizes_name_their_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (3 << 29, "1.50 GiB"),
            (5 << 40, "5.00 TiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>10}", Bytes(1)), "       1 B");
    }
}
