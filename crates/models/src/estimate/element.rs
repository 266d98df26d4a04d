//! How one tensor stores its elements.
//!
//! An [`ElementType`] is a layout: how many elements a block has and how many bytes (a Q8_0 block is
//! 32 bytes of values and a two-byte scale, hence 34/32 bytes a weight). What a model file is
//! called is a `WeightType`, which is often a mix of these.

use std::fmt;
use std::str::FromStr;

use super::WeightType;
use plimsoll_machine::error::Error;
use plimsoll_machine::units::Bytes;

/// How many elements a block has, and how many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockLayout {
    pub(super) elements: u64,
    pub(super) bytes: u64,
}

impl BlockLayout {
    /// A matrix of `rows` rows; blocks never cross from one row to the next.
    pub(super) fn matrix(self, rows: u64, columns: u64) -> u64 {
        let row = columns.div_ceil(self.elements).saturating_mul(self.bytes);
        row.saturating_mul(rows)
    }
}

/// How one tensor stores its elements.
///
/// ```
/// use plimsoll_models::{Bytes, ElementType};
/// let kind: ElementType = "q8_0".parse()?;
/// assert_eq!(kind.bytes_for(64), Bytes(68)); // two blocks of 32 values and a scale
/// # Ok::<(), plimsoll_models::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 16-bit floats with the exponent of 32-bit ones.
    Bf16,
    /// 8 bits and a scale for every 32.
    Q8_0,
    /// 4 bits and a scale for every 32.
    Q4_0,
    /// 4 bits, a scale and a minimum for every 32.
    Q4_1,
    /// 5 bits and a scale for every 32.
    Q5_0,
    /// 5 bits, a scale and a minimum for every 32.
    Q5_1,
    /// 4 bits on a curve, and a scale, for every 32.
    Iq4Nl,
    /// 4 bits on a curve, with scales for 256.
    Iq4Xs,
    /// 2 bits, with scales for 256.
    Q2K,
    /// 3 bits, with scales for 256.
    Q3K,
    /// 4 bits, with scales for 256.
    Q4K,
    /// 5 bits, with scales for 256.
    Q5K,
    /// 6 bits, with scales for 256.
    Q6K,
    /// 8 bits, a scale and a sum for every 32.
    Q8_1,
    /// 8 bits, with a scale and sums for 256.
    Q8K,
    /// One bit and a scale for every 128.
    Q1_0,
    /// 2 bits and a scale for every 64.
    Q2_0,
    /// 2.06 bits from a codebook.
    Iq2Xxs,
    /// 2.31 bits from a codebook.
    Iq2Xs,
    /// 2.5 bits from a codebook.
    Iq2S,
    /// 3.06 bits from a codebook.
    Iq3Xxs,
    /// 3.44 bits from a codebook.
    Iq3S,
    /// 1.56 bits from a codebook.
    Iq1S,
    /// 1.75 bits from a codebook.
    Iq1M,
    /// Three values a weight, packed five to a byte.
    Tq1_0,
    /// Three values a weight, packed four to a byte.
    Tq2_0,
    /// 4-bit floats with a shared exponent for every 32.
    Mxfp4,
    /// 4-bit floats with 8-bit scales for every 16.
    Nvfp4,
    /// 64-bit floats.
    F64,
    /// 8-bit whole numbers.
    I8,
    /// 16-bit whole numbers.
    I16,
    /// 32-bit whole numbers.
    I32,
    /// 64-bit whole numbers.
    I64,
}

