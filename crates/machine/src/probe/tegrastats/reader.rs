//! Runs the program and keeps the newest line.
//!
//! A thread of its own starts the program, reads what it prints and starts it again when
//! it ends, later each time. The child asks the kernel to be killed with that thread, so it
//! is not left behind even when we are killed ourselves.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::parse;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::probe::Probe;
use crate::probe::sample::{HelperCost, MachineSample};
use crate::sys::process::die_with_spawner;

/// Where the program lies on a Jetson.
const PLACES: [&str; 2] = ["/usr/bin/tegrastats", "/usr/sbin/tegrastats"];
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A line is cut here: a program that prints without end must not fill our memory.
const LONGEST_LINE: u64 = 16 << 10;

#[derive(Default)]
struct ReaderState {
    newest: Option<(Instant, MachineSample)>,
    /// What keeps the program from telling anything.
    trouble: Option<String>,
    child: Option<Child>,
    stop: bool,
}

type SharedState = Arc<(Mutex<ReaderState>, Condvar)>;

fn lock(shared: &SharedState) -> MutexGuard<'_, ReaderState> {
    shared.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program, running.
pub struct TegraReader {
    shared: SharedState,
    thread: Option<JoinHandle<()>>,
    /// A line that is older says nothing of now.
    fresh: Duration,
}

impl TegraReader {
    /// Looks for the program on the path and where Jetson Linux has it.
    pub(in crate::probe) fn find(machine: &Machine, interval: Duration) -> Result<TegraReader> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&path).map(|folder| folder.join("tegrastats"));
        let usual = PLACES.iter().map(|place| machine.on_disk(place));
        let found = on_path.chain(usual).find(|file| machine.is_here() && file.is_file());
        let found = found.ok_or_else(|| Error::Unavailable {
            what: "tegrastats".to_string(),
            why: format!(
                "not on the path, nor {}; it comes with Jetson Linux",
                PLACES.join(" or ")
            ),
        })?;
        TegraReader::start(&found, interval)
    }

    /// Runs this program, asking for a line each interval.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when no thread can be started.
    pub fn start(program: &Path, interval: Duration) -> Result<TegraReader> {
        let shared = SharedState::default();
        let (there, program) = (Arc::clone(&shared), program.to_path_buf());
        let interval = interval.max(Duration::from_millis(50));
        let thread = std::thread::Builder::new()
            .name("tegrastats".to_string())
            .spawn(move || keep_running(&there, &program, interval))
            .map_err(|error| Error::Unavailable {
                what: "tegrastats".to_string(),
                why: error.to_string(),
            })?;
        let fresh = interval * 3 + Duration::from_secs(1);
        Ok(TegraReader { shared, thread: Some(thread), fresh })
    }
}

impl Probe for TegraReader {
    fn read(&mut self, sample: &mut MachineSample) -> Result<()> {
        let state = lock(&self.shared);
        let pid = state.child.as_ref().map(Child::id);
        sample.helpers.extend(pid.and_then(|pid| HelperCost::of("tegrastats", pid)));
        match (&state.newest, &state.trouble) {
            (Some((at, newest)), _) if at.elapsed() <= self.fresh => {
                sample.merge(newest.clone());
                Ok(())
            }
            (_, Some(trouble)) => {
                Err(Error::Unavailable { what: "tegrastats".to_string(), why: trouble.clone() })
            }
            // It has only just been started.
            (_, None) => Ok(()),
        }
    }
}

impl Drop for TegraReader {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.shared);
            state.stop = true;
            if let Some(child) = &mut state.child {
                let _ = child.kill();
            }
        }
        self.shared.1.notify_all();
        // A killed child closes its output, and the thread ends; one that handed its
        // output on to others is not waited for.
        let deadline = Instant::now() + Duration::from_millis(500);
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn keep_running(shared: &SharedState, program: &Path, interval: Duration) {
    let mut wait = FIRST_WAIT;
    while !lock(shared).stop {
        let started = Instant::now();
        let trouble = match spawn(program, interval) {
            Ok((child, output)) => {
                lock(shared).child = Some(child);
                follow(shared, output);
                ended(shared)
            }
            Err(error) => format!("{} cannot be run: {error}", program.display()),
        };
        // One that ran for a while is started again at once.
        if started.elapsed() > LONGEST_WAIT {
            wait = FIRST_WAIT;
        }
        let mut state = lock(shared);
        if !state.stop {
            tracing::debug!("{trouble}; started again in {wait:?}");
            state.trouble = Some(format!("{trouble}; it is started again"));
            let stopped = |state: &mut ReaderState| !state.stop;
            let waited = shared.1.wait_timeout_while(state, wait, stopped);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }
}

fn spawn(program: &Path, interval: Duration) -> std::io::Result<(Child, ChildStdout)> {
    let mut command = Command::new(program);
    command.arg("--interval").arg(interval.as_millis().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    die_with_spawner(&mut command);
    let mut child = command.spawn()?;
    match child.stdout.take() {
        Some(output) => Ok((child, output)),
        None => Err(std::io::Error::other("it has no output")),
    }
}

/// Keeps the newest line until there are no more.
fn follow(shared: &SharedState, output: ChildStdout) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        match output.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(1..) => {}
            _ => return,
        }
        if let Ok(record) = parse(&String::from_utf8_lossy(&line)) {
            let sample = record.to_sample();
            let mut state = lock(shared);
            (state.newest, state.trouble) = (Some((Instant::now(), sample)), None);
        }
    }
}

/// Takes the child that has nothing more to say to its end.
fn ended(shared: &SharedState) -> String {
    let child = lock(shared).child.take();
    let Some(mut child) = child else { return "it was taken away".to_string() };
    let _ = child.kill();
    match child.wait() {
        Ok(status) => format!("it ended ({status})"),
        Err(error) => format!("it was lost: {error}"),
    }
}
