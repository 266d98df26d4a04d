//! The only way to a device: counts what is requested of it, and enforces the limit.
//!
//! A pool has a budget, but code that has a pool can reach the device below it
//! ([`Memory::device`]) and allocate there. So the manager never hands the device out: what its
//! pools stand on, and what they give as their device, is a gate. Pages and plain blocks
//! are reserved from a [`Budget`] before the device is asked, so a refusal costs the device
//! no call. The limit can be moved at any time, also under a pool that was made before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::budget::Budget;
use crate::memory::{
    Address, Block, Device, DeviceInfo, Event, Handle, Mapping, Memory, Request, Stream, refusal,
};
use crate::pressure::MemoryPressure;
use crate::stack::layer::MemoryLayer;
use plimsoll_machine::error::Result;
use plimsoll_machine::units::Bytes;

/// A probe that other threads disturbed is repeated so often.
const PROBES: u32 = 8;

#[derive(Debug)]
pub(super) struct DeviceGate {
    device: Arc<dyn Device>,
    budget: Budget,
    asked: AtomicU64,
    refused: AtomicU64,
}

impl DeviceGate {
    pub(super) fn new(device: Arc<dyn Device>) -> DeviceGate {
        DeviceGate {
            device,
            budget: Budget::new(Bytes::MAX),
            asked: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    pub(super) fn set_limit(&self, limit: Bytes) {
        self.budget.set_limit(limit);
    }

    pub(super) fn limit(&self) -> Bytes {
        self.budget.limit()
    }

    /// Taken from the device through this gate.
    pub(super) fn held(&self) -> Bytes {
        self.budget.reserved()
    }

    /// The most that was ever taken at once.
    pub(super) fn peak(&self) -> Bytes {
        self.budget.peak()
    }

    /// How often the device was asked for memory.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// How often the limit was the reason for a refusal.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }

    /// Whether every way to the device leads through this gate: nobody else in the
    /// process has kept a handle.
    pub(super) fn is_only_door(&self) -> bool {
        Arc::strong_count(&self.device) == 1 && Arc::weak_count(&self.device) == 0
    }

    /// Asks for more than the limit, as a block and as pages. Right if each request was
    /// refused here and the device heard of none.
    pub(super) fn holds(&self) -> bool {
        let over = self.limit().saturating_add(Bytes(1));
        let block = || Memory::allocate(self, Request::new(over)).map(drop);
        let page = || Mapping::create(self, over).map(drop);
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

    /// Whether the device by itself holds this process at a limit below the gate's: it says
    /// that no more is free than the limit, though `room` (by another's word) is free, and
    /// refuses a request past the gate's limit. Where it does not refuse, what it handed out is
    /// returned at once.
    pub(super) fn device_holds(&self, limit: Bytes, room: Bytes) -> bool {
        let over = self.limit().saturating_add(self.device.info().granularity);
        let reported = self.device.free_memory().is_ok_and(|free| free <= limit);
        if !reported || room <= over || limit > self.limit() {
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

    /// Reserves bytes, asks the device, and credits them where the device fails.
    fn charge<T>(
        &self,
        bytes: Bytes,
        requested: Bytes,
        ask: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if let Err(free) = self.budget.reserve(bytes) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(refusal(self.device.name(), requested, free, Memory::capacity(self)));
        }
        self.asked.fetch_add(1, Ordering::SeqCst);
        ask().inspect_err(|_| self.budget.credit(bytes))
    }

    /// What a plain block takes from the device.
    fn taken(&self, size: Bytes) -> Bytes {
        size.max(Bytes(1)).round_up(self.device.info().granularity.get().max(1))
    }
}

impl MemoryLayer for DeviceGate {
    fn inner(&self) -> &dyn Memory {
        &*self.device
    }

    fn device(&self) -> &dyn Device {
        self
    }

    fn device_of(&self, _block: &Block) -> &dyn Device {
        self
    }

    fn allocate(&self, request: Request) -> Result<Block> {
        self.charge(self.taken(request.size), request.size, || self.device.allocate(request))
    }

    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        self.device.release(block, stream)?;
        self.budget.credit(self.taken(block.size()));
        Ok(())
    }

    fn create(&self, pages: &dyn Mapping, size: Bytes) -> Result<Handle> {
        self.charge(size, size, || pages.create(size))
    }

    fn destroy(&self, pages: &dyn Mapping, handle: Handle, size: Bytes) -> Result<()> {
        pages.destroy(handle, size)?;
        self.budget.credit(size);
        Ok(())
    }

    fn capacity(&self) -> Bytes {
        self.device.capacity().min(self.limit())
    }

    fn available(&self) -> Bytes {
        Memory::capacity(self).saturating_sub(self.device.stats().in_use_bytes)
    }

    fn pressure(&self) -> MemoryPressure {
        MemoryPressure::of(self.device.stats().in_use_bytes, Memory::capacity(self))
    }
}

impl Device for DeviceGate {
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
