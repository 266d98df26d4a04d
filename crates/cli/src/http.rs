//! Parses the head of an HTTP request: bytes in, request out.

const MOST_HEADERS: usize = 64;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRequest {
    /// Such as `GET`.
    pub method: String,
    /// The target without its query.
    pub path: String,
    query: String,
    headers: Vec<(String, String)>,
}

/// Why a request has no one value for a header: the header is there several times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepeatedHeader;

impl HttpRequest {
    /// Parses a request; `None` while its head is not complete.
    ///
    /// # Errors
    ///
    /// What is wrong with it, where it is no request.
    pub fn parse(bytes: &[u8]) -> Result<Option<HttpRequest>, String> {
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(bytes) {
            Ok(httparse::Status::Partial) => return Ok(None),
            Ok(httparse::Status::Complete(_)) => {}
            Err(error) => return Err(error.to_string()),
        }
        let target = request.path.unwrap_or("/");
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let header = |header: &httparse::Header<'_>| {
            (header.name.to_ascii_lowercase(), String::from_utf8_lossy(header.value).into_owned())
        };
        Ok(Some(HttpRequest {
            method: request.method.unwrap_or_default().to_string(),
            path: path.to_string(),
            query: query.to_string(),
            headers: request.headers.iter().map(header).collect(),
        }))
    }

    /// The value of a header, by its name in lower case; `None` where it is not there.
    ///
    /// # Errors
    ///
    /// It is there several times.
    pub fn header(&self, name: &str) -> Result<Option<&str>, RepeatedHeader> {
        let mut all = self.headers.iter().filter(|(known, _)| known == name);
        match (all.next(), all.next()) {
            (_, Some(_)) => Err(RepeatedHeader),
            (found, None) => Ok(found.map(|(_, value)| value.trim())),
        }
    }

    /// A value of the query, its escapes decoded.
    #[must_use]
    pub fn query(&self, name: &str) -> Option<String> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| decoded(value))
    }
}

/// The text with its escapes decoded: `%41` is A.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match code.filter(|_| byte == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) => {
                bytes.push(value);
                rest = &tail[2..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_parsed_once_it_is_complete() {
        let text = b"GET /a?token=open%20sesame&b=%zz HTTP/1.1\r\nHost: x \r\nA: 1\r\na: 2\r\n\r\n";
        for end in 0..text.len() {
            assert_eq!(HttpRequest::parse(&text[..end]), Ok(None), "{end}");
        }
        let request = HttpRequest::parse(text).unwrap().unwrap();
        assert_eq!((request.method.as_str(), request.path.as_str()), ("GET", "/a"));
        assert_eq!(request.query("token").as_deref(), Some("open sesame"));
        assert_eq!(request.query("b").as_deref(), Some("%zz"));
        assert_eq!(request.header("host"), Ok(Some("x")));
        assert_eq!(request.header("a"), Err(RepeatedHeader));
        assert_eq!(request.header("c"), Ok(None));
        assert!(HttpRequest::parse(b"\0\0\r\n\r\n").is_err());
    }
}
