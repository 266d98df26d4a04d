//! The program itself: started with the guard, waited for.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use plimsoll_guard::watch::{DESCRIPTOR_VARIABLE, GuardWatch, VARIABLE};

use super::flags::{Args, Line};
use super::folder::Folder;
use super::gather::Gathered;
use super::tree::{Tree, Unguarded};
use super::{NOT_EXECUTABLE, NOT_FOUND, job, signals, sys};

/// How a program ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) code: u8,
    pub(super) signal: Option<i32>,
    pub(super) began: SystemTime,
    pub(super) lasted: Duration,
    /// Children that the guard does not reach.
    pub(super) unguarded: Vec<Unguarded>,
    /// Whether the program has ended and children of it have not.
    pub(super) left_behind: usize,
}

/// Why a program could not be started.
#[derive(Debug)]
pub(super) struct NotStarted {
    pub(super) code: u8,
    pub(super) error: io::Error,
}

impl From<io::Error> for NotStarted {
    fn from(error: io::Error) -> NotStarted {
        let code = match error.kind() {
            io::ErrorKind::NotFound => NOT_FOUND,
            _ => NOT_EXECUTABLE,
        };
        NotStarted { code, error }
    }
}

/// How often children are looked for.
const LOOK: Duration = Duration::from_millis(200);

/// Runs the program to its end.
pub(super) fn run(
    args: &Args,
    line: &Line,
    folder: &Folder,
    watch: &GuardWatch,
    json: bool,
) -> Result<(Ended, Gathered), NotStarted> {
    let descriptor = format!("/proc/{}/fd/{}", std::process::id(), watch.descriptor());
    let command = |words: &[OsString]| -> io::Result<Command> {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.env("LD_PRELOAD", preload(folder)).env(VARIABLE, folder.path());
        command.env(DESCRIPTOR_VARIABLE, &descriptor);
        // The limit is ours, whatever the guard would be told where it starts by itself.
        for name in limits_of_others() {
            command.env_remove(name);
        }
        command.env("ASAN_OPTIONS", sanitizer());
        if let Some((_, limit)) = &line.mps {
            command.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limit);
        }
        if json {
            command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
        }
        Ok(command)
    };
    let post = signals::catch()?;
    sys::outlive_large_files();
    sys::outlive_a_cut_ledger(watch.ledger());
    let (began, clock) = (SystemTime::now(), Instant::now());
    let child = match command(&args.program)?.spawn() {
        // A script that does not say what runs it is the shell's, as for `env` and every shell.
        Err(error) if error.raw_os_error() == Some(libc::ENOEXEC) => {
            command(&[&["/bin/sh".into()], &args.program[..]].concat())?.spawn()?
        }
        child => child?,
    };
    signals::pass_to(child.id());
    let (stop, stopped) = mpsc::channel::<()>();
    let (mut tree, mut gathered) = (Tree::new(child.id(), folder), Gathered::default());
    let status = thread::scope(|scope| {
        let (tree, gathered) = (&mut tree, &mut gathered);
        scope.spawn(move || {
            tree.look();
            while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK) {
                tree.look();
                gathered.look(watch);
            }
        });
        scope.spawn(move || post.deliver());
        let status = job::wait(child.id());
        signals::stop();
        drop(stop);
        status
    });
    let status = status?;
    let signal = status.signal();
    let code = status.code().unwrap_or(128 + signal.unwrap_or(0));
    let ended = Ended {
        code: u8::try_from(code).unwrap_or(255),
        signal,
        began,
        lasted: clock.elapsed(),
        left_behind: left_behind(&tree),
        unguarded: tree.into_unguarded(),
    };
    gathered.look(watch);
    Ok((ended, gathered))
}

/// The variables by which the guard is told a limit where it starts by itself.
fn limits_of_others() -> impl Iterator<Item = OsString> {
    let is_limit = |name: &OsString| name.as_encoded_bytes().starts_with(b"PLIMSOLL_GPU_MEM_LIMIT");
    std::env::vars_os().map(|(name, _)| name).filter(is_limit)
}

/// How many of the program's children still run a moment after it: most are about to end.
fn left_behind(tree: &Tree) -> usize {
    const MOMENT: Duration = Duration::from_millis(500);
    let until = Instant::now() + MOMENT;
    loop {
        match tree.still_running() {
            0 => return 0,
            count if Instant::now() > until => return count,
            _ => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// AddressSanitizer ends its program where any library is loaded before it, unless it is told not
/// to look. What the user says of it counts.
fn sanitizer() -> OsString {
    let mut all = OsString::from("verify_asan_link_order=0");
    if let Some(before) = std::env::var_os("ASAN_OPTIONS").filter(|value| !value.is_empty()) {
        all.push(":");
        all.push(before);
    }
    all
}

/// The guard first, then what was to be loaded already.
pub(in crate::command) fn preload(folder: &Folder) -> OsString {
    let mut all = folder.library().into_os_string();
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty()) {
        all.push(":");
        all.push(before);
    }
    all
}
