//! The threads that voxelize on the host.
//!
//! Rayon's own pool does not survive fork: a child has the pool but none of its threads, and would
//! wait for them for ever. So this one belongs to a process, and a child makes its own.

use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::mpsc;
use std::time::Duration;

use plimsoll::Error;
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::errors::OrRaise;

/// How long to wait for the work before looking for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

struct WorkerPool {
    process: u32,
    threads: ThreadPool,
}

/// The pool of this process. No lock: a lock that a thread held while another forked would stay
/// locked in the child. Pools are never freed, as a forked child may have its parent's.
static POOL: AtomicPtr<WorkerPool> = AtomicPtr::new(std::ptr::null_mut());

#[expect(unsafe_code, reason = "a pointer that is published once")]
fn threads() -> plimsoll::Result<&'static ThreadPool> {
    let process = std::process::id();
    let found = POOL.load(Acquire);
    // SAFETY: null, or a pool that was leaked below and is never freed.
    if let Some(pool) = unsafe { found.as_ref() }.filter(|pool| pool.process == process) {
        return Ok(&pool.threads);
    }
    let made = ThreadPoolBuilder::new().thread_name(|_| "plimsoll".to_string()).build();
    let threads = made.map_err(|error| Error::Unavailable {
        what: "threads to voxelize on".to_string(),
        why: error.to_string(),
    })?;
    let own = Box::into_raw(Box::new(WorkerPool { process, threads }));
    match POOL.compare_exchange(found, own, AcqRel, Acquire) {
        // SAFETY: as above; it was leaked just now.
        Ok(_) => Ok(unsafe { &(*own).threads }),
        Err(others) => {
            // SAFETY: nobody else has seen `own`; what another thread published is leaked too.
            let (own, others) = unsafe { (Box::from_raw(own), &(*others).threads) };
            drop(own);
            Ok(others)
        }
    }
}

/// Does work on the threads, with the interpreter released, while the calling thread looks for
/// signals. `work` is given a question that it asks now and then: whether to stop.
pub(super) fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&(dyn Fn() -> bool + Sync)) -> plimsoll::Result<T> + Send,
) -> PyResult<T> {
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (mut made, mut signal) = (None, None);
    let threads = threads().or_raise()?;
    py.detach(|| {
        let (done, is_done) = mpsc::channel::<()>();
        threads.in_place_scope(|scope| {
            scope.spawn(|_| {
                made = Some(work(&|| stop.load(Acquire)));
                drop(done);
            });
            while let Err(mpsc::RecvTimeoutError::Timeout) = is_done.recv_timeout(POLL_INTERVAL) {
                if let Err(error) = Python::attach(|py| py.check_signals()) {
                    stop.store(true, std::sync::atomic::Ordering::Release);
                    signal = Some(error);
                    break;
                }
            }
        });
    });
    match (signal, made) {
        (Some(error), _) => Err(error),
        (None, Some(made)) => made.or_raise(),
        (None, None) => {
            Err(Error::Device { call: "a thread", why: "it ended by itself".to_string() })
                .or_raise()
        }
    }
}
