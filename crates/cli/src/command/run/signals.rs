//! Signals are the program's, each of them once.
//!
//! What is sent to this process alone is passed on. What the terminal sends reaches the program by
//! itself, and so does what is sent to the whole process group (`kill 0`, `timeout`) or to every
//! process of a service (systemd): passed on, it would come twice, and many programs take a second
//! SIGTERM for "at once". The kernel does not say to whom else a signal went. So a witness is
//! started, a process that does nothing: what has reached it too, the program has, unless it has
//! left the group. Once the program has ended, those that ask for an end are meant for us.

#![expect(unsafe_code, reason = "foreign calls")]

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr::{from_ref, null, null_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64};
use std::thread;
use std::time::Duration;

/// Those that are for the program and not for us, besides the real-time ones. What the kernel
/// raises for our own mistakes is not among them, nor what only a shell may use.
const NAMED: [i32; 17] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGPIPE,
    libc::SIGURG,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGXCPU,
    libc::SIGSTKFLT,
];

/// Every signal that is passed on.
fn passed_on() -> impl Iterator<Item = i32> {
    NAMED.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// The place of a signal among 64.
fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

const NOT_YET: i32 = -1;
static CHILD: AtomicI32 = AtomicI32::new(NOT_YET);
/// The signals, a bit each, that came before there was a program to pass them to.
static EARLY: AtomicU64 = AtomicU64::new(0);
/// Where the handler leaves word of a signal.
static LETTERS: AtomicI32 = AtomicI32::new(-1);
/// On a letter: it is not to be passed on.
const KEPT: u8 = 0x80;

/// Those that end this process once the program has ended.
const ENDING: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
/// Whether the next SIGCONT is ours.
static CONTINUES: AtomicBool = AtomicBool::new(false);
/// When the program ended, by [`now`].
static ENDED: AtomicU64 = AtomicU64::new(0);
/// The path of a file that is to be removed where a signal ends this process; null for none.
static UNFINISHED: AtomicPtr<libc::c_char> = AtomicPtr::new(null_mut());
/// How long it may take until a signal has reached all that it is sent to.
pub(super) const SETTLED: Duration = Duration::from_millis(20);

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // What the kernel itself sends (codes above 0), as for the terminal, goes to the whole group;
    // and SIGPIPE is sent in our own name, for what we write.
    // SAFETY: the kernel passes a valid description of the signal.
    let kept = unsafe { (*info).si_code > 0 || (*info).si_pid() == libc::getpid() };
    if signal == libc::SIGCONT && CONTINUES.swap(false, Relaxed) {
        return;
    }
    match CHILD.load(Relaxed) {
        NOT_YET => {
            EARLY.fetch_or(bit(signal), Relaxed);
        }
        0 => end_by(signal),
        _ => post(signal as u8 | if kept { KEPT } else { 0 }),
    }
}

