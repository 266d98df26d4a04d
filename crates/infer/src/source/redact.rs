//! Hides passwords and tokens in anything that is shown.
//!
//! A camera's address often carries its password (`rtsp://user:secret@host`), a web address a
//! token (`?token=…`), a pipeline a property (`user-pw=…`). Reports are passed on and logs are
//! kept, so every name of a source, every command line and every word of a decoder goes through
//! [`redact`] before it is shown. In doubt it hides too much: a host that is missing from a
//! message can be asked for, a password that was published cannot be taken back.

use std::borrow::Cow;

/// What stands in the place of a secret.
const HIDDEN: &str = "***";

/// Parts of a name (between `_`, `-` and `.`) whose value is a secret.
const SECRET: [&str; 34] = [
    "accesskey",
    "accesstoken",
    "apikey",
    "auth",
    "authkey",
    "authorization",
    "authtoken",
    "bearer",
    "cookie",
    "credential",
    "credentials",
    "jwt",
    "key",
    "pass",
    "passphrase",
    "passwd",
    "password",
    "proxypw",
    "pw",
    "pwd",
    "sas",
    "secret",
    "secretkey",
    "session",
    "sessionid",
    "sid",
    "sig",
    "signature",
    "streamkey",
    "ticket",
    "token",
    "tokens",
    "userpass",
    "userpw",
];

/// The text without passwords and tokens.
#[must_use]
pub fn redact(text: &str) -> Cow<'_, str> {
    if !text.contains(['=', '@', ':']) && !text.contains("--") {
        return Cow::Borrowed(text);
    }
    match without_flag_values(&without_values(&without_users(text))) {
        clean if clean == text => Cow::Borrowed(text),
        clean => Cow::Owned(clean),
    }
}

/// Ends an address inside of a sentence, a pipeline or quotation marks. Controls do not: one inside
/// of a password would leave the rest of it standing.
fn ends_address(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>')
}

/// Addresses without what stands before the `@` of their host.
fn without_users(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        let end = after.find(ends_address).unwrap_or(after.len());
        let (address, behind) = after.split_at(end);
        out.push_str(before);
        match user(address) {
            Some(length) => {
                out.push_str(HIDDEN);
                out.push_str(&address[length..]);
            }
            None => out.push_str(address),
        }
        rest = behind;
    }
    out + rest
}

/// The length of the user and the password in an address, without their `@`.
fn user(address: &str) -> Option<usize> {
    let host = address.find(['/', '?', '#']).unwrap_or(address.len());
    let at = address[..host].rfind('@');
    // A password that was not escaped may hold what ends a host: with a colon before it, all up
    // to the last `@` may be a password.
    at.or_else(|| address.rfind('@').filter(|_| address[..host].contains(':')))
}

/// `name=value` without the value, where the name says that it is a secret.
fn without_values(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('=') {
        let (before, after) = rest.split_at(at + 1);
        out.push_str(before);
        rest = after;
        if is_secret(name(&before[..at])) {
            let length = value(rest);
            out.push_str(if length > 0 { HIDDEN } else { "" });
            rest = &rest[length..];
        }
    }
    out + rest
}

