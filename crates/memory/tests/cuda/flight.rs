//! Work in flight, on a real device: reuse across streams, unmapping, a full device.
//!
//! Each proof has its control: the same wrong done on purpose, to see that it would have
//! been caught. A device faults for good where memory is taken away under work, so that
//! control runs in a process of its own.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use plimsoll_memory::backend::cuda::{Cuda, CudaOptions};
use plimsoll_memory::backend::host::Host;
use plimsoll_memory::{
    Block, Bytes, Device, Fallback, Mapping, Memory, MemoryConfig, Packing, Pool, Request, Stream,
};

use crate::front::{Kernels, whole_real_device};

fn pool(device: &Arc<Cuda>, packing: Packing) -> Arc<Pool> {
    let config = MemoryConfig::new()
        .with_gpu_memory_fraction(1.0)
        .with_min_free_bytes(0)
        .with_packing(packing);
    Arc::new(Pool::new(Arc::clone(device) as Arc<dyn Memory>, config).unwrap())
}

fn device(total: Bytes) -> (Arc<Cuda>, Kernels) {
    let device = Arc::new(Cuda::open_with(&CudaOptions::new(0).total(total)).unwrap());
    let kernels = Kernels::new(&device, CudaOptions::new(0));
    (device, kernels)
}

fn is_over(device: &Cuda, stream: Stream) -> bool {
    let event = device.record(stream).unwrap();
    let over = device.is_done(event).unwrap();
    device.forget(event).unwrap();
    over
}

/// The control: a block that is used by two streams at once is seen.
#[test]
fn control_reuse_without_order_is_caught() {
    let Some(_device) = whole_real_device() else { return };
    let (device, kernels) = device(Bytes::mib(64));
    let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
    let block = device.allocate(Request::new(Bytes::mib(1)).on(first)).unwrap();
    kernels.fill(first, &block, 1);
    kernels.hold(first, &block, 1);
    kernels.fill(second, &block, 2);
    device.synchronize_stream(second).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    kernels.let_go();
    device.synchronize_stream(first).unwrap();
    assert!(kernels.errors() > 0, "the kernel would not have caught it");
    println!("control: {} words were seen to be overwritten", kernels.errors());
    device.release(block, first).unwrap();
}

/// A block is returned while a kernel is still at it; another stream asks for one like it,
/// again and again. It gets other memory, or is held back until the kernel is done.
#[test]
fn another_stream_gets_a_block_only_behind_its_work() {
    let Some(_device) = whole_real_device() else { return };
    for packing in [Packing::Quick, Packing::Tight] {
        // Room for one such block alone, and for several.
        for room in [16, 256] {
            let (device, kernels) = device(Bytes::mib(room));
            let pool = pool(&device, packing);
            let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
            let block = pool.allocate(Request::new(Bytes::mib(10)).on(first)).unwrap();
            kernels.fill(first, &block, 1);
            kernels.hold(first, &block, 1);
            pool.release(block, first).unwrap();
            assert!(!is_over(&device, first), "the kernel is at it");
            let (done, address) = std::thread::scope(|scope| {
                let (pool, kernels, device) = (&pool, &kernels, &device);
                let taker = scope.spawn(move || {
                    let mut addresses = Vec::new();
                    for value in 100..110 {
                        let block = pool.allocate(Request::new(Bytes::mib(10)).on(second)).unwrap();
                        kernels.fill(second, &block, value);
                        kernels.check(second, &block, value);
                        pool.release(block, second).unwrap();
                        addresses.push(block.address());
                    }
                    device.synchronize_stream(second).unwrap();
                    addresses
                });
                // Long enough for the other to do wrong, if it could.
                std::thread::sleep(Duration::from_millis(100));
                let held = !is_over(device, first);
                kernels.let_go();
                (held, taker.join().unwrap())
            });
            device.synchronize_stream(first).unwrap();
            assert!(done, "the kernel was at it all the time");
            assert_eq!(kernels.errors(), 0, "{packing:?} with {room} MiB");
            let reused = address.iter().filter(|at| **at == block.address()).count();
            println!("{packing:?} with {room} MiB: {reused} of 10 reused the block, in order");
        }
    }
}

