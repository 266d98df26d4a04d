//! The device pool: stream-ordered, many-threaded, and small in memory.
//!
//! # What it does
//!
//! Requests are cut from large address ranges by best fit and merged again when they
//! come back, so little is lost to rounding. A block that was returned on a stream is
//! free for that stream at once; another stream must wait for an event first; the event is
//! recorded only when that stream asks for the block (`order`).
//!
//! If the device can map physical memory, addresses are plentiful and memory moves: when
//! nothing that is mapped fits, physical memory that lies free elsewhere is mapped where it is
//! needed, and only what cannot be found that way is taken from the device (`grow`). So the pool
//! holds about as much as was ever live at once. What lies free in a handle in which another block is
//! live cannot move; it is lent to a block at other addresses (`lend`). Memory stays mapped where it
//! has been and is found there again without a call (`kept`); when everything has been returned it goes
//! back to where it was when that was so before (`calm`), so that a program that repeats itself is
//! served alike.
//! If the device cannot, plain blocks of fitting sizes take the place of pages
//! (`plain_blocks`): they cannot move, but those that lie wholly free are given back before
//! another is taken.
//!
//! # What it costs
//!
//! Mapping costs about 50 µs a handle of any size, a search in mapped memory some tens of
//! nanoseconds. [`Packing::Quick`] takes handles as large as what is missing while it holds hardly more
//! than was live, else a third of it, prefers what is mapped, and holds up to a twentieth (where it
//! can lend, a twenty-fifth) and 2 MiB more than was live before it moves or lends anything;
//! [`Packing::Tight`] uses the device's smallest handles and the tightest place in one range, puts small
//! blocks into pages that are partly in use (`rests`), lends only where it would hold a fiftieth, and at
//! least 4 MiB, more, and pays with more mapping for holding less.
//!
//! # Locks
//!
//! Each stream has a home arena with a lock (`arena`). The fast path takes that one
//! lock. Everything that asks the device takes the growth lock first, and then arenas
//! one at a time, so no two locks of the same kind are ever held together.
//! A block in lent memory is returned without the growth lock, whose holder may wait for the work that
//! returns it: it is put on a list, and whoever has the growth lock next makes its parts free.

mod arena;
mod bins;
mod calm;
mod capture;
mod chain;
mod counts;
mod grow;
mod heap;
mod kept;
mod lend;
mod order;
mod peaks;
mod plain_blocks;
mod region;
mod rests;
mod shrink;
mod sizes;
mod spans;
mod tag;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use crate::config::{MemoryConfig, Packing};
use crate::memory::{Block, Device, Mapping, Memory, MemoryId, Request, Stream, refusal, stranger};
use crate::pressure::MemoryPressure;
use crate::stack::track::{AllocationTracker, LiveList};
use crate::stats::MemoryStats;
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

use arena::{Arena, GiveBack, TakenPiece};
use calm::CalmMoment;
pub use capture::{Capture, GraphMemory};
use counts::Counts;
pub use counts::PoolActivity;
use heap::IndexKey;
use kept::KeptMappings;
use lend::ReturnedLoan;
use order::StreamOrder;
use peaks::PoolPeaks;
pub use peaks::{GpuPeaks, get_gpu_peaks};
use plain_blocks::Pins;
use region::{LooseExtents, SpareExtent};
use spans::Spans;
use tag::UseTags;

/// Arenas for streams; more streams than these share them.
const ARENAS: u16 = 64;

/// How long a reading of free device memory stays valid.
const FRESH: Duration = Duration::from_millis(10);
/// It is also only trusted while it is at least this many times the missing amount.
const PLENTY: u64 = 16;

