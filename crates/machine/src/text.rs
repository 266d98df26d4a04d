//! What strangers wrote, made safe to show.
//!
//! Names in model files, logs and reports, the names of files themselves and the messages of
//! engines may hold characters that steer a terminal (escape sequences, C1 controls) or turn
//! the order of what is read (bidirectional marks). Whatever such text is shown in passes one
//! of these functions, which agree on what is [steering](is_steering).

use std::borrow::Cow;
use std::fmt::Write as _;

/// What stands in the place of a character that is not shown.
const INSTEAD: char = '\u{fffd}';

/// Whether a character steers what shows it: controls, bidirectional marks, and the separators
/// that end a line without a line feed.
#[must_use]
pub fn is_steering(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}')
}

/// The text as one line: breaks and tabs become spaces, other steering characters `�`.
///
/// ```
/// assert_eq!(plimsoll_machine::text::one_line("a\x1b[2J\nfits"), "a\u{fffd}[2J fits");
/// ```
#[must_use]
pub fn one_line(text: &str) -> Cow<'_, str> {
    replaced(text, |_| false)
}

/// The same for text of several lines, whose line feeds stay.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    replaced(text, |c| c == '\n')
}

/// JSON that says the same and steers nothing: in JSON such characters stand in strings alone,
/// and there they may be written as escapes. Line feeds between values stay.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    if !text.contains(|c| is_steering(c) && c != '\n') {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_steering(c) && c != '\n' {
            // All of them are below 2^16, so that one escape is enough. A String takes it all.
            let _ = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

fn replaced(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(|c| is_steering(c) && !stays(c)) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| match c {
        c if stays(c) => c,
        '\n' | '\r' | '\t' => ' ',
        c if is_steering(c) => INSTEAD,
        c => c,
    };
    Cow::Owned(text.chars().map(shown).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEERING: &str = "\x1b[2J\u{9b}31m\u{202e}\u{2066}\u{200f}\u{61c}\u{2028}\x07\x7f\r";

    #[test]
    fn nothing_that_steers_is_left() {
        let text = format!("a{STEERING}\n\tb");
        assert!(!one_line(&text).contains(is_steering));
        assert!(!lines(&text).contains(|c| is_steering(c) && c != '\n'));
        assert_eq!(lines(&text).lines().count(), 2);
        assert_eq!(one_line("größe 8 GiB – 漢字 😀"), "größe 8 GiB – 漢字 😀");
    }

    #[test]
    fn json_says_the_same_in_escapes() {
        assert_eq!(json("[\n  \"\u{9b}a\u{202e}\"\n]"), "[\n  \"\\u009ba\\u202e\"\n]");
        assert!(!json(STEERING).contains(is_steering));
    }
}
