//! Which processes there are: liveness by number and start time, from the kernel.

#![expect(unsafe_code, reason = "asks the kernel about processes")]

use crate::sys;

/// This process.
#[must_use]
pub fn own_pid() -> u32 {
    // SAFETY: takes and changes nothing.
    (unsafe { sys::getpid() }).unsigned_abs()
}

/// Whether a process runs that has this number and, unless it is 0, this start time. One
/// that has ended and was not waited for yet holds no memory any more: it is not alive.
#[must_use]
pub fn is_alive(pid: u32, start: u64) -> bool {
    let Ok(number) = i32::try_from(pid) else { return false };
    // SAFETY: signal 0 is not delivered; it only asks whether it could be.
    if number <= 0 || unsafe { sys::kill(number, 0) } != 0 && sys::errno() == sys::ESRCH {
        return false;
    }
    match stat(pid) {
        Some((b'Z' | b'X', _)) => false,
        Some((_, began)) => start == 0 || began == start,
        // It is there, and its file cannot be read: another user's, or a /proc that hides.
        None => true,
    }
}

/// When a process started; 0 where the kernel does not say.
#[must_use]
pub fn start_time(pid: u32) -> u64 {
    stat(pid).map_or(0, |(_, start)| start)
}

/// A process's state and start time.
fn stat(pid: u32) -> Option<(u8, u64)> {
    let mut path = [0; 32];
    let path = stat_path(pid, &mut path)?;
    let mut text = [0; 1024];
    let count = sys::read_file(path, &mut text)?;
    parse_stat(&text[..count])
}

fn stat_path(pid: u32, to: &mut [u8; 32]) -> Option<&core::ffi::CStr> {
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        for &byte in bytes {
            if let Some(place) = to.get_mut(at) {
                *place = byte;
                at += 1;
            }
        }
    };
    put(b"/proc/");
    let mut digits = [0; 10];
    put(decimal(pid, &mut digits));
    put(b"/stat\0");
    core::ffi::CStr::from_bytes_until_nul(to).ok()
}

/// A number in digits.
pub(crate) fn decimal(mut number: u32, to: &mut [u8; 10]) -> &[u8] {
    let mut at = to.len();
    loop {
        at -= 1;
        to[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &to[at..];
        }
    }
}

/// The state and the start time in a line of `/proc/PID/stat`. The name may hold anything,
/// brackets too, so fields are counted from the last one.
#[must_use]
pub fn parse_stat(text: &[u8]) -> Option<(u8, u64)> {
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let mut fields = text[end + 1..].split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    // The state is field 3, the start time field 22.
    let start = fields.nth(18)?;
    let start = start.iter().take_while(|byte| byte.is_ascii_digit());
    Some((state, start.fold(0u64, |sum, &d| sum.wrapping_mul(10).wrapping_add((d - b'0').into()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whatever_the_name_is() {
        let line = b"42 (a) b (c)) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2\n";
        assert_eq!(parse_stat(line), Some((b'S', 98765)));
        assert_eq!(parse_stat(b"42 (x"), None);
        assert_eq!(parse_stat(b"42 (x) R 1 2"), None);
    }

    #[test]
    fn this_process_lives_and_another_start_is_another_process() {
        let me = own_pid();
        let start = start_time(me);
        assert!(start > 0 && is_alive(me, start) && is_alive(me, 0));
        assert!(!is_alive(me, start + 1));
        assert!(!is_alive(0, 0) && !is_alive(u32::MAX, 0));
    }
}
