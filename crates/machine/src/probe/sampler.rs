//! All probes on one clock.
//!
//! Each probe lives on a thread of its own, because a driver may hang: the sampler asks
//! all of them at once, waits a while, and goes on without those that have not answered.
//! Such a probe is warned about once and its fields are missing until it answers again. So is
//! one that always answers too late: what it saw then would be shown as newer than it is.
//! Opening happens on the same thread, as loading a library can hang too.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use super::sample::{MachineSample, ProcessSample};
use super::{Probe, ProbeKind, ProbeSettings};
use crate::error::{Error, Result};
use crate::units::Bytes;

/// How many samples may wait to be taken; more are dropped.
const WAITING: usize = 256;
/// A sample waits for its probes as long as the interval is, within these; for one that is being
/// opened it waits the longest.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(3);
/// A machine that is busy may be late once; one that is later than this gets a warning.
const WARN_AFTER: Duration = Duration::from_secs(1);
/// And one that so many times in a row was late.
const LATE_ANSWERS: u32 = 3;
/// This many processes are kept in a sample, those with the most memory.
const MOST_PROCESSES: usize = 256;
const STACK: usize = 256 << 10;

/// A sample, and when it was taken.
#[derive(Debug, Clone, PartialEq)]
pub struct TakenSample {
    /// By the calendar.
    pub at: SystemTime,
    /// Since the sampler was started.
    pub since_start: Duration,
    /// How long it took.
    pub took: Duration,
    /// What was seen.
    pub sample: MachineSample,
    /// The probes that have not answered in time: what they tell is missing in this sample.
    pub late: Vec<&'static str>,
    /// What could not be seen, each thing reported once.
    pub warnings: Vec<String>,
}

/// How a probe is opened, on the thread where it will live.
pub type Opener = Box<dyn FnOnce() -> Result<Box<dyn Probe>> + Send>;

/// Takes samples on a thread of its own until it is dropped.
pub struct Sampler {
    samples: Receiver<TakenSample>,
    interval: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Starts with these sources. One that this machine does not have is skipped, unless it is
    /// in `wanted`.
    ///
    /// # Errors
    ///
    /// The reason why a source that is wanted cannot be had, and [`Error::Unavailable`] when no
    /// thread can be started.
    pub fn start(
        kinds: &[ProbeKind],
        wanted: &[ProbeKind],
        settings: &ProbeSettings,
    ) -> Result<Sampler> {
        let opener = |kind: &ProbeKind| {
            let (kind, settings) = (*kind, settings.clone());
            let open: Opener = Box::new(move || super::open(kind, &settings));
            (kind.name(), wanted.contains(&kind), open)
        };
        Sampler::with(kinds.iter().map(opener).collect(), settings.interval)
    }

