//! Command lines to paste: words and sizes as a shell and our flags take them.

use plimsoll::Bytes;
use plimsoll::text::is_steering;

/// A size without loss, in the largest unit in which two digits behind the point are enough.
pub(crate) fn exact(size: Bytes) -> String {
    [("GiB", 30), ("MiB", 20), ("KiB", 10)]
        .into_iter()
        .flat_map(|(unit, shift)| (0..3).map(move |digits| (unit, shift, digits)))
        .map(|(unit, shift, digits)| {
            format!("{:.digits$}{unit}", size.get() as f64 / f64::from(1 << shift))
        })
        .find(|text| text.parse() == Ok(size))
        .unwrap_or_else(|| size.get().to_string())
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_string();
    }
    // A name of a stranger's may steer a terminal or look like a line of ours: such signs are
    // written as numbers, which bash, zsh and ksh read between $' and '.
    if word.chars().any(is_steering) {
        let sign = |c: char| match c {
            '\'' | '\\' => format!("\\{c}"),
            c if is_steering(c) && (c as u32) < 0x80 => format!("\\x{:02x}", c as u32),
            c if is_steering(c) => format!("\\U{:08x}", c as u32),
            c => c.to_string(),
        };
        return format!("$'{}'", word.chars().map(sign).collect::<String>());
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_they_were_said() {
        for text in ["8GiB", "6.9GiB", "100MiB", "3KiB", "0.25GiB"] {
            assert_eq!(text.parse().map(exact), Ok(text.to_string()));
        }
        assert_eq!(exact(Bytes(12_345_678_901)), "12345678901");
        assert_eq!(exact(Bytes(1)), "1");
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_cut_them() {
        assert_eq!(quoted("a/b-c.gguf"), "a/b-c.gguf");
        assert_eq!(quoted("my model.onnx"), "'my model.onnx'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted("a\n'b\\\u{202e}"), "$'a\\x0a\\'b\\\\\\U0000202e'");
    }
}
