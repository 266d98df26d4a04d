//! One try: the program under the guard, with a time limit.
//!
//! Each try is a `plimsoll run --json` of its own, because the guard's parent forwards the signals
//! of its process to the one program that it has. It runs in a process group of its own, so that a
//! try that takes too long is ended with all its processes, and so is one whose `fit` is killed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use plimsoll::Bytes;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;

use super::watchdog::TryWatchdog;

/// How often a try is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// How long a program may take to end once it is asked to.
const GRACE: Duration = Duration::from_secs(5);
/// How long the last output of a program that has ended may take to arrive. A process that it left
/// behind keeps the pipe open.
const LAST_WORDS: Duration = Duration::from_millis(300);
/// How much of a program's output is kept, from its end.
const TAIL: usize = 16 << 10;
/// The largest answer of `run` that is read.
const LONGEST: u64 = 64 << 20;

/// The program to try, and under what.
#[derive(Debug)]
pub(super) struct FitAttempt<'a> {
    pub(super) words: &'a [OsString],
    pub(super) limit: Bytes,
    pub(super) reserve: Bytes,
    pub(super) timeout: Duration,
    pub(super) stop: &'a AtomicBool,
}

/// What the guard counted in a try.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct AttemptFigures {
    pub(super) seconds: f64,
    pub(super) exit_code: u8,
    pub(super) signal: Option<i32>,
    /// Of the device with the highest peak.
    pub(super) peak_bytes: Option<u64>,
    /// Its limit; on unified memory it may be lower than what was asked for.
    pub(super) limit_bytes: Option<u64>,
    pub(super) refused: u64,
    pub(super) refused_bytes: u64,
    pub(super) warnings: Vec<String>,
}

/// How a try ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum AttemptEnd {
    /// The program ran to its end.
    Ran,
    /// It failed after a request was refused, or the driver took memory past the limit.
    TooLarge,
    /// It says nothing about memory, and why.
    Unknown(String),
    /// The user asked to stop.
    Stopped,
}

/// A try that has ended.
#[derive(Debug)]
pub(super) struct AttemptResult {
    pub(super) end: AttemptEnd,
    pub(super) figures: AttemptFigures,
    /// The last of what the program printed.
    pub(super) output: String,
}

/// What is read of the answer of `run --json`.
#[derive(Debug, Default, Deserialize)]
struct RunAnswer {
    duration_seconds: f64,
    exit_code: u8,
    signal: Option<i32>,
    devices: Vec<RunAnswerDevice>,
    processes: Vec<RunAnswerProcess>,
    unguarded: Vec<RunAnswerUnguarded>,
    warnings: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
struct RunAnswerDevice {
    peak_bytes: u64,
    limit_bytes: Option<u64>,
    refused: u64,
    refused_bytes: u64,
    within_limit: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
struct RunAnswerProcess {
    failed_by_driver: u64,
}

#[derive(Debug, Default, Deserialize)]
struct RunAnswerUnguarded {
    program: String,
    uses_cuda: Option<bool>,
    why: String,
}

impl FitAttempt<'_> {
    /// Runs the program to its end, to the time limit or until the user stops it.
    pub(super) fn run(&self) -> anyhow::Result<AttemptResult> {
        let mut child = self.spawn()?;
        let _watchdog = TryWatchdog::of(child.id(), GRACE);
        let answer = child.stdout.take().map(|stdout| read_in_background(stdout.take(LONGEST)));
        let said = child.stderr.take().map(OutputTail::of);
        let (early, is_whole) = self.wait(&mut child)?;
        let output = said.map(OutputTail::finish).unwrap_or_default();
        // Where it had to be killed there is no answer, and a process may still hold the pipe.
        let patience = if is_whole { GRACE } else { LAST_WORDS };
        let answer = answer.and_then(|answer| answer.recv_timeout(patience).ok());
        let answer: Option<RunAnswer> =
            answer.and_then(|answer| serde_json::from_slice(&answer).ok());
        let end = match (early, &answer) {
            (Some(end), _) => end,
            (None, Some(answer)) => answer.end(),
            (None, None) => bail!("the program could not be tried: {}", complaint(&output)),
        };
        let figures = answer.as_ref().map(RunAnswer::figures).unwrap_or_default();
        Ok(AttemptResult { end, figures, output })
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let size = |bytes: Bytes| format!("{}B", bytes.get());
        let mut command = Command::new(own);
        command.args(["run", "--json", "--quiet"]);
        command.args(["--gpu-mem-limit", &size(self.limit), "--reserve", &size(self.reserve)]);
        command.arg("--").args(self.words).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().context("cannot start `plimsoll run`")
    }

