//! Who may still be using a piece: a stream and an epoch, or a few of them.
//!
//! Nearly always it is one stream, so a tag is one number and the list behind it is
//! empty. It is copied with every cut and merge: numbers in registers, nothing more.

use crate::memory::Stream;
use crate::sync::{AtomicU64, Ordering};

/// Bits of the epoch; the stream is above them.
const EPOCH: u32 = 48;

/// The epochs of a stream: the hand-over from a free on one thread to a reuse on another.
///
/// A free notes the epoch that is open; an event closes it. An epoch is closed *before* its
/// event is recorded, so a free that noted it had queued its work before, and the event
/// covers that work. The other way round a free could slip in between and claim an event
/// that does not cover it. That order is model-checked below.
#[derive(Debug)]
pub(super) struct Epochs {
    open: AtomicU64,
}

impl Default for Epochs {
    fn default() -> Self {
        Epochs { open: AtomicU64::new(0) }
    }
}

impl Epochs {
    /// The epoch that a free notes. Work that it must wait for was queued before.
    pub(super) fn note(&self) -> u64 {
        self.open.load(Ordering::SeqCst)
    }

    /// Closes the open epoch and records an event that covers it and all before.
    pub(super) fn close<T>(&self, record: impl FnOnce() -> T) -> (u64, T) {
        let closed = self.open.fetch_add(1, Ordering::SeqCst);
        (closed, record())
    }
}

/// A stream and the epoch in which it last used something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UseTag(u64);

impl UseTag {
    /// Nobody.
    const NONE: UseTag = UseTag(u64::MAX);

    pub(super) fn new(stream: Stream, epoch: u64) -> UseTag {
        UseTag(u64::from(stream.0) << EPOCH | epoch & ((1 << EPOCH) - 1))
    }

    pub(super) fn stream(self) -> Stream {
        Stream((self.0 >> EPOCH) as u16)
    }

    pub(super) fn epoch(self) -> u64 {
        self.0 & ((1 << EPOCH) - 1)
    }
}

/// The users of a piece: one tag for each stream, the latest.
#[derive(Debug, Clone)]
pub(super) struct UseTags {
    first: UseTag,
    #[expect(clippy::box_collection, reason = "one word, and hardly ever there")]
    more: Option<Box<Vec<UseTag>>>,
}

impl UseTags {
    /// Nobody.
    pub(super) const NONE: UseTags = UseTags { first: UseTag::NONE, more: None };

    pub(super) fn of(tag: UseTag) -> UseTags {
        UseTags { first: tag, more: None }
    }

    /// The only user, or the first.
    pub(super) fn first(&self) -> UseTag {
        self.first
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = UseTag> {
        let first = Some(self.first).filter(|tag| *tag != UseTag::NONE);
        first.into_iter().chain(self.more.iter().flat_map(|more| more.iter().copied()))
    }

    /// Whether there is no user but this stream.
    #[inline]
    pub(super) fn only(&self, stream: Stream) -> bool {
        self.more.is_none() && (self.first.stream() == stream || self.first == UseTag::NONE)
    }

    /// Adds a user.
    #[inline]
    pub(super) fn add(&mut self, tag: UseTag) {
        // Nobody has the stream number of a real stream, the last one, and is larger than all of
        // its tags: it must not take the place of one.
        let both = self.first != UseTag::NONE && tag != UseTag::NONE;
        if both && self.first.stream() == tag.stream() {
            // Of one stream the later is the larger number.
            self.first = UseTag(self.first.0.max(tag.0));
        } else {
            self.add_other(tag);
        }
    }

    #[cold]
    fn add_other(&mut self, tag: UseTag) {
        if tag == UseTag::NONE {
            return;
        }
        if self.first == UseTag::NONE {
            self.first = tag;
            return;
        }
        let more = self.more.get_or_insert_default();
        match more.iter_mut().find(|other| other.stream() == tag.stream()) {
            Some(other) => other.0 = other.0.max(tag.0),
            None => more.push(tag),
        }
    }

    /// Adds the users of another piece.
    #[inline]
    pub(super) fn join(&mut self, other: &UseTags) {
        self.add(other.first);
        if let Some(more) = &other.more {
            for tag in more.iter() {
                self.add(*tag);
            }
        }
    }
}

impl FromIterator<UseTag> for UseTags {
    fn from_iter<I: IntoIterator<Item = UseTag>>(tags: I) -> UseTags {
        let mut all = UseTags::NONE;
        for tag in tags {
            all.add(tag);
        }
        all
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_tag_for_each_stream_and_it_is_the_latest() {
        let tag = |stream, epoch| UseTag::new(Stream(stream), epoch);
        let mut tags = UseTags::of(tag(3, 5));
        for other in [tag(1, 7), tag(3, 2), tag(1, 9), tag(3, 8), tag(u16::MAX - 1, 1)] {
            tags.add(other);
        }
        let mut all: Vec<_> = tags.iter().map(|tag| (tag.stream().0, tag.epoch())).collect();
        all.sort_unstable();
        assert_eq!(all, [(1, 9), (3, 8), (u16::MAX - 1, 1)]);
        assert!(!tags.only(Stream(3)) && UseTags::of(tag(3, 1)).only(Stream(3)));
        assert!(UseTags::NONE.only(Stream(9)) && UseTags::NONE.iter().next().is_none());
        let mut joined = UseTags::NONE;
        joined.join(&tags);
        assert_eq!(joined.iter().count(), 3);
        joined.join(&UseTags::NONE);
        assert_eq!(joined.iter().count(), 3);
    }

    #[test]
    fn the_last_stream_keeps_its_tag_when_nobody_joins() {
        let last = UseTag::new(Stream(u16::MAX), 5);
        let mut tags = UseTags::of(last);
        tags.join(&UseTags::NONE);
        assert_eq!(tags.iter().collect::<Vec<_>>(), [last]);
        assert!(!tags.only(Stream(1)) && tags.only(Stream(u16::MAX)));
        let mut other = UseTags::of(UseTag::new(Stream(1), 2));
        other.join(&tags);
        other.join(&UseTags::NONE);
        assert_eq!(other.iter().count(), 2);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    /// Two threads queue work and free; a third closes an epoch meanwhile. Whatever noted
    /// the closed epoch is covered by its event, in every interleaving.
    #[test]
    fn an_event_covers_every_free_of_its_epoch() {
        loom::model(|| {
            let epochs = Arc::new(Epochs::default());
            // The stream's queue: a driver serialises it, and an event sees it as it is.
            let queue = Arc::new(Mutex::new([false; 2]));
            let frees: Vec<_> = (0..2)
                .map(|i| {
                    let (epochs, queue) = (Arc::clone(&epochs), Arc::clone(&queue));
                    thread::spawn(move || {
                        queue.lock().unwrap()[i] = true;
                        epochs.note()
                    })
                })
                .collect();
            let (closed, covered) = epochs.close(|| *queue.lock().unwrap());
            for (free, covered) in frees.into_iter().zip(covered) {
                let noted = free.join().unwrap();
                assert!(noted > closed || covered, "epoch {noted} is not covered by {closed}");
            }
        });
    }
}
