//! The same events through the system's own allocator: how fast is fast here?
//!
//! Nanoseconds on one machine say little on another. What `malloc` and `free` take for
//! the same sizes in the same order, measured beside the pool, does: it is the best
//! that decades have made of the same task, without streams, and with neighbours that
//! it may write into. Its memory is never touched, only managed.

use std::time::{Duration, Instant};

use super::{Trace, TraceOp};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::sys::malloc::{self, HeapBlock};
use plimsoll_machine::units::Bytes;

/// Addresses that must be left: the heap keeps what it had, and the pool has tables of its own.
const SPARE: Bytes = Bytes::mib(512);

/// `malloc` and `free` on the events of a trace, with no memory taken from the kernel or
/// given back between passes.
#[derive(Debug)]
pub struct Malloc<'a> {
    trace: &'a Trace,
    blocks: Vec<Option<HeapBlock>>,
}

impl<'a> Malloc<'a> {
    /// Sets the process's allocator up for it, for the rest of the process.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where the allocator is not glibc's, or would take all addresses.
    pub fn open(trace: &'a Trace) -> Result<Malloc<'a>> {
        let most = malloc::most_addresses().map(Bytes);
        if let Some(most) = most.filter(|most| trace.peak_live().saturating_add(SPARE) > *most) {
            return Err(Error::Unavailable {
                what: "the malloc yardstick".to_string(),
                why: format!("this process may have {most} of addresses (ulimit -v)"),
            });
        }
        malloc::keep_everything()?;
        let blocks = std::iter::repeat_with(|| None).take(trace.slots()).collect();
        Ok(Malloc { trace, blocks })
    }

    /// Runs through the trace once.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] where the system refuses a block, even untouched.
    pub fn pass(&mut self) -> Result<Duration> {
        let start = Instant::now();
        let refused = self.run();
        let wall = start.elapsed();
        self.blocks.iter_mut().for_each(|block| *block = None);
        let Some(requested) = refused else { return Ok(wall) };
        // Nobody else could have what the heap keeps.
        malloc::give_back();
        let memory = "malloc".to_string();
        Err(Error::OutOfMemory { memory, requested, available: Bytes::ZERO })
    }

    /// The size that was refused, if any was.
    fn run(&mut self) -> Option<Bytes> {
        for event in self.trace.events() {
            let slot = &mut self.blocks[event.id as usize];
            match event.op {
                TraceOp::Allocate => match HeapBlock::new(event.size) {
                    Some(block) => *slot = Some(block),
                    None => return Some(Bytes(event.size)),
                },
                TraceOp::Free => *slot = None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_where_it_can_and_says_why_where_not() {
        let mut builder = Trace::builder();
        builder.allocate(1, Bytes::mib(3), 0, 0).unwrap();
        builder.allocate(2, Bytes::ZERO, 0, 1).unwrap();
        builder.free(1, 0, 2).unwrap();
        let trace = builder.finish();
        match Malloc::open(&trace) {
            Ok(mut malloc) => assert!((0..3).all(|_| malloc.pass().is_ok())),
            Err(error) => assert!(error.to_string().contains("glibc"), "{error}"),
        }
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let mut builder = Trace::builder();
        builder.allocate(1, Bytes(u64::MAX / 2), 0, 0).unwrap();
        let trace = builder.finish();
        if let Ok(mut malloc) = Malloc::open(&trace) {
            assert!(malloc.pass().unwrap_err().is_out_of_memory());
        }
    }
}
