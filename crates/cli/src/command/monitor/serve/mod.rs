//! `--serve`: the newest record over HTTP, for a browser and for Prometheus.
//!
//! The sampling thread hands over a record and goes on; it never waits for a client. Each client
//! has a thread of its own, their number is bounded, and each has a timeout for its request and
//! for its response. A stream sends the newest record whenever the client is ready for it, so a
//! slow client misses some.
//!
//! A web page of another origin must not read this one: requests by a foreign name (as after DNS
//! rebinding) or from a foreign page are refused. Where other machines can reach the address, a
//! token is required.

mod access;
mod history;
mod http;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::flags::Serve;
use super::prometheus;
use super::record::MonitorRecord;
use super::summary::MonitorSummary;
use crate::outcome::{BadInput, OrBadInput};
use access::{AccessRefusal, AccessRules};
use history::PageHistory;
use http::HttpResponse;

const PAGE: &str = include_str!("page.html");
/// Further clients are turned away at once.
const MOST_CLIENTS: usize = 32;
/// How many of them may have a stream.
const MOST_STREAMS: usize = 24;
/// How long a client may take to send its request, or to take a response or the next record of a
/// stream.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(3);
/// How often a stream without records sends an empty comment.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const STACK: usize = 256 << 10;

/// What clients may request.
#[derive(Default)]
struct NewestRecord {
    number: u64,
    record: Arc<(MonitorRecord, MonitorSummary)>,
    /// The last hour, so that a page starts with a plot.
    history: PageHistory,
}

struct ServeState {
    newest: Mutex<NewestRecord>,
    news: Condvar,
    clients: AtomicUsize,
    streams: AtomicUsize,
    access: AccessRules,
}

impl ServeState {
    fn newest(&self) -> MutexGuard<'_, NewestRecord> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server; it ends with the program.
pub(super) struct MonitorServer {
    shared: Arc<ServeState>,
    address: SocketAddr,
}

impl MonitorServer {
    /// Starts, where the flags ask for it.
    pub(super) fn start(flags: &Serve) -> anyhow::Result<Option<MonitorServer>> {
        let Some(wish) = &flags.serve else { return Ok(None) };
        let wrong = || format!("--serve {wish}: give a port (9400) or ADDRESS:PORT");
        let text = if wish.contains(':') { wish.clone() } else { format!("127.0.0.1:{wish}") };
        let mut found = text.to_socket_addrs().or_bad_input(wrong)?;
        let address = found.next().ok_or_else(|| BadInput::new(wrong()))?;
        let token = flags.token.clone().or_else(|| std::env::var("PLIMSOLL_TOKEN").ok());
        let access = AccessRules::new(address, token)?;
        let listener = TcpListener::bind(address)
            .or_bad_input(|| format!("cannot listen on {address} (--serve)"))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(ServeState {
            newest: Mutex::default(),
            news: Condvar::new(),
            clients: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            access,
        });
        let there = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("serve".to_string()).stack_size(STACK);
        builder.spawn(move || listen(&listener, &there))?;
        Ok(Some(MonitorServer { shared, address }))
    }

    /// Where to look.
    pub(super) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Hands the newest record over.
    pub(super) fn publish(&self, record: &MonitorRecord, summary: &MonitorSummary) {
        let mut newest = self.shared.newest();
        newest.number += 1;
        newest.record = Arc::new((record.clone(), summary.clone()));
        newest.history.push(record);
        drop(newest);
        self.shared.news.notify_all();
    }
}

fn listen(listener: &TcpListener, shared: &Arc<ServeState>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // No file descriptors are left: wait until a client goes.
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let _ = stream.set_write_timeout(Some(CLIENT_TIMEOUT));
        let slot = ClientSlot::take(shared, ClientCounter::Clients, MOST_CLIENTS);
        let Some(slot) = slot else {
            turn_away(&stream);
            continue;
        };
        let there = Arc::clone(shared);
        let builder = std::thread::Builder::new().name("client".to_string()).stack_size(STACK);
        // Where no thread can be started, the client is dropped, and so is its slot.
        let _ = builder.spawn(move || {
            let _slot = slot;
            // A client that goes away, or is too slow, is not an error.
            let _ = serve(&stream, &there);
        });
    }
}

