//! The pool under abuse: random requests on random streams with work in flight, calls
//! that fail anywhere, captures in between, and a device that notices every race.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_memory::backend::sim::{Sim, SimCall, SimConfig};
use plimsoll_memory::{
    Block, Bytes, Capture, Error, GraphMemory, Memory, MemoryConfig, Packing, Pool, Request, Stream,
};
use proptest::prelude::*;

const TOTAL: u64 = 96 << 20;
const STREAMS: u16 = 3;

#[derive(Debug, Clone)]
enum Step {
    Allocate {
        size: u64,
        stream: u16,
        work: u64,
    },
    /// Work on a live block, on the stream that owns it.
    Work {
        pick: usize,
        work: u64,
    },
    Free {
        pick: usize,
        stream: u16,
    },
    Advance(u64),
    Trim,
    Clear,
    /// The nth call from now fails.
    Sabotage {
        nth: u32,
        memory: bool,
    },
    BeginCapture {
        stream: u16,
        size: u64,
    },
    EndCapture,
    DropGraph,
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0u64),
        1u64..4096,
        4096u64..1 << 20,
        (1u64 << 20)..(12 << 20),
        (1u64 << 20)..(80 << 20)
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (sizes(), 0..STREAMS, 0..200u64)
            .prop_map(|(size, stream, work)| Step::Allocate { size, stream, work }),
        2 => (any::<usize>(), 0..200u64).prop_map(|(pick, work)| Step::Work { pick, work }),
        7 => (any::<usize>(), 0..STREAMS).prop_map(|(pick, stream)| Step::Free { pick, stream }),
        2 => (0..300u64).prop_map(Step::Advance),
        1 => Just(Step::Trim),
        1 => Just(Step::Clear),
        1 => (1..20u32, any::<bool>()).prop_map(|(nth, memory)| Step::Sabotage { nth, memory }),
        1 => (0..STREAMS, 1u64..(8 << 20)).prop_map(|(stream, size)| Step::BeginCapture { stream, size }),
        1 => Just(Step::EndCapture),
        1 => Just(Step::DropGraph),
    ];
    prop::collection::vec(step, 1..120)
}

struct Held {
    block: Block,
    stream: Stream,
    pattern: u8,
}

struct World {
    sim: Arc<Sim>,
    pool: Arc<Pool>,
    held: Vec<Held>,
    capture: Option<Capture>,
    graphs: Vec<GraphMemory>,
    count: u8,
}

impl World {
    fn new(packing: Packing, device: SimConfig) -> World {
        let sim = Arc::new(Sim::new(device.with_total(TOTAL)));
        let config = MemoryConfig::new()
            .with_gpu_memory_fraction(1.0)
            .with_min_free_bytes(4 << 20)
            .with_packing(packing);
        let pool = Arc::new(Pool::new(sim.clone(), config).unwrap());
        World { sim, pool, held: Vec::new(), capture: None, graphs: Vec::new(), count: 0 }
    }

    fn mark(&self, block: &Block, pattern: u8) {
        for at in ends(block) {
            self.pool.device().write(block.address().plus(at), &[pattern]).unwrap();
        }
    }

    fn check_mark(&self, held: &Held) {
        for at in ends(&held.block) {
            let mut byte = [0];
            self.pool.device().read(held.block.address().plus(at), &mut byte).unwrap();
            assert_eq!(byte[0], held.pattern, "the contents of a live block changed");
        }
    }

    fn launch(&self, held: &Held, work: u64) {
        let uses = [(held.block.address(), held.block.size())];
        self.sim.launch(held.stream, Duration::from_nanos(work), &uses);
    }

    fn step(&mut self, step: &Step) -> Result<(), Error> {
        match *step {
            Step::Allocate { size, stream, work } => {
                let stream = Stream(stream);
                let block = self.pool.allocate(Request::new(size).on(stream))?;
                assert_eq!(block.size(), Bytes(size));
                self.count = self.count.wrapping_add(1);
                let held = Held { block, stream, pattern: self.count };
                self.mark(&block, held.pattern);
                self.launch(&held, work);
                self.held.push(held);
            }
            Step::Work { pick, work } if !self.held.is_empty() => {
                self.launch(&self.held[pick % self.held.len()], work);
            }
            Step::Free { pick, stream } if !self.held.is_empty() => {
                let held = self.held.swap_remove(pick % self.held.len());
                self.check_mark(&held);
                self.pool.release(held.block, Stream(stream))?;
                let again = self.pool.release(held.block, Stream(stream));
                assert!(matches!(again, Err(Error::AlreadyFreed { .. })), "{again:?}");
            }
            Step::Advance(time) => self.sim.advance(Duration::from_nanos(time)),
            Step::Trim => drop(self.pool.trim()?),
            Step::Clear => drop(self.pool.clear()?),
            Step::Sabotage { nth, memory } => self.sabotage(nth, memory),
            Step::BeginCapture { stream, size } if self.capture.is_none() => {
                self.capture = Some(self.pool.begin_capture(Stream(stream), size)?);
            }
            Step::EndCapture => self.graphs.extend(self.capture.take().map(Capture::end)),
            Step::DropGraph => drop(self.graphs.pop()),
            _ => {}
        }
        Ok(())
    }