/// A pool over a memory.
///
/// ```
/// use std::sync::Arc;
/// use plimsoll_memory::{Bytes, Memory, MemoryConfig, Pool, Request, Stream};
/// use plimsoll_memory::backend::sim::{Sim, SimConfig};
///
/// let device = Arc::new(Sim::new(SimConfig::default().with_total(Bytes::gib(4))));
/// let pool = Pool::new(device, MemoryConfig::for_inference())?;
/// let block = pool.allocate(Request::new(Bytes::mib(10)))?;
/// pool.release(block, Stream::DEFAULT)?;
/// assert!(pool.release(block, Stream::DEFAULT).is_err(), "each block is returned once");
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
#[derive(Debug)]
pub struct Pool {
    id: MemoryId,
    name: String,
    upstream: Arc<dyn Memory>,
    config: MemoryConfig,
    budget: Bytes,
    alignment: u64,
    /// Bytes of the device's smallest page; 0 if the device cannot map.
    page: u64,
    /// The most pages that are taken by one handle.
    most: u64,
    /// Whether mappings are kept when memory moves.
    can_alias: bool,
    /// Whether memory has moved since everything was returned, and may go back.
    unrest: AtomicBool,
    arenas: Box<[OnceLock<Arena>]>,
    /// There are none from here on.
    arenas_end: AtomicUsize,
    /// Arenas of captures, by number; those past `ARENAS`.
    private: RwLock<BTreeMap<u32, Arc<Arena>>>,
    order: StreamOrder,
    pins: Arc<Pins>,
    /// How often anyone had to wait for a lock of an arena.
    crowd: Arc<AtomicU64>,
    growth: Mutex<Growth>,
    /// Blocks in lent memory that were returned, whose parts are not at home yet.
    returned: Mutex<Vec<ReturnedLoan>>,
    counts: Counts,
    /// The most that was live and held.
    peaks: PoolPeaks,
    /// What is live, where the configuration asks for a list.
    list: Option<LiveList>,
}

/// What only one thread at a time may change.
#[derive(Debug, Default)]
struct Growth {
    /// Memory that is in no place.
    spare: Vec<SpareExtent>,
    /// Mappings that memory was left behind at.
    kept: KeptMappings,
    calm: CalmMoment,
    /// Addresses at which free parts of handles are used together.
    spans: Spans,
    /// The most that was live when memory was needed.
    most_live: u64,
    /// Captures being captured: stream → arena number.
    captures: BTreeMap<Stream, u32>,
    /// Arenas whose graph is gone; their memory may be taken.
    retired: Vec<u32>,
    next_private: u32,
    free: Option<FreeReading>,
}

/// What the device had free, with what the pool held of it then.
#[derive(Debug, Clone, Copy)]
struct FreeReading {
    bytes: u64,
    at: Instant,
}

impl Pool {
    /// A pool over `upstream`, with as much of it as the configuration allows.
    pub fn new(upstream: Arc<dyn Memory>, config: MemoryConfig) -> Result<Pool> {
        let info = upstream.device().info();
        let budget = config.budget(info.total)?.min(upstream.capacity());
        let (name, alignment) = (format!("pool on {}", upstream.name()), info.alignment);
        let page = upstream.mapping().map_or(0, |mapping| mapping.page_size().0);
        let can_alias = upstream.mapping().is_some_and(Mapping::can_alias);
        // Down to what can be had: memory comes by the page, or by the device's step.
        let step = if page > 0 { page } else { info.granularity.0.max(alignment).max(1) };
        let left = info.total.saturating_sub(config.min_free_bytes);
        if left < Bytes(step) && info.total >= Bytes(step) {
            return Err(Error::Config {
                field: "min_free_bytes",
                value: format!("{} on a device of {}", config.min_free_bytes, info.total),
                range: "less, so that the pool may hold something",
            });
        }
        let budget = Bytes(budget.0 - budget.0 % step);
        let most = sizes::most_pages(config.packing, budget.0, page);
        let peaks = PoolPeaks::on(info.backend);
        let list = config.track_allocations.then(LiveList::default);
        Ok(Pool {
            id: MemoryId::next(),
            name,
            upstream,
            config,
            budget,
            alignment,
            page,
            most,
            can_alias,
            unrest: AtomicBool::new(false),
            arenas: std::iter::repeat_with(OnceLock::new).take(usize::from(ARENAS)).collect(),
            arenas_end: AtomicUsize::new(0),
            private: RwLock::default(),
            order: StreamOrder::new(),
            pins: Arc::default(),
            crowd: Arc::default(),
            growth: Mutex::new(Growth { next_private: u32::from(ARENAS), ..Growth::default() }),
            returned: Mutex::default(),
            counts: Counts::default(),
            peaks,
            list,
        })
    }

