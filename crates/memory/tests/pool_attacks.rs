//! What a pool was attacked with: refusals with memory at hand, what a refusal leaves behind, graphs that are gone
//! before their blocks, and threads that wait for each other.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use plimsoll_memory::backend::sim::{Sim, SimConfig};
use plimsoll_memory::memory::{DeviceInfo, Event, Mapping};
use plimsoll_memory::{
    Address, Block, Bytes, Device, Memory, MemoryConfig, MemoryStats, Packing, Pool, Request,
    Result, Stream,
};

const PACKINGS: [Packing; 2] = [Packing::Quick, Packing::Tight];

fn whole(packing: Packing) -> MemoryConfig {
    let config = MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(0);
    config.with_packing(packing)
}

fn on(total: Bytes, packing: Packing) -> (Arc<Sim>, Arc<Pool>) {
    let device = Arc::new(Sim::new(SimConfig::default().with_total(total)));
    let pool = Arc::new(Pool::new(device.clone(), whole(packing)).unwrap());
    (device, pool)
}

fn take(pool: &Pool, mib: u64) -> Block {
    pool.allocate(Request::new(Bytes::mib(mib))).unwrap()
}

fn take_all(pool: &Pool, mib: u64) -> Vec<Block> {
    std::iter::from_fn(|| pool.allocate(Request::new(Bytes::mib(mib))).ok()).collect()
}

fn give(pool: &Pool, blocks: impl IntoIterator<Item = Block>) {
    blocks.into_iter().for_each(|block| pool.release(block, Stream::DEFAULT).unwrap());
}

/// A block of a capture that is returned after the graph's memory was dropped waits for the
/// stream that the graph was launched on, as one that was returned before.
#[test]
fn a_block_outlives_its_graph() {
    for can_map in [true, false] {
        let config = SimConfig::default().with_total(Bytes::gib(1)).with_mapping(can_map);
        let device = Arc::new(Sim::new(config));
        let pool = Arc::new(Pool::new(device.clone(), whole(Packing::Quick)).unwrap());
        let other = device.new_stream().unwrap();
        let capture = pool.begin_capture(Stream::DEFAULT, Bytes::mib(64)).unwrap();
        let block = take(&pool, 64);
        let graph = capture.end();
        device.launch(other, Duration::from_secs(1), &[(block.address(), block.size())]);
        graph.launched_on(other);
        drop(graph);
        give(&pool, [block]);
        pool.trim().unwrap();
        assert_eq!(device.faults(), Vec::<String>::new());
        assert_eq!(device.stats().total_allocated_bytes, Bytes::mib(64), "it was still in use");
    }
}

/// 39 gaps of 12 MiB with a live block of 1 MiB behind each, and blocks that fit in none.
fn held_with_gaps(pool: &Pool) -> Bytes {
    give(pool, [take(pool, 512)]);
    let pairs: Vec<_> = (0..39).map(|_| [12, 1].map(|mib| take(pool, mib))).collect();
    let mut live: Vec<_> = (0..3).map(|_| take(pool, 10)).collect();
    for [large, small] in pairs {
        give(pool, [large]);
        live.push(small);
    }
    live.extend((0..20).map(|_| take(pool, 15)));
    pool.stats().total_allocated_bytes
}

#[test]
fn a_refusal_changes_nothing_of_what_is_held_later() {
    for packing in PACKINGS {
        let held = [false, true].map(|refuse| {
            let (_device, pool) = on(Bytes::gib(2), packing);
            if refuse {
                let block = take(&pool, 512);
                assert!(pool.allocate(Request::new(Bytes::mib(1900))).is_err());
                give(&pool, [block]);
                pool.clear().unwrap();
            }
            held_with_gaps(&pool)
        });
        assert_eq!(held[0], held[1], "{packing:?}");
    }
}

#[test]
fn nothing_is_refused_that_can_be_lent() {
    for packing in PACKINGS {
        // The end of a page and the front of another are free, and no two together.
        let (_device, pool) = on(Bytes::mib(64), packing);
        let blocks = take_all(&pool, 1).into_iter().enumerate();
        let free = blocks.filter(|(index, _)| matches!(index % 8, 1 | 4)).map(|(_, block)| block);
        give(&pool, free);
        take(&pool, 2);
    }
    let (_device, pool) = on(Bytes::gib(1), Packing::Quick);
    give(&pool, take_all(&pool, 3).into_iter().step_by(3));
    assert!(take_all(&pool, 4).len() > 50);
}

