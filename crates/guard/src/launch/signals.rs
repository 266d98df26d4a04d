//! Forwards signals to the program, each of them once.
//!
//! A signal that is sent to this process alone is forwarded. A signal of the terminal reaches the
//! program without our help, and so does one that is sent to the whole process group (`kill 0`,
//! `timeout`) or to every process of a service (systemd). Forwarding those would deliver them
//! twice, and many programs take a second SIGTERM for "end at once". The kernel does not say to
//! which other processes a signal went. So this module starts a witness: a process that does
//! nothing but receive signals. A signal that has reached the witness has also reached the
//! program, unless the program has left the process group. Once the program has ended, signals
//! that ask for an end are meant for this process.

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

/// The signals to forward, besides the real-time ones. Those that the kernel raises for faults of
/// this process are not among them, nor those that only a shell may use.
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

/// Every signal that is forwarded.
fn forwarded() -> impl Iterator<Item = i32> {
    NAMED.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// The bit of a signal in a mask of 64.
fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

const NOT_YET: i32 = -1;
static CHILD: AtomicI32 = AtomicI32::new(NOT_YET);
/// The signals, a bit each, that came before the program was started.
static EARLY: AtomicU64 = AtomicU64::new(0);
/// The socket to which the handler writes a byte for each signal.
static NOTICES: AtomicI32 = AtomicI32::new(-1);
/// In such a byte: the signal is not to be forwarded.
const KEPT: u8 = 0x80;

/// The signals that end this process once the program has ended.
const ENDING: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
/// Whether the next SIGCONT is for this process alone.
static CONTINUES: AtomicBool = AtomicBool::new(false);
/// When the program ended, by [`now`].
static ENDED: AtomicU64 = AtomicU64::new(0);
/// The path of a file to remove when a signal ends this process; null for none.
static UNFINISHED: AtomicPtr<libc::c_char> = AtomicPtr::new(null_mut());
/// How long it may take until a signal has reached every process that it is sent to.
pub(super) const DELIVERY_TIME: Duration = Duration::from_millis(20);

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // The kernel's own signals (codes above 0), such as the terminal's, go to the whole group; and
    // it sends SIGPIPE in our own name, for what this process writes.
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
        _ => notify(signal as u8 | if kept { KEPT } else { 0 }),
    }
}

/// Ends this process by a signal, unless the signal came so soon after the program's end that it
/// was sent to the program too.
fn end_by(signal: i32) {
    let since = Duration::from_nanos(now().saturating_sub(ENDED.load(Relaxed)));
    if ENDING.contains(&signal) && since > DELIVERY_TIME {
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

/// The kernel's clock, in nanoseconds. A signal handler may read it.
fn now() -> u64 {
    // SAFETY: two numbers are written.
    let at = unsafe {
        let mut at: libc::timespec = zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut at);
        at
    };
    at.tv_sec.unsigned_abs() * 1_000_000_000 + at.tv_nsec.unsigned_abs()
}

/// Says whether the next SIGCONT is the one that continues this process after a stop. It is not
/// forwarded: the program is continued once it has the terminal, and a second SIGCONT would wake
/// it when it stops again.
pub(super) fn keep_next_continue(keep: bool) {
    CONTINUES.store(keep, Relaxed);
}

/// Names the file that is being written, or none: a signal that ends this process after the
/// program's end removes it.
pub fn remove_on_signal(path: Option<&Path>) {
    let path = path.and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
    // The old path is not freed: a handler may be using it. There are three in a run.
    UNFINISHED.store(path.map_or(null_mut(), CString::into_raw), Release);
}

fn notify(notice: u8) {
    // SAFETY: a handler may call write; errno is restored.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        libc::write(NOTICES.load(Relaxed), from_ref(&notice).cast(), 1);
        *errno = before;
    }
}

