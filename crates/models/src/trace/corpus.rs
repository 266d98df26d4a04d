//! Made-up programs, for tuning a pool on what nobody recorded.
//!
//! A pool that is tuned on a few recordings is tuned *to* them. These traces come from a seed
//! instead, and each differs in what matters to a pool: how much is live, how sizes are mixed,
//! how lifetimes nest or cross, how many streams take part, and how shapes change from step to
//! step. A program has weights that stay, and phases; a phase repeats one pattern with shapes
//! that change each time. The same seed gives the same trace on every machine.
//!
//! ```
//! use plimsoll_models::trace::corpus;
//!
//! let trace = corpus::trace(7)?;
//! assert_eq!(trace, corpus::trace(7)?);
//! assert!(trace.events().len() > 1000 && trace.peak_live().as_gib() > 0.01);
//! # Ok::<(), plimsoll_models::Error>(())
//! ```

use super::{Trace, TraceBuilder, TraceEvent, TraceOp};
use plimsoll_machine::error::Result;
use plimsoll_machine::units::Bytes;

/// About how many events a trace has.
const EVENTS: u64 = 12_000;
/// PyTorch asks for multiples of this.
const ROUNDED: u64 = 512;
/// Streams are numbered from here, so that none is mistaken for an index.
const FIRST_STREAM: u64 = 7;

/// The program of a seed.
///
/// # Errors
///
/// None that a seed could cause: every block is freed once, while it is live.
pub fn trace(seed: u64) -> Result<Trace> {
    let mut program = Program::new(seed);
    let weights = program.weights()?;
    while program.events < EVENTS {
        program.phase()?;
    }
    // Some programs free their weights at the end, others leave them to the system.
    if program.rng.one_in(2) {
        program.free_all(weights)?;
    }
    Ok(program.builder.finish())
}

/// A program like a recorded one, to see how much of what a recording shows is luck: all sizes times one
/// factor between 0.5 and 2, and each size times its own between 0.9 and 1.1. Equal sizes stay equal.
///
/// # Errors
///
/// Where more than 2^64 bytes would be live at once.
pub fn variant(trace: &Trace, seed: u64) -> Result<Trace> {
    let all = Dice(seed).size(0.5, 2.0);
    let resized = |size: u64| {
        let own = 0.9 + 0.2 * Dice(seed ^ size.rotate_left(32)).share();
        let bytes = ((size as f64 * all * own) as u64).max(1);
        // Recorded sizes are multiples of it, too.
        if bytes > ROUNDED { bytes - bytes % ROUNDED } else { bytes }
    };
    let mut builder = Trace::builder();
    for TraceEvent { op, size, id, stream, time_us } in trace.events().iter().copied() {
        let (id, stream) = (u64::from(id), trace.streams()[usize::from(stream)]);
        match op {
            TraceOp::Allocate => builder.allocate(id, Bytes(resized(size)), stream, time_us)?,
            TraceOp::Free => builder.free(id, stream, time_us)?,
        }
    }
    Ok(builder.finish())
}

/// SplitMix64: a few lines, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly from `low` up to but not including `high`.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low).max(1)
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.between(0, chances) == 0
    }

    /// Evenly from 0 up to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Evenly by the number of digits: half of all sizes are below the geometric middle.
    fn size(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.share())
    }
}

/// A block that is live: its id and its stream.
type Held = (u64, u64);

struct Program {
    rng: Dice,
    builder: TraceBuilder,
    events: u64,
    streams: u64,
    /// The size of a layer's output, about; shapes are multiples of it.
    unit: f64,
    /// How much sizes differ from layer to layer, as a factor.
    spread: f64,
    /// One in so many blocks is small.
    small: u64,
}

/// How the lifetimes of a phase lie to each other.
#[derive(Clone, Copy)]
enum LifetimePattern {
    /// Forward and backward: what is allocated last is freed first.
    Nested,
    /// A pipeline: each layer frees the output before the last.
    Chain,
    /// Queues: what is allocated first is freed first, many steps later.
    Crossing,
    /// Any lifetime, short ones most often.
    Mixed,
    /// Caches that are replaced by larger ones, and dropped at the end.
    Growing,
    /// A batch that is freed in any order while a few new blocks come.
    Shrinking,
}

