//! The names of classes, as exporters write them into a model's metadata.
//!
//! That is the text of a Python dictionary, `{0: 'person', 1: "it's"}`; lists and JSON
//! (`{"0": "person"}`) are also met. The reader takes all of these and nothing else:
//! it is fed from files of strangers.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::Chars;

/// The most classes that are believed.
const MOST: u32 = 65_536;

type Text<'text> = Peekable<Chars<'text>>;

/// Reads the names of classes, in the order of their numbers. A number without a name is
/// its own. `None` where the text is not a dictionary or a list of names.
///
/// ```
/// let names = plimsoll_infer::decode::parse_names(r#"{0: 'person', 1: "it's"}"#);
/// assert_eq!(names, Some(vec!["person".to_owned(), "it's".to_owned()]));
/// ```
#[must_use]
pub fn parse_names(text: &str) -> Option<Vec<String>> {
    let mut text = text.trim().chars().peekable();
    let found = match text.next()? {
        '{' => entries(&mut text, '}', true)?,
        '[' => entries(&mut text, ']', false)?,
        '(' => entries(&mut text, ')', false)?,
        _ => return None,
    };
    if text.next().is_some() {
        return None;
    }
    let count = found.last_key_value().map_or(0, |(&last, _)| last + 1);
    let mut names: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    for (number, name) in found {
        if let Some(slot) = names.get_mut(number as usize) {
            *slot = name;
        }
    }
    Some(names)
}

/// What stands between the brackets, the closing one included.
fn entries(text: &mut Text<'_>, close: char, numbered: bool) -> Option<BTreeMap<u32, String>> {
    let mut found = BTreeMap::new();
    loop {
        blank(text);
        if text.next_if_eq(&close).is_some() {
            return Some(found);
        }
        let number = if numbered { key(text)? } else { u32::try_from(found.len()).ok()? };
        if number >= MOST {
            return None;
        }
        found.insert(number, value(text)?);
        blank(text);
        match text.next()? {
            ',' => {}
            end if end == close => return Some(found),
            _ => return None,
        }
    }
}

/// A number, bare or quoted, and its colon.
fn key(text: &mut Text<'_>) -> Option<u32> {
    let number = match text.peek()? {
        '\'' | '"' => quoted(text)?.trim().parse().ok()?,
        _ => bare(text).parse().ok()?,
    };
    blank(text);
    text.next_if_eq(&':')?;
    Some(number)
}

/// A quoted name, or a bare number or word.
fn value(text: &mut Text<'_>) -> Option<String> {
    blank(text);
    match text.peek()? {
        '\'' | '"' => quoted(text),
        _ => Some(bare(text)).filter(|word| !word.is_empty()),
    }
}

fn blank(text: &mut Text<'_>) {
    while text.next_if(|next| next.is_whitespace()).is_some() {}
}

fn bare(text: &mut Text<'_>) -> String {
    let mut word = String::new();
    while let Some(next) =
        text.next_if(|next| next.is_alphanumeric() || matches!(next, '_' | '-' | '.'))
    {
        word.push(next);
    }
    word
}

/// A text between two equal quotes, its escapes resolved.
fn quoted(text: &mut Text<'_>) -> Option<String> {
    let quote = text.next()?;
    let mut name = String::new();
    loop {
        match text.next()? {
            '\\' => name.extend(escape(text)?),
            end if end == quote => return Some(name),
            other => name.push(other),
        }
    }
}

/// What stands for one escape: none for an escaped end of line.
fn escape(text: &mut Text<'_>) -> Option<Option<char>> {
    Some(match text.next()? {
        '\n' => None,
        'n' => Some('\n'),
        't' => Some('\t'),
        'r' => Some('\r'),
        'x' => Some(code(text, 2)?),
        'u' => Some(code(text, 4)?),
        'U' => Some(code(text, 8)?),
        other => Some(other),
    })
}

/// A character by its number in hexadecimal digits; halves of pairs, which JSON may
/// have, become the sign for what cannot be shown.
fn code(text: &mut Text<'_>, digits: u32) -> Option<char> {
    let mut number = 0_u32;
    for _ in 0..digits {
        number = number.checked_mul(16)? | text.next()?.to_digit(16)?;
    }
    Some(char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(text: &str) -> Option<Vec<String>> {
        parse_names(text)
    }

    #[test]
    fn reads_what_exporters_write() {
        let two = Some(vec!["person".to_owned(), "it's".to_owned()]);
        assert_eq!(names(r#"{0: 'person', 1: "it's"}"#), two);
        assert_eq!(names(r#"{1: 'it\'s', 0: 'person',}"#), two);
        assert_eq!(names(r#"{"0": "person", "1": "it\u0027s"}"#), two);
        assert_eq!(names(r#" ['person', "it's"] "#), two);
        assert_eq!(names("{}"), Some(vec![]));
    }

    #[test]
    fn a_number_without_a_name_is_its_own() {
        assert_eq!(names("{2: 'c'}"), Some(vec!["0".into(), "1".into(), "c".into()]));
    }

    #[test]
    fn refuses_what_is_not_names() {
        for text in
            ["", "person", "{", "{0}", "{0: 'a'", "{0: 'a'} x", "{-1: 'a'}", "{9999999: 'a'}"]
        {
            assert_eq!(names(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_names_survive_the_way_there_and_back(
            list in proptest::collection::vec("[^\\\\'\n]{0,12}", 0..20)
        ) {
            let inner: Vec<_> =
                list.iter().enumerate().map(|(at, name)| format!("{at}: '{name}'")).collect();
            prop_assert_eq!(names(&format!("{{{}}}", inner.join(", "))), Some(list));
        }

        #[test]
        fn any_text_is_survived(text in "\\PC{0,60}") {
            let _ = parse_names(&text);
        }
    }
}