    /// Starts with probes of the caller's own: a name, whether it must be there, and how to open
    /// it. One that must be there and takes long to open is waited for as long as a sample would.
    ///
    /// # Errors
    ///
    /// The reason why one that must be there cannot be opened, and [`Error::Unavailable`] when no
    /// thread can be started.
    pub fn with(probes: Vec<(&'static str, bool, Opener)>, interval: Duration) -> Result<Sampler> {
        let workers =
            probes.into_iter().map(|(name, wanted, open)| Worker::start(name, wanted, open));
        let workers = workers.collect::<Result<Vec<Worker>>>()?;
        let until = Instant::now() + LONGEST_WAIT;
        workers.iter().filter(|worker| worker.wanted).try_for_each(|one| one.wait_open(until))?;
        let (sender, samples) = mpsc::sync_channel(WAITING);
        let interval = Arc::new(AtomicU64::new(millis(interval)));
        let stop = Arc::new(AtomicBool::new(false));
        let shared = (Arc::clone(&interval), Arc::clone(&stop));
        let thread = thread("sampler", move || {
            SampleLoop { workers, interval: shared.0, stop: shared.1, sender, holders: Vec::new() }
                .run();
        })?;
        Ok(Sampler { samples, interval, stop, thread: Some(thread) })
    }

    /// The next sample, or nothing within this time.
    #[must_use]
    pub fn next(&self, timeout: Duration) -> Option<TakenSample> {
        self.samples.recv_timeout(timeout).ok()
    }

    /// From now on this long between two samples.
    pub fn set_interval(&self, interval: Duration) {
        self.interval.store(millis(interval), Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn millis(interval: Duration) -> u64 {
    u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let builder = std::thread::Builder::new().name(name.to_string()).stack_size(STACK);
    builder.spawn(work).map_err(|error| Error::Unavailable {
        what: "a thread to take samples on".to_string(),
        why: error.to_string(),
    })
}

/// What a probe has to say.
enum ProbeAnswer {
    /// It cannot be had here.
    Absent(Error),
    /// What it saw, and when it had seen it.
    Read(Box<Result<MachineSample>>, Instant),
}

/// A probe on its thread.
struct Worker {
    name: &'static str,
    wanted: bool,
    ask: Option<Sender<Vec<u32>>>,
    answers: Receiver<ProbeAnswer>,
    /// Closed once it is opened, or cannot be.
    opening: Receiver<()>,
    /// Since when it owes an answer.
    asked: Option<Instant>,
    /// It did not answer in time, and is not waited for until it has.
    late: bool,
    /// How many answers in a row came too late.
    late_answers: u32,
    opened: bool,
    warned: bool,
    warned_of_late: bool,
}

impl Worker {
    fn start(name: &'static str, wanted: bool, open: Opener) -> Result<Worker> {
        let (ask, asked) = mpsc::channel::<Vec<u32>>();
        let (sender, answers) = mpsc::channel();
        let (still_opening, opening) = mpsc::channel();
        // It is not waited for at the end: it may hang for ever.
        let _detached = thread(name, move || {
            let mut probe = match open() {
                Ok(probe) => probe,
                Err(error) => return drop(sender.send(ProbeAnswer::Absent(error))),
            };
            drop(still_opening);
            while let Ok(holders) = asked.recv() {
                probe.attend(&holders);
                let mut sample = MachineSample::default();
                let result = probe.read(&mut sample).map(|()| sample);
                if sender.send(ProbeAnswer::Read(Box::new(result), Instant::now())).is_err() {
                    return;
                }
            }
        })?;
        Ok(Worker {
            name,
            wanted,
            ask: Some(ask),
            answers,
            opening,
            asked: None,
            late: false,
            late_answers: 0,
            opened: false,
            warned: false,
            warned_of_late: false,
        })
    }

    /// Waits until it is opened or this moment; why it cannot be, where that is so.
    fn wait_open(&self, until: Instant) -> Result<()> {
        let _ = self.opening.recv_timeout(until.saturating_duration_since(Instant::now()));
        match self.answers.try_recv() {
            Ok(ProbeAnswer::Absent(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Asks, unless it still owes an answer. One that has ended has left word why.
    fn ask(&mut self, holders: &[u32]) {
        if let Some(ask) = self.ask.as_ref().filter(|_| self.asked.is_none()) {
            let _ended = ask.send(holders.to_vec());
            (self.asked, self.late) = (Some(Instant::now()), false);
        }
    }

    /// What it saw, where it answers in time.
    fn answer(&mut self, until: Instant, warnings: &mut Vec<String>) -> Option<MachineSample> {
        let asked = self.asked?;
        let timeout = match self.late {
            true => Duration::ZERO,
            false => until.saturating_duration_since(Instant::now()),
        };
        match self.answers.recv_timeout(timeout) {
            Ok(ProbeAnswer::Read(result, at)) => {
                (self.asked, self.opened) = (None, true);
                match *result {
                    // What it saw then is not what is now.
                    Ok(_) if self.late => self.count_late(at.duration_since(asked), warnings),
                    Ok(sample) => {
                        (self.warned, self.late_answers) = (false, 0);
                        return Some(sample);
                    }
                    Err(error) => self.warn(warnings, error.to_string()),
                }
            }
            Ok(ProbeAnswer::Absent(error)) => {
                self.end();
                if self.wanted {
                    self.warn(warnings, error.to_string());
                }
                tracing::debug!("{}: {error}", self.name);
            }
            Err(RecvTimeoutError::Timeout) => {
                self.late = true;
                if asked.elapsed() >= WARN_AFTER {
                    let text = "it has not answered; what it tells is missing until it does";
                    self.warn(warnings, text.to_string());
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.end();
                self.warn(warnings, "it died; what it tells is missing from now on".to_string());
            }
        }
        None
    }

    /// Warns of a probe that is always late, once: the remedy stays the same.
    fn count_late(&mut self, took: Duration, warnings: &mut Vec<String>) {
        self.late_answers += 1;
        if self.late_answers >= LATE_ANSWERS && !std::mem::replace(&mut self.warned_of_late, true) {
            warnings.push(format!("{}: {}", self.name, too_late(took)));
        }
    }

    fn end(&mut self) {
        (self.ask, self.asked, self.late, self.opened) = (None, None, false, true);
    }

    fn warn(&mut self, warnings: &mut Vec<String>, text: String) {
        if !std::mem::replace(&mut self.warned, true) {
            warnings.push(format!("{}: {text}", self.name));
        }
    }
}

/// That an answer takes longer than a sample waits for it, and which interval is long enough.
fn too_late(took: Duration) -> String {
    let took = took.as_millis();
    let enough = (took * 3 / 2).next_multiple_of(100);
    let remedy = match enough <= LONGEST_WAIT.as_millis() {
        true => format!("a longer interval, such as --interval {enough}ms, leaves it enough time"),
        false => format!("a sample waits for {} s at most", LONGEST_WAIT.as_secs()),
    };
    format!("it answers too late, after {took} ms, and what it tells is missing; {remedy}")
}

struct SampleLoop {
    workers: Vec<Worker>,
    interval: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    sender: SyncSender<TakenSample>,
    holders: Vec<u32>,
}

impl SampleLoop {
    fn run(mut self) {
        let start = Instant::now();
        let mut next = start;
        while !self.stop.load(Ordering::Relaxed) {
            let taken = self.take(start);
            if let Err(TrySendError::Disconnected(_)) = self.sender.try_send(taken) {
                return;
            }
            let from = next;
            loop {
                let interval = Duration::from_millis(self.interval.load(Ordering::Relaxed));
                // Beats that passed while a probe was waited for are left out.
                next = from + interval;
                let now = Instant::now();
                if next <= now {
                    next = now;
                }
                if self.stop.load(Ordering::Relaxed) || next <= now {
                    break;
                }
                std::thread::park_timeout(next - now);
            }
        }
    }

    fn take(&mut self, start: Instant) -> TakenSample {
        let (at, began) = (SystemTime::now(), Instant::now());
        let mut warnings = Vec::new();
        let mut sample = MachineSample::default();
        for worker in &mut self.workers {
            worker.ask(&self.holders);
        }
        let interval = Duration::from_millis(self.interval.load(Ordering::Relaxed));
        let wait = interval.clamp(SHORTEST_WAIT, LONGEST_WAIT);
        for worker in &mut self.workers {
            let wait = if worker.opened || worker.warned { wait } else { LONGEST_WAIT };
            if let Some(part) = worker.answer(began + wait, &mut warnings) {
                sample.merge(part);
            }
        }
        settle(&mut sample);
        let holding = sample.processes.iter().filter(|process| process.gpu_bytes.is_some());
        self.holders = holding.map(|process| process.pid).take(8).collect();
        let since_start = began.duration_since(start);
        let late = self.workers.iter().filter(|worker| worker.late).map(|worker| worker.name);
        let (late, took) = (late.collect(), began.elapsed());
        TakenSample { at, since_start, took, sample, late, warnings }
    }
}

/// What follows from the reports of several probes.
fn settle(sample: &mut MachineSample) {
    let share = sample.memory.nvmap_used;
    for gpu in sample.gpus.iter_mut().filter(|gpu| gpu.unified) {
        gpu.used = gpu.used.or(share);
    }
    let key = |process: &ProcessSample| {
        let bytes = |of: Option<Bytes>| of.map_or(0, Bytes::get);
        std::cmp::Reverse((bytes(process.gpu_bytes), process.gpu, bytes(process.resident)))
    };
    sample.processes.sort_by_key(key);
    sample.processes.truncate(MOST_PROCESSES);
}

/// One sample of the machine under `root`, with its processes: for recorded machines and for a
/// look that needs no clock. What only two samples tell, such as loads, is missing.
///
/// # Errors
///
/// [`Error::Unavailable`] where there is nothing to read.
pub fn look(root: PathBuf, kinds: &[ProbeKind]) -> Result<MachineSample> {
    let settings =
        ProbeSettings { root, processes: Some(Duration::ZERO), ..ProbeSettings::default() };
    let mut sample = MachineSample::default();
    let mut failure = None;
    let mut seen = false;
    for kind in kinds {
        let mut part = MachineSample::default();
        match super::open(*kind, &settings).and_then(|mut probe| probe.read(&mut part)) {
            Ok(()) => {
                seen = true;
                sample.merge(part);
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    settle(&mut sample);
    match failure {
        Some(error) if !seen => Err(error),
        _ => Ok(sample),
    }
}
