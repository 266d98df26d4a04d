//! One trait for every layer: a place that hands out memory.
//!
//! A backend, a pool, a limit, a tracker and a fallback are all a [`Memory`], so they
//! stack in any order that makes sense, and each file adds one idea and forwards the
//! rest. The trait is object-safe: which stack runs is decided at run time, on the
//! machine that it runs on.
//!
//! A [`Block`] is a token, not a pointer: it names its memory, its place there and the
//! generation of that place, so that a block of another memory or a second return is an error and never
//! undefined behaviour. Its [`Address`] is a buffer and an offset, because OpenCL and
//! Metal have no pointers that could be added to; where a device has them, the buffer is
//! the base address and [`Address::pointer`] is the sum.
//!
//! Memory is stream-ordered. A block is returned *on* a stream: work that was queued
//! there before may still use it, and the block's next user is ordered behind that
//! work.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::pressure::MemoryPressure;
use crate::stats::MemoryStats;
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// A queue of work on a device, numbered by the device in the order of creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stream(pub u16);

impl Stream {
    /// The stream that every device has from the start.
    pub const DEFAULT: Stream = Stream(0);

    /// The stream of a number, or an error where there are no more numbers.
    pub(crate) fn numbered(number: u64) -> Result<Stream> {
        u16::try_from(number).map(Stream).map_err(|_| Error::Unavailable {
            what: "another stream".to_string(),
            why: "a device has 65536 at most; use one again".to_string(),
        })
    }
}

/// A point in a stream that can be asked after or waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

/// Where a block lies: an offset in a buffer of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The buffer: a handle, or the base address where the device has addresses.
    pub buffer: u64,
    /// Bytes from the start of the buffer.
    pub offset: u64,
}

impl Address {
    /// The address as one number, for devices whose buffers are addresses; the highest
    /// where that would overflow, which no device maps.
    #[must_use]
    pub fn pointer(self) -> u64 {
        self.buffer.saturating_add(self.offset)
    }

    /// This many bytes further on.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Address {
        Address { buffer: self.buffer, offset: self.offset.saturating_add(bytes) }
    }
}

/// The number of a memory, never used twice in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryId(u32);

impl MemoryId {
    /// A number that no other memory has.
    #[must_use]
    pub fn next() -> MemoryId {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        MemoryId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A piece of memory, handed out by a [`Memory`] and returned to it.
///
/// Copying it copies the name, not the memory: the first return counts, the second is
/// [`Error::AlreadyFreed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    owner: MemoryId,
    generation: u64,
    key: u64,
    size: u64,
    address: Address,
}

impl Block {
    /// For those who write a memory of their own: `key` and `generation` come back in
    /// [`Memory::release`], to tell a live block from one that was returned.
    #[must_use]
    pub fn new(owner: MemoryId, key: u64, generation: u64, size: Bytes, address: Address) -> Block {
        Block { owner, generation, key, size: size.0, address }
    }

    /// Bytes, as asked for.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes(self.size)
    }

    /// Where it lies.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// The memory that handed it out.
    #[must_use]
    pub fn owner(&self) -> MemoryId {
        self.owner
    }

    /// The owner's own name for it.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// How often the owner had used that name before.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// How many bytes. Nothing is as good a request as any: it gets a block of its own.
    pub size: Bytes,
    /// The stream that will use it first.
    pub stream: Stream,
    /// What it is for, in reports.
    pub tag: Option<&'static str>,
}

impl Request {
    /// This many bytes, for the default stream.
    #[must_use]
    pub fn new(size: impl Into<Bytes>) -> Request {
        Request { size: size.into(), stream: Stream::DEFAULT, tag: None }
    }

    /// For this stream.
    #[must_use]
    pub fn on(mut self, stream: Stream) -> Request {
        self.stream = stream;
        self
    }

    /// With a name for reports.
    #[must_use]
    pub fn tagged(mut self, tag: &'static str) -> Request {
        self.tag = Some(tag);
        self
    }
}

/// A place that hands out memory.
pub trait Memory: Send + Sync + fmt::Debug {
    /// What it is called in messages and reports.
    fn name(&self) -> &str;

    /// The device at the bottom of the stack.
    fn device(&self) -> &dyn Device;

    /// The device that a block of this memory lies on: [`Memory::device`], unless the stack
    /// stands on two.
    fn device_of(&self, _block: &Block) -> &dyn Device {
        self.device()
    }

    /// Whether this memory, or one below it, handed the block out.
    fn owns(&self, block: &Block) -> bool;

    /// Hands out a block. [`Error::OutOfMemory`] is *full now*, [`Error::NeverFits`] is
    /// *can never fit*.
    fn allocate(&self, request: Request) -> Result<Block>;

    /// Takes a block back, behind whatever was queued on the stream before.
    fn release(&self, block: Block, stream: Stream) -> Result<()>;

    /// What it holds and has handed out.
    fn stats(&self) -> MemoryStats;

    /// The most that it can ever hand out.
    fn capacity(&self) -> Bytes;