#[test]
fn memory_of_graphs_that_are_gone_is_used_again() {
    let (device, pool) = on(Bytes::gib(64), Packing::Quick);
    give(&pool, [take(&pool, 20 << 10)]);
    pool.clear().unwrap();
    for _ in 0..60 {
        drop(pool.begin_capture(Stream::DEFAULT, Bytes::gib(1)).unwrap().end());
    }
    let held = device.stats().total_allocated_bytes;
    assert!(held <= Bytes::mib(21 << 10), "{held} held, 20 GiB were once live");
}

#[test]
fn a_pool_of_nothing_refuses() {
    let (_device, pool) = on(Bytes::mib(1), Packing::Quick);
    for size in [0u64, 1] {
        let refusal = pool.allocate(Request::new(size)).unwrap_err();
        assert!(refusal.is_out_of_memory(), "{refusal}");
    }
}

/// A device whose work goes on when the host says so, as behind a host function.
#[derive(Debug)]
struct HeldWork {
    sim: Sim,
    over: Mutex<bool>,
    changed: Condvar,
    awaited: AtomicBool,
}

impl HeldWork {
    fn end(&self) {
        *self.over.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Memory for HeldWork {
    fn name(&self) -> &str {
        "held"
    }

    fn device(&self) -> &dyn Device {
        self
    }

    fn owns(&self, block: &Block) -> bool {
        self.sim.owns(block)
    }

    fn allocate(&self, request: Request) -> Result<Block> {
        self.sim.allocate(request)
    }

    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        self.sim.release(block, stream)
    }

    fn stats(&self) -> MemoryStats {
        self.sim.stats()
    }

    fn capacity(&self) -> Bytes {
        self.sim.capacity()
    }

    fn mapping(&self) -> Option<&dyn Mapping> {
        self.sim.mapping()
    }
}

impl Device for HeldWork {
    fn info(&self) -> &DeviceInfo {
        self.sim.info()
    }

    fn free_memory(&self) -> Result<Bytes> {
        self.sim.free_memory()
    }

    fn new_stream(&self) -> Result<Stream> {
        self.sim.new_stream()
    }

    fn record(&self, stream: Stream) -> Result<Event> {
        self.sim.record(stream)
    }

    fn is_done(&self, event: Event) -> Result<bool> {
        Ok(*self.over.lock().unwrap() && self.sim.is_done(event)?)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        self.sim.wait(stream, event)
    }

    fn synchronize(&self, event: Event) -> Result<()> {
        self.awaited.store(true, Ordering::SeqCst);
        drop(self.changed.wait_while(self.over.lock().unwrap(), |over| !*over).unwrap());
        self.sim.synchronize(event)
    }

    fn forget(&self, event: Event) -> Result<()> {
        self.sim.forget(event)
    }

    fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        self.sim.write(to, bytes)
    }

    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        self.sim.read(from, bytes)
    }
}

/// One thread waits for work, another asks for memory on another stream, and a third returns a
/// block before it lets the work go on.
#[test]
fn a_wait_for_work_holds_nobody_up_who_lets_it_go_on() {
    for packing in PACKINGS {
        let sim = Sim::new(SimConfig::default().with_total(Bytes::gib(1)));
        let (over, changed) = (Mutex::new(false), Condvar::new());
        let device = Arc::new(HeldWork { sim, over, changed, awaited: AtomicBool::new(false) });
        let pool = Arc::new(Pool::new(device.clone(), whole(packing)).unwrap());
        let [one, two] = [(); 2].map(|()| device.new_stream().unwrap());
        let block = || pool.allocate(Request::new(Bytes::mib(8)).on(one)).unwrap();
        let (used, mine) = (block(), block());
        device.sim.launch(one, Duration::from_millis(1), &[(used.address(), used.size())]);
        pool.release(used, one).unwrap();
        let waits = thread::spawn({
            let pool = pool.clone();
            move || pool.clear().unwrap()
        });
        while !device.awaited.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let asks = thread::spawn({
            let pool = pool.clone();
            move || pool.allocate(Request::new(Bytes::mib(8)).on(two)).unwrap()
        });
        // Long enough to come to the place where it waited; a pool that is right is not held to any time.
        thread::sleep(Duration::from_millis(50));
        let (returned, was_returned) = mpsc::channel();
        let returns = thread::spawn({
            let pool = pool.clone();
            move || returned.send(pool.release(mine, one)).unwrap()
        });
        let done = was_returned.recv_timeout(Duration::from_secs(20));
        device.end();
        assert!(done.is_ok(), "a release waited for work that waits for it");
        done.unwrap().unwrap();
        returns.join().unwrap();
        waits.join().unwrap();
        asks.join().unwrap();
    }
}
