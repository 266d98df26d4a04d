//! The streams and events of a device, by number: a driver's queues and the points in them.
//!
//! A backend brings a queue and a marker type with the driver's calls, and
//! [`events_from_streams`] gives it the events of [`Device`](crate::Device).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::memory::{Event, Stream};
use plimsoll_machine::error::{Error, Result};

/// Queues `Q` and points `M`, each let go of by its own type.
#[derive(Debug)]
pub(super) struct DeviceStreams<Q, M> {
    markers: Mutex<HashMap<u64, Arc<M>>>,
    queues: RwLock<Vec<Arc<Q>>>,
    next: AtomicU64,
}

impl<Q, M> DeviceStreams<Q, M> {
    /// With the queue of the default stream.
    pub(super) fn new(default: Q) -> DeviceStreams<Q, M> {
        DeviceStreams {
            markers: Mutex::new(HashMap::new()),
            queues: RwLock::new(vec![Arc::new(default)]),
            next: AtomicU64::new(0),
        }
    }

    pub(super) fn add(&self, queue: Q) -> Result<Stream> {
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        let stream = Stream::numbered(queues.len() as u64)?;
        queues.push(Arc::new(queue));
        Ok(stream)
    }

    pub(super) fn queue(&self, stream: Stream) -> Result<Arc<Q>> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        queues.get(usize::from(stream.0)).cloned().ok_or_else(|| Error::Device {
            call: "a call on a stream",
            why: format!("the device has made no stream {}", stream.0),
        })
    }

    pub(super) fn keep(&self, marker: M) -> Event {
        let event = self.next.fetch_add(1, Ordering::Relaxed);
        self.markers().insert(event, Arc::new(marker));
        Event(event)
    }

    pub(super) fn marker(&self, event: Event) -> Result<Arc<M>> {
        self.markers().get(&event.0).cloned().ok_or_else(|| Error::Device {
            call: "a call on an event",
            why: format!("event {} was forgotten, or never recorded", event.0),
        })
    }

    pub(super) fn forget(&self, event: Event) {
        self.markers().remove(&event.0);
    }

    fn markers(&self) -> MutexGuard<'_, HashMap<u64, Arc<M>>> {
        self.markers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The methods of [`Device`](crate::Device) that a device with the fields `info` and
/// `streams` answers from them.
macro_rules! events_from_streams {
    () => {
        fn info(&self) -> &DeviceInfo {
            &self.info
        }

        fn record(&self, stream: Stream) -> Result<Event> {
            Ok(self.streams.keep(self.streams.queue(stream)?.mark()?))
        }

        fn is_done(&self, event: Event) -> Result<bool> {
            self.streams.marker(event)?.is_done()
        }

        fn wait(&self, stream: Stream, event: Event) -> Result<()> {
            self.streams.queue(stream)?.wait(&*self.streams.marker(event)?)
        }

        fn synchronize(&self, event: Event) -> Result<()> {
            self.streams.marker(event)?.synchronize()
        }

        fn forget(&self, event: Event) -> Result<()> {
            self.streams.forget(event);
            Ok(())
        }
    };
}
pub(super) use events_from_streams;
