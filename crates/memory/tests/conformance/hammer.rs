//! Many threads at once, with contents that tell whose a block is.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use plimsoll_memory::{Block, Request, Stream};

use crate::promises::assert_agree;
use crate::subject::Subject;

const THREADS: u64 = 8;
const ROUNDS: u64 = 300;
/// Blocks that a thread holds at most.
const HELD: usize = 12;

/// What the threads share.
struct Ring<'a> {
    subject: &'a Subject,
    /// Never more than what is out: added after a block came, taken off before it goes.
    live: AtomicU64,
    /// Blocks that one thread filled and another will return.
    passed_on: Mutex<Vec<(Block, u64)>>,
    over: AtomicBool,
}

/// Eight threads take, fill, verify and return, also what others took, while one reads
/// the figures and trims.
pub(crate) fn eight_threads(subject: &Subject, _: &dyn Fn() -> Subject) {
    let memory = &subject.memory;
    let ring = Ring {
        subject,
        live: AtomicU64::new(0),
        passed_on: Mutex::default(),
        over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let ring = &ring;
        let workers: Vec<_> =
            (0..THREADS).map(|number| scope.spawn(move || ring.hammer(number))).collect();
        let reader = scope.spawn(|| ring.read_and_trim());
        // The reader is let go before a worker's failure is passed on.
        let joined: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        ring.over.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        joined.into_iter().for_each(|result| result.unwrap());
    });
    for (block, seed) in ring.passed_on.lock().unwrap().drain(..) {
        subject.verify(&block, seed);
        memory.release(block, Stream::DEFAULT).unwrap();
    }
    let stats = memory.stats();
    assert_agree(&stats);
    assert_eq!((stats.in_use_bytes.get(), stats.active_buffers), (0, 0), "{stats:?}");
    let all = subject.take(subject.largest);
    memory.release(all, Stream::DEFAULT).unwrap();
}

impl Ring<'_> {
    fn hammer(&self, number: u64) {
        let stream = self.subject.memory.device().new_stream().unwrap();
        let mut random = number.wrapping_mul(0x5851_f42d_4c95_7f2d) | 1;
        let mut held: Vec<(Block, u64)> = Vec::new();
        for round in 0..ROUNDS {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            let pick = (random >> 33) as usize;
            let scale = [100, 5_000, 90_000, 700_000][pick % 4];
            match pick / 4 % 8 {
                0..2 if !held.is_empty() => {
                    self.give_back(held.swap_remove(pick % held.len()), stream);
                }
                2 => held.extend(self.passed_on.lock().unwrap().pop()),
                3 => self.passed_on.lock().unwrap().extend(held.pop()),
                _ if held.len() >= HELD => self.give_back(held.swap_remove(0), stream),
                _ => held.extend(self.take(random % scale, stream, number << 32 | round)),
            }
        }
        held.into_iter().for_each(|block| self.give_back(block, stream));
    }

    fn take(&self, size: u64, stream: Stream, seed: u64) -> Option<(Block, u64)> {
        let memory = &self.subject.memory;
        let block = match memory.allocate(Request::new(size).on(stream)) {
            Ok(block) => block,
            Err(error) if error.is_full_now() => return None,
            Err(error) => panic!("{error}"),
        };
        let live = self.live.fetch_add(size, Ordering::SeqCst) + size;
        assert!(live <= memory.capacity().get(), "{live} of {}", memory.capacity());
        self.subject.fill(&block, seed);
        Some((block, seed))
    }

    fn give_back(&self, (block, seed): (Block, u64), stream: Stream) {
        self.subject.verify(&block, seed);
        self.live.fetch_sub(block.size().get(), Ordering::SeqCst);
        self.subject.memory.release(block, stream).unwrap();
    }

    fn read_and_trim(&self) {
        let memory = &self.subject.memory;
        while !self.over.load(Ordering::Relaxed) {
            let stats = memory.stats();
            let parts = stats.in_use_bytes + stats.pooled_bytes;
            assert!(parts <= stats.total_allocated_bytes, "{stats:?}");
            memory.trim().unwrap();
            thread::yield_now();
        }
    }
}
