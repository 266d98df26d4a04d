//! Where allocations were made: the program's call stacks, each written once.
//!
//! Names are looked up while the program runs, as its libraries lie at other addresses the next
//! time. For a stack that was seen before only its number is logged. With a C library that cannot
//! walk the stack (musl's), no stacks are written.

#![expect(unsafe_code, reason = "asks the C library to walk the stack")]

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

use crate::attach::{ProcessGuard, file_of};
use crate::log::MOST_STACK_BYTES;
use crate::{elf, process, sys};

const DEPTH: usize = 24;
const KNOWN: usize = 1 << 14;

static SEEN: [AtomicU64; KNOWN] = [const { AtomicU64::new(0) }; KNOWN];
/// The PID of the process that is writing names: the lines of two threads must not mix, and a child
/// of `fork` must not wait for a thread that exists only in its parent.
static WRITING: AtomicU32 = AtomicU32::new(0);

type Backtrace = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
type Write = unsafe extern "C" fn(*const *mut c_void, c_int, c_int);

/// A function of the C library; 0 where it has none of that name.
fn function(place: &AtomicUsize, name: &[u8]) -> usize {
    const ABSENT: usize = 1;
    let found = match place.load(Relaxed) {
        0 => match elf::next_function(name) as usize {
            0 => ABSENT,
            found => found,
        },
        known => known,
    };
    place.store(found, Relaxed);
    if found == ABSENT { 0 } else { found }
}

/// Walks the stack; returns how many frames it found.
fn walk(frames: &mut [*mut c_void; DEPTH]) -> usize {
    static BACKTRACE: AtomicUsize = AtomicUsize::new(0);
    let backtrace = function(&BACKTRACE, b"backtrace");
    if backtrace == 0 {
        return 0;
    }
    // SAFETY: the C library's function of this name; `DEPTH` is the buffer's length.
    let count = unsafe {
        core::mem::transmute::<usize, Backtrace>(backtrace)(frames.as_mut_ptr(), DEPTH as c_int)
    };
    usize::try_from(count).unwrap_or(0)
}

/// The number of the calling stack; 0 where it is unknown.
#[cold]
pub(crate) fn capture(guard: &ProcessGuard) -> u16 {
    let mut frames = [core::ptr::null_mut::<c_void>(); DEPTH];
    let count = walk(&mut frames);
    // The first two frames are the guard's own.
    let frames = frames.get(..count).unwrap_or_default();
    let frames = frames.get(2..).unwrap_or_default();
    if frames.is_empty() {
        return 0;
    }
    // The PID is part of the hash: stacks that a parent has written before a fork must be written
    // by its child, too.
    let pid = guard.process.pid.load(Relaxed);
    let hash = frames.iter().fold(0xcbf2_9ce4_8422_2325 ^ u64::from(pid), |hash, frame| {
        (hash ^ *frame as u64).wrapping_mul(0x100_0000_01b3)
    }) | 1;
    for step in 0..64 {
        let place = (hash as usize).wrapping_add(step) % KNOWN;
        match SEEN[place].compare_exchange(0, hash, AcqRel, Relaxed) {
            Ok(_) => {
                write(guard, place as u32 + 1, frames);
                return place as u16 + 1;
            }
            Err(other) if other == hash => return place as u16 + 1,
            Err(_) => {}
        }
    }
    0
}

fn write(guard: &ProcessGuard, number: u32, frames: &[*mut c_void]) {
    static WRITE: AtomicUsize = AtomicUsize::new(0);
    let names = function(&WRITE, b"backtrace_symbols_fd");
    let path = file_of(b"/stacks.", guard.process);
    let Some(path) = path.get().filter(|_| names != 0 && sys::file_size_allowed(MOST_STACK_BYTES))
    else {
        return;
    };
    let mut digits = [0; 20];
    let number = process::decimal(number.into(), &mut digits);
    let flags = sys::O_RDWR | sys::O_CREAT | sys::O_APPEND;
    let me = guard.process.pid.load(Relaxed);
    while let Err(other) = WRITING.compare_exchange(0, me, AcqRel, Relaxed) {
        if other == me {
            sys::sleep_millisecond();
        } else {
            let _ = WRITING.compare_exchange(other, 0, AcqRel, Relaxed);
        }
    }
    if let Ok(file) = sys::SysFile::open(path, flags, 0o600) {
        for piece in [b"# ".as_slice(), number, b"\n"] {
            file.write(piece);
        }
        // SAFETY: the C library's function of this name; pointer and length are those of a slice,
        // and the file is open.
        unsafe {
            let names = core::mem::transmute::<usize, Write>(names);
            names(frames.as_ptr(), frames.len() as c_int, file.number());
        }
    }
    WRITING.store(0, Release);
}