const PATTERNS: [LifetimePattern; 6] = [
    LifetimePattern::Nested,
    LifetimePattern::Chain,
    LifetimePattern::Crossing,
    LifetimePattern::Mixed,
    LifetimePattern::Growing,
    LifetimePattern::Shrinking,
];

impl Program {
    fn new(seed: u64) -> Program {
        let mut rng = Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5eed);
        let streams = if rng.one_in(3) { rng.between(2, 5) } else { 1 };
        let unit = rng.size(256.0 * 1024.0, 96.0 * 1024.0 * 1024.0);
        let spread = rng.size(1.2, 16.0);
        let small = rng.between(2, 8);
        Program { rng, builder: Trace::builder(), events: 0, streams, unit, spread, small }
    }

    fn stream(&mut self) -> u64 {
        FIRST_STREAM + self.rng.between(0, self.streams)
    }

    fn take(&mut self, size: f64, stream: u64) -> Result<Held> {
        self.events += 1;
        let id = self.events;
        self.builder.allocate(id, Bytes(size as u64), stream, id)?;
        Ok((id, stream))
    }

    fn free(&mut self, (id, stream): Held) -> Result<()> {
        self.events += 1;
        self.builder.free(id, stream, self.events)
    }

    fn free_all(&mut self, held: Vec<Held>) -> Result<()> {
        held.into_iter().rev().try_for_each(|block| self.free(block))
    }

    /// A block of a layer: mostly a tensor of about the step's shape, else a small one.
    fn layer(&mut self, shape: f64, stream: u64) -> Result<Held> {
        let size = if self.rng.one_in(self.small) {
            self.rng.size(4.0, 65_536.0)
        } else {
            let factor = self.rng.size(1.0 / self.spread, self.spread);
            // Tensors have a whole number of elements of a row.
            (self.unit * shape * factor / 512.0).ceil() * 512.0
        };
        self.take(size, stream)
    }

    /// Scratch memory that is freed at once.
    fn scratch(&mut self, shape: f64, stream: u64) -> Result<()> {
        let count = self.rng.between(0, 3);
        let mut held = Vec::new();
        for _ in 0..count {
            held.push(self.layer(shape, stream)?);
        }
        if self.rng.one_in(2) {
            held.reverse();
        }
        self.free_all(held)
    }

    fn weights(&mut self) -> Result<Vec<Held>> {
        let count = self.rng.between(4, 80);
        let stream = self.stream();
        (0..count).map(|_| self.layer(1.0, stream)).collect()
    }

    /// Steps of one pattern, with shapes that change.
    fn phase(&mut self) -> Result<()> {
        let pattern = PATTERNS[self.rng.between(0, PATTERNS.len() as u64) as usize];
        let (steps, depth) = (self.rng.between(2, 12), self.rng.between(8, 48));
        let varied = self.rng.size(1.0, 3.0);
        for _ in 0..steps {
            let shape = self.rng.size(1.0 / varied, varied);
            let stream = self.stream();
            self.step(pattern, depth, shape, stream)?;
        }
        Ok(())
    }

    fn step(
        &mut self,
        pattern: LifetimePattern,
        depth: u64,
        shape: f64,
        stream: u64,
    ) -> Result<()> {
        match pattern {
            LifetimePattern::Nested => self.nested(depth, shape, stream),
            LifetimePattern::Chain => self.chain(depth * 2, shape, stream),
            LifetimePattern::Crossing => self.crossing(depth, shape),
            LifetimePattern::Mixed => self.mixed(depth, shape, stream),
            LifetimePattern::Growing => self.growing(depth, shape, stream),
            LifetimePattern::Shrinking => self.shrinking(depth, shape, stream),
        }
    }

    fn nested(&mut self, depth: u64, shape: f64, stream: u64) -> Result<()> {
        let mut held = Vec::new();
        for _ in 0..depth {
            held.push(self.layer(shape, stream)?);
            self.scratch(shape, stream)?;
        }
        let mut gradient = None;
        while let Some(block) = held.pop() {
            let next = self.layer(shape, stream)?;
            self.scratch(shape, stream)?;
            if let Some(last) = gradient.replace(next) {
                self.free(last)?;
            }
            self.free(block)?;
        }
        gradient.map_or(Ok(()), |last| self.free(last))
    }

    fn chain(&mut self, depth: u64, shape: f64, stream: u64) -> Result<()> {
        let mut last: Option<Held> = None;
        for _ in 0..depth {
            let next = self.layer(shape, stream)?;
            self.scratch(shape, stream)?;
            if let Some(last) = last.replace(next) {
                self.free(last)?;
            }
        }
        last.map_or(Ok(()), |last| self.free(last))
    }

    fn crossing(&mut self, depth: u64, shape: f64) -> Result<()> {
        let mut queue = std::collections::VecDeque::new();
        for _ in 0..depth * 2 {
            let stream = self.stream();
            queue.push_back(self.layer(shape, stream)?);
            if queue.len() as u64 > depth / 2
                && let Some(first) = queue.pop_front()
            {
                self.free(first)?;
            }
        }
        queue.into_iter().try_for_each(|block| self.free(block))
    }

    fn mixed(&mut self, depth: u64, shape: f64, stream: u64) -> Result<()> {
        let mut held: Vec<Held> = Vec::new();
        for _ in 0..depth * 3 {
            held.push(self.layer(shape, stream)?);
            while !held.is_empty() && (held.len() as u64 > depth || self.rng.one_in(3)) {
                // Of two that are drawn the younger one goes.
                let (a, b) = (0, held.len() as u64);
                let index = self.rng.between(a, b).max(self.rng.between(a, b));
                let block = held.swap_remove(index as usize);
                self.free(block)?;
            }
        }
        self.free_all(held)
    }

    fn growing(&mut self, depth: u64, shape: f64, stream: u64) -> Result<()> {
        let caches = self.rng.between(1, 8);
        let mut held = Vec::new();
        for _ in 0..caches {
            held.push(self.layer(shape, stream)?);
        }
        for step in 1..=depth / 2 {
            let larger = shape * (1.0 + step as f64 / depth as f64);
            for cache in &mut held {
                let next = self.layer(larger, stream)?;
                let last = std::mem::replace(cache, next);
                self.free(last)?;
            }
            self.scratch(shape, stream)?;
        }
        self.free_all(held)
    }

    fn shrinking(&mut self, depth: u64, shape: f64, stream: u64) -> Result<()> {
        let mut held = Vec::new();
        for _ in 0..depth {
            held.push(self.layer(shape, stream)?);
        }
        while !held.is_empty() {
            let index = self.rng.between(0, held.len() as u64) as usize;
            let block = held.swap_remove(index);
            self.free(block)?;
            self.scratch(shape / 2.0, stream)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceOp;

    #[test]
    fn seeds_give_programs_of_many_kinds() {
        let traces: Vec<Trace> = (0..200).map(|seed| trace(seed).unwrap()).collect();
        let count = |wanted: &dyn Fn(&Trace) -> bool| traces.iter().filter(|t| wanted(t)).count();
        assert!(count(&|t| t.streams().len() == 1) >= 100);
        assert!(count(&|t| t.streams().len() > 1) >= 40);
        assert!(count(&|t| t.peak_live() < Bytes::mib(256)) >= 20, "small pools");
        assert!(count(&|t| t.peak_live() > Bytes::gib(2)) >= 40, "large pools");
        assert!(count(&|t| t.never_freed().is_empty()) >= 40, "what ends with nothing live");
        for trace in &traces {
            let takes = trace.events().iter().filter(|event| event.op == TraceOp::Allocate);
            assert!(trace.events().len() >= EVENTS as usize && takes.count() > 1000);
        }
    }

    #[test]
    fn no_two_seeds_give_the_same() {
        let sizes: std::collections::BTreeSet<u64> =
            (0..200).map(|seed| trace(seed).unwrap().peak_live().get()).collect();
        assert_eq!(sizes.len(), 200);
    }
}
