//! Waits for the program, also while it is stopped and continued: the shell that started us must
//! get the terminal back when the program stops, as it would without a process in between.

#![expect(unsafe_code, reason = "foreign calls")]

use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::ptr::null_mut;
use std::thread;

use super::signals;

/// Waits until the program ends.
pub(super) fn wait(child: u32) -> io::Result<ExitStatus> {
    let child = i32::try_from(child).map_err(io::Error::other)?;
    loop {
        let mut status = 0;
        // SAFETY: the child is ours, and one number is written.
        let found = unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) };
        if found < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        } else if libc::WIFSTOPPED(status) {
            stop_with(child, libc::WSTOPSIG(status));
        } else {
            return Ok(ExitStatus::from_raw(status));
        }
    }
}

/// Stops this process because the program was stopped, if the program was in the terminal's
/// foreground; our group has the terminal meanwhile. Continues the program when this process is
/// continued.
fn stop_with(child: i32, signal: i32) {
    // A signal of the terminal stops the whole group, this process too, and continues it: then
    // the program runs again when this process does.
    for _ in 0..2 {
        thread::sleep(signals::DELIVERY_TIME);
        if !is_stopped(child) {
            return;
        }
    }
    let mut options = File::options();
    let options = options.read(true).write(true).custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK);
    let Ok(terminal) = options.open("/dev/tty") else { return };
    // SAFETY: these only ask, of a descriptor that is open.
    let (own, its) = unsafe { (libc::getpgrp(), libc::getpgid(child)) };
    // SAFETY: as above.
    let foreground = || unsafe { libc::tcgetpgrp(terminal.as_raw_fd()) };
    if its <= 0 || foreground() != own && foreground() != its {
        return;
    }
    give(&terminal, own);
    signals::keep_next_continue(true);
    // SAFETY: to this thread itself, so that it does not go on before it is stopped.
    unsafe { libc::raise(signal) };
    if foreground() == own {
        give(&terminal, its);
    }
    // SAFETY: the child is ours and not waited for; its group is known.
    unsafe { libc::kill(if its == own { child } else { -its }, libc::SIGCONT) };
    signals::keep_next_continue(false);
}

fn is_stopped(child: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// Makes a process group the terminal's foreground, also from the background.
fn give(terminal: &File, group: i32) {
    // SAFETY: the sets are written before they are read; the descriptor is open.
    unsafe {
        let (mut one, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        libc::sigemptyset(one.as_mut_ptr());
        libc::sigaddset(one.as_mut_ptr(), libc::SIGTTOU);
        libc::pthread_sigmask(libc::SIG_BLOCK, one.as_ptr(), before.as_mut_ptr());
        libc::tcsetpgrp(terminal.as_raw_fd(), group);
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
    }
}
