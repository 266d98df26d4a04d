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
/// What the names of all of them take, at most.
const MOST: u64 = 64 << 20;

static SEEN: [AtomicU64; KNOWN] = [const { AtomicU64::new(0) }; KNOWN];
/// The process that writes names now: the lines of two threads must not mix, and a child does
/// not wait for a thread that stayed with its parent.
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
    // What a parent has named before a fork its child must name for itself.
    let pid = here.process.pid.load(Relaxed);
    let hash = frames.iter().fold(0xcbf2_9ce4_8422_2325 ^ u64::from(pid), |hash, frame| {
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
    if !sys::may_write(MOST) {
        return;
    }
    let number = process::decimal(number, &mut two);
    let flags = sys::O_RDWR | sys::O_CREAT | sys::O_APPEND | sys::O_CLOEXEC;
    let me = here.process.pid.load(Relaxed);
    while let Err(other) = WRITING.compare_exchange(0, me, AcqRel, Relaxed) {
        if other != me {
            let _ = WRITING.compare_exchange(other, 0, AcqRel, Relaxed);
            continue;
        }
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
