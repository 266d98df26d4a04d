//! What the libraries log: on stderr, and in the log of a run that wants it.
//!
//! `-v` and `-q` say how much goes to stderr; without them `RUST_LOG` does, and without that
//! only warnings are shown. What stands on the command line was typed for this run, so it
//! wins over the environment. A run that keeps a log of its own ([`collect`]) gets warnings
//! whatever is shown, and with `-v` more.
//!
//! Whoever did not ask for a log reads sentences: `warning: …`, as errors begin with `error: …`.
//! With `-v` or `RUST_LOG` each line has its time and where it comes from.

use std::fmt::{self, Write};
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use plimsoll::text::one_line;
use plimsoll_bench::workload::{LOG_TARGET, Level, LogLine, Logged};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Registry, fmt as text};

use crate::args::Global;
use crate::output::{LogWriter, colour_on};

/// Starts logging for the rest of the process.
pub(crate) fn start(global: &Global) {
    let wish = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let (filter, complaint) = filter(global, wish.as_deref());
    let asked_for = global.verbose > 0 || wish.is_some();
    let layer =
        text::layer().with_writer(|| LogWriter).with_ansi(colour_on(io::stderr().is_terminal()));
    let shown: Box<dyn Layer<Registry> + Send + Sync> = match asked_for {
        true => layer.with_filter(filter).boxed(),
        false => layer.event_format(PlainEvent).with_filter(filter).boxed(),
    };
    let kept = match global.verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let subscriber = Registry::default().with(shown).with(Collecting.with_filter(kept));
    // Fails only where a subscriber is set already, and then logging works.
    let _ = tracing::subscriber::set_global_default(subscriber);
    if let Some(complaint) = complaint {
        tracing::warn!("RUST_LOG is ignored: {complaint}");
    }
}

/// An event as a sentence for people.
struct PlainEvent;

impl<S, N> FormatEvent<S, N> for PlainEvent
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: text::format::Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (word, colour) = match *event.metadata().level() {
            tracing::Level::ERROR => ("error", "\x1b[1;31m"),
            tracing::Level::WARN => ("warning", "\x1b[33m"),
            _ => ("note", ""),
        };
        let mut words = LogMessage::default();
        event.record(&mut words);
        // The writer keeps escapes, which are to be colours of ours only.
        let said = format!("{}{}", words.message, words.fields);
        let said = one_line(&said);
        match writer.has_ansi_escapes() && !colour.is_empty() {
            true => writeln!(writer, "{colour}{word}:\x1b[0m {said}"),
            false => writeln!(writer, "{word}: {said}"),
        }
    }
}

fn filter(global: &Global, wish: Option<&str>) -> (Targets, Option<String>) {
    let level = match (global.quiet, global.verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, 2) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    };
    let typed = global.quiet || global.verbose > 0;
    let otherwise = Targets::new().with_default(level);
    match wish.filter(|_| !typed).map(str::parse) {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (otherwise, Some(error.to_string())),
        None => (otherwise, None),
    }
}

/// How many lines are kept at most until they are fetched.
const MOST: usize = 4096;

static WANTED: AtomicBool = AtomicBool::new(false);
static LINES: Mutex<Vec<LogLine>> = Mutex::new(Vec::new());

/// From now on keeps what libraries log, until the result is dropped.
pub(crate) fn collect() -> Arc<dyn Logged> {
    WANTED.store(true, Ordering::Relaxed);
    Arc::new(Collected)
}

#[derive(Debug)]
struct Collected;

impl Logged for Collected {
    fn drain(&self) -> Vec<LogLine> {
        std::mem::take(&mut *LINES.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Keeps events as lines.
struct Collecting;

impl<S: Subscriber> Layer<S> for Collecting {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // What a run has logged itself is in its log already.
        if !WANTED.load(Ordering::Relaxed) || event.metadata().target() == LOG_TARGET {
            return;
        }
        let mut words = LogMessage::default();
        event.record(&mut words);
        let LogMessage { message, fields } = words;
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warn,
            tracing::Level::INFO => Level::Info,
            _ => Level::Debug,
        };
        let line = LogLine { time: SystemTime::now(), level, text: format!("{message}{fields}") };
        let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() < MOST {
            lines.push(line);
        }
    }
}

/// The message of an event, and its fields behind it.
#[derive(Default)]
struct LogMessage {
    message: String,
    fields: String,
}

impl Visit for LogMessage {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that a test can read.
    struct SharedText(Arc<Mutex<Vec<u8>>>);

    impl io::Write for SharedText {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn chosen(quiet: bool, verbose: u8, wish: Option<&str>) -> String {
        filter(&Global { json: false, quiet, verbose }, wish).0.to_string()
    }

    #[test]
    fn what_was_typed_wins_over_the_environment() {
        assert_eq!(chosen(false, 0, None), "warn");
        assert_eq!(chosen(false, 0, Some("plimsoll=debug")), "plimsoll=debug");
        assert_eq!(chosen(false, 2, Some("error")), "debug");
        assert_eq!(chosen(false, 9, None), "trace");
        assert_eq!(chosen(true, 0, Some("trace")), "error");
    }

    #[test]
    fn a_bad_wish_is_told_and_passed_over() {
        let global = Global { json: false, quiet: false, verbose: 0 };
        let (filter, complaint) = filter(&global, Some("plimsoll=shouting"));
        assert_eq!(filter.to_string(), "warn");
        assert!(complaint.is_some());
    }

    #[test]
    fn whoever_did_not_ask_for_a_log_reads_sentences() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let writer = Arc::clone(&said);
        let writer = move || SharedText(Arc::clone(&writer));
        let layer = text::layer().with_writer(writer).with_ansi(false);
        let subscriber = Registry::default().with(layer.event_format(PlainEvent));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(engine = "ort", "does less\x1b[31m");
            tracing::error!("failed\nfits");
        });
        let said = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let said = String::from_utf8(said).unwrap();
        assert_eq!(said, "warning: does less�[31m engine=\"ort\"\nerror: failed fits\n");
    }

    #[test]
    fn a_run_gets_what_libraries_log_and_not_what_it_logged_itself() {
        let logged = collect();
        tracing::subscriber::with_default(Registry::default().with(Collecting), || {
            tracing::warn!(engine = "ort", "does less");
            tracing::error!(target: LOG_TARGET, "VIOLATION");
        });
        let lines: Vec<_> = logged.drain().into_iter().map(|l| (l.level, l.text)).collect();
        assert_eq!(lines, [(Level::Warn, "does less engine=\"ort\"".to_string())]);
    }
}
