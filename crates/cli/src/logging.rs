//! What the libraries log, on stderr.
//!
//! `-v` and `-q` say how much; without them `RUST_LOG` does, and without that only
//! warnings are shown. What stands on the command line was typed for this run, so it
//! wins over the environment.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use crate::args::Global;
use crate::output::{LogLine, colour_on};

/// Starts logging for the rest of the process.
pub(crate) fn start(global: &Global) {
    let wish = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let (filter, complaint) = filter(global, wish.as_deref());
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LogLine)
        .with_ansi(colour_on(io::stderr().is_terminal()))
        .finish();
    // Fails only where a subscriber is set already, and then logging works.
    let _ = tracing::subscriber::set_global_default(subscriber);
    if let Some(complaint) = complaint {
        tracing::warn!("RUST_LOG is passed over: {complaint}");
    }
}

fn filter(global: &Global, wish: Option<&str>) -> (EnvFilter, Option<String>) {
    let level = match (global.quiet, global.verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let typed = global.quiet || global.verbose > 0;
    match wish.filter(|_| !typed).map(EnvFilter::try_new) {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (EnvFilter::new(level), Some(error.to_string())),
        None => (EnvFilter::new(level), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
