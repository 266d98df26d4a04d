//! Many threads at once, with contents that tell whose a block is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use plimsoll::{Block, Request, Stream};

use crate::promises::assert_agree;
use crate::subject::Subject;

const THREADS: u64 = 8;
const ROUNDS: u64 = 150;
/// Blocks that a thread holds at most.
const HELD: usize = 12;

/// Eight threads take, fill, verify and return, some for others, while one reads figures.
pub(crate) fn eight_threads(subject: &Subject, _: &dyn Fn() -> Subject) {
    let memory = &subject.memory;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> =
            (0..THREADS).map(|number| scope.spawn(move || hammer(subject, number))).collect();
        let reader = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let stats = memory.stats();
                let parts = stats.in_use_bytes + stats.pooled_bytes;
                assert!(parts <= stats.total_allocated_bytes, "{stats:?}");
                assert!(stats.in_use_bytes <= memory.capacity(), "{stats:?}");
                thread::yield_now();
            }
        });
        // The reader is let go before a worker's failure is passed on.
        let joined: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        over.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        joined.into_iter().for_each(|result| result.unwrap());
    });
    let stats = memory.stats();
    assert_agree(&stats);
    assert_eq!((stats.in_use_bytes.get(), stats.active_buffers), (0, 0), "{stats:?}");
    let all = subject.take(subject.largest);
    memory.release(all, Stream::DEFAULT).unwrap();
}

fn hammer(subject: &Subject, number: u64) {
    let memory = &subject.memory;
    let stream = memory.device().new_stream().unwrap();
    let mut random = number.wrapping_mul(0x5851_f42d_4c95_7f2d) | 1;
    let mut held: Vec<(Block, u64)> = Vec::new();
    for round in 0..ROUNDS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let pick = (random >> 33) as usize;
        if held.len() == HELD || (pick.is_multiple_of(3) && !held.is_empty()) {
            let (block, seed) = held.swap_remove(pick % held.len());
            subject.verify(&block, seed);
            memory.release(block, stream).unwrap();
            continue;
        }
        let scale = [100, 5_000, 90_000, 700_000][pick % 4];
        let seed = number << 32 | round;
        match memory.allocate(Request::new(random % scale).on(stream)) {
            Ok(block) => {
                subject.fill(&block, seed);
                held.push((block, seed));
            }
            Err(error) => assert!(error.is_full_now(), "{error}"),
        }
    }
    for (block, seed) in held {
        subject.verify(&block, seed);
        memory.release(block, stream).unwrap();
    }
}