/// Blocks that lie in free parts of handles at other addresses, on two streams, turn after turn: what
/// kernels wrote to them and to the blocks beside these parts is there.
#[test]
fn blocks_in_lent_memory_hold_what_kernels_wrote() {
    let Some(_device) = whole_real_device() else { return };
    let (device, kernels) = device(Bytes::gib(2));
    let pool = pool(&device, Packing::Quick);
    let streams = [(); 2].map(|()| device.new_stream().unwrap());
    let take = |mib: u64, stream| pool.allocate(Request::new(Bytes::mib(mib)).on(stream)).unwrap();
    let all = take(512, streams[0]);
    pool.release(all, streams[0]).unwrap();
    let gaps: Vec<_> = (0..39).map(|_| [12, 1].map(|mib| take(mib, streams[0]))).collect();
    let mut live = Vec::new();
    for (value, [large, small]) in (1000..).zip(gaps) {
        pool.release(large, streams[0]).unwrap();
        kernels.fill(streams[0], &small, value);
        live.push((small, value));
    }
    let mut reserved = Vec::new();
    for turn in 1..20 {
        let stream = streams[turn as usize % 2];
        let across: Vec<_> = (0..8).map(|number| (take(15, stream), turn * 100 + number)).collect();
        for (block, value) in &across {
            kernels.fill(stream, block, *value);
        }
        for (block, value) in &across {
            kernels.check(stream, block, *value);
        }
        for (block, _) in across {
            pool.release(block, stream).unwrap();
        }
        reserved.push(pool.stats().total_allocated_bytes.get() >> 20);
    }
    device.synchronize_stream(streams[1]).unwrap();
    for (block, value) in &live {
        kernels.check(streams[0], block, *value);
    }
    device.synchronize_stream(streams[0]).unwrap();
    assert_eq!(kernels.errors(), 0);
    println!("MiB reserved after each turn: {reserved:?}");
}

/// A kernel is at a block that was returned. Trimming takes nothing of it away, nor does a
/// request that could use its pages: it takes others, or waits on the host.
#[test]
fn nothing_is_unmapped_under_a_running_kernel() {
    let Some(_device) = whole_real_device() else { return };
    for packing in [Packing::Quick, Packing::Tight] {
        let (device, kernels) = device(Bytes::mib(256));
        let pool = pool(&device, packing);
        let [first, second] = [(); 2].map(|()| device.new_stream().unwrap());
        let block = pool.allocate(Request::new(Bytes::mib(96)).on(first)).unwrap();
        let idle = pool.allocate(Request::new(Bytes::mib(32)).on(second)).unwrap();
        kernels.fill(first, &block, 1);
        kernels.hold(first, &block, 1);
        pool.release(block, first).unwrap();
        pool.release(idle, second).unwrap();
        // What nobody uses goes, what the kernel uses stays.
        let trimmed = pool.trim().unwrap();
        let kept = pool.stats().total_allocated_bytes;
        assert!(kept >= Bytes::mib(96), "{kept} kept, {trimmed} trimmed");
        let (held, large) = std::thread::scope(|scope| {
            let taker = scope.spawn(|| {
                let large = pool.allocate(Request::new(Bytes::mib(120)).on(second)).unwrap();
                kernels.fill(second, &large, 2);
                kernels.check(second, &large, 2);
                large
            });
            // Long enough for the request to do wrong, if it could.
            std::thread::sleep(Duration::from_millis(100));
            let held = !is_over(&device, first);
            kernels.let_go();
            (held, taker.join().unwrap())
        });
        assert!(held, "the kernel was at it all the time");
        device.synchronize_stream(first).unwrap();
        device.synchronize_stream(second).unwrap();
        assert_eq!(kernels.errors(), 0, "{packing:?}");
        pool.release(large, second).unwrap();
        pool.clear().unwrap();
        assert_eq!(pool.stats().total_allocated_bytes, Bytes::ZERO);
        println!("{packing:?}: {trimmed} trimmed beside the kernel, {kept} kept under it");
    }
}

