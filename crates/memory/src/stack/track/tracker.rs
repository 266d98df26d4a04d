//! A list of live buffers.

use std::backtrace::Backtrace;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use super::metadata::{BufferId, BufferMetadata};
use super::shards::Shards;
use plimsoll_machine::units::Bytes;

/// A list of live buffers, for any number of threads.
///
/// It is a plain list: buffers of any kind are put on it and taken off. For blocks of a
/// [`Memory`](crate::Memory), [`Tracked`](crate::Tracked) does both.
///
/// ```
/// use plimsoll_memory::{AllocationTracker, BufferMetadata, BufferId, BufferLocation};
///
/// let tracker = AllocationTracker::new();
///
/// // Track an allocation
/// let meta = BufferMetadata::new(
///     BufferId::new(),
///     1024 * 1024,  // 1 MB
///     256 * 1024,   // 256K elements
///     BufferLocation::Gpu,
/// ).with_tag("attention_scores");
///
/// tracker.track(meta);
///
/// // Find potentially leaked buffers
/// let old = tracker.find_old_allocations(std::time::Duration::from_secs(60));
/// for alloc in old {
///     eprintln!("Potential leak: {} ({})", alloc.id, alloc.tag.unwrap_or_default());
/// }
///
/// // Get stats
/// println!("Tracked: {} buffers, {} bytes", tracker.count(), tracker.total_bytes());
/// ```
#[derive(Debug, Default)]
pub struct AllocationTracker {
    live: Shards<BufferId, BufferMetadata>,
    backtraces: bool,
}

impl AllocationTracker {
    /// An empty list.
    #[must_use]
    pub fn new() -> AllocationTracker {
        AllocationTracker::default()
    }

    /// Whether each buffer is noted with the place in the program that it was tracked
    /// from; off unless asked for. It costs some microseconds a buffer, and printing one
    /// costs milliseconds.
    #[must_use]
    pub fn with_backtraces(mut self, on: bool) -> AllocationTracker {
        self.backtraces = on;
        self
    }

    /// Puts a buffer on the list; one of the same number is replaced.
    pub fn track(&self, mut buffer: BufferMetadata) {
        if self.backtraces && buffer.backtrace.is_none() {
            buffer.backtrace = Some(Arc::new(Backtrace::force_capture()));
        }
        self.live.insert(buffer.id, buffer);
    }

    /// Takes a buffer off the list; `None` if it is not on it.
    pub fn untrack(&self, id: BufferId) -> Option<BufferMetadata> {
        self.live.remove(&id)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.live.fold(0, |count, _| count + 1)
    }

    /// How large they are together.
    #[must_use]
    pub fn total_bytes(&self) -> Bytes {
        self.live.fold(Bytes::ZERO, |sum, buffer| sum.saturating_add(buffer.bytes))
    }

    /// Those that are at least this old, the oldest first: what may have been leaked.
    #[must_use]
    pub fn find_old_allocations(&self, age: Duration) -> Vec<BufferMetadata> {
        let mut old = self.listed(|buffer| buffer.age() >= age);
        old.sort_by_key(|buffer| (buffer.created, buffer.id));
        old
    }

    /// All of them, the largest first and the older first among equals.
    #[must_use]
    pub fn by_size(&self) -> Vec<BufferMetadata> {
        let mut all = self.listed(|_| true);
        all.sort_by_key(|buffer| (Reverse(buffer.bytes), buffer.id));
        all
    }

    fn listed(&self, want: impl Fn(&BufferMetadata) -> bool) -> Vec<BufferMetadata> {
        self.live.fold(Vec::new(), |mut list, buffer| {
            if want(buffer) {
                list.push(buffer.clone());
            }
            list
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::track::BufferLocation;

    fn buffer(bytes: u64) -> BufferMetadata {
        BufferMetadata::new(BufferId::new(), bytes, bytes / 4, BufferLocation::Gpu)
    }

    #[test]
    fn lists_by_size_and_by_age() {
        let tracker = AllocationTracker::new();
        let sizes = [400, 1200, 800];
        let ids = sizes.map(|bytes| {
            let buffer = buffer(bytes);
            let id = buffer.id;
            tracker.track(buffer);
            id
        });
        assert_eq!((tracker.count(), tracker.total_bytes()), (3, Bytes(2400)));
        let by_size: Vec<_> = tracker.by_size().iter().map(|buffer| buffer.bytes.0).collect();
        assert_eq!(by_size, [1200, 800, 400]);
        let by_age: Vec<_> =
            tracker.find_old_allocations(Duration::ZERO).iter().map(|buffer| buffer.id).collect();
        assert_eq!(by_age, ids);
        assert!(tracker.find_old_allocations(Duration::from_secs(60)).is_empty());
        assert_eq!(tracker.untrack(ids[0]).map(|buffer| buffer.bytes), Some(Bytes(400)));
        assert!(tracker.untrack(ids[0]).is_none());
        assert_eq!((tracker.count(), tracker.total_bytes()), (2, Bytes(2000)));
    }

    #[test]
    fn a_number_is_listed_once() {
        let tracker = AllocationTracker::new();
        let first = buffer(100);
        let mut second = first.clone();
        second.bytes = Bytes(300);
        tracker.track(first);
        tracker.track(second);
        assert_eq!((tracker.count(), tracker.total_bytes()), (1, Bytes(300)));
    }

    #[test]
    fn backtraces_name_the_caller_when_asked_for() {
        let silent = AllocationTracker::new();
        silent.track(buffer(1));
        assert!(silent.by_size()[0].backtrace.is_none());
        let tracker = AllocationTracker::new().with_backtraces(true);
        tracker.track(buffer(1));
        let text = tracker.by_size()[0].backtrace.as_ref().unwrap().to_string();
        assert!(text.contains("backtraces_name_the_caller"), "{text}");
    }

    #[test]
    fn buffers_are_one_line_of_text() {
        let buffer = buffer(1536).with_tag("kv cache");
        let text = buffer.to_string();
        assert_eq!(text, format!("{}: 1.50 KiB on GPU (kv cache)", buffer.id));
    }
}
