//! Where allocations were made: the program's call stack, named once for each place.
//!
//! Names are found while the program runs, as its libraries lie elsewhere the next time. A
//! stack that was seen before is only its number.

#![expect(unsafe_code, reason = "asks the C library to walk the stack")]

use core::ffi::c_void;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::here::Here;
use crate::{process, sys};

const DEPTH: usize = 24;
const KNOWN: usize = 1 << 14;

static SEEN: [AtomicU64; KNOWN] = [const { AtomicU64::new(0) }; KNOWN];
/// Who writes names now: the lines of two must not mix.
static WRITING: AtomicU32 = AtomicU32::new(0);

/// The number of the place that asks; 0 where it cannot be told.
#[cold]
pub(crate) fn capture(here: &Here) -> u16 {
    let mut frames = [core::ptr::null_mut::<c_void>(); DEPTH];
    // SAFETY: the buffer is as long as is said.
    let count = unsafe { sys::backtrace(frames.as_mut_ptr(), DEPTH as i32) };
    // The first few are the guard's own.
    let frames = frames.get(..usize::try_from(count).unwrap_or(0)).unwrap_or_default();
    let frames = frames.get(2..).unwrap_or_default();
    if frames.is_empty() {
        return 0;
    }
    let hash = frames.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, frame| {
        (hash ^ *frame as u64).wrapping_mul(0x100_0000_01b3)
    }) | 1;
    for step in 0..64 {
        let place = (hash as usize).wrapping_add(step) % KNOWN;
        match SEEN[place].compare_exchange(0, hash, AcqRel, Relaxed) {
            Ok(_) => {
                write(here, place as u32 + 1, frames);
                return place as u16 + 1;
            }
            Err(other) if other == hash => return place as u16 + 1,
            Err(_) => {}
        }
    }
    0
}

fn write(here: &Here, number: u32, frames: &[*mut c_void]) {
    let (mut one, mut two, mut path) = ([0; 10], [0; 10], [0u8; 640]);
    let pid = process::decimal(here.process.pid.load(Relaxed), &mut one);
    let Some(path) = crate::here::join(&mut path, &[crate::here::folder(), b"/stacks.", pid])
    else {
        return;
    };
    let number = process::decimal(number, &mut two);
    let flags = sys::O_RDWR | sys::O_CREAT | sys::O_APPEND | sys::O_CLOEXEC;
    while WRITING.compare_exchange(0, 1, AcqRel, Relaxed).is_err() {
        // SAFETY: takes and changes nothing.
        unsafe { sys::sched_yield() };
    }
    // SAFETY: the path ends with a zero, and every buffer is as long as is said.
    unsafe {
        let fd = sys::open(path.as_ptr(), flags, 0o600);
        if fd >= 0 {
            for piece in [b"# ".as_slice(), number, b"\n"] {
                sys::write(fd, piece.as_ptr().cast(), piece.len());
            }
            sys::backtrace_symbols_fd(frames.as_ptr(), frames.len() as i32, fd);
            sys::close(fd);
        }
    }
    WRITING.store(0, Release);
}
