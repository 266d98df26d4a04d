//! Tags: a thread may say that from now on it allocates for one of a few owners. `plimsoll bench`
//! separates the memory of its slots this way. What threads without a tag allocate is counted
//! under tag 0, together with what the driver takes for itself. In a process where no thread ever
//! sets a tag, the only cost is one read.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicUsize};

use crate::ledger::TAGS;
use crate::sys;

const THREADS: usize = 32;
static KNOWN: [(AtomicUsize, AtomicU32); THREADS] =
    [const { (AtomicUsize::new(0), AtomicU32::new(0)) }; THREADS];
static ANY: AtomicU32 = AtomicU32::new(0);

/// Whether this process counts by tags at all.
#[inline]
pub(super) fn are_used() -> bool {
    ANY.load(Relaxed) != 0
}

/// The calling thread's tag; 0 for none.
#[inline]
pub(super) fn current() -> u8 {
    if are_used() { find() } else { 0 }
}

fn find() -> u8 {
    let me = sys::thread_id();
    let known = KNOWN.iter().find(|(thread, _)| thread.load(Acquire) == me);
    known.map_or(0, |(_, tag)| tag.load(Relaxed) as u8)
}

/// Counts what this thread allocates from now on under `tag`, from 1 to 3; 0 ends that. Returns
/// whether it worked. From the first call on, with any tag, this process counts by tags.
#[cfg_attr(preload, unsafe(no_mangle))]
pub(crate) extern "C" fn plimsoll_guard_tag(tag: u32) -> bool {
    let me = sys::thread_id();
    if tag as usize >= TAGS || !crate::attach::in_run() {
        return false;
    }
    ANY.store(1, Relaxed);
    let mine = KNOWN.iter().find(|(thread, _)| thread.load(Acquire) == me);
    let mine = mine.or_else(|| {
        KNOWN.iter().find(|(thread, _)| thread.compare_exchange(0, me, AcqRel, Relaxed).is_ok())
    });
    let Some((thread, place)) = mine else { return tag == 0 };
    place.store(tag, Release);
    if tag == 0 {
        thread.store(0, Release);
    }
    true
}
