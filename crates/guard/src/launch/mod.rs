//! Starts a program under the guard, waits for it, and collects what the guard recorded.
//!
//! [`Launcher::prepare`] writes the library file and creates the ledger.
//! [`Launcher::run`] starts the program with the guard preloaded and stays as its parent: it
//! forwards signals, looks for child processes that the guard was not loaded into, and takes in
//! the records of processes that have ended. [`Launcher::history`] reads those records at the
//! end. The guard inside the program enforces the limit; nothing here is called when the program
//! allocates.
//!
//! There is a second path: a program of ours that restarts itself under the guard calls
//! [`Launcher::guard`] on its own command instead of [`Launcher::run`]. `plimsoll bench` does that,
//! in `crates/cli/src/command/bench/guard.rs`.
//!
//! This module prints nothing and knows no command line: `plimsoll run` and `plimsoll bench` use
//! it, and so can other front ends.

mod folder;
mod gather;
mod history;
mod preflight;
mod signals;
mod system;
mod tree;
mod wait;

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use folder::LaunchFolder;
use gather::Gathered;
use tree::ProcessTree;

use crate::client::GuardClient;
use crate::watch::{
    DESCRIPTOR_VARIABLE, GuardSettings, GuardWatch, LIMIT_VARIABLE, LedgerClock, VARIABLE,
    is_in_use,
};

pub use gather::{ProcessFigures, ProcessKey};
pub use history::{ChargeCourse, ChargePoint, HistoryBlock, HistoryRefusal, LaunchHistory};
pub use history::{ListCounts, NeverFreedBlocks, PeakMemory, PeakPlace};
pub use preflight::why_not_guarded;
pub use signals::remove_on_signal;
pub use system::can_load;
pub use tree::UnguardedProcess;

/// The default for [`GuardSettings::keep_free`]: what must stay available of the system's memory
/// where the GPU shares it.
pub const KEEP_FREE: u64 = 512 << 20;
/// The default for [`GuardSettings::reserve`]: what is reserved below the limit for the driver's own
/// memory.
pub const RESERVE: u64 = 128 << 20;

/// How often the process tree is examined.
const EXAMINE_EVERY: Duration = Duration::from_millis(200);

/// Why a program was not started under the guard, or could not be waited for.
#[derive(Debug)]
#[non_exhaustive]
pub enum LaunchError {
    /// The guard is not in this build.
    NotBuilt,
    /// This process runs under the guard itself. A program cannot have two ledgers, and the
    /// outer limit holds.
    AlreadyGuarded,
    /// No folder accepts the library file: each folder that was tried, and why not.
    NoFolder(Vec<(PathBuf, String)>),
    /// The ledger could not be created.
    Ledger(io::Error),
    /// The threads that watch the program could not be made.
    Threads(io::Error),
    /// The program could not be started or waited for.
    Start {
        /// The program's name.
        program: OsString,
        /// What is wrong with it, where the system's own error does not say it.
        hint: Option<String>,
        /// The system's error.
        source: io::Error,
    },
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LaunchError::NotBuilt => {
                f.write_str("the guard needs Linux on x86-64 or aarch64: it is not in this build")
            }
            LaunchError::AlreadyGuarded => f.write_str(
                "this process already runs under `plimsoll run`, whose limit applies to all its children; start the program without another `run`",
            ),
            LaunchError::NoFolder(tried) => {
                let tried: Vec<String> =
                    tried.iter().map(|(path, why)| format!("{}: {why}", path.display())).collect();
                write!(
                    f,
                    "no folder accepts the guard's library ({}); set TMPDIR to a folder from which libraries may be loaded",
                    tried.join("; ")
                )
            }
            LaunchError::Ledger(error) => error.fmt(f),
            LaunchError::Threads(error) => {
                write!(f, "no threads to watch the program: {error}; allow more processes (`ulimit -u`, the container's limit of PIDs) or more address space (`ulimit -v`)")
            }
            LaunchError::Start { program, hint, .. } => {
                write!(f, "cannot run {}", program.display())?;
                hint.as_ref().map_or(Ok(()), |hint| write!(f, ": {hint}"))
            }
        }
    }
}

impl Error for LaunchError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            LaunchError::Start { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// A program to run under the guard.
#[derive(Debug, Clone, Copy)]
pub struct GuardedProgram<'a> {
    /// Its name.
    pub name: &'a OsStr,
    /// Its arguments.
    pub arguments: &'a [OsString],
    /// The limit that clients of an MPS daemon read, where one runs.
    pub mps_limit: Option<&'a str>,
    /// Whether its stdout is our stderr.
    pub stdout_to_stderr: bool,
}

