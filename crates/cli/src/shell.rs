//! Command lines to paste: words and sizes as a shell and our flags take them.

use plimsoll::Bytes;

/// A size without loss, in the largest unit that divides it.
pub(crate) fn exact(size: Bytes) -> String {
    [("GiB", 30), ("MiB", 20), ("KiB", 10)]
        .into_iter()
        .find(|(_, shift)| size.get().is_multiple_of(1 << shift))
        .map_or_else(
            || size.get().to_string(),
            |(unit, shift)| format!("{}{unit}", size.get() >> shift),
        )
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_cut_them() {
        assert_eq!(quoted("a/b-c.gguf"), "a/b-c.gguf");
        assert_eq!(quoted("my model.onnx"), "'my model.onnx'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
