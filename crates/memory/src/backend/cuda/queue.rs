//! CudaStreams and events by number.
//!
//! Creating an event costs more than recording one, so returned events are used again. An
//! event's number consists of a slot and how often the slot was used, so that a returned event
//! is not mistaken for the next one in its slot.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use plimsoll_cuda::raw::CUstream;

use crate::memory::{Event, Stream};
use plimsoll_cuda::{Context, RawEvent, RawStream};
use plimsoll_machine::error::{Error, Result};

#[derive(Debug)]
pub(super) struct CudaQueue {
    context: Arc<Context>,
    streams: CudaStreams,
    events: Mutex<CudaEvents>,
}

/// The streams of a device, for those who queue work.
#[derive(Debug, Clone)]
pub(super) struct CudaStreams(Arc<RwLock<Vec<Arc<RawStream>>>>);

impl CudaStreams {
    pub(super) fn get(&self, stream: Stream) -> Result<Arc<RawStream>> {
        let streams = self.0.read().unwrap_or_else(PoisonError::into_inner);
        streams.get(usize::from(stream.0)).cloned().ok_or_else(|| Error::Device {
            call: "stream",
            why: format!("{stream:?} was never made on this device"),
        })
    }
}

#[derive(Debug, Default)]
struct CudaEvents {
    /// CudaEvents, each with how often its slot was used, and whether it is out.
    slots: Vec<(Arc<RawEvent>, u32, bool)>,
    free: Vec<u32>,
}

impl CudaQueue {
    /// With the default stream only.
    pub(super) fn new(context: &Arc<Context>) -> CudaQueue {
        CudaQueue {
            context: Arc::clone(context),
            streams: CudaStreams(Arc::new(RwLock::new(vec![Arc::new(RawStream::unnamed(
                context,
            ))]))),
            events: Mutex::default(),
        }
    }

    pub(super) fn new_stream(&self) -> Result<Stream> {
        self.add(RawStream::new(&self.context)?)
    }

    /// # Safety
    ///
    /// It is a stream of this context that outlives this value.
    #[expect(unsafe_code, reason = "a pointer of the caller's")]
    pub(super) unsafe fn adopt(&self, raw: CUstream) -> Result<Stream> {
        // SAFETY: the caller's word.
        self.add(unsafe { RawStream::adopt(&self.context, raw) })
    }

    fn add(&self, raw: RawStream) -> Result<Stream> {
        let mut streams = self.streams.0.write().unwrap_or_else(PoisonError::into_inner);
        let stream = Stream::numbered(streams.len() as u64)?;
        streams.push(Arc::new(raw));
        Ok(stream)
    }

    pub(super) fn stream(&self, stream: Stream) -> Result<Arc<RawStream>> {
        self.streams.get(stream)
    }

    pub(super) fn streams(&self) -> CudaStreams {
        self.streams.clone()
    }

    fn events(&self) -> MutexGuard<'_, CudaEvents> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record(&self, stream: Stream) -> Result<Event> {
        let stream = self.stream(stream)?;
        let (event, raw) = self.take_event()?;
        raw.record(&stream).inspect_err(|_| self.forget(event))?;
        Ok(event)
    }

    fn take_event(&self) -> Result<(Event, Arc<RawEvent>)> {
        let mut events = self.events();
        let index = match events.free.pop() {
            Some(index) => index,
            None => {
                let event = Arc::new(RawEvent::new(&self.context)?);
                events.slots.push((event, 0, false));
                events.slots.len() as u32 - 1
            }
        };
        let (raw, uses, out) = &mut events.slots[index as usize];
        *uses = uses.wrapping_add(1);
        *out = true;
        Ok((Event(u64::from(*uses) << 32 | u64::from(index)), Arc::clone(raw)))
    }

    pub(super) fn event(&self, event: Event) -> Result<Arc<RawEvent>> {
        let (index, uses) = (event.0 as u32, (event.0 >> 32) as u32);
        match self.events().slots.get(index as usize) {
            Some((raw, used, true)) if *used == uses => Ok(Arc::clone(raw)),
            _ => Err(Error::Device {
                call: "event",
                why: format!("{event:?} was never recorded, or has been given back"),
            }),
        }
    }

    pub(super) fn forget(&self, event: Event) {
        let (index, uses) = (event.0 as u32, (event.0 >> 32) as u32);
        let mut events = self.events();
        if let Some((_, used, out @ true)) = events.slots.get_mut(index as usize)
            && *used == uses
        {
            *out = false;
            events.free.push(index);
        }
    }

    /// Waits for all streams, as far as they answer.
    pub(super) fn drain(&self) {
        let streams = self.streams.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        for stream in streams {
            drop(stream.synchronize());
        }
    }
}
