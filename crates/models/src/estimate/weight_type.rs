//! The types that model files are named by.
//!
//! In all but the plain ones such a type is a mix of element types: the output matrix of a
//! "Q4_0" file is stored as Q6_K, and a "Q4_K_M" file raises whole tensors in some layers (`mix`
//! has the rules).

use std::fmt;
use std::str::FromStr;

use plimsoll_machine::error::Error;

use super::element::{ElementType, plain_name};

/// What a model's weights are stored as, by the name that its file carries.
///
/// The names that end in `_s`, `_m` and `_l` are llama.cpp's mixes; `q4_k` and `q5_k` here mean
/// that type throughout, with the output matrix at Q6_K.
///
/// ```
/// use plimsoll_models::WeightType;
/// assert_eq!("Q4_K_M".parse::<WeightType>()?, WeightType::Q4KM);
/// assert_eq!("fp16".parse::<WeightType>()?, WeightType::F16);
/// assert_eq!(WeightType::Q4KM.to_string(), "q4_k_m");
/// # Ok::<(), plimsoll_models::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WeightType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats; norms and biases stay at 32 bits, as in every type below.
    F16,
    /// 16-bit floats with the exponent of 32-bit ones.
    Bf16,
    /// Q8_0 throughout.
    Q8_0,
    /// Q4_0, the output matrix at Q6_K.
    Q4_0,
    /// Q4_1, the output matrix at Q6_K.
    Q4_1,
    /// Q5_0, the output matrix at Q6_K.
    Q5_0,
    /// Q5_1, the output matrix at Q6_K.
    Q5_1,
    /// IQ4_NL, some tensors at Q5_K.
    Iq4Nl,
    /// IQ4_XS, some tensors at Q5_K.
    Iq4Xs,
    /// The 2-bit mix.
    Q2K,
    /// The 3-bit mix, small.
    Q3KS,
    /// The 3-bit mix, medium.
    Q3KM,
    /// The 3-bit mix, large.
    Q3KL,
    /// Q4_K, the output matrix at Q6_K.
    Q4K,
    /// The 4-bit mix, small.
    Q4KS,
    /// The 4-bit mix, medium: the usual download.
    Q4KM,
    /// Q5_K, the output matrix at Q6_K.
    Q5K,
    /// The 5-bit mix, small.
    Q5KS,
    /// The 5-bit mix, medium.
    Q5KM,
    /// Q6_K throughout.
    Q6K,
    /// The 2-bit mix, small.
    Q2KS,
    /// The codebook mix of 1.6 bits.
    Iq1S,
    /// The codebook mix of 1.8 bits.
    Iq1M,
    /// The codebook mix of 2.1 bits.
    Iq2Xxs,
    /// The codebook mix of 2.3 bits.
    Iq2Xs,
    /// The codebook mix of 2.5 bits.
    Iq2S,
    /// The codebook mix of 2.7 bits.
    Iq2M,
    /// The codebook mix of 3.1 bits.
    Iq3Xxs,
    /// The codebook mix of 3.3 bits.
    Iq3Xs,
    /// The codebook mix of 3.4 bits.
    Iq3S,
    /// The codebook mix of 3.7 bits.
    Iq3M,
    /// Three values a weight, 1.7 bits; the embedding at Q4_K.
    Tq1_0,
    /// Three values a weight, 2.1 bits; the embedding at Q4_K.
    Tq2_0,
    /// Experts as 4-bit floats, everything else at Q8_0.
    Mxfp4Moe,
}

