//! Any bytes as a request to `plimsoll monitor --serve`: a head that is complete stays complete
//! and the same whatever follows it, and nothing in it is longer than what was sent, but for
//! bytes that are no text, which become three each.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_cli::http::HttpRequest;

fuzz_target!(|bytes: &[u8]| {
    let Ok(Some(request)) = HttpRequest::parse(bytes) else { return };
    assert!(request.method.len() + request.path.len() <= bytes.len());
    for name in ["host", "origin", "authorization"] {
        if let Ok(Some(value)) = request.header(name) {
            assert!(value.len() <= 3 * bytes.len());
        }
    }
    assert!(request.query("token").is_none_or(|token| token.len() <= 3 * bytes.len()));
    let longer = [bytes, b"more"].concat();
    assert_eq!(HttpRequest::parse(&longer), Ok(Some(request)));
});