/// `--name value` without the value, in the same case. Of a value with blanks that has no quotation
/// marks only the first word can be told.
fn without_flag_values(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("--") {
        let (before, after) = rest.split_at(at + "--".len());
        out.push_str(before);
        rest = after;
        let begins_word =
            out[..out.len() - "--".len()].chars().next_back().is_none_or(ends_address);
        let flag = &rest[..rest.find(|c| !is_of_name(c)).unwrap_or(rest.len())];
        let word = rest[flag.len()..].trim_start();
        let gap = rest.len() - flag.len() - word.len();
        if begins_word && gap > 0 && !word.starts_with('-') && is_secret(flag) {
            let length = value(word);
            out.push_str(&rest[..flag.len() + gap]);
            out.push_str(if length > 0 { HIDDEN } else { "" });
            rest = &word[length..];
        }
    }
    out + rest
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// The name that ends where the text does.
fn name(text: &str) -> &str {
    let text = text.trim_end();
    &text[text.trim_end_matches(is_of_name).len()..]
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let known = |part: &str| SECRET.contains(&part);
    name.split(['_', '-', '.']).any(known) || known(&name.replace(['_', '-', '.'], ""))
}

/// The length of a value: up to its closing quotation mark, or to what ends a parameter.
fn value(text: &str) -> usize {
    // GStreamer writes types before values: (string)"abc".
    let typed = text.strip_prefix('(').and_then(|inner| Some(inner.find(')')? + 2)).unwrap_or(0);
    let start = &text[typed..];
    let quotes = ["\\\"", "\\'", "\"", "'"];
    let quoted = match quotes.into_iter().find(|quote| start.starts_with(quote)) {
        Some(quote) => match start[quote.len()..].find(quote) {
            Some(end) => end + 2 * quote.len(),
            None => start.len(),
        },
        None => 0,
    };
    let ends = |c: char| ends_address(c) || matches!(c, '&' | ';' | ',' | '#' | '!');
    let rest = &start[quoted..];
    typed + quoted + rest.find(ends).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::redact;

    #[test]
    fn users_and_passwords_of_addresses_are_hidden() {
        for (text, clean) in [
            ("rtsp://user:secret@10.0.0.7/live", "rtsp://***@10.0.0.7/live"),
            ("RTSPS://user:secret@host:322/a?b=c", "RTSPS://***@host:322/a?b=c"),
            ("rtsp://token@host", "rtsp://***@host"),
            ("rtsp://u:p@ss:w@host/a", "rtsp://***@host/a"),
            ("rtsp://u:p/a?b#c@host/a", "rtsp://***@host/a"),
            ("'http://u:p@h' and \"https://v:q@i/\"", "'http://***@h' and \"https://***@i/\""),
            ("rtsp://us\x1ber:secret@host/a", "rtsp://***@host/a"),
            ("[tcp @ 0x5] rtsp://u:p@h: refused", "[tcp @ 0x5] rtsp://***@h: refused"),
        ] {
            assert_eq!(redact(text), clean);
        }
    }

    #[test]
    fn tokens_keys_and_properties_are_hidden() {
        for (text, clean) in [
            ("http://h/a?token=abc&x=1", "http://h/a?token=***&x=1"),
            ("http://h/a?x=1&API_Key=abc#t", "http://h/a?x=1&API_Key=***#t"),
            ("https://h/?X-Amz-Signature=ab%2F;n=2", "https://h/?X-Amz-Signature=***;n=2"),
            ("http://h/a#access_token=abc", "http://h/a#access_token=***"),
            ("http://h/a?token=a\x1bbc&x=1", "http://h/a?token=***&x=1"),
            (
                "gst=rtspsrc location=rtsp://u:p@h user-id=me user-pw='a b' ! decodebin",
                "gst=rtspsrc location=rtsp://***@h user-id=me user-pw=*** ! decodebin",
            ),
            (
                "x headers=\"a,Authorization=(string)\\\"Basic q q\\\"\" ! b",
                "x headers=\"a,Authorization=***\" ! b",
            ),
        ] {
            assert_eq!(redact(text), clean);
        }
    }

    #[test]
    fn values_behind_a_flag_are_hidden() {
        for (text, clean) in [
            ("mysql --password hunter2 --host h", "mysql --password *** --host h"),
            ("x --api-key 'a b' y", "x --api-key *** y"),
            ("--db.token abc", "--db.token ***"),
            ("x --password --host h", "x --password --host h"),
            ("x --password", "x --password"),
            ("x --passive on a--token b", "x --passive on a--token b"),
            ("x --token=abc --seed 7", "x --token=*** --seed 7"),
        ] {
            assert_eq!(redact(text), clean);
        }
    }

    #[test]
    fn any_text_is_redacted_once() {
        let parts =
            ["://", "@", "=", "token", "\"", "\\\"", "'", "(", ")", " ", "é", "/", "?", ":", "--"];
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..12 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                text += parts[(seed >> 40) as usize % parts.len()];
            }
            let once = redact(&text).into_owned();
            assert_eq!(redact(&once), once, "{text}");
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        for text in [
            "",
            "plain words",
            "image_dir=frames/a@2x",
            "video=monkey=1.mp4",
            "rtsp://host/cam@1",
            "rtsp://host:8554/live?channel=1&subtype=0",
            "camera=0",
            "synthetic:seed=9,objects=2-3",
            "v4l2src device=/dev/video0 ! video/x-raw,width=640",
            "model a.onnx: shape [1, 3]",
        ] {
            assert_eq!(redact(text), text);
        }
    }
}
