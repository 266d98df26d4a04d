//! A map in parts with a lock each, so that threads seldom meet.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// As many parts as threads are likely to meet at once; a power of two.
const SHARDS: usize = 16;

#[derive(Debug)]
pub(super) struct Shards<K, V> {
    /// Chooses the part; each part hashes for itself.
    hasher: RandomState,
    parts: [Mutex<HashMap<K, V>>; SHARDS],
}

impl<K, V> Default for Shards<K, V> {
    fn default() -> Self {
        Shards {
            hasher: RandomState::new(),
            parts: std::array::from_fn(|_| Mutex::new(HashMap::new())),
        }
    }
}

impl<K: Eq + Hash, V> Shards<K, V> {
    fn part(&self, key: &K) -> MutexGuard<'_, HashMap<K, V>> {
        let number = self.hasher.hash_one(key) as usize % SHARDS;
        lock(&self.parts[number])
    }

    /// Puts a value in, and gives the one that was there.
    pub(super) fn insert(&self, key: K, value: V) -> Option<V> {
        self.part(&key).insert(key, value)
    }

    pub(super) fn remove(&self, key: &K) -> Option<V> {
        self.part(key).remove(key)
    }

    /// Sums up over all values, part by part: one lock at a time.
    pub(super) fn fold<T>(&self, start: T, mut add: impl FnMut(T, &V) -> T) -> T {
        self.parts.iter().fold(start, |sum, part| lock(part).values().fold(sum, &mut add))
    }
}

fn lock<T>(part: &Mutex<T>) -> MutexGuard<'_, T> {
    // A map that was changed by one call at a time is whole whatever became of the caller.
    part.lock().unwrap_or_else(PoisonError::into_inner)
}
