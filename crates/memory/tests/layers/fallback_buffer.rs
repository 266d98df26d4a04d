use std::sync::Arc;

use plimsoll_memory::backend::sim::SimCall;
use plimsoll_memory::{
    BufferLocation, Error, Fallback, FallbackBuffer, FallbackCounter, GpuBuffer, Memory,
    MemoryBuffer, Pool, Result,
};

use crate::{everything, host, sim};

/// More than one step of a copy, and no whole number of them.
const LEN: usize = 100_003;

fn numbers() -> Vec<f32> {
    (0..LEN).map(|i| i as f32 * 0.25 - 7.0).collect()
}

fn contents<G: GpuBuffer>(buffer: &FallbackBuffer<G>) -> Vec<f32> {
    let mut numbers = vec![0.0; buffer.len()];
    buffer.read(&mut numbers).unwrap();
    numbers
}

#[test]
fn moves_there_and_back_with_its_contents() {
    let memories: [Arc<dyn Memory>; 3] =
        [host(4), sim(4), Arc::new(Pool::new(sim(4), everything()).unwrap())];
    for memory in memories {
        let counter = FallbackCounter::new();
        let alloc = || MemoryBuffer::allocate(Arc::clone(&memory), LEN);
        let mut buffer = FallbackBuffer::allocate(LEN, alloc, &counter).unwrap();
        let id = buffer.id();
        assert_eq!((buffer.location(), buffer.len()), (BufferLocation::Gpu, LEN));
        assert!(buffer.gpu().is_some() && buffer.cpu().is_none());
        buffer.write(&numbers()).unwrap();
        assert!(contents(&buffer) == numbers());

        buffer.demote(&counter).unwrap();
        buffer.demote(&counter).unwrap();
        assert_eq!((buffer.location(), counter.get()), (BufferLocation::Cpu, 1));
        assert_eq!(memory.stats().active_buffers, 0, "its place is free for others");
        assert!(buffer.cpu().is_some_and(|cpu| cpu == numbers()));

        let others = MemoryBuffer::allocate(Arc::clone(&memory), 1 << 20).unwrap();
        assert!(!buffer.try_promote(alloc).unwrap());
        assert!(contents(&buffer) == numbers());
        drop(others);
        assert!(buffer.try_promote(alloc).unwrap());
        assert!(buffer.try_promote(|| panic!("it is there already")).unwrap());
        assert!(contents(&buffer) == numbers());
        assert_eq!((buffer.location(), buffer.id()), (BufferLocation::Gpu, id));
        drop(buffer);
        assert_eq!(memory.stats().active_buffers, 0);
    }
}

#[test]
fn a_failed_move_leaves_it_whole() {
    let device = sim(4);
    let memory: Arc<dyn Memory> = device.clone();
    let counter = FallbackCounter::new();
    let alloc = || MemoryBuffer::allocate(Arc::clone(&memory), LEN);
    let mut buffer = FallbackBuffer::allocate(LEN, alloc, &counter).unwrap();
    buffer.write(&numbers()).unwrap();
    let fail = || {
        let error = Error::Device { call: "copy", why: "told to".into() };
        device.sabotage(Some(Box::new(move |call| (call == SimCall::Copy).then(|| error.clone()))));
    };
    fail();
    assert!(buffer.demote(&counter).is_err());
    assert_eq!((buffer.location(), counter.get()), (BufferLocation::Gpu, 0));
    device.sabotage(None);
    buffer.demote(&counter).unwrap();
    fail();
    assert!(buffer.try_promote(alloc).is_err());
    assert_eq!(buffer.location(), BufferLocation::Cpu);
    assert_eq!(memory.stats().active_buffers, 0, "what was allocated for the move is back");
    device.sabotage(None);
    assert!(contents(&buffer) == numbers());
}

/// A buffer of the user's own, which always fails for one reason.
struct Broken;

impl GpuBuffer for Broken {
    fn upload(&mut self, _: &[f32]) -> Result<()> {
        Err(Error::Device { call: "upload", why: "broken".into() })
    }
    fn download(&self, _: &mut [f32]) -> Result<()> {
        Err(Error::Device { call: "download", why: "broken".into() })
    }
}

#[test]
fn other_failures_are_failures() {
    let counter = FallbackCounter::new();
    let lost = || Err::<Broken, _>(Error::Device { call: "allocate", why: "lost".into() });
    assert!(FallbackBuffer::allocate(8, lost, &counter).is_err());
    assert_eq!(counter.get(), 0);
    let mut buffer = FallbackBuffer::allocate(8, || Ok(Broken), &counter).unwrap();
    assert!(buffer.write(&[0.0; 8]).is_err());
    let text = buffer.write(&[0.0; 7]).unwrap_err().to_string();
    assert!(text.contains("7 elements") && text.contains('8'), "{text}");
}

#[test]
fn what_fits_nowhere_is_an_error() {
    let counter = FallbackCounter::new();
    let memory: Arc<dyn Memory> = sim(4);
    let alloc = || MemoryBuffer::allocate(Arc::clone(&memory), usize::MAX);
    let error = FallbackBuffer::allocate(usize::MAX, alloc, &counter).unwrap_err();
    assert!(error.is_out_of_memory() && !error.is_full_now(), "{error}");
    assert_eq!(counter.get(), 0);
}

/// Buffers and requests of one program, counted together.
#[test]
fn a_layer_and_its_buffers_share_a_counter() {
    let gpu: Arc<dyn Memory> = sim(4);
    let layer = Fallback::new(Arc::clone(&gpu), host(8));
    let alloc = || MemoryBuffer::allocate(Arc::clone(&gpu), 2 << 20);
    let buffer = FallbackBuffer::allocate(2 << 20, alloc, layer.counter()).unwrap();
    assert_eq!(buffer.location(), BufferLocation::Cpu);
    assert_eq!(layer.stats().cpu_fallbacks, 1);
}

#[test]
fn a_memory_buffer_says_where_it_is() {
    let memory: Arc<dyn Memory> = Arc::new(Fallback::new(sim(1), host(64)));
    let near = MemoryBuffer::allocate(Arc::clone(&memory), 1000).unwrap();
    let mut far = MemoryBuffer::allocate(Arc::clone(&memory), LEN * 4).unwrap();
    assert_eq!((near.location(), far.location()), (BufferLocation::Gpu, BufferLocation::Cpu));
    let numbers: Vec<_> = numbers().into_iter().cycle().take(LEN * 4).collect();
    far.upload(&numbers).unwrap();
    let mut back = vec![0.0; far.len()];
    far.download(&mut back).unwrap();
    assert!(back == numbers);
}
