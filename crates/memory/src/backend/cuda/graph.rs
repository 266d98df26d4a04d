//! CUDA graphs: work that is captured once and replayed as a whole.
//!
//! A graph replays addresses, so its memory must stay where it is: capture a stream with
//! [`Pool::begin_capture`](crate::Pool::begin_capture) around this, and keep the
//! [`GraphMemory`](crate::GraphMemory) as long as the graph. While a stream is captured
//! nothing runs, and the driver refuses what would have to (waiting for the stream, a copy
//! that returns when it is done).

use std::sync::Arc;

use super::Cuda;
use super::queue::CudaStreams;
use crate::memory::Stream;
use plimsoll_cuda::{RawGraph, RawStream};
use plimsoll_machine::error::Result;

/// A capture under way. If it is dropped without [`CudaCapture::end`], the captured work is
/// discarded.
#[derive(Debug)]
pub struct CudaCapture {
    stream: Arc<RawStream>,
    queue: CudaStreams,
    ended: bool,
}

/// A graph that can be replayed.
#[derive(Debug, Clone)]
pub struct CudaGraph {
    graph: Arc<RawGraph>,
    queue: CudaStreams,
}

impl Cuda {
    /// Begins a capture: from here on, work that is queued on the stream is recorded and not
    /// run. The default stream cannot be captured.
    pub fn begin_graph(&self, stream: Stream) -> Result<CudaCapture> {
        let queue = self.queue.streams();
        let stream = queue.get(stream)?;
        stream.begin_capture()?;
        Ok(CudaCapture { stream, queue, ended: false })
    }
}

impl CudaCapture {
    /// Ends the capture and makes a graph of it.
    pub fn end(mut self) -> Result<CudaGraph> {
        self.ended = true;
        let graph = Arc::new(self.stream.end_capture()?);
        Ok(CudaGraph { graph, queue: self.queue.clone() })
    }
}

impl Drop for CudaCapture {
    fn drop(&mut self) {
        if !self.ended {
            drop(self.stream.end_capture());
        }
    }
}

impl CudaGraph {
    /// Queues all of it on a stream.
    pub fn launch(&self, stream: Stream) -> Result<()> {
        Ok(self.graph.launch(&*self.queue.get(stream)?)?)
    }
}