/// Name, elements in a block, bytes of a block.
const ELEMENTS: [(ElementType, &str, u64, u64); 35] = [
    (ElementType::F32, "f32", 1, 4),
    (ElementType::F16, "f16", 1, 2),
    (ElementType::Bf16, "bf16", 1, 2),
    (ElementType::Q8_0, "q8_0", 32, 34),
    (ElementType::Q4_0, "q4_0", 32, 18),
    (ElementType::Q4_1, "q4_1", 32, 20),
    (ElementType::Q5_0, "q5_0", 32, 22),
    (ElementType::Q5_1, "q5_1", 32, 24),
    (ElementType::Iq4Nl, "iq4_nl", 32, 18),
    (ElementType::Iq4Xs, "iq4_xs", 256, 136),
    (ElementType::Q2K, "q2_k", 256, 84),
    (ElementType::Q3K, "q3_k", 256, 110),
    (ElementType::Q4K, "q4_k", 256, 144),
    (ElementType::Q5K, "q5_k", 256, 176),
    (ElementType::Q6K, "q6_k", 256, 210),
    (ElementType::Q8_1, "q8_1", 32, 36),
    (ElementType::Q8K, "q8_k", 256, 292),
    (ElementType::Q1_0, "q1_0", 128, 18),
    (ElementType::Q2_0, "q2_0", 64, 18),
    (ElementType::Iq2Xxs, "iq2_xxs", 256, 66),
    (ElementType::Iq2Xs, "iq2_xs", 256, 74),
    (ElementType::Iq2S, "iq2_s", 256, 82),
    (ElementType::Iq3Xxs, "iq3_xxs", 256, 98),
    (ElementType::Iq3S, "iq3_s", 256, 110),
    (ElementType::Iq1S, "iq1_s", 256, 50),
    (ElementType::Iq1M, "iq1_m", 256, 56),
    (ElementType::Tq1_0, "tq1_0", 256, 54),
    (ElementType::Tq2_0, "tq2_0", 256, 66),
    (ElementType::Mxfp4, "mxfp4", 32, 17),
    (ElementType::Nvfp4, "nvfp4", 64, 36),
    (ElementType::F64, "f64", 1, 8),
    (ElementType::I8, "i8", 1, 1),
    (ElementType::I16, "i16", 1, 2),
    (ElementType::I32, "i32", 1, 4),
    (ElementType::I64, "i64", 1, 8),
];

/// The numbers that GGUF files give to types. Those between, and 4, 5, 31 to 33 and 36 to 38,
/// were withdrawn.
const GGML: [(u32, ElementType); 35] = [
    (0, ElementType::F32),
    (1, ElementType::F16),
    (2, ElementType::Q4_0),
    (3, ElementType::Q4_1),
    (6, ElementType::Q5_0),
    (7, ElementType::Q5_1),
    (8, ElementType::Q8_0),
    (9, ElementType::Q8_1),
    (10, ElementType::Q2K),
    (11, ElementType::Q3K),
    (12, ElementType::Q4K),
    (13, ElementType::Q5K),
    (14, ElementType::Q6K),
    (15, ElementType::Q8K),
    (16, ElementType::Iq2Xxs),
    (17, ElementType::Iq2Xs),
    (18, ElementType::Iq3Xxs),
    (19, ElementType::Iq1S),
    (20, ElementType::Iq4Nl),
    (21, ElementType::Iq3S),
    (22, ElementType::Iq2S),
    (23, ElementType::Iq4Xs),
    (24, ElementType::I8),
    (25, ElementType::I16),
    (26, ElementType::I32),
    (27, ElementType::I64),
    (28, ElementType::F64),
    (29, ElementType::Iq1M),
    (30, ElementType::Bf16),
    (34, ElementType::Tq1_0),
    (35, ElementType::Tq2_0),
    (39, ElementType::Mxfp4),
    (40, ElementType::Nvfp4),
    (41, ElementType::Q1_0),
    (42, ElementType::Q2_0),
];

impl ElementType {
    /// What this many elements take, in whole blocks; the maximum where that would overflow.
    #[must_use]
    pub fn bytes_for(self, elements: u64) -> Bytes {
        Bytes(self.layout().matrix(1, elements))
    }

    /// How many elements share a block: a row's length must be a multiple of it.
    #[must_use]
    pub fn block(self) -> u64 {
        self.layout().elements
    }

    /// The type that GGUF files mean by this number; `None` for one that is not in use.
    ///
    /// ```
    /// use plimsoll_models::estimate::ElementType;
    /// assert_eq!(ElementType::from_ggml(12), Some(ElementType::Q4K));
    /// assert_eq!(ElementType::from_ggml(4), None); // withdrawn long ago
    /// ```
    #[must_use]
    pub fn from_ggml(number: u32) -> Option<ElementType> {
        GGML.iter().find(|row| row.0 == number).map(|row| row.1)
    }

