//! What is varied: `--vary batch`, `--vary batch=1..4096`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::str::FromStr;

use super::search::FitRange;

/// A name, and the values that it may have where they were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VaryFlag {
    pub(super) name: String,
    pub(super) ends: Option<(u64, u64)>,
}

impl FromStr for VaryFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<VaryFlag, String> {
        let (name, values) = match text.split_once('=') {
            Some((name, values)) => (name, Some(values)),
            None => (text, None),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || !name.chars().all(is_name) {
            return Err("it must be a name, or a name and its values as in batch=1..4096".into());
        }
        let ends = values.map(ends).transpose()?;
        if let Some((low, high)) = ends {
            FitRange::new(low, high, 1)?;
        }
        Ok(VaryFlag { name: name.replace('_', "-"), ends })
    }
}

fn ends(values: &str) -> Result<(u64, u64), String> {
    let parts = values.split_once("..");
    let parts = parts.map(|(low, high)| (low.trim().parse(), high.trim().parse()));
    match parts {
        Some((Ok(low), Ok(high))) => Ok((low, high)),
        _ => Err("the values must be two numbers, as in batch=1..4096".to_string()),
    }
}

impl VaryFlag {
    /// The place in a program's arguments: `{batch}`.
    pub(super) fn place(&self) -> String {
        format!("{{{}}}", self.name)
    }

    /// Whether one of the words has a place for the value.
    pub(super) fn is_in(&self, words: &[OsString]) -> bool {
        words.iter().any(|word| self.with(word, "").as_os_str() != word)
    }

    /// A word with the value in its place. `{gpu-layers}` and `{gpu_layers}` are the same place.
    pub(super) fn with(&self, word: &OsStr, value: &str) -> OsString {
        let word = replaced(word.as_bytes(), self.place().as_bytes(), value.as_bytes());
        let snake = self.place().replace('-', "_");
        OsString::from_vec(replaced(&word, snake.as_bytes(), value.as_bytes()))
    }
}

/// Bytes, as a program's arguments need not be text.
fn replaced(text: &[u8], place: &[u8], value: &[u8]) -> Vec<u8> {
    let mut result = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        if let Some(behind) = rest.strip_prefix(place) {
            result.extend(value);
            rest = behind;
        } else {
            result.push(first);
            rest = after;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_values() {
        let flag = |text: &str| text.parse::<VaryFlag>();
        assert_eq!(flag("batch"), Ok(VaryFlag { name: "batch".into(), ends: None }));
        let named = VaryFlag { name: "gpu-layers".into(), ends: Some((1, 33)) };
        assert_eq!(flag("gpu_layers=1..33"), Ok(named));
        for text in ["", "=1..2", "a b", "batch=", "batch=1", "batch=0..4", "batch=4..1", "b=1..x"]
        {
            assert!(flag(text).is_err(), "{text}");
        }
    }

    #[test]
    fn places_are_filled() {
        let flag: VaryFlag = "gpu-layers".parse().unwrap();
        for (word, filled) in
            [("{gpu-layers}", "7"), ("--n={gpu_layers},{gpu-layers}", "--n=7,7"), ("{x}", "{x}")]
        {
            assert_eq!(flag.with(OsStr::new(word), "7"), OsString::from(filled));
        }
        assert!(flag.is_in(&["a".into(), "{gpu_layers}".into()]));
        assert!(!flag.is_in(&["a".into(), "{batch}".into()]));
    }
}