    fn sabotage(&self, nth: u32, memory: bool) {
        let mut left = nth;
        self.sim.sabotage(Some(Box::new(move |call| {
            // The test's own reading and writing is left alone.
            if call == SimCall::Copy {
                return None;
            }
            left = left.checked_sub(1)?;
            (left == 0).then(|| match memory {
                true => Error::OutOfMemory {
                    memory: format!("sabotaged {call:?}"),
                    requested: Bytes(1),
                    available: Bytes(0),
                },
                false => Error::Device { call: "sabotage", why: format!("{call:?}") },
            })
        })));
    }

    fn check(&self) {
        assert_eq!(self.sim.faults(), Vec::<String>::new());
        let mut places = BTreeMap::new();
        for held in &self.held {
            let start = held.block.address().pointer();
            places.insert(start, start + held.block.size().0.max(1));
        }
        assert_eq!(places.len(), self.held.len(), "two live blocks begin at the same place");
        let mut last = 0;
        for (start, end) in places {
            assert!(start >= last, "two live blocks overlap");
            last = end;
        }
        let stats = self.pool.stats();
        let live: Bytes = self.held.iter().map(|held| held.block.size()).sum();
        assert_eq!(stats.in_use_bytes, live);
        assert_eq!(stats.active_buffers, self.held.len() as u64);
        assert!(stats.in_use_bytes + stats.pooled_bytes <= stats.total_allocated_bytes);
        assert!(stats.total_allocated_bytes <= self.pool.capacity());
        assert!(stats.peak_bytes <= self.pool.capacity());
        let used = self.sim.stats().total_allocated_bytes;
        assert_eq!(stats.total_allocated_bytes, used, "the pool lost count of what it holds");
    }

    fn finish(mut self) {
        self.sim.sabotage(None);
        drop(self.capture.take());
        self.graphs.clear();
        for held in std::mem::take(&mut self.held) {
            self.check_mark(&held);
            self.pool.release(held.block, held.stream).unwrap();
        }
        self.check();
        self.pool.clear().unwrap();
        assert_eq!(self.pool.stats().total_allocated_bytes, Bytes::ZERO, "something leaked");
        assert_eq!(self.sim.faults(), Vec::<String>::new());
        let World { sim, pool, .. } = self;
        drop(pool);
        assert_eq!(sim.stats().total_allocated_bytes, Bytes::ZERO);
        assert_eq!(sim.faults(), Vec::<String>::new());
    }
}

fn ends(block: &Block) -> Vec<u64> {
    match block.size().0 {
        0 => vec![],
        size => vec![0, size - 1],
    }
}

/// A device whose pages are so small that the pool takes handles of many sizes.
fn fine() -> SimConfig {
    SimConfig { page: Bytes::kib(64), ..SimConfig::default() }
}

fn plain() -> SimConfig {
    SimConfig::default().with_mapping(false)
}

fn run(packing: Packing, device: SimConfig, steps: &[Step]) {
    let mut world = World::new(packing, device);
    for step in steps {
        match world.step(step) {
            Ok(())
            | Err(
                Error::OutOfMemory { .. }
                | Error::NeverFits { .. }
                | Error::Device { .. }
                | Error::Capturing { .. },
            ) => {}
            Err(other) => panic!("{step:?}: {other}"),
        }
        world.check();
    }
    world.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn quick_packing_survives_anything(steps in steps()) {
        run(Packing::Quick, SimConfig::default(), &steps);
    }

    #[test]
    fn tight_packing_survives_anything(steps in steps()) {
        run(Packing::Tight, SimConfig::default(), &steps);
    }

    #[test]
    fn plain_blocks_survive_anything(steps in steps()) {
        run(Packing::Quick, plain(), &steps);
    }

    #[test]
    fn tight_plain_blocks_survive_anything(steps in steps()) {
        run(Packing::Tight, plain(), &steps);
    }

    #[test]
    fn handles_of_many_sizes_survive_anything(steps in steps()) {
        run(Packing::Quick, fine(), &steps);
    }

    #[test]
    fn devices_without_aliases_survive_anything(steps in steps()) {
        run(Packing::Quick, fine().with_aliases(false), &steps);
        run(Packing::Tight, SimConfig::default().with_aliases(false), &steps);
    }
}