/// The control: memory that is taken away under a kernel is seen, as a fault that ends the
/// context. So it runs in a process of its own, started by the test below.
#[test]
#[ignore = "ends the context of its process; the test below runs it"]
fn control_unmapping_under_a_kernel() {
    let (device, kernels) = device(Bytes::mib(64));
    let size = Bytes::mib(8);
    let (at, handle) = (device.reserve(size).unwrap(), device.create(size).unwrap());
    device.map(at, handle, size).unwrap();
    let block = whole(&device, at, size);
    let stream = device.new_stream().unwrap();
    kernels.fill(stream, &block, 1);
    kernels.hold(stream, &block, 1);
    let unmapped = device.unmap(at, size);
    std::thread::sleep(Duration::from_millis(50));
    kernels.let_go();
    let ended = device.synchronize_stream(stream);
    println!("unmapping: {unmapped:?}; the kernel: {ended:?}; errors: {}", kernels.errors());
    if unmapped.is_err() || ended.is_err() || kernels.errors() > 0 {
        // The driver is in no state to end in order.
        std::process::exit(77);
    }
}

/// A block that stands for memory that was mapped by hand.
fn whole(device: &Cuda, at: u64, size: Bytes) -> Block {
    let address = plimsoll_memory::Address { buffer: at, offset: 0 };
    let any = device.allocate(Request::new(1u64)).unwrap();
    Block::new(any.owner(), at, 0, size, address)
}

#[test]
fn control_unmapping_under_a_kernel_is_caught() {
    let Some(_device) = whole_real_device() else { return };
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "flight::control_unmapping_under_a_kernel"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    assert_eq!(output.status.code(), Some(77), "the kernel would not have caught it: {text}");
}

/// Threads with streams of their own take and return blocks of all sizes, with kernels that
/// write and check them in flight.
#[test]
fn threads_and_streams_share_a_pool_with_work_in_flight() {
    let Some(_device) = whole_real_device() else { return };
    for packing in [Packing::Quick, Packing::Tight] {
        let (device, kernels) = device(Bytes::mib(512));
        let pool = pool(&device, packing);
        std::thread::scope(|scope| {
            for thread in 0..8u32 {
                let (pool, device, kernels) = (&pool, &device, &kernels);
                scope.spawn(move || churn(pool, device, kernels, thread));
            }
        });
        assert_eq!(kernels.errors(), 0, "{packing:?}");
        assert_eq!(pool.stats().in_use_bytes, Bytes::ZERO);
        println!("{packing:?}: {:?}", pool.activity());
    }
}

fn churn(pool: &Pool, device: &Cuda, kernels: &Kernels, thread: u32) {
    let stream = device.new_stream().unwrap();
    let mut random = u64::from(thread) << 7 | 1;
    let mut held: Vec<(Block, u32)> = Vec::new();
    for round in 0..400 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
        let pick = (random >> 33) as usize;
        if held.len() > 8 || (pick.is_multiple_of(3) && !held.is_empty()) {
            let (block, value) = held.swap_remove(pick % held.len());
            kernels.check(stream, &block, value);
            pool.release(block, stream).unwrap();
            continue;
        }
        let size = 4 * (1 + random % [1_000, 30_000, 500_000, 3_000_000][pick % 4]);
        match pool.allocate(Request::new(size).on(stream)) {
            Ok(block) => {
                let value = thread << 16 | round;
                kernels.fill(stream, &block, value);
                held.push((block, value));
            }
            Err(error) => assert!(error.is_full_now(), "{error}"),
        }
    }
    for (block, value) in held {
        kernels.check(stream, &block, value);
        pool.release(block, stream).unwrap();
    }
    device.synchronize_stream(stream).unwrap();
}

/// What one thread holds: blocks with their values, and whether each is on the device.
struct Load {
    stream: Stream,
    blocks: Vec<(Block, u32)>,
}

