//! The only door to a device: counts what is asked of it, and holds the line.
//!
//! A pool has a budget, but whoever has a pool can reach the device below it
//! ([`Memory::device`]) and ask there. So the manager never hands the device out: what its
//! pools stand on, and what they give as their device, is a gate. Pages and plain blocks
//! are reserved against the line before the device is asked, so two threads cannot both
//! take the last bytes, and a refusal costs the device no call. The line can be moved at
//! any time, also under a pool that was made before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::{
    Address, Block, Device, DeviceInfo, Event, Handle, Mapping, Memory, Request, Stream, refusal,
};
use crate::stats::MemoryStats;
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// A probe that other threads disturbed is repeated so often.
const PROBES: u32 = 8;

#[derive(Debug)]
pub(super) struct Gate {
    device: Arc<dyn Device>,
    /// The line; all ones without one.
    limit: AtomicU64,
    held: AtomicU64,
    peak: AtomicU64,
    asked: AtomicU64,
    refused: AtomicU64,
}

impl Gate {
    pub(super) fn new(device: Arc<dyn Device>) -> Gate {
        Gate {
            device,
            limit: AtomicU64::new(u64::MAX),
            held: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    pub(super) fn set_limit(&self, limit: Bytes) {
        self.limit.store(limit.get(), Ordering::SeqCst);
    }

    pub(super) fn limit(&self) -> Bytes {
        Bytes(self.limit.load(Ordering::SeqCst))
    }

    /// Taken from the device through this gate.
    pub(super) fn held(&self) -> Bytes {
        Bytes(self.held.load(Ordering::SeqCst))
    }

    /// The most that was ever taken at once.
    pub(super) fn peak(&self) -> Bytes {
        Bytes(self.peak.load(Ordering::SeqCst))
    }

    /// How often the device was asked for memory.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// How often the line was the reason for a refusal.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }

    /// Whether every way to the device leads through this gate: nobody else in the
    /// process has kept a handle.
    pub(super) fn is_only_door(&self) -> bool {
        Arc::strong_count(&self.device) == 1 && Arc::weak_count(&self.device) == 0
    }

    /// Asks for more than the line by every way there is. Right if each was refused here
    /// and the device heard of none.
    pub(super) fn holds(&self) -> bool {
        let over = self.limit().saturating_add(Bytes(1));
        let block = || self.allocate(Request::new(over)).map(drop);
        let page = || self.create(over).map(drop);
        self.refuses(&block) && (self.device.mapping().is_none() || self.refuses(&page))
    }

    /// Whether an attempt ends in a refusal that the device heard nothing of.
    pub(super) fn is_spared(&self, attempt: &dyn Fn() -> Result<()>) -> bool {
        (0..PROBES).any(|_| {
            let asked = self.asked();
            let refused = attempt().is_err_and(|error| error.is_out_of_memory());
            refused && self.asked() == asked
        })
    }

    /// Whether the device by itself holds this process at a limit below the line: it says
    /// that no more is free than the limit, though `room` (by another's word) is free, and
    /// refuses a request past the line. Where it does not refuse, what it handed out is
    /// returned at once.
    pub(super) fn device_holds(&self, limit: Bytes, room: Bytes) -> bool {
        let over = self.limit().saturating_add(self.device.info().granularity);
        let told = self.device.free_memory().is_ok_and(|free| free <= limit);
        if !told || room <= over || limit > self.limit() {
            return false;
        }
        match self.device.allocate(Request::new(over)) {
            Err(error) => error.is_out_of_memory(),
            Ok(block) => {
                // What cannot be returned is held by whoever refused to take it.
                let _ = self.device.release(block, Stream::DEFAULT);
                false
            }
        }
    }

    fn refuses(&self, attempt: &dyn Fn() -> Result<()>) -> bool {
        let before = self.refused();
        self.limit() < Bytes::MAX && self.is_spared(attempt) && self.refused() > before
    }

    /// Reserves bytes below the line, or refuses.
    fn enter(&self, bytes: Bytes, requested: Bytes) -> Result<()> {
        let limit = self.limit.load(Ordering::SeqCst);
        let below = |held: u64| held.checked_add(bytes.get()).filter(|held| *held <= limit);
        match self.held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, below) {
            Ok(before) => {
                self.peak.fetch_max(before.saturating_add(bytes.get()), Ordering::SeqCst);
                self.asked.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
            Err(held) => {
                self.refused.fetch_add(1, Ordering::SeqCst);
                let available = Bytes(limit.saturating_sub(held));
                Err(refusal(self.name(), requested, available, self.capacity()))
            }
        }
    }

    fn leave(&self, bytes: Bytes) {
        let less = |held: u64| Some(held.saturating_sub(bytes.get()));
        // Always succeeds; what never came through the gate takes nothing away.
        let _ = self.held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    /// What a plain block takes from the device.
    fn taken(&self, size: Bytes) -> Bytes {
        size.max(Bytes(1)).round_up(self.device.info().granularity.get().max(1))
    }

    fn below(&self) -> Result<&dyn Mapping> {
        self.device.mapping().ok_or_else(|| Error::Unavailable {
            what: format!("mapping on {}", self.name()),
            why: "the device has plain blocks only".to_string(),
        })
    }
}

impl Memory for Gate {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn device(&self) -> &dyn Device {
        self
    }

    fn owns(&self, block: &Block) -> bool {
        self.device.owns(block)
    }

    fn allocate(&self, request: Request) -> Result<Block> {
        let taken = self.taken(request.size);
        self.enter(taken, request.size)?;
        self.device.allocate(request).inspect_err(|_| self.leave(taken))
    }

    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        self.device.release(block, stream)?;
        self.leave(self.taken(block.size()));
        Ok(())
    }

    fn stats(&self) -> MemoryStats {
        self.device.stats()
    }

    fn capacity(&self) -> Bytes {
        self.device.capacity().min(self.limit())
    }

    fn trim(&self) -> Result<Bytes> {
        self.device.trim()
    }

    fn mapping(&self) -> Option<&dyn Mapping> {
        self.device.mapping().map(|_| self as &dyn Mapping)
    }
}

impl Mapping for Gate {
    fn page_size(&self) -> Bytes {
        self.device.mapping().map_or(Bytes(1), Mapping::page_size)
    }

    fn reserve(&self, size: Bytes) -> Result<u64> {
        self.below()?.reserve(size)
    }

    fn unreserve(&self, base: u64, size: Bytes) -> Result<()> {
        self.below()?.unreserve(base, size)
    }

    fn create(&self, size: Bytes) -> Result<Handle> {
        let below = self.below()?;
        self.enter(size, size)?;
        below.create(size).inspect_err(|_| self.leave(size))
    }

    fn destroy(&self, handle: Handle, size: Bytes) -> Result<()> {
        self.below()?.destroy(handle, size)?;
        self.leave(size);
        Ok(())
    }

    fn map(&self, address: u64, handle: Handle, size: Bytes) -> Result<()> {
        self.below()?.map(address, handle, size)
    }

    fn unmap(&self, address: u64, size: Bytes) -> Result<()> {
        self.below()?.unmap(address, size)
    }
}

impl Device for Gate {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn free_memory(&self) -> Result<Bytes> {
        self.device.free_memory()
    }

    fn new_stream(&self) -> Result<Stream> {
        self.device.new_stream()
    }

    fn record(&self, stream: Stream) -> Result<Event> {
        self.device.record(stream)
    }

    fn is_done(&self, event: Event) -> Result<bool> {
        self.device.is_done(event)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        self.device.wait(stream, event)
    }

    fn synchronize(&self, event: Event) -> Result<()> {
        self.device.synchronize(event)
    }

    fn forget(&self, event: Event) -> Result<()> {
        self.device.forget(event)
    }

    fn write(&self, to: Address, bytes: &[u8]) -> Result<()> {
        self.device.write(to, bytes)
    }

    fn read(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        self.device.read(from, bytes)
    }
}