/// Ends this process by a signal, unless it is one that was sent to the program, too.
fn end_by(signal: i32) {
    let since = Duration::from_nanos(now().saturating_sub(ENDED.load(Relaxed)));
    if ENDING.contains(&signal) && since > SETTLED {
        // SAFETY: all may be called in a handler. The path ends with a zero and is never freed.
        unsafe {
            let unfinished = UNFINISHED.load(Acquire);
            if !unfinished.is_null() {
                libc::unlink(unfinished);
            }
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// The kernel's clock, in nanoseconds; it may be asked in a handler.
fn now() -> u64 {
    // SAFETY: two numbers are written.
    let at = unsafe {
        let mut at: libc::timespec = zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut at);
        at
    };
    at.tv_sec.unsigned_abs() * 1_000_000_000 + at.tv_nsec.unsigned_abs()
}

/// The next SIGCONT is the one that continues us after a stop, and not for the program, which is
/// continued when it has the terminal: a second one would wake it when it stops again.
pub(super) fn keep_continue(keep: bool) {
    CONTINUES.store(keep, Relaxed);
}

/// Names the file that is being written, or that none is.
pub(super) fn remove_at_end(path: Option<&Path>) {
    let path = path.and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
    // It stays: a handler may be at work with it. They are three in a run.
    UNFINISHED.store(path.map_or(null_mut(), CString::into_raw), Release);
}

fn post(letter: u8) {
    // SAFETY: write may be called in a handler; what it says of an error is put back.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        libc::write(LETTERS.load(Relaxed), from_ref(&letter).cast(), 1);
        *errno = before;
    }
}

/// From now on signals are the program's. Those that whoever started us wants ignored, as
/// `nohup` and a script's background do, stay so, for the program too; only SIGPIPE is ignored
/// by every program in Rust, and is not by those that one starts. And who ignores SIGCHLD is not
/// told how its child ended.
pub(super) fn catch() -> io::Result<Post> {
    // SAFETY: what a signal does by default is done without code of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let witness = Witness::start().ok();
    let (letters, to) = UnixStream::pair()?;
    letters.set_nonblocking(true)?;
    to.set_nonblocking(true)?;
    // It stays open: a handler may be at work for as long as this process lives.
    LETTERS.store(to.into_raw_fd(), Relaxed);
    for signal in passed_on() {
        // SAFETY: the structures are zeroed, which is valid, and the handler only does what a
        // handler may.
        let code = unsafe {
            let mut action: libc::sigaction = zeroed();
            libc::sigaction(signal, null(), &raw mut action);
            if action.sa_sigaction == libc::SIG_IGN && signal != libc::SIGPIPE {
                continue;
            }
            action = zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(signal, &raw const action, null_mut())
        };
        if code != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(Post { letters, witness })
}

/// Names the program that signals go to.
pub(super) fn pass_to(child: u32) {
    CHILD.store(i32::try_from(child).unwrap_or(0), Relaxed);
    let early = EARLY.swap(0, Relaxed);
    passed_on().filter(|signal| early & bit(*signal) != 0).for_each(send);
}

/// The program has ended: nothing is passed on any more, and [`Post::deliver`] returns.
pub(super) fn stop() {
    ENDED.store(now(), Relaxed);
    CHILD.store(0, Relaxed);
    post(KEPT);
}

fn send(signal: i32) {
    let child = CHILD.load(Relaxed);
    if child > 0 {
        // SAFETY: the child is ours and not waited for yet.
        unsafe { libc::kill(child, signal) };
    }
}

/// Whether the program is still in this process's group.
fn is_in_group() -> bool {
    // SAFETY: these only ask.
    unsafe { libc::getpgid(CHILD.load(Relaxed)) == libc::getpgrp() }
}

/// What brings the program its signals.
pub(super) struct Post {
    letters: UnixStream,
    witness: Option<Witness>,
}

impl Post {
    /// How long that may take at the very most: what the witness got until then was meant for this one, too.
    const STALE: Duration = Duration::from_millis(200);

    /// Passes signals on, until [`stop`].
    pub(super) fn deliver(mut self) {
        // What came before the program did was passed on, and is forgotten soon.
        let mut patience = Some(Post::STALE);
        let mut letters = [0; 512];
        loop {
            let come = self.wait(patience);
            if CHILD.load(Relaxed) == 0 {
                return;
            }
            if !come {
                self.seen();
                patience = None;
                continue;
            }
            thread::sleep(SETTLED);
            let count = self.letters.read(&mut letters).unwrap_or(0);
            let seen = if is_in_group() { self.seen() } else { 0 };
            letters[..count]
                .iter()
                .filter(|letter| **letter & KEPT == 0)
                .map(|letter| i32::from(*letter))
                .filter(|signal| seen & bit(*signal) == 0)
                .for_each(send);
            patience = Some(Post::STALE);
        }
    }

    /// Waits for a letter; whether one has come.
    fn wait(&self, patience: Option<Duration>) -> bool {
        let millis = patience.map_or(-1, |patience| patience.as_millis() as i32);
        let mut one =
            libc::pollfd { fd: self.letters.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: it is one structure, and lives until the call is over.
        unsafe { libc::poll(&raw mut one, 1, millis) != 0 }
    }

    /// What has reached the witness since it was asked last. One that does not answer is not
    /// asked again.
    fn seen(&mut self) -> u64 {
        match self.witness.as_mut().map(Witness::ask) {
            Some(Ok(seen)) => seen,
            _ => {
                self.witness = None;
                0
            }
        }
    }
}

/// A process beside the program, which keeps every signal until it is asked.
struct Witness {
    pid: i32,
    line: UnixStream,
}

impl Witness {
    fn start() -> io::Result<Witness> {
        let (line, its) = UnixStream::pair()?;
        line.set_read_timeout(Some(Post::STALE))?;
        // SAFETY: the sets are written before they are read. After the fork the new process only
        // calls what a handler may, with signals blocked from its first moment on.
        let pid = unsafe {
            let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            let parent = libc::getpid();
            let pid = libc::fork();
            if pid == 0 {
                witness(parent, its.as_raw_fd(), line.as_raw_fd(), all.as_ptr());
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
            pid
        };
        if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(Witness { pid, line }) }
    }

    fn ask(&mut self) -> io::Result<u64> {
        let mut seen = [0; 8];
        self.line.write_all(&[1])?;
        self.line.read_exact(&mut seen)?;
        Ok(u64::from_ne_bytes(seen))
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // SAFETY: it is our child and was not waited for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, null_mut(), 0);
        }
    }
}

/// The life of a witness: it ends with the one who started it.
///
/// # Safety
///
/// It must be called in a process that was just forked, with all signals blocked.
unsafe fn witness(parent: i32, line: i32, other: i32, all: *const libc::sigset_t) -> ! {
    // SAFETY: these are calls of the kernel on what is this process's own.
    unsafe {
        libc::close(other);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"plimsoll-signal".as_ptr());
        let now: libc::timespec = zeroed();
        let mut question = 0_u8;
        while libc::getppid() == parent && libc::read(line, (&raw mut question).cast(), 1) == 1 {
            let mut seen = 0_u64;
            while let signal @ 1.. = libc::sigtimedwait(all, null_mut(), &raw const now) {
                seen |= bit(signal);
            }
            libc::write(line, (&raw const seen).cast(), size_of::<u64>());
        }
        libc::_exit(0)
    }
}