    /// Waits for the end; how it was cut short, if it was, and whether it still gave its answer.
    fn wait(&self, child: &mut Child) -> anyhow::Result<(Option<AttemptEnd>, bool)> {
        let started = Instant::now();
        loop {
            if ended(child)? {
                return Ok((None, true));
            }
            let end = if self.stop.load(Ordering::Relaxed) {
                AttemptEnd::Stopped
            } else if started.elapsed() > self.timeout {
                let seconds = self.timeout.as_secs_f64();
                AttemptEnd::Unknown(format!(
                    "it had not ended after {seconds:.0} s, and a program that has not ended may \
                     need more memory later; give it less to do, or more time with --timeout"
                ))
            } else {
                thread::sleep(LOOK);
                continue;
            };
            return Ok((Some(end), end_group(child)?));
        }
    }
}

fn ended(child: &mut Child) -> anyhow::Result<bool> {
    Ok(child.try_wait().context("cannot wait for `plimsoll run`")?.is_some())
}

/// Ends a try with its processes; whether it ended by itself when it was asked to.
fn end_group(child: &mut Child) -> anyhow::Result<bool> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let send = |signal| group.map(|group| kill_process_group(group, signal));
    // There is nothing to do where it has ended meanwhile.
    let _ = send(Signal::TERM);
    let asked = Instant::now();
    while asked.elapsed() < GRACE {
        if ended(child)? {
            // What it started may not have listened.
            let _ = send(Signal::KILL);
            return Ok(true);
        }
        thread::sleep(LOOK);
    }
    let _ = send(Signal::KILL);
    child.wait().context("cannot wait for `plimsoll run`")?;
    Ok(false)
}

impl RunAnswer {
    fn figures(&self) -> AttemptFigures {
        let device = self.devices.iter().max_by_key(|device| device.peak_bytes);
        AttemptFigures {
            seconds: self.duration_seconds,
            exit_code: self.exit_code,
            signal: self.signal,
            peak_bytes: device.map(|device| device.peak_bytes),
            limit_bytes: device.and_then(|device| device.limit_bytes),
            refused: self.devices.iter().map(|device| device.refused).sum(),
            refused_bytes: self.devices.iter().map(|device| device.refused_bytes).sum(),
            warnings: self.warnings.clone(),
        }
    }

    /// What the run says about the limit.
    fn end(&self) -> AttemptEnd {
        let escaped = self.unguarded.iter().find(|process| process.uses_cuda != Some(false));
        if let Some(RunAnswerUnguarded { program, why, .. }) = escaped {
            return AttemptEnd::Unknown(format!("{program} ran without the limit: {why}"));
        }
        let refused = self.devices.iter().any(|device| device.refused > 0);
        let over = self.devices.iter().any(|device| device.within_limit == Some(false));
        match self.exit_code {
            0 if self.devices.is_empty() => AttemptEnd::Unknown(
                "it used no GPU memory that the guard could count, so there was nothing to limit"
                    .to_string(),
            ),
            0 if over => AttemptEnd::TooLarge,
            0 => AttemptEnd::Ran,
            _ if refused => AttemptEnd::TooLarge,
            _ if self.processes.iter().any(|process| process.failed_by_driver > 0) => {
                AttemptEnd::Unknown(
                    "the driver itself refused memory below the limit: the GPU has less free than \
                     that; end what else uses it, or lower --limit"
                        .to_string(),
                )
            }
            code => {
                let how = match self.signal {
                    Some(signal) => format!("signal {signal} ended it"),
                    None => format!("it failed with exit code {code}"),
                };
                AttemptEnd::Unknown(format!(
                    "{how}, and no request for GPU memory had been refused: an error of the program"
                ))
            }
        }
    }
}

