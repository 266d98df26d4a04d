//! What is known of a buffer.

use std::backtrace::Backtrace;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use plimsoll_machine::units::Bytes;

/// The number of a buffer, never used twice in a process.
///
/// ```
/// use plimsoll_memory::BufferId;
/// assert_ne!(BufferId::new(), BufferId::new());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(u64);

impl BufferId {
    /// A number that no other buffer has.
    #[must_use]
    pub fn new() -> BufferId {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        BufferId(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The plain number; the first is 1, and later buffers have larger ones.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// The next number, as [`BufferId::new`].
impl Default for BufferId {
    fn default() -> Self {
        BufferId::new()
    }
}

impl fmt::Display for BufferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("buffer-{}", self.0))
    }
}

/// Where a buffer lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BufferLocation {
    /// In the memory of a device.
    Gpu,
    /// In system memory.
    Cpu,
}

impl BufferLocation {
    /// The location that a device's memory is, by its kind as in `DeviceInfo::backend`.
    pub(crate) fn of(backend: &str) -> BufferLocation {
        if backend == "cpu" { BufferLocation::Cpu } else { BufferLocation::Gpu }
    }
}

impl fmt::Display for BufferLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            BufferLocation::Gpu => "GPU",
            BufferLocation::Cpu => "CPU",
        })
    }
}

/// What is known of a buffer.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BufferMetadata {
    /// Its number.
    pub id: BufferId,
    /// Its size.
    pub bytes: Bytes,
    /// How many elements that is; of what type is the owner's business.
    pub elements: u64,
    /// Where it lies.
    pub location: BufferLocation,
    /// What it is for.
    pub tag: Option<Cow<'static, str>>,
    /// When it was described.
    pub created: Instant,
    /// Where it was tracked from, if that was asked for. Frames are looked up when it is
    /// printed, not before.
    pub backtrace: Option<Arc<Backtrace>>,
}

impl BufferMetadata {
    /// A buffer that was allocated now.
    #[must_use]
    pub fn new(
        id: BufferId,
        bytes: u64,
        elements: u64,
        location: BufferLocation,
    ) -> BufferMetadata {
        BufferMetadata {
            id,
            bytes: Bytes(bytes),
            elements,
            location,
            tag: None,
            created: Instant::now(),
            backtrace: None,
        }
    }

    /// With a name for reports.
    #[must_use]
    pub fn with_tag(mut self, tag: impl Into<Cow<'static, str>>) -> BufferMetadata {
        self.tag = Some(tag.into());
        self
    }

    /// How long ago it was allocated.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.created.elapsed()
    }
}

/// One line: number, size, place, and the tag where there is one.
impl fmt::Display for BufferMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} on {}", self.id, self.bytes, self.location)?;
        self.tag.iter().try_for_each(|tag| write!(f, " ({tag})"))
    }
}
