//! The trial of a model, from both sides: the process that loads it and may be lost, and the
//! one that watches.
//!
//! The program starts itself again as `plimsoll try-model`, which loads the model and runs it
//! once, on the CPU alone, so that no memory of a GPU is touched. It is watched from outside, by
//! what it holds and by the clock: a limit on its address space would refuse what it never
//! touches, and an engine's answer to that could not be told from an error of the model. What
//! the engine refuses politely is no concern here, as it will do so again.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use plimsoll::platform::{memory_left, system_memory};
use plimsoll::{Bytes, SAFETY_MARGIN};
use plimsoll_bench::workload::{BenchPlan, Trial};
use plimsoll_infer::engine::{self, STACK};
use plimsoll_infer::{EngineChoice, EngineOptions, ModelSource};

use crate::outcome::Outcome;

/// The most that a detector of batch 1 takes to run, however much there is.
const MOST: Bytes = Bytes::gib(32);
/// Where nobody tells what is available.
const ASSUMED: Bytes = Bytes::gib(4);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(3);
/// The longest message that is kept of it.
const LONGEST: u64 = 64 << 10;

/// Load a model and run it once, in a process that may be lost
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct Args {
    model: PathBuf,
    #[arg(long)]
    engine: EngineChoice,
    #[arg(long)]
    library: Option<PathBuf>,
    #[arg(long)]
    imgsz: Option<u32>,
}

/// The side that may be lost.
pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    be_expendable();
    let mut options = EngineOptions::default();
    options.library.clone_from(&args.library);
    options.input_size = args.imgsz.map(|side| (side as usize, side as usize));
    let (engine, source) = (args.engine, ModelSource::path(&args.model));
    let attempt = move || engine::trial(engine, &source, &options);
    // A panic of an engine's is an error of its model, as where it is measured.
    std::panic::set_hook(Box::new(|_| {}));
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(attempt)?;
    match thread.join() {
        Ok(Ok(())) => Ok(Outcome::Yes),
        Ok(Err(why)) => {
            tracing::info!("{why}");
            Ok(Outcome::No)
        }
        Err(_) => Ok(Outcome::Code(3)),
    }
}

/// Whatever happens to it, it leaves no core file and no process behind, and is the first that
/// goes where memory is short. Where the system cannot do one of these, the others stand.
fn be_expendable() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, Rlimit, Signal};
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        let _ = rustix::process::setrlimit(Resource::Core, none);
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    }
}

/// The side that watches.
#[derive(Debug)]
pub(super) struct Apart;

impl Trial for Apart {
    fn attempt(&self, weights: &Path, plan: &BenchPlan, stop: &AtomicBool) -> Result<(), String> {
        let begun = Instant::now();
        let limit = memory_limit();
        let started = command(weights, plan).spawn();
        let mut child = started.map_err(|e| format!("no process can be started to try it: {e}"))?;
        let stderr = child.stderr.take();
        let message = std::thread::spawn(move || first_words(stderr));
        let end = watch(&mut child, limit, plan.load_timeout, stop);
        if !matches!(end, End::Ended(_)) {
            // It may just have ended by itself.
            let _ = child.kill();
        }
        let _ = child.wait();
        let message = message.join().unwrap_or_default();
        tracing::info!(?end, elapsed = ?begun.elapsed(), "{} was tried", weights.display());
        match end.refusal(limit, plan.load_timeout, &message) {
            // Ctrl-C reaches it as well.
            Some(why) if !stop.load(Ordering::Relaxed) => Err(why),
            _ => Ok(()),
        }
    }
}

fn command(weights: &Path, plan: &BenchPlan) -> Command {
    // The program that runs, also where its file was replaced meanwhile.
    let own = Path::new("/proc/self/exe");
    let program = if own.exists() { Ok(own.to_path_buf()) } else { std::env::current_exe() };
    let mut command = Command::new(program.unwrap_or_else(|_| "plimsoll".into()));
    command.args(["try-model", "--quiet", "--engine"]).arg(plan.engine.to_string());
    if let Some(side) = plan.imgsz {
        command.arg("--imgsz").arg(side.to_string());
    }
    if let Some(library) = &plan.library {
        command.arg("--library").arg(library);
    }
    command.arg("--").arg(weights);
    command.env("CUDA_VISIBLE_DEVICES", "").env_remove("RUST_LOG").env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// What it may hold: what is available now, with the margin of every plan.
fn memory_limit() -> Bytes {
    let root = Path::new("/");
    let available = system_memory(root).ok().and_then(|memory| memory.available);
    let left = [available, memory_left(root)].into_iter().flatten().min();
    left.unwrap_or(ASSUMED).fraction(SAFETY_MARGIN).min(MOST)
}

/// How a trial came to its end.
#[derive(Debug)]
enum End {
    Ended(ExitStatus),
    /// It held more than it may.
    Memory,
    /// It took longer than it may.
    Time,
    Stopped,
}

fn watch(child: &mut Child, limit: Bytes, longest: Duration, stop: &AtomicBool) -> End {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return End::Ended(status),
            Ok(None) => {}
            Err(_) => return End::Stopped,
        }
        if held(child.id()).is_some_and(|held| held > limit) {
            return End::Memory;
        }
        if begun.elapsed() > longest {
            return End::Time;
        }
        if stop.load(Ordering::Relaxed) {
            return End::Stopped;
        }
        std::thread::sleep(LOOK);
    }
}

/// What a process holds of the memory; nothing where the system does not tell.
fn held(process: u32) -> Option<Bytes> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(Bytes(kib << 10))
}

/// The first line that it wrote; the rest is read, so that it never waits to be heard.
fn first_words(stderr: Option<impl Read>) -> String {
    let Some(mut stderr) = stderr else { return String::new() };
    let mut bytes = Vec::new();
    let _ = stderr.by_ref().take(LONGEST).read_to_end(&mut bytes);
    let _ = std::io::copy(&mut stderr, &mut std::io::sink());
    let text = String::from_utf8_lossy(&bytes);
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_string()
}

impl End {
    /// Why the model must not be loaded here; nothing where it may be.
    fn refusal(&self, limit: Bytes, longest: Duration, message: &str) -> Option<String> {
        let first = "loading it and its first run";
        match self {
            End::Ended(status) => {
                let signal = signal(*status)?;
                let message =
                    if message.is_empty() { String::new() } else { format!(": {message}") };
                Some(format!("{first} crashed the process that tried it ({signal}){message}"))
            }
            End::Memory => {
                let left =
                    format!("{:.0} % of the memory that is available", SAFETY_MARGIN * 100.0);
                Some(format!("{first} took more than {limit}, {left}; it was stopped there"))
            }
            End::Time => Some(format!(
                "{first} had not ended after {} s; --load-timeout gives it more time",
                longest.as_secs_f64()
            )),
            End::Stopped => None,
        }
    }
}

#[cfg(unix)]
fn signal(status: ExitStatus) -> Option<String> {
    use std::os::unix::process::ExitStatusExt;
    status.signal().map(|number| format!("signal {number}"))
}

#[cfg(not(unix))]
fn signal(status: ExitStatus) -> Option<String> {
    // Windows ends a crashed process with a code that no program chooses.
    status.code().filter(|code| *code < 0).map(|code| format!("code {code:#x}"))
}