/// Does not wait: a few bytes always fit into a new connection.
fn turn_away(stream: &TcpStream) {
    let _ = stream.set_nonblocking(true);
    let mut stream: &TcpStream = stream;
    let answer = HttpResponse::error(503, "too many clients; try again later");
    let _ = stream.write_all(&answer.whole());
}

#[derive(Clone, Copy)]
enum ClientCounter {
    Clients,
    Streams,
}

/// One of a bounded number of clients or streams; dropping it frees the slot.
struct ClientSlot {
    shared: Arc<ServeState>,
    counter: ClientCounter,
}

impl ClientSlot {
    fn take(shared: &Arc<ServeState>, counter: ClientCounter, most: usize) -> Option<ClientSlot> {
        let slot = ClientSlot { shared: Arc::clone(shared), counter };
        // Counted first; the drop undoes that where it was one too many.
        (slot.count().fetch_add(1, Ordering::AcqRel) < most).then_some(slot)
    }

    fn count(&self) -> &AtomicUsize {
        match self.counter {
            ClientCounter::Clients => &self.shared.clients,
            ClientCounter::Streams => &self.shared.streams,
        }
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.count().fetch_sub(1, Ordering::AcqRel);
    }
}

fn serve(stream: &TcpStream, shared: &Arc<ServeState>) -> io::Result<()> {
    let request = match http::read(stream, CLIENT_TIMEOUT)? {
        Ok(request) => request,
        Err(answer) => return answer.send(stream, false),
    };
    let bare = request.method == "HEAD";
    if !matches!(request.method.as_str(), "GET" | "HEAD") {
        return HttpResponse::error(405, "only GET").send(stream, bare);
    }
    match shared.access.check(&request) {
        Ok(()) => {}
        Err(AccessRefusal::Foreign(why)) => {
            return HttpResponse::error(403, why).send(stream, bare);
        }
        Err(AccessRefusal::Token) => {
            return HttpResponse::error(401, "show the token: ?token=… or Authorization: Bearer …")
                .send(stream, bare);
        }
    }
    let newest = || Arc::clone(&shared.newest().record);
    let answer = match request.path.as_str() {
        "/" => HttpResponse::new("text/html; charset=utf-8", PAGE.to_string()),
        "/metrics" => {
            let (record, summary) = &*newest();
            HttpResponse::new(
                "text/plain; version=0.0.4; charset=utf-8",
                prometheus::text(record, summary),
            )
        }
        "/api/sample" => {
            let json = serde_json::to_string(&newest().0).map_err(io::Error::other)?;
            HttpResponse::new("application/json", json)
        }
        "/api/history" => {
            let json = serde_json::to_string(&shared.newest().history).map_err(io::Error::other)?;
            HttpResponse::new("application/json", json)
        }
        "/api/stream" if bare => HttpResponse::new("text/event-stream", String::new()),
        "/api/stream" => return follow(stream, shared),
        _ => HttpResponse::error(
            404,
            "there are /, /metrics, /api/sample, /api/history and /api/stream",
        ),
    };
    answer.send(stream, bare)
}

/// Sends record after record, the newest each time.
fn follow(mut stream: &TcpStream, shared: &Arc<ServeState>) -> io::Result<()> {
    let Some(_slot) = ClientSlot::take(shared, ClientCounter::Streams, MOST_STREAMS) else {
        return HttpResponse::error(503, "too many streams; try again later").send(stream, false);
    };
    stream.write_all(&HttpResponse::stream().head())?;
    let mut seen = 0;
    loop {
        let newest = shared.newest();
        let old = |newest: &mut NewestRecord| newest.number == seen;
        let (newest, _) = shared
            .news
            .wait_timeout_while(newest, KEEP_ALIVE, old)
            .unwrap_or_else(PoisonError::into_inner);
        let (number, record) = (newest.number, Arc::clone(&newest.record));
        drop(newest);
        if number == seen {
            stream.write_all(b":\n\n")?;
            continue;
        }
        seen = number;
        let json = serde_json::to_string(&record.0).map_err(io::Error::other)?;
        stream.write_all(format!("data: {json}\n\n").as_bytes())?;
    }
}

#[cfg(test)]
mod tests;
