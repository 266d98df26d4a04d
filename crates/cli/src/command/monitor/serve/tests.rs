//! Access and bounds, without a browser.

use std::io::Read;
use std::time::Instant;

use super::*;

fn server(token: Option<&str>) -> MonitorServer {
    let flags = Serve { serve: Some("0".to_string()), token: token.map(String::from) };
    let server = MonitorServer::start(&flags).unwrap().unwrap();
    let record = MonitorRecord { t: Some(1.0), ..MonitorRecord::default() };
    server.publish(&record, &MonitorSummary::default());
    server
}

fn ask(server: &MonitorServer, text: &str) -> String {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn get(server: &MonitorServer, path: &str, headers: &str) -> String {
    ask(server, &format!("GET {path} HTTP/1.1\r\nHost: localhost:1\r\n{headers}\r\n"))
}

fn code(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

#[test]
fn everything_is_served() {
    let server = server(None);
    assert!(get(&server, "/", "").contains("<!doctype html>"));
    assert!(get(&server, "/metrics", "").contains("plimsoll_samples_total"));
    assert!(get(&server, "/api/sample?x=1", "").contains("\"t\":1.0"));
    assert!(get(&server, "/api/history", "").ends_with("}]"));
    assert_eq!(code(&get(&server, "/else", "")), "404");
    let head = ask(&server, "HEAD / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    assert!(code(&head) == "200" && head.ends_with("\r\n\r\n"), "{head}");
    for (host, path, refusal) in [("127.0.0.1", "/else", "404"), ("evil.example", "/", "403")] {
        let head = ask(&server, &format!("HEAD {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert!(code(&head) == refusal && head.ends_with("\r\n\r\n"), "no body: {head}");
        assert!(!head.contains("Content-Length: 0"), "that of the body of a GET: {head}");
    }
}

#[test]
fn foreign_names_and_pages_are_refused() {
    let server = server(None);
    let as_host = |host: &str| ask(&server, &format!("GET / HTTP/1.1\r\n{host}\r\n"));
    for host in ["Host: 127.0.0.1:80\r\n", "Host: [::1]:80\r\n", "host: LOCALHOST\r\n"] {
        assert_eq!(code(&as_host(host)), "200", "{host}");
    }
    for host in
        ["", "Host: evil.example\r\n", "Host: 10.0.0.9\r\n", "Host: a\r\nHost: localhost\r\n"]
            .into_iter()
            .chain(["Host: 127.0.0.1:80, evil\r\n", "Host: [::1]evil\r\n", "Host: [::1\r\n"])
            .chain(["Host: localhost:80@evil\r\n"])
    {
        assert_eq!(code(&as_host(host)), "403", "{host}");
    }
    assert_eq!(code(&get(&server, "/", "Origin: http://localhost:1\r\n")), "200");
    for origin in ["http://evil.example", "https://localhost:1", "null", "http://localhost:2"] {
        assert_eq!(code(&get(&server, "/", &format!("Origin: {origin}\r\n"))), "403", "{origin}");
    }
}

#[test]
fn a_token_is_asked_for_in_every_way() {
    let server = server(Some("open sesame"));
    assert_eq!(code(&get(&server, "/", "")), "401");
    assert_eq!(code(&get(&server, "/metrics?token=open", "")), "401");
    assert_eq!(code(&get(&server, "/api/sample?token=open%20sesame", "")), "200");
    assert_eq!(code(&get(&server, "/", "Authorization: Bearer open sesame\r\n")), "200");
    assert_eq!(code(&get(&server, "/", "Authorization: Bearer open sesam\r\n")), "401");
}

#[test]
fn other_machines_need_a_token() {
    let start = |address: &str, token: Option<&str>| {
        let flags = Serve { serve: Some(address.to_string()), token: token.map(String::from) };
        MonitorServer::start(&flags).map(|_| ()).map_err(|error| error.to_string())
    };
    assert!(start("0.0.0.0:0", None).is_err_and(|text| text.contains("--token")));
    assert!(start("0.0.0.0:0", Some("short")).is_err());
    assert_eq!(start("0.0.0.0:0", Some("long enough")), Ok(()));
    assert!(start("nonsense", None).is_err());
    assert!(start("127.0.0.1:99999", None).is_err());
}

#[test]
fn nonsense_is_answered_and_bounded() {
    let server = server(None);
    assert_eq!(code(&ask(&server, "\0\0\0\r\n\r\n")), "400");
    assert_eq!(code(&ask(&server, "POST / HTTP/1.1\r\nHost: localhost\r\n\r\n")), "405");
    let long = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n", "x".repeat(9000));
    assert_eq!(code(&ask(&server, &long)), "431");
}

#[test]
fn many_and_slow_clients_hold_nothing_up() {
    let server = server(None);
    let warnings = vec!["x".repeat(100_000)];
    let record = MonitorRecord { warnings, ..MonitorRecord::default() };
    let publish = || {
        let start = Instant::now();
        for _ in 0..200 {
            server.publish(&record, &MonitorSummary::default());
        }
        start.elapsed()
    };
    let alone = publish();
    // Streams that are never read, and connections that never ask.
    let streams: Vec<TcpStream> = (0..40)
        .map(|n| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            if n % 2 == 0 {
                let _ = stream.write_all(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
            }
            stream
        })
        .collect();
    // To wait for one of them would take as long as it is given.
    let (most, beside) = (alone * 4 + CLIENT_TIMEOUT / 2, publish());
    assert!(beside < most, "{beside:?}, without clients {alone:?}");
    assert!(server.shared.clients.load(Ordering::Relaxed) <= MOST_CLIENTS + 1);
    drop(streams);
    // They are gone after a while, and others are served.
    let until = Instant::now() + Duration::from_secs(60);
    while code(&get(&server, "/api/sample", "")) != "200" {
        assert!(Instant::now() < until, "clients that went away still have their slots");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_stream_gives_the_newest() {
    let server = server(None);
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    let mut read_until = |word: &str| {
        let mut part = [0u8; 4096];
        while !text.contains(word) {
            let n = stream.read(&mut part).unwrap();
            assert!(n > 0, "the stream ended: {text}");
            text.push_str(&String::from_utf8_lossy(&part[..n]));
        }
    };
    read_until("\"t\":1.0");
    server.publish(
        &MonitorRecord { t: Some(2.0), ..MonitorRecord::default() },
        &MonitorSummary::default(),
    );
    read_until("\"t\":2.0");
}