/// Name, and the type that a tensor has unless a rule of the mix says otherwise.
const WEIGHTS: [(WeightType, &str, ElementType); 35] = [
    (WeightType::F32, "f32", ElementType::F32),
    (WeightType::F16, "f16", ElementType::F16),
    (WeightType::Bf16, "bf16", ElementType::Bf16),
    (WeightType::Q8_0, "q8_0", ElementType::Q8_0),
    (WeightType::Q4_0, "q4_0", ElementType::Q4_0),
    (WeightType::Q4_1, "q4_1", ElementType::Q4_1),
    (WeightType::Q5_0, "q5_0", ElementType::Q5_0),
    (WeightType::Q5_1, "q5_1", ElementType::Q5_1),
    (WeightType::Iq4Nl, "iq4_nl", ElementType::Iq4Nl),
    (WeightType::Iq4Xs, "iq4_xs", ElementType::Iq4Xs),
    (WeightType::Q2K, "q2_k", ElementType::Q2K),
    (WeightType::Q3KS, "q3_k_s", ElementType::Q3K),
    (WeightType::Q3KM, "q3_k_m", ElementType::Q3K),
    (WeightType::Q3KL, "q3_k_l", ElementType::Q3K),
    (WeightType::Q4K, "q4_k", ElementType::Q4K),
    (WeightType::Q4KS, "q4_k_s", ElementType::Q4K),
    (WeightType::Q4KM, "q4_k_m", ElementType::Q4K),
    (WeightType::Q5K, "q5_k", ElementType::Q5K),
    (WeightType::Q5KS, "q5_k_s", ElementType::Q5K),
    (WeightType::Q5KM, "q5_k_m", ElementType::Q5K),
    (WeightType::Q6K, "q6_k", ElementType::Q6K),
    (WeightType::Q2KS, "q2_k_s", ElementType::Q2K),
    (WeightType::Iq1S, "iq1_s", ElementType::Iq1S),
    (WeightType::Iq1M, "iq1_m", ElementType::Iq1M),
    (WeightType::Iq2Xxs, "iq2_xxs", ElementType::Iq2Xxs),
    (WeightType::Iq2Xs, "iq2_xs", ElementType::Iq2Xs),
    // The names of these are one step above what most of their tensors are.
    (WeightType::Iq2S, "iq2_s", ElementType::Iq2Xs),
    (WeightType::Iq2M, "iq2_m", ElementType::Iq2S),
    (WeightType::Iq3Xxs, "iq3_xxs", ElementType::Iq3Xxs),
    (WeightType::Iq3Xs, "iq3_xs", ElementType::Iq3S),
    (WeightType::Iq3S, "iq3_s", ElementType::Iq3S),
    (WeightType::Iq3M, "iq3_m", ElementType::Iq3S),
    (WeightType::Tq1_0, "tq1_0", ElementType::Tq1_0),
    (WeightType::Tq2_0, "tq2_0", ElementType::Tq2_0),
    (WeightType::Mxfp4Moe, "mxfp4_moe", ElementType::Mxfp4),
];

impl WeightType {
    /// The type that most of its tensors have.
    #[must_use]
    pub fn base(self) -> ElementType {
        self.row().2
    }

    fn row(self) -> (WeightType, &'static str, ElementType) {
        WEIGHTS.into_iter().find(|row| row.0 == self).unwrap_or((self, "f32", ElementType::F32))
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.row().1)
    }
}

impl FromStr for WeightType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let name = plain_name(text);
        WEIGHTS.iter().find(|row| row.1 == name).map(|row| row.0).ok_or_else(|| Error::Config {
            field: "weight type",
            value: format!("{text:?}"),
            range: "f32, f16, bf16, q8_0, q6_k, q5_k, q5_k_m, q5_k_s, q5_0, q5_1, q4_k, q4_k_m, \
                    q4_k_s, q4_0, q4_1, iq4_xs, iq4_nl, q3_k_l, q3_k_m, q3_k_s, q2_k, q2_k_s, iq3_m, \
                    iq3_s, iq3_xs, iq3_xxs, iq2_m, iq2_s, iq2_xs, iq2_xxs, iq1_m, iq1_s, tq2_0, \
                    tq1_0 or mxfp4_moe",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_out_and_come_back() {
        for (kind, name, base) in WEIGHTS {
            assert_eq!(name.to_uppercase().parse::<WeightType>(), Ok(kind));
            assert_eq!(kind.to_string(), name);
            assert_eq!(kind.base(), base);
        }
        assert!("q9_z".parse::<WeightType>().unwrap_err().to_string().contains("q4_k_m"));
    }
}
