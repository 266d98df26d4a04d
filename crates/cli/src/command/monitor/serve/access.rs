//! Which requests are allowed.

use std::net::{IpAddr, SocketAddr};

use plimsoll_cli::http::HttpRequest;
use subtle::ConstantTimeEq;

use crate::outcome::BadInput;

/// Shorter tokens can be guessed.
const SHORTEST_TOKEN: usize = 8;

/// The rules for requests to an address.
pub(super) struct AccessRules {
    loopback: bool,
    token: Option<String>,
}

/// Why a request is not allowed.
pub(super) enum AccessRefusal {
    /// The request comes by a foreign name or from a foreign page.
    Foreign(&'static str),
    /// The token is missing or wrong.
    Token,
}

impl AccessRules {
    pub(super) fn new(address: SocketAddr, token: Option<String>) -> Result<AccessRules, BadInput> {
        let loopback = address.ip().is_loopback();
        let token = token.filter(|token| !token.is_empty());
        match &token {
            None if !loopback => Err(BadInput::new(format!(
                "--serve {address} can be reached from other machines: give them a --token (or \
                 PLIMSOLL_TOKEN), or serve 127.0.0.1 alone"
            ))),
            Some(token) if token.len() < SHORTEST_TOKEN => Err(BadInput::new(format!(
                "--token must have at least {SHORTEST_TOKEN} characters, as shorter ones can be \
                 guessed"
            ))),
            _ => Ok(AccessRules { loopback, token }),
        }
    }

    pub(super) fn check(&self, request: &HttpRequest) -> Result<(), AccessRefusal> {
        let host = request.header("host").ok().flatten();
        let host = host.ok_or(AccessRefusal::Foreign("one Host header is needed"))?;
        if !self.knows(host) {
            return Err(AccessRefusal::Foreign("this is not the name of this server"));
        }
        match request.header("origin") {
            Ok(None) => {}
            Ok(Some(origin)) if origin == format!("http://{host}") => {}
            _ => return Err(AccessRefusal::Foreign("pages of others may not read this")),
        }
        match &self.token {
            None => Ok(()),
            Some(token) if shown(request).is_some_and(|shown| same(&shown, token)) => Ok(()),
            Some(_) => Err(AccessRefusal::Token),
        }
    }

    /// Names can be made to point here by anybody; numbers cannot. So the server answers
    /// to numbers, and to the one name that is always its own machine's.
    fn knows(&self, host: &str) -> bool {
        let (name, port) = match host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').unwrap_or_default(),
            None => host.split_at(host.find(':').unwrap_or(host.len())),
        };
        if !is_port(port) {
            return false;
        }
        match name.parse::<IpAddr>() {
            Ok(number) => !self.loopback || number.is_loopback(),
            Err(_) => name.eq_ignore_ascii_case("localhost"),
        }
    }
}

/// What may follow the name of a host.
fn is_port(text: &str) -> bool {
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    text.is_empty() || text.strip_prefix(':').is_some_and(digits)
}

fn shown(request: &HttpRequest) -> Option<String> {
    let header = request.header("authorization").ok().flatten();
    let bearer = header.and_then(|value| value.strip_prefix("Bearer ")).map(String::from);
    bearer.or_else(|| request.query("token"))
}

/// Takes the same time whatever is shown, so that neither a token nor its length can be guessed
/// step by step from how long this takes.
fn same(shown: &str, token: &str) -> bool {
    let mut padded = shown.as_bytes().to_vec();
    padded.resize(token.len(), 0);
    let (length, bytes) = (shown.len().ct_eq(&token.len()), padded.ct_eq(token.as_bytes()));
    (length & bytes).into()
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn only_the_token_itself_is_the_same() {
        assert!(same("open sesame", "open sesame"));
        for shown in ["", "open sesam", "open sesame ", "open sesame\0", "Open sesame", "x"] {
            assert!(!same(shown, "open sesame"), "{shown:?}");
        }
    }
}