    /// The number that GGUF files have for it.
    #[must_use]
    pub fn to_ggml(self) -> u32 {
        GGML.iter().find(|row| row.1 == self).map_or(0, |row| row.0)
    }

    /// Whether it is a block type, rather than a plain number.
    #[must_use]
    pub fn is_quantised(self) -> bool {
        self.block() > 1
    }

    /// Its name, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    pub(super) fn layout(self) -> BlockLayout {
        let (_, _, elements, bytes) = self.row();
        BlockLayout { elements, bytes }
    }

    fn row(self) -> (ElementType, &'static str, u64, u64) {
        ELEMENTS.into_iter().find(|row| row.0 == self).unwrap_or((self, "f32", 1, 4))
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ElementType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let name = plain_name(text);
        ELEMENTS.iter().find(|row| row.1 == name).map(|row| row.0).ok_or_else(|| Error::Config {
            field: "element type",
            value: format!("{text:?}"),
            range: "f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl or another of ggml's types",
        })
    }
}

/// How a cache stores keys and values: one type for both, or two.
///
/// ```
/// use plimsoll_models::{CacheTypes, ElementType};
/// let types: CacheTypes = "q8_0,q4_0".parse()?;
/// assert_eq!((types.keys, types.values), (ElementType::Q8_0, ElementType::Q4_0));
/// assert_eq!(CacheTypes::from(ElementType::F16).to_string(), "f16");
/// # Ok::<(), plimsoll_models::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheTypes {
    /// How keys are stored.
    pub keys: ElementType,
    /// How values are stored.
    pub values: ElementType,
}

impl CacheTypes {
    /// As engines keep it beside weights of a type: alike where those are plain floats, f16 beside
    /// quantised ones, which are made once with care while the cache is written anew for every
    /// token.
    #[must_use]
    pub fn beside(weights: WeightType) -> CacheTypes {
        let both = match weights {
            WeightType::F32 => ElementType::F32,
            WeightType::Bf16 => ElementType::Bf16,
            _ => ElementType::F16,
        };
        both.into()
    }

    /// What this many keys and as many values take.
    #[must_use]
    pub fn bytes_for(self, elements: u64) -> Bytes {
        self.keys.bytes_for(elements).saturating_add(self.values.bytes_for(elements))
    }
}

impl From<ElementType> for CacheTypes {
    fn from(both: ElementType) -> Self {
        CacheTypes { keys: both, values: both }
    }
}

impl fmt::Display for CacheTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.keys == self.values {
            return self.keys.fmt(f);
        }
        f.pad(&format!("{},{}", self.keys, self.values))
    }
}

impl FromStr for CacheTypes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (keys, values) = text.split_once(',').unwrap_or((text, text));
        Ok(CacheTypes { keys: keys.parse()?, values: values.parse()? })
    }
}

/// Lower case, underscores, and the names that other tools use for the plain floats.
pub(super) fn plain_name(text: &str) -> String {
    let lower = text.trim().to_ascii_lowercase().replace('-', "_");
    match lower.as_str() {
        "fp32" | "float32" | "float" => "f32".to_string(),
        "fp16" | "float16" | "half" => "f16".to_string(),
        "bfloat16" => "bf16".to_string(),
        _ => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_out_and_come_back() {
        for (kind, name, ..) in ELEMENTS {
            assert_eq!(name.parse::<ElementType>(), Ok(kind));
            assert_eq!(kind.to_string(), name);
            assert_eq!(ElementType::from_ggml(kind.to_ggml()), Some(kind));
        }
        assert_eq!(" FP16 ".parse::<ElementType>(), Ok(ElementType::F16));
        assert!("".parse::<ElementType>().is_err());
        assert_eq!("f32".parse(), Ok(CacheTypes::from(ElementType::F32)));
        assert!("q8_0,".parse::<CacheTypes>().is_err());
    }

    #[test]
    fn blocks_are_whole_and_nothing_wraps() {
        assert_eq!(ElementType::Q4_0.bytes_for(33), Bytes(36));
        assert_eq!(ElementType::Q6K.bytes_for(256), Bytes(210));
        assert_eq!(ElementType::F32.bytes_for(u64::MAX), Bytes::MAX);
        assert_eq!(ElementType::F16.layout().matrix(u64::MAX, 3), u64::MAX);
    }
}