impl GuardedProgram<'_> {
    /// Why the guard cannot be loaded into this program, if it cannot.
    #[must_use]
    pub fn why_not_guarded(&self) -> Option<String> {
        preflight::why_not_guarded_as(self.name, self.arguments)
    }

    fn failed(&self, source: io::Error) -> LaunchError {
        let hint = preflight::why_not_started(self.name.as_ref());
        LaunchError::Start { program: self.name.to_os_string(), hint, source }
    }
}

/// How a program ended.
#[derive(Debug)]
pub struct Launched {
    /// Its exit code, or 128 and the number of the signal that ended it.
    pub code: u8,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// When it was started.
    pub began: SystemTime,
    /// Converts times of the ledger to the time since then.
    pub clock: LedgerClock,
    /// How long it ran.
    pub lasted: Duration,
    /// How long its memory was watched: longer where child processes ran on when it had ended.
    pub watched: Duration,
    /// Its child processes that the guard was not loaded into.
    pub unguarded: Vec<UnguardedProcess>,
    /// How many of its child processes still run.
    pub left_behind: usize,
    gathered: Gathered,
}

/// The library file and the ledger of one launch. Dropping it deletes both.
#[derive(Debug)]
pub struct Launcher {
    // Dropped first: the ledger is unmapped before its folder is deleted.
    watch: GuardWatch,
    folder: LaunchFolder,
}

impl Launcher {
    /// Writes the library file and creates the ledger.
    ///
    /// # Errors
    ///
    /// The guard is not in this build, this process runs under it already, or there is no place
    /// for its files.
    pub fn prepare(settings: &GuardSettings) -> Result<Launcher, LaunchError> {
        if GuardClient::find().is_ok() {
            return Err(LaunchError::AlreadyGuarded);
        }
        let folder = folder::make()?;
        let watch = GuardWatch::create(folder.path(), settings).map_err(LaunchError::Ledger)?;
        Ok(Launcher { watch, folder })
    }

    /// The ledger.
    #[must_use]
    pub fn watch(&self) -> &GuardWatch {
        &self.watch
    }

