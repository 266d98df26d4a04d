//! As much of HTTP as is needed: reads the head of a request, and sends a response.
//!
//! Libraries for servers either bring a runtime of their own or put no bound on how long a client
//! may take. So only the parser is one (`httparse`, in [`plimsoll_cli::http`]).

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use plimsoll_cli::http::HttpRequest;

/// The longest head of a request.
const LONGEST: usize = 8 << 10;

/// Reads the head of a request, all of it before the timeout; a response where it is no request.
pub(super) fn read(
    mut stream: &TcpStream,
    timeout: Duration,
) -> io::Result<Result<HttpRequest, HttpResponse>> {
    let until = Instant::now() + timeout;
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

/// What a client gets.
pub(super) struct HttpResponse {
    code: u16,
    kind: &'static str,
    /// `None` for a stream, whose length is not known.
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

    /// All of it: the head and the body.
    pub(super) fn whole(&self) -> Vec<u8> {
        let mut whole = self.head();
        whole.extend_from_slice(self.body.as_deref().unwrap_or_default().as_bytes());
        whole
    }

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
        head.into_bytes()
    }

    /// Sends it whole, or its head alone.
    pub(super) fn send(&self, mut stream: &TcpStream, bare: bool) -> io::Result<()> {
        stream.write_all(&if bare { self.head() } else { self.whole() })?;
        stream.flush()
    }
}
