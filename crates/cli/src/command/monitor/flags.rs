//! The flags of `plimsoll monitor`.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use plimsoll::Bytes;
use plimsoll::probe::ProbeKind;

use crate::duration::{duration, interval};
use crate::limit::{LimitArgs, size};

const EXAMPLES: &str = "\
Examples:
  plimsoll monitor                                   live view; ? shows its keys
  plimsoll monitor --limit 7GiB                      the same, with what is left below a limit
  plimsoll monitor --once                            one look
  plimsoll monitor --format jsonl --duration 10m     a sample a line, for programs
  plimsoll monitor --log memory.jsonl                the live view, and a log of it
  plimsoll monitor --replay tegrastats.log           a recorded log, shown as if live
  plimsoll monitor --replay tegrastats.log --format csv
  plimsoll monitor --alert-free 10% --alert-within 30s --alert-exec 'logger \"$PLIMSOLL_ALERT\"'
  plimsoll monitor --serve 127.0.0.1:9400            a live page, and metrics for Prometheus

Exit codes:
  0 fine, 1 an alert was raised, 2 bad usage or input, 3 something failed";

const LIMIT_HELP: &str = "Compare use with this limit: of each GPU's own memory, or of the system's where \
                          the GPU uses it or there is none; it holds nobody back (`plimsoll run` does)";

/// Watch memory, GPUs and processes: live, for programs, or from a log
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("gpu_mem_limit", |arg| arg.help(LIMIT_HELP)))]
pub(crate) struct Args {
    /// Take one sample and end
    #[arg(long)]
    pub(super) once: bool,
    /// Time between two samples, at least 50ms; a plain number is in seconds
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = interval)]
    pub(super) interval: Duration,
    /// End after this long; of a replay, after so much of its log
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) duration: Option<Duration>,
    /// How to print samples; without it, a live view where there is a terminal
    #[arg(long, value_name = "FORM")]
    pub(super) format: Option<MonitorFormat>,
    /// Append each sample to this file as a line of JSON
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    #[command(flatten)]
    pub(super) limit: LimitArgs,
    /// Leave processes out, which cost more than all the rest
    #[arg(long)]
    pub(super) no_processes: bool,
    /// Which sources to ask, comma-separated; without it, all that this machine has
    #[arg(long, value_name = "SOURCE", value_delimiter = ',', value_parser = source)]
    pub(super) source: Vec<ProbeKind>,
    /// Examine the recorded file tree of another machine
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    pub(super) root: PathBuf,
    #[command(flatten)]
    pub(super) replay: ReplayFlags,
    #[command(flatten)]
    pub(super) alert: Alert,
    #[command(flatten)]
    pub(super) serve: Serve,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Replay")]
pub(super) struct ReplayFlags {
    /// Show or convert a recorded log: tegrastats' lines, or our own JSON lines
    #[arg(long = "replay", value_name = "FILE", conflicts_with_all = ["once", "source", "root"])]
    pub(super) file: Option<PathBuf>,
    /// How much faster than it was recorded a replay is shown
    #[arg(long, value_name = "N", default_value = "1", requires = "file", value_parser = speed)]
    pub(super) speed: f64,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Alerts")]
pub(super) struct Alert {
    /// Raise an alert when less than this is left: a share (20%) or a size (1GiB)
    #[arg(long, value_name = "SHARE|SIZE", value_parser = free)]
    pub(super) alert_free: Option<FreeAlert>,
    /// Raise an alert when memory runs out within this time at the present growth
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) alert_within: Option<Duration>,
    /// Run this in a shell at each alert; $PLIMSOLL_ALERT says what it is about
    #[arg(long, value_name = "COMMAND")]
    pub(super) alert_exec: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Live page")]
pub(super) struct Serve {
    /// Serve a live page, /metrics, /api/sample and /api/stream here: a port of this machine
    /// alone (9400), or ADDRESS:PORT
    #[arg(long, value_name = "ADDR")]
    pub(super) serve: Option<String>,
    /// What others must show to see it (or set PLIMSOLL_TOKEN); needed where ADDR can be
    /// reached from other machines
    #[arg(long, value_name = "TOKEN", requires = "serve")]
    pub(super) token: Option<String>,
}

/// How samples are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum MonitorFormat {
    /// A line for people
    Table,
    /// A JSON object a line
    Jsonl,
    /// Comma-separated, with a header
    Csv,
    /// The text that Prometheus reads
    Prometheus,
}

/// What must be left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum FreeAlert {
    /// A share of the whole.
    Share(f64),
    /// This many bytes.
    Size(Bytes),
}

impl FreeAlert {
    /// In bytes, of a memory of this size.
    pub(super) fn of(self, total: u64) -> u64 {
        match self {
            FreeAlert::Share(share) => Bytes(total).fraction(share).get(),
            FreeAlert::Size(size) => size.get(),
        }
    }
}

fn source(text: &str) -> Result<ProbeKind, String> {
    let names = ProbeKind::ALL.map(ProbeKind::name);
    let known = ProbeKind::ALL.into_iter().find(|kind| kind.name() == text);
    known.ok_or_else(|| format!("it must be one of {}", names.join(", ")))
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if speed > 0.0 && speed <= 1e6 => Ok(speed),
        _ => Err("it must be a number above 0, such as 10".to_string()),
    }
}

fn free(text: &str) -> Result<FreeAlert, String> {
    let wrong = || "it must be a share such as 20% or a size such as 1GiB".to_string();
    match text.strip_suffix('%') {
        Some(percent) => match percent.trim().parse::<f64>() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => {
                Ok(FreeAlert::Share(percent / 100.0))
            }
            _ => Err(wrong()),
        },
        None => match size(text) {
            Ok(size) => Ok(FreeAlert::Size(size)),
            Err(_) if text.trim().parse::<f64>().is_ok() => {
                Err(format!("it needs a unit: say {0}% or {0}GiB", text.trim()))
            }
            Err(_) => Err(wrong()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_be_left_is_a_share_or_a_size() {
        assert_eq!(free("20%").map(|free| free.of(1000)), Ok(200));
        assert_eq!(free("1KiB").map(|free| free.of(9)), Ok(1024));
        assert_eq!(free("20").unwrap_err(), "it needs a unit: say 20% or 20GiB");
        assert_eq!(free("0.2").unwrap_err(), "it needs a unit: say 0.2% or 0.2GiB");
        for text in ["", "%", "-1%", "101%", "nan%", "much"] {
            assert!(free(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_interval_has_a_least() {
        assert_eq!(interval("50ms"), Ok(Duration::from_millis(50)));
        assert!(interval("49ms").is_err() && interval("2h").is_err());
    }
}