/// Four threads on streams of their own fill the device until requests fall back to the
/// host; half is returned, and what comes then is on the device again. Every block keeps
/// its contents, on both sides, all the time.
#[test]
fn a_device_is_filled_to_the_last_megabyte_and_nothing_is_lost() {
    let Some(_device) = whole_real_device() else { return };
    let device = Arc::new(Cuda::open(0).unwrap());
    let kernels = Kernels::new(&device, CudaOptions::new(0));
    let pool = pool(&device, Packing::Tight);
    let host = Arc::new(Host::with_total(Bytes::gib(8)));
    let memory = Fallback::new(Arc::clone(&pool) as Arc<dyn Memory>, host);
    let (started, free) = (Instant::now(), device.free_memory().unwrap());
    let fallbacks = AtomicU64::new(0);
    let mut loads: Vec<Load> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u32)
            .map(|thread| {
                let (memory, kernels, device, fallbacks) = (&memory, &kernels, &device, &fallbacks);
                scope.spawn(move || fill_up(memory, device, kernels, thread, fallbacks))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (held, left) = (pool.stats().total_allocated_bytes, device.free_memory().unwrap());
    let (live, time) = (pool.stats().in_use_bytes, started.elapsed());
    println!("free at first {free}; held {held}, live {live}; left {left}; in {time:?}");
    assert!(fallbacks.load(Ordering::SeqCst) > 0 && memory.stats().cpu_fallbacks > 0);
    assert_nothing_left(&device);
    assert!(left < Bytes::mib(4), "{left} were left");
    // Half of it goes, and what comes is on the device again.
    for load in &mut loads {
        let keep = load.blocks.len() / 2;
        for (block, value) in load.blocks.drain(keep..) {
            verify(&memory, &device, &kernels, load.stream, &block, value);
            memory.release(block, load.stream).unwrap();
        }
    }
    for load in &mut loads {
        for value in 0..8 {
            let block = memory.allocate(Request::new(Bytes::mib(512)).on(load.stream)).unwrap();
            assert_eq!(memory.device_of(&block).info().backend, "cuda", "back on the device");
            kernels.fill(load.stream, &block, value);
            load.blocks.push((block, value));
        }
    }
    for load in loads {
        for (block, value) in load.blocks {
            verify(&memory, &device, &kernels, load.stream, &block, value);
            memory.release(block, load.stream).unwrap();
        }
        device.synchronize_stream(load.stream).unwrap();
    }
    assert_eq!(kernels.errors(), 0, "words were lost");
    assert_eq!(memory.stats().in_use_bytes, Bytes::ZERO);
    pool.clear().unwrap();
    let after = device.free_memory().unwrap();
    println!("free at the end {after}; {} fell back", fallbacks.load(Ordering::SeqCst));
    assert!(after + Bytes::mib(64) > free, "{free} became {after}");
}

/// Not even by the driver's own blocks can another megabyte be had.
fn assert_nothing_left(device: &Cuda) {
    let take = || device.allocate(Request::new(Bytes::mib(1)));
    let crumbs: Vec<Block> = std::iter::from_fn(|| take().ok()).collect();
    let last = take().unwrap_err();
    assert!(last.is_full_now(), "{last}");
    let left = device.free_memory().unwrap();
    println!("the driver had {} more megabytes; then {left} left, and: {last}", crumbs.len());
    for crumb in crumbs {
        device.release(crumb, Stream::DEFAULT).unwrap();
    }
}

/// Takes large blocks until one is on the host, then smaller ones, down to 256 KiB.
fn fill_up(
    memory: &Fallback,
    device: &Cuda,
    kernels: &Kernels,
    thread: u32,
    fallbacks: &AtomicU64,
) -> Load {
    let mut load = Load { stream: device.new_stream().unwrap(), blocks: Vec::new() };
    for kib in [1 << 20, 64 << 10, 8 << 10, 1 << 10, 256] {
        loop {
            let request = Request::new(Bytes::kib(kib)).on(load.stream);
            let block = memory.allocate(request).unwrap();
            let value = thread << 20 | load.blocks.len() as u32;
            let on_device = memory.device_of(&block).info().backend == "cuda";
            if on_device {
                kernels.fill(load.stream, &block, value);
            } else {
                let bytes = value.to_le_bytes().repeat(64);
                memory.device_of(&block).write(block.address(), &bytes).unwrap();
                fallbacks.fetch_add(1, Ordering::SeqCst);
            }
            load.blocks.push((block, value));
            if !on_device {
                break;
            }
        }
    }
    load
}

fn verify(
    memory: &Fallback,
    device: &Cuda,
    kernels: &Kernels,
    stream: Stream,
    block: &Block,
    value: u32,
) {
    if memory.device_of(block).info().backend == "cuda" {
        return kernels.check(stream, block, value);
    }
    let mut bytes = vec![0; 256];
    memory.device_of(block).read(block.address(), &mut bytes).unwrap();
    assert!(bytes == value.to_le_bytes().repeat(64), "a block on the host was lost");
    assert!(device.free_memory().is_ok());
}