    /// Whether the ledger was truncated or overwritten while the program ran.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        system::ledger_was_cut() || self.watch.is_damaged()
    }

    /// Sets the environment by which a command loads the guard and finds this ledger.
    pub fn guard(&self, command: &mut Command) {
        command.env("LD_PRELOAD", before("LD_PRELOAD", self.folder.library().into_os_string()));
        command.env(VARIABLE, self.folder.path());
        // The ledger has the limit. These variables are for a guard that starts without one.
        let variables = std::env::vars_os().map(|(name, _)| name);
        for name in variables.filter(|name| is_limit_variable(name)) {
            command.env_remove(name);
        }
        // AddressSanitizer ends its program where any library is loaded before it, unless it is
        // told not to check. The user's own options come later and win.
        command.env("ASAN_OPTIONS", before("ASAN_OPTIONS", "verify_asan_link_order=0".into()));
    }

    /// Keeps the folders when this is dropped, and says which: programs that still run look for
    /// the guard there. A later launch removes them once nobody uses them.
    #[must_use]
    pub fn keep_folders(self) -> Vec<PathBuf> {
        self.folder.keep()
    }

    /// Deletes the folders, unless processes use them: then they are returned, and a later launch
    /// removes them once nobody does.
    #[must_use]
    pub fn end(self) -> Vec<PathBuf> {
        let Launcher { watch, folder } = self;
        let ledger = watch.folder().join(folder::LEDGER);
        // This process is no user any more.
        drop(watch);
        if is_in_use(&ledger) { folder.keep() } else { Vec::new() }
    }

    /// Runs the program to its end.
    ///
    /// From then on this process forwards its signals to the program. To be called once in a
    /// process.
    ///
    /// # Errors
    ///
    /// The program could not be started or waited for.
    pub fn run(&self, program: &GuardedProgram<'_>) -> Result<Launched, LaunchError> {
        let failed = |error| program.failed(error);
        let forwarder = signals::catch().map_err(failed)?;
        system::survive_large_files();
        system::survive_a_cut_ledger(self.watch.ledger());
        let mut tree = ProcessTree::new(&self.folder);
        let mut gathered = Gathered::default();
        let (began, clock, status, lasted) = thread::scope(|scope| {
            let (tree, gathered) = (&mut tree, &mut gathered);
            let (started, program_started) = mpsc::channel::<u32>();
            let (forward, begin_to_forward) = mpsc::channel::<()>();
            let (stop, stopped) = mpsc::channel::<()>();
            // Before the program: where there can be no threads, it is not started.
            let examine = move || {
                let Ok(child) = program_started.recv() else { return };
                tree.follow(child);
                tree.examine();
                while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(EXAMINE_EVERY)
                {
                    tree.examine();
                    gathered.take_ended(&self.watch);
                }
            };
            thread::Builder::new().spawn_scoped(scope, examine).map_err(LaunchError::Threads)?;
            let forward_signals = move || {
                if begin_to_forward.recv().is_ok() {
                    forwarder.run();
                }
            };
            let thread = thread::Builder::new().spawn_scoped(scope, forward_signals);
            thread.map_err(LaunchError::Threads)?;
            let (began, clock) = (SystemTime::now(), LedgerClock::start());
            let child = self.spawn(program).map_err(failed)?;
            signals::forward_to(child.id());
            // Both wait for this.
            let _ = (started.send(child.id()), forward.send(()));
            let ended = wait::wait(child.id()).map(|status| (status, clock.elapsed()));
            signals::stop();
            drop(stop);
            let (status, lasted) = ended.map_err(failed)?;
            Ok::<_, LaunchError>((began, clock, status, lasted))
        })?;
        let signal = status.signal();
        let code = status.code().unwrap_or(128 + signal.unwrap_or(0));
        let left_behind = left_behind(&tree);
        let watched = if left_behind.is_none() { lasted } else { clock.elapsed() };
        gathered.take_ended(&self.watch);
        Ok(Launched {
            code: u8::try_from(code).unwrap_or(255),
            signal,
            began,
            clock,
            lasted,
            watched,
            left_behind: left_behind.unwrap_or(0),
            unguarded: tree.into_unguarded(),
            gathered,
        })
    }

    fn spawn(&self, program: &GuardedProgram<'_>) -> io::Result<Child> {
        match self.command(program, program.name)?.args(program.arguments).spawn() {
            // A script without a `#!` line is run by the shell, as `env` and every shell do.
            Err(error) if error.raw_os_error() == Some(libc::ENOEXEC) => {
                let mut shell = self.command(program, "/bin/sh".as_ref())?;
                shell.arg(program.name).args(program.arguments).spawn()
            }
            child => child,
        }
    }

    fn command(&self, program: &GuardedProgram<'_>, file: &OsStr) -> io::Result<Command> {
        let mut command = Command::new(file);
        self.guard(&mut command);
        let ledger = format!("/proc/{}/fd/{}", std::process::id(), self.watch.descriptor());
        command.env(DESCRIPTOR_VARIABLE, ledger);
        if let Some(limit) = program.mps_limit {
            command.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limit);
        }
        if program.stdout_to_stderr {
            command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
        }
        Ok(command)
    }

    /// Reads everything that the guard recorded of a launch, and writes its allocation trace to
    /// `trace`, if there is one.
    ///
    /// The result says whether the trace was written; the history is there in any case.
    pub fn history(
        &self,
        launched: &Launched,
        trace: Option<&mut dyn Write>,
    ) -> (LaunchHistory, io::Result<()>) {
        history::read(&self.watch, launched, trace)
    }
}

/// Whether a variable gives a limit to a guard that starts without a ledger: that of all devices,
/// or with `_N` behind it that of one.
fn is_limit_variable(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(LIMIT_VARIABLE.as_bytes())
}

/// The value with what the variable has already behind it.
fn before(variable: &str, mut value: OsString) -> OsString {
    if let Some(old) = std::env::var_os(variable).filter(|old| !old.is_empty()) {
        value.push(":");
        value.push(old);
    }
    value
}

/// How many of the program's child processes still run shortly after it: most are about to end.
/// `None` where none ran on at all.
fn left_behind(tree: &ProcessTree) -> Option<usize> {
    const GRACE: Duration = Duration::from_millis(500);
    let until = Instant::now() + GRACE;
    let mut ran_on = None;
    loop {
        match tree.still_running() {
            0 => return ran_on,
            count if Instant::now() > until => return Some(count),
            _ => thread::sleep(Duration::from_millis(20)),
        }
        ran_on = Some(0);
    }
}