    /// Gives back what is held and not in use; returns how much that was.
    fn trim(&self) -> Result<Bytes> {
        Ok(Bytes::ZERO)
    }

    /// Physical memory by the page, where this memory can map it.
    fn mapping(&self) -> Option<&dyn Mapping> {
        None
    }

    /// What could still be handed out: the capacity less what is in use.
    fn available(&self) -> Bytes {
        self.capacity().saturating_sub(self.stats().in_use_bytes)
    }

    /// The share of the capacity that is in use, as a level.
    fn pressure(&self) -> MemoryPressure {
        MemoryPressure::of(self.stats().in_use_bytes, self.capacity())
    }
}

/// A piece of physical memory that can be mapped to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// Physical memory that is mapped to addresses by the page (CUDA's virtual memory
/// management, and the simulated device). Unmapping is not stream-ordered: every stream
/// that used the address must have finished.
pub trait Mapping: Send + Sync {
    /// The smallest page.
    fn page_size(&self) -> Bytes;
    /// Sets an address range aside; costs no memory.
    fn reserve(&self, size: Bytes) -> Result<u64>;
    /// Returns an address range in which nothing is mapped any more.
    fn unreserve(&self, base: u64, size: Bytes) -> Result<()>;
    /// Takes physical memory from the device.
    fn create(&self, size: Bytes) -> Result<Handle>;
    /// Returns physical memory that is mapped nowhere.
    fn destroy(&self, handle: Handle, size: Bytes) -> Result<()>;
    /// Whether physical memory may be mapped at several addresses at once. What was written
    /// through one is read through another once the writing work is over.
    fn can_alias(&self) -> bool {
        false
    }
    /// Makes physical memory appear at an address.
    fn map(&self, address: u64, handle: Handle, size: Bytes) -> Result<()>;
    /// Makes it disappear again.
    fn unmap(&self, address: u64, size: Bytes) -> Result<()>;
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// As it is called by itself: "NVIDIA H200", "host".
    pub name: String,
    /// The kind, as it is written in `--device`: `cpu`, `cuda`, `sim`.
    pub backend: &'static str,
    /// Which of that kind, from 0.
    pub number: u32,
    /// All of its memory.
    pub total: Bytes,
    /// The alignment of every block.
    pub alignment: u64,
    /// The step in which plain blocks are taken from the device.
    pub granularity: Bytes,
    /// Whether its memory is the system's; `None` where the driver does not tell.
    pub is_unified: Option<bool>,
    /// NVIDIA's generation of the device: (9, 0).
    pub compute_capability: Option<(u32, u32)>,
    /// The number of its PCI bus: two devices on one bus are one card by two drivers.
    pub pci_bus: Option<u32>,
}

impl DeviceInfo {
    /// For those who write a device of their own. Alignment and granularity are 256 bytes
    /// until they are set.
    #[must_use]
    pub fn new(name: impl Into<String>, backend: &'static str, total: Bytes) -> DeviceInfo {
        DeviceInfo {
            name: name.into(),
            backend,
            number: 0,
            total,
            alignment: 256,
            granularity: Bytes(256),
            is_unified: None,
            compute_capability: None,
            pci_bus: None,
        }
    }
}

/// A backend: a memory with streams and events, and bytes that can be reached.
pub trait Device: Memory {
    /// What it is.
    fn info(&self) -> &DeviceInfo;
    /// What nobody holds now, this process or another.
    fn free_memory(&self) -> Result<Bytes>;
    /// A new stream.
    fn new_stream(&self) -> Result<Stream>;
    /// Marks the point that a stream has been given work up to.
    fn record(&self, stream: Stream) -> Result<Event>;
    /// Whether that point has been passed.
    fn is_done(&self, event: Event) -> Result<bool>;
    /// Holds a stream back until another has passed the point; returns at once.
    fn wait(&self, stream: Stream, event: Event) -> Result<()>;
    /// Waits, on the host, until the point has been passed.
    fn synchronize(&self, event: Event) -> Result<()>;
    /// Gives an event back.
    fn forget(&self, event: Event) -> Result<()>;
    /// Copies bytes onto the device, and returns when they are there.
    fn write(&self, to: Address, bytes: &[u8]) -> Result<()>;
    /// Copies bytes from the device, and returns when they are here.
    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<()>;
}

/// The refusal of a request that does not fit now, or never.
pub(crate) fn refusal(memory: &str, requested: Bytes, available: Bytes, capacity: Bytes) -> Error {
    let memory = memory.to_string();
    if requested > capacity {
        Error::NeverFits { memory, requested, capacity }
    } else {
        Error::OutOfMemory { memory, requested, available }
    }
}

/// The error for a block that this memory did not hand out, or has back already.
pub(crate) fn stranger(memory: &dyn Memory, block: &Block) -> Error {
    let name = memory.name().to_string();
    if memory.owns(block) {
        Error::AlreadyFreed { memory: name, id: block.key() }
    } else {
        Error::ForeignBlock { memory: name }
    }
}
