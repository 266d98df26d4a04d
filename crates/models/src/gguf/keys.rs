//! The keys of a header that belong to one architecture.

use super::GgufError;
use super::read::{GgufHeader, GgufValue};

/// Widths and counts above this are no model's.
const MOST: u64 = 1 << 40;

/// The keys of one architecture.
pub(super) struct GgufKeys<'a> {
    pub(super) header: &'a GgufHeader,
    pub(super) architecture: &'a str,
}

impl GgufKeys<'_> {
    pub(super) fn value(&self, key: &str) -> Option<&GgufValue> {
        self.header.values.get(&format!("{}.{key}", self.architecture))
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, GgufError> {
        match self.value(key) {
            Some(GgufValue::Number(n)) => bounded(key, *n).map(Some),
            // A list where one number is expected: the largest.
            Some(GgufValue::Numbers(list)) => {
                bounded(key, list.iter().copied().max().unwrap_or(0)).map(Some)
            }
            None | Some(GgufValue::Skipped(_)) => Ok(None),
            Some(_) => Err(wrong(key, "is no number")),
        }
    }

    pub(super) fn or_zero(&self, key: &str) -> Result<u64, GgufError> {
        Ok(self.number(key)?.unwrap_or(0))
    }

    pub(super) fn needed(&self, key: &str) -> Result<u64, GgufError> {
        self.number(key)?.ok_or_else(|| wrong(key, "is missing"))
    }

    /// One number for each layer: a list, or the same for all.
    pub(super) fn per_layer(
        &self,
        key: &str,
        layers: usize,
    ) -> Result<Option<Vec<u64>>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(GgufValue::Number(n)) => Ok(Some(vec![bounded(key, *n)?; layers])),
            Some(GgufValue::Numbers(list)) if list.len() >= layers => list
                .iter()
                .take(layers)
                .map(|&n| bounded(key, n))
                .collect::<Result<_, _>>()
                .map(Some),
            Some(GgufValue::Numbers(list)) => {
                Err(wrong(key, &format!("has {} entries for {layers} layers", list.len())))
            }
            Some(_) => Err(wrong(key, "is no number and no list of numbers")),
        }
    }
}

fn bounded(key: &str, n: i64) -> Result<u64, GgufError> {
    u64::try_from(n)
        .ok()
        .filter(|&n| n <= MOST)
        .ok_or_else(|| wrong(key, &format!("is {n}, which no model has")))
}

pub(super) fn wrong(key: &str, why: &str) -> GgufError {
    GgufError::Key { key: key.to_string(), why: why.to_string() }
}
