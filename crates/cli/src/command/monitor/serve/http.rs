//! As much of HTTP as is needed: the head of a GET, and an answer.
//!
//! Libraries for servers either bring a runtime of their own or put no bound on how long
//! a client may take; the request's head is read by one (`httparse`), the rest is this.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The longest head of a request.
const LONGEST: usize = 8 << 10;
const MOST_HEADERS: usize = 64;

/// What a client asks for.
pub(super) struct HttpRequest {
    pub(super) method: String,
    pub(super) path: String,
    query: String,
    headers: Vec<(String, String)>,
}

impl HttpRequest {
    /// Reads the head, all of it within this time; an answer where it is no request.
    pub(super) fn read(
        mut stream: &TcpStream,
        patience: Duration,
    ) -> io::Result<Result<HttpRequest, HttpResponse>> {
        let until = Instant::now() + patience;
        let mut bytes = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Err(HttpResponse::error(408, "the request did not come in time")));
            }
            stream.set_read_timeout(Some(left))?;
            let mut part = [0u8; 1024];
            match stream.read(&mut part)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => bytes.extend_from_slice(&part[..read]),
            }
            match HttpRequest::parse(&bytes) {
                Ok(Some(request)) => return Ok(Ok(request)),
                Ok(None) if bytes.len() <= LONGEST => {}
                Ok(None) => return Ok(Err(HttpResponse::error(431, "the request is too long"))),
                Err(why) => return Ok(Err(HttpResponse::error(400, &why))),
            }
        }
    }

    /// The request, where its head is whole.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<HttpRequest>, String> {
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

    /// The only header of this name; `Err` where there are several.
    pub(super) fn header(&self, name: &str) -> Result<Option<&str>, ()> {
        let mut all = self.headers.iter().filter(|(known, _)| known == name);
        match (all.next(), all.next()) {
            (_, Some(_)) => Err(()),
            (found, None) => Ok(found.map(|(_, value)| value.trim())),
        }
    }

    /// A value of the query, its escapes undone.
    pub(super) fn query(&self, name: &str) -> Option<String> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| unescaped(value))
    }
}

/// `%41` is A.
fn unescaped(text: &str) -> String {
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

/// What a client gets.
pub(super) struct HttpResponse {
    code: u16,
    kind: &'static str,
    /// `None` for a stream, whose length nobody knows.
    body: Option<String>,
}

impl HttpResponse {
    pub(super) fn new(kind: &'static str, body: String) -> HttpResponse {
        HttpResponse { code: 200, kind, body: Some(body) }
    }

    pub(super) fn stream() -> HttpResponse {
        HttpResponse { code: 200, kind: "text/event-stream", body: None }
    }

    pub(super) fn error(code: u16, why: &str) -> HttpResponse {
        HttpResponse { code, kind: "text/plain; charset=utf-8", body: Some(format!("{why}\n")) }
    }

    /// The head, and the body of an error.
    pub(super) fn head(&self) -> Vec<u8> {
        let word = match self.code {
            200 => "OK",
            400 => "Bad Request",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            431 => "Request Header Fields Too Large",
            _ => "Service Unavailable",
        };
        let length = self
            .body
            .as_ref()
            .map_or_else(String::new, |body| format!("Content-Length: {}\r\n", body.len()));
        let mut head = format!(
            "HTTP/1.1 {} {word}\r\nContent-Type: {}\r\n{length}Connection: close\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
             Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
             Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; \
             script-src 'unsafe-inline'; connect-src 'self'; img-src data:; \
             frame-ancestors 'none'; base-uri 'none'\r\n",
            self.code, self.kind
        );
        if self.code == 401 {
            head.push_str("WWW-Authenticate: Bearer\r\n");
        }
        head.push_str("\r\n");
        if self.code != 200 {
            head.push_str(self.body.as_deref().unwrap_or_default());
        }
        head.into_bytes()
    }

    /// Sends it whole, or its head alone.
    pub(super) fn send(&self, mut stream: &TcpStream, bare: bool) -> io::Result<()> {
        stream.write_all(&self.head())?;
        if self.code == 200 && !bare {
            stream.write_all(self.body.as_deref().unwrap_or_default().as_bytes())?;
        }
        stream.flush()
    }
}
