//! The trial of a model, from both sides: the process that loads it and may be lost, and the
//! one that watches.
//!
//! The program starts itself again as `plimsoll try-model`, which loads the model and runs it
//! once, on the CPU alone, so that no GPU memory is touched. Its memory and its time are watched
//! from outside: a limit on its address space would also refuse memory that it never touches, and
//! the engine's error for that would look like an error of the model. Errors that the engine
//! itself reports do not matter here, as it will report them again.

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
/// Where it is not known what is available.
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
    give_way_to_others();
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

/// Makes sure that this process leaves no core file and no process behind, and is the first that
/// the kernel kills when memory is short. Each of these is skipped where the system cannot do it.
fn give_way_to_others() {
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
    fn attempt(
        &self,
        weights: &Path,
        engine: EngineChoice,
        plan: &BenchPlan,
        stop: &AtomicBool,
    ) -> Result<(), String> {
        let begun = Instant::now();
        let limit = memory_limit();
        let started = command(weights, engine, plan).spawn();
        let mut child = started.map_err(|e| format!("no process can be started to try it: {e}"))?;
        let stderr = child.stderr.take();
        let message = std::thread::spawn(move || first_words(stderr));
        let end = watch(&mut child, limit, plan.load_timeout, stop);
        if !matches!(end, TrialEnd::Ended(_)) {
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

fn command(weights: &Path, engine: EngineChoice, plan: &BenchPlan) -> Command {
    // The program that runs, also where its file was replaced meanwhile.
    let own = Path::new("/proc/self/exe");
    let program = if own.exists() { Ok(own.to_path_buf()) } else { std::env::current_exe() };
    let mut command = Command::new(program.unwrap_or_else(|_| "plimsoll".into()));
    command.args(["try-model", "--quiet", "--engine"]).arg(engine.to_string());
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

/// How much memory it may use: what is available now, with the margin of every plan.
fn memory_limit() -> Bytes {
    let root = Path::new("/");
    let available = system_memory(root).ok().and_then(|memory| memory.available);
    let left = [available, memory_left(root)].into_iter().flatten().min();
    left.unwrap_or(ASSUMED).fraction(SAFETY_MARGIN).min(MOST)
}

/// How a trial came to its end.
#[derive(Debug)]
enum TrialEnd {
    Ended(ExitStatus),
    /// It used more memory than it may.
    Memory,
    /// It took longer than it may.
    Time,
    Stopped,
}

fn watch(child: &mut Child, limit: Bytes, longest: Duration, stop: &AtomicBool) -> TrialEnd {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return TrialEnd::Ended(status),
            Ok(None) => {}
            Err(_) => return TrialEnd::Stopped,
        }
        if held(child.id()).is_some_and(|held| held > limit) {
            return TrialEnd::Memory;
        }
        if begun.elapsed() > longest {
            return TrialEnd::Time;
        }
        if stop.load(Ordering::Relaxed) {
            return TrialEnd::Stopped;
        }
        std::thread::sleep(LOOK);
    }
}

/// How much memory a process uses; `None` where the system does not report it.
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

impl TrialEnd {
    /// Why the model must not be loaded here; nothing where it may be.
    fn refusal(&self, limit: Bytes, longest: Duration, message: &str) -> Option<String> {
        let first = "loading it and its first run";
        match self {
            TrialEnd::Ended(status) => {
                let signal = signal(*status)?;
                let message =
                    if message.is_empty() { String::new() } else { format!(": {message}") };
                Some(format!("{first} crashed the process that tried it ({signal}){message}"))
            }
            TrialEnd::Memory => {
                let left =
                    format!("{:.0} % of the memory that is available", SAFETY_MARGIN * 100.0);
                Some(format!("{first} took more than {limit}, {left}; it was stopped there"))
            }
            TrialEnd::Time => Some(format!(
                "{first} had not ended after {} s; --load-timeout gives it more time",
                longest.as_secs_f64()
            )),
            TrialEnd::Stopped => None,
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