/// Installs the handlers. Signals that this process was started to ignore, as by `nohup`, stay
/// ignored, for the program too. SIGPIPE is the exception: every Rust program ignores it, and the
/// programs that it starts do not. SIGCHLD gets its default, because a process that ignores it
/// cannot learn how its child ended.
pub(super) fn catch() -> io::Result<SignalForwarder> {
    // SAFETY: what a signal does by default is done without code of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let witness = SignalWitness::start().ok();
    let (notices, to) = UnixStream::pair()?;
    notices.set_nonblocking(true)?;
    to.set_nonblocking(true)?;
    // It stays open: a handler may run for as long as this process lives.
    NOTICES.store(to.into_raw_fd(), Relaxed);
    for signal in forwarded() {
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
    Ok(SignalForwarder { notices, witness })
}

/// Names the program to forward signals to.
pub(super) fn forward_to(child: u32) {
    CHILD.store(i32::try_from(child).unwrap_or(0), Relaxed);
    let early = EARLY.swap(0, Relaxed);
    forwarded().filter(|signal| early & bit(*signal) != 0).for_each(send);
}

/// Says that the program has ended: nothing is forwarded any more, and [`SignalForwarder::run`]
/// returns.
pub(super) fn stop() {
    ENDED.store(now(), Relaxed);
    CHILD.store(0, Relaxed);
    notify(KEPT);
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

/// Forwards signals to the program.
pub(super) struct SignalForwarder {
    notices: UnixStream,
    witness: Option<SignalWitness>,
}

impl SignalForwarder {
    /// How long it may take at most until a signal has reached the witness: what it received
    /// before then belongs to the same signal.
    const STALE: Duration = Duration::from_millis(200);
    /// How long the witness may take to answer: on a busy machine it waits for a processor.
    const ANSWER_TIME: Duration = Duration::from_secs(2);

    /// Forwards signals until [`stop`].
    pub(super) fn run(mut self) {
        // Signals that came before the program were forwarded; the witness forgets them soon.
        let mut timeout = Some(SignalForwarder::STALE);
        let (mut notices, mut told) = ([0; 512], 0);
        loop {
            let come = self.wait(timeout);
            if CHILD.load(Relaxed) == 0 {
                return;
            }
            if !come {
                // It may have told of a signal that comes just now: only the others are forgotten.
                told = self.seen();
                if !self.wait(Some(DELIVERY_TIME)) {
                    (told, timeout) = (0, None);
                }
                continue;
            }
            thread::sleep(DELIVERY_TIME);
            let count = self.notices.read(&mut notices).unwrap_or(0);
            let seen = if is_in_group() { self.seen() | told } else { 0 };
            told = 0;
            notices[..count]
                .iter()
                .filter(|notice| **notice & KEPT == 0)
                .map(|notice| i32::from(*notice))
                .filter(|signal| seen & bit(*signal) == 0)
                .for_each(send);
            timeout = Some(SignalForwarder::STALE);
        }
    }

    /// Waits for a notice; whether one has come.
    fn wait(&self, timeout: Option<Duration>) -> bool {
        let millis = timeout.map_or(-1, |timeout| timeout.as_millis() as i32);
        let mut one =
            libc::pollfd { fd: self.notices.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: it is one structure, and lives until the call is over.
        unsafe { libc::poll(&raw mut one, 1, millis) != 0 }
    }

    /// The signals that have reached the witness since it was last asked. A witness that does not
    /// answer is not asked again.
    fn seen(&mut self) -> u64 {
        match self.witness.as_mut().map(SignalWitness::ask) {
            Some(Ok(seen)) => seen,
            _ => {
                self.witness = None;
                0
            }
        }
    }
}

/// A process that collects every signal it receives until it is asked for them.
struct SignalWitness {
    pid: i32,
    socket: UnixStream,
}

impl SignalWitness {
    fn start() -> io::Result<SignalWitness> {
        let (socket, its) = UnixStream::pair()?;
        socket.set_read_timeout(Some(SignalForwarder::ANSWER_TIME))?;
        // SAFETY: the sets are written before they are read. After the fork the new process only
        // calls what a handler may, with signals blocked from its first moment on.
        let pid = unsafe {
            let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            let parent = libc::getpid();
            let pid = libc::fork();
            if pid == 0 {
                witness(parent, its.as_raw_fd(), socket.as_raw_fd(), all.as_ptr());
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
            pid
        };
        if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(SignalWitness { pid, socket }) }
    }

    fn ask(&mut self) -> io::Result<u64> {
        let mut seen = [0; 8];
        self.socket.write_all(&[1])?;
        self.socket.read_exact(&mut seen)?;
        Ok(u64::from_ne_bytes(seen))
    }
}

impl Drop for SignalWitness {
    fn drop(&mut self) {
        // SAFETY: it is our child and was not waited for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, null_mut(), 0);
        }
    }
}

/// What a witness does. It ends with the process that started it.
///
/// # Safety
///
/// It must be called in a process that was just forked, with all signals blocked.
unsafe fn witness(parent: i32, socket: i32, other: i32, all: *const libc::sigset_t) -> ! {
    // SAFETY: these are calls of the kernel on what is this process's own.
    unsafe {
        libc::close(other);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"plimsoll-signal".as_ptr());
        let now: libc::timespec = zeroed();
        let mut question = 0_u8;
        while libc::getppid() == parent && libc::read(socket, (&raw mut question).cast(), 1) == 1 {
            let mut seen = 0_u64;
            while let signal @ 1.. = libc::sigtimedwait(all, null_mut(), &raw const now) {
                seen |= bit(signal);
            }
            libc::write(socket, (&raw const seen).cast(), size_of::<u64>());
        }
        libc::_exit(0)
    }
}
