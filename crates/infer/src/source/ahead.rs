//! Decodes frames before they are asked for, on a thread, with a bounded queue.
//!
//! A detector should not wait for a JPEG. [`Ahead`] wraps a [`Source`] and is one itself. Each
//! frame carries the time that decoding took, measured by the caller's clock, so that it can be
//! reported apart from the time that the caller waited. A live source that sends nothing before
//! the timeout counts as gone: the caller gets an error instead of an endless wait.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Clock, Frame, Source, SourceInfo, SourceOptions, Stager, Stopper};
use crate::error::{InferError, InferResult};

/// What the thread sends: a frame, or that there are no more.
struct Made {
    frame: Option<InferResult<Frame>>,
    took: Option<Duration>,
    rate: Option<f64>,
}

/// A source that works ahead.
pub struct Ahead {
    info: SourceInfo,
    made: Option<Receiver<Made>>,
    stop: Option<Stopper>,
    worker: Option<JoinHandle<()>>,
    timeout: Option<Duration>,
    took: Option<Duration>,
}

impl Ahead {
    /// Starts to decode ahead, as the options say. `timeout` is how long the source may be
    /// silent; `None` for as long as it likes.
    ///
    /// # Errors
    /// [`InferError::Source`] where no thread can be started.
    pub fn new(
        source: Box<dyn Source>,
        options: &SourceOptions,
        timeout: Option<Duration>,
    ) -> InferResult<Ahead> {
        let info = source.info().clone();
        let stop = source.stopper();
        let (send, made) = sync_channel(options.ahead.max(1));
        let (clock, stager) = (options.clock.clone(), options.stager.clone());
        let worker = std::thread::Builder::new()
            .name(format!("decode {}", info.kind))
            .spawn(move || work(source, &send, clock, stager))
            .map_err(|e| InferError::Source {
                source_name: info.name.clone(),
                why: e.to_string(),
            })?;
        Ok(Ahead { info, made: Some(made), stop, worker: Some(worker), timeout, took: None })
    }

    fn receive(&self) -> Result<Made, &'static str> {
        const DIED: &str = "the decoding thread died";
        let Some(made) = &self.made else {
            return Ok(Made { frame: None, took: None, rate: None });
        };
        match self.timeout {
            None => made.recv().map_err(|_| DIED),
            Some(timeout) => made.recv_timeout(timeout).map_err(|error| match error {
                RecvTimeoutError::Timeout => "no frame came for too long: it has vanished",
                RecvTimeoutError::Disconnected => DIED,
            }),
        }
    }

    /// Makes the thread end and waits for it.
    fn finish(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop();
        }
        self.made = None;
        if let Some(worker) = self.worker.take() {
            drop(worker.join());
        }
    }
}

impl Source for Ahead {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn next_frame(&mut self) -> Option<InferResult<Frame>> {
        match self.receive() {
            Ok(made) => {
                self.took = made.took;
                self.info.rate = self.info.rate.or(made.rate);
                if !matches!(made.frame, Some(Ok(_) | Err(InferError::Frame { .. }))) {
                    self.finish();
                }
                made.frame
            }
            Err(why) => {
                self.took = None;
                self.finish();
                let source_name = self.info.name.clone();
                Some(Err(InferError::Source { source_name, why: why.to_owned() }))
            }
        }
    }

    fn decode_time(&self) -> Option<Duration> {
        self.took
    }

    fn stopper(&self) -> Option<Stopper> {
        self.stop.clone()
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.finish();
    }
}

fn work(
    mut source: Box<dyn Source>,
    send: &SyncSender<Made>,
    clock: Option<Clock>,
    stager: Option<Stager>,
) {
    loop {
        let began = clock.as_ref().map(|clock| clock());
        let mut frame = source.next_frame();
        if let (Some(Ok(frame)), Some(stage)) = (&mut frame, &stager) {
            frame.staged = stage(frame);
        }
        let took = clock.as_ref().zip(began).map(|(clock, began)| clock().saturating_sub(began));
        let goes_on = matches!(frame, Some(Ok(_) | Err(InferError::Frame { .. })));
        let made = Made { frame, took, rate: source.info().rate };
        if send.send(made).is_err() || !goes_on {
            return;
        }
    }
}