    /// The list of live blocks with their tags and ages; `None` where the configuration's
    /// [`track_allocations`](MemoryConfig::track_allocations) is off.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use plimsoll_memory::backend::host::Host;
    /// use plimsoll_memory::{Bytes, Memory, MemoryConfig, Pool, Request, Stream};
    ///
    /// let config = MemoryConfig::new().with_min_free_bytes(0).with_tracking(true);
    /// let pool = Pool::new(Arc::new(Host::with_total(Bytes::mib(64))), config)?;
    /// let weights = pool.allocate(Request::new(Bytes::mib(16)).tagged("weights"))?;
    /// let tracker = pool.tracker().ok_or("it was asked for")?;
    /// assert_eq!(tracker.by_size()[0].tag.as_deref(), Some("weights"));
    /// pool.release(weights, Stream::DEFAULT)?;
    /// assert_eq!(tracker.count(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn tracker(&self) -> Option<&AllocationTracker> {
        self.list.as_ref().map(LiveList::tracker)
    }

    /// What it holds and has handed out: [`Memory::stats`], also where
    /// [`GpuMemoryPool`](crate::GpuMemoryPool), which has a method of that name, is imported.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        Memory::stats(self)
    }

    /// The share of the budget that is in use: [`Memory::pressure`], likewise.
    #[must_use]
    pub fn pressure(&self) -> MemoryPressure {
        Memory::pressure(self)
    }

    /// The configuration that it was made with.
    #[must_use]
    pub fn config(&self) -> &MemoryConfig {
        &self.config
    }

    /// Gives back what is held and not in use, waiting for work that still uses it.
    pub fn clear(&self) -> Result<Bytes> {
        self.give_back_free(true)
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        let mut growth = self.growth.lock().unwrap_or_else(PoisonError::into_inner);
        self.bring_home(&mut growth);
        growth
    }

    /// The same where nobody has it: who has it may wait for work, which must not wait for this thread.
    fn try_growth(&self) -> Option<MutexGuard<'_, Growth>> {
        let mut growth = match self.growth.try_lock() {
            Ok(growth) => growth,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.bring_home(&mut growth);
        Some(growth)
    }

    fn key(&self) -> IndexKey {
        match self.config.packing {
            Packing::Tight if self.page > 0 => IndexKey::Length { page: self.page },
            _ => IndexKey::Ready,
        }
    }

    /// The arena that a stream turns to first. Tight packing has one for all.
    #[inline]
    fn home(&self, stream: Stream) -> &Arena {
        let number = match self.config.packing {
            Packing::Quick => stream.0 % ARENAS,
            Packing::Tight => 0,
        };
        self.arenas[usize::from(number)].get_or_init(|| {
            self.arenas_end.fetch_max(usize::from(number) + 1, Ordering::AcqRel);
            let pins = Some(&self.pins);
            let shared = (&self.crowd, &self.peaks.0);
            Arena::new(u32::from(number), self.key(), self.page == 0, pins, shared)
        })
    }

    fn shared_arenas(&self) -> impl Iterator<Item = &Arena> {
        let end = self.arenas_end.load(Ordering::Acquire);
        self.arenas[..end].iter().filter_map(OnceLock::get)
    }

    fn private_arenas(&self) -> Vec<Arc<Arena>> {
        self.private.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn private_arena(&self, number: u32) -> Option<Arc<Arena>> {
        self.private.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    fn block(&self, arena: u32, found: TakenPiece, size: Bytes) -> Block {
        let key = u64::from(arena) << 32 | u64::from(found.piece);
        Block::new(self.id, key, found.generation, size, found.address)
    }

    fn refusal(&self, requested: Bytes) -> Error {
        refusal(&self.name, requested, self.available(), self.budget)
    }

    /// How much more may be held for a request that is missing this much: within the budget,
    /// and leaving enough free. What the device has free is asked for again where it was not
    /// plenty or some time ago: the question takes a sixth of what a handle does.
    fn room(&self, growth: &mut Growth, missing: u64) -> Result<u64> {
        let held = self.counts.held.load(Ordering::Relaxed);
        let budget = self.budget.0.saturating_sub(held);
        if budget == 0 {
            return Ok(0);
        }
        let known = growth.free.filter(|free| {
            free.at.elapsed() < FRESH && free.bytes.saturating_sub(held) / PLENTY >= missing
        });
        let free = match known {
            Some(free) => free,
            None => {
                // What upstream holds and would hand out again is free too.
                let pooled = self.upstream.stats().pooled_bytes;
                let free = self.device().free_memory()?.saturating_add(pooled);
                let free = free.saturating_sub(self.config.min_free_bytes).0;
                *growth
                    .free
                    .insert(FreeReading { bytes: free.saturating_add(held), at: Instant::now() })
            }
        };
        Ok(budget.min(free.bytes.saturating_sub(held)))
    }

    #[inline]
    fn take(&self, request: Request) -> Result<Block> {
        let Request { size: asked, stream, .. } = request;
        if asked > self.budget {
            return Err(self.refusal(asked));
        }
        let size = asked.max(Bytes(1)).round_up(self.alignment).0;
        if !self.order.any_capture() || !self.order.is_capturing(stream) {
            let home = self.home(stream);
            return match home.try_take(&self.order, stream, size, asked.0) {
                Ok(found) => Ok(self.block(home.number, found, asked)),
                Err(miss) => self.allocate_elsewhere(home, request, size, miss),
            };
        }
        self.allocate_captured(request, size)
    }

    #[inline]
    fn take_back(&self, block: &Block, stream: Stream) -> Result<()> {
        if !self.owns(block) {
            return Err(stranger(self, block));
        }
        let (number, piece) = ((block.key() >> 32) as u32, block.key() as u32);
        let give_back = |arena: &Arena| {
            let name = (piece, block.generation(), block.size().0);
            match arena.give_back(&self.order, name.0, name.1, name.2, stream) {
                GiveBack::Lent => self.take_back_lent(arena, name, stream),
                done => done,
            }
        };
        let returned = match self.arenas.get(number as usize) {
            Some(arena) => arena.get().map_or(GiveBack::Stranger, give_back),
            None => {
                self.private_arena(number).map_or(GiveBack::Stranger, |arena| give_back(&arena))
            }
        };
        match returned {
            GiveBack::Taken => Ok(()),
            GiveBack::Last => {
                self.calm_down();
                Ok(())
            }
            GiveBack::Stranger | GiveBack::Lent => Err(stranger(self, block)),
        }
    }

    fn mapping(&self) -> Result<&dyn Mapping> {
        self.upstream.mapping().ok_or_else(|| Error::Unavailable {
            what: "mapping physical memory".to_string(),
            why: format!("{} has stopped offering it", self.upstream.name()),
        })
    }

    /// Keeps memory for the next request that nobody uses any more.
    fn keep(&self, growth: &mut Growth, hand: LooseExtents) {
        for extent in hand.into_extents() {
            self.keep_used(growth, SpareExtent { extent, users: UseTags::NONE });
        }
    }

    /// Keeps memory for the next request.
    fn keep_used(&self, growth: &mut Growth, spare: SpareExtent) {
        self.counts.spare.fetch_add(spare.extent.pages * self.page, Ordering::Release);
        growth.spare.push(spare);
    }

    /// How many requests have been served.
    fn requests(&self) -> u64 {
        let figures = self.shared_arenas().map(Arena::figures);
        figures.map(|figures| figures.hits + figures.misses).sum()
    }

    fn count_held(&self, more: u64) {
        let held = self.counts.held.fetch_add(more, Ordering::Relaxed) + more;
        self.peaks.0.holds(held);
        self.counts.taken.fetch_add(1, Ordering::Relaxed);
    }

    fn count_returned(&self, less: u64) {
        self.counts.held.fetch_sub(less, Ordering::Relaxed);
        self.counts.returned.fetch_add(1, Ordering::Relaxed);
    }
}

impl Memory for Pool {
    fn name(&self) -> &str {
        &self.name
    }

    fn device(&self) -> &dyn Device {
        self.upstream.device()
    }

    fn owns(&self, block: &Block) -> bool {
        block.owner() == self.id
    }

    fn allocate(&self, request: Request) -> Result<Block> {
        let block = self.take(request)?;
        if let Some(list) = &self.list {
            list.note_block(&block, self.device(), request.tag);
        }
        Ok(block)
    }

    fn release(&self, block: Block, stream: Stream) -> Result<()> {
        self.take_back(&block, stream)?;
        if let Some(list) = &self.list {
            list.strike_block(&block);
        }
        Ok(())
    }

    fn stats(&self) -> MemoryStats {
        self.sum_arenas()
    }

    fn capacity(&self) -> Bytes {
        self.budget
    }

    fn trim(&self) -> Result<Bytes> {
        self.give_back_free(false)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Best effort: a device that fails now has nothing that could still be saved.
        if let Err(error) = self.dismantle() {
            tracing::warn!(pool = %self.name, %error, "memory was left behind on the device");
        }
        self.order.forget_all(self.upstream.device());
    }
}