/// The error of `run` in what it printed, or the last line.
fn complaint(output: &str) -> String {
    let message = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        let error = value.get("error")?;
        let message = error.get("message")?.as_str()?.to_string();
        let causes = error.get("causes").and_then(|causes| causes.as_array());
        let causes = causes.into_iter().flatten().filter_map(|cause| cause.as_str());
        Some(causes.fold(message, |text, cause| format!("{text}: {cause}")))
    };
    let last = || output.lines().last().unwrap_or("it gave no reason").to_string();
    output.lines().rev().find_map(message).unwrap_or_else(last)
}

/// Reads to the end beside what else is done.
fn read_in_background(mut stream: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if stream.read_to_end(&mut bytes).is_ok() {
            // Nobody waits any more where the try was given up.
            let _ = send.send(bytes);
        }
    });
    receive
}

/// The end of what a program prints, read as it comes.
struct OutputTail {
    bytes: Arc<Mutex<VecDeque<u8>>>,
    closed: mpsc::Receiver<()>,
}

impl OutputTail {
    fn of(mut stream: impl Read + Send + 'static) -> OutputTail {
        let bytes = Arc::new(Mutex::new(VecDeque::new()));
        let (kept, (close, closed)) = (Arc::clone(&bytes), mpsc::channel());
        thread::spawn(move || {
            let mut piece = [0; 4096];
            loop {
                match stream.read(&mut piece) {
                    Ok(0) => break,
                    Ok(count) => {
                        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                        kept.extend(&piece[..count]);
                        let excess = kept.len().saturating_sub(TAIL);
                        kept.drain(..excess);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            let _ = close.send(());
        });
        OutputTail { bytes, closed }
    }

    /// What has come, with a last moment for what is still on its way.
    fn finish(self) -> String {
        let _ = self.closed.recv_timeout(LAST_WORDS);
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(bytes.make_contiguous()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(answer: &str) -> AttemptEnd {
        let rest = r#""duration_seconds": 1.0, "signal": null, "warnings": []"#;
        serde_json::from_str::<RunAnswer>(&format!("{{{answer}, {rest}}}")).unwrap().end()
    }

    fn device(refused: u64, within: bool) -> String {
        format!(
            r#""devices": [{{"peak_bytes": 9, "limit_bytes": 10, "refused": {refused},
            "refused_bytes": 5, "within_limit": {within}}}], "unguarded": [],
            "processes": [{{"failed_by_driver": 0}}]"#
        )
    }

    #[test]
    fn a_refusal_decides_only_where_the_program_failed() {
        let of =
            |code: u8, refused| end(&format!(r#""exit_code": {code}, {}"#, device(refused, true)));
        assert_eq!(of(0, 0), AttemptEnd::Ran);
        assert_eq!(of(0, 3), AttemptEnd::Ran);
        assert_eq!(of(1, 3), AttemptEnd::TooLarge);
        assert!(
            matches!(of(1, 0), AttemptEnd::Unknown(why) if why.contains("error of the program"))
        );
        let over = end(&format!(r#""exit_code": 0, {}"#, device(0, false)));
        assert_eq!(over, AttemptEnd::TooLarge);
    }

    #[test]
    fn what_was_not_limited_shows_nothing() {
        let none = end(r#""exit_code": 0, "devices": [], "unguarded": [], "processes": []"#);
        assert!(matches!(none, AttemptEnd::Unknown(why) if why.contains("no GPU memory")));
        let escaped = end(r#""exit_code": 0, "devices": [], "processes": [],
            "unguarded": [{"program": "a", "uses_cuda": null, "why": "static"}]"#);
        assert!(matches!(escaped, AttemptEnd::Unknown(why) if why.contains("without the limit")));
        let full = end(r#""exit_code": 1, "devices": [], "unguarded": [],
            "processes": [{"failed_by_driver": 2}]"#);
        assert!(matches!(full, AttemptEnd::Unknown(why) if why.contains("driver itself")));
    }

    #[test]
    fn the_error_of_run_is_found_in_what_was_printed() {
        let json =
            r#"{"error": {"message": "cannot run x", "kind": "failed", "causes": ["gone"]}}"#;
        assert_eq!(complaint(&format!("noise\n{json}\n")), "cannot run x: gone");
        assert_eq!(complaint("noise\nlast"), "last");
        assert_eq!(complaint(""), "it gave no reason");
    }
}
