//! Streams, events and graphs: each is closed when it is dropped, and keeps its context.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUgraph, CUgraphExec, CUstream};

use super::{Context, Done, NOT_READY, call};
use crate::error::Result;

/// Not held back by the stream that has no name.
const NON_BLOCKING: u32 = 0x1;
/// Timing makes events dearer, and nobody asks.
const NO_TIMING: u32 = 0x2;
/// Calls that others make in other threads do not end a capture.
const THREAD_LOCAL: c_int = 1;

/// Declares that the driver guards what is behind a pointer.
macro_rules! any_thread {
    ($($name:ident)*) => {$(
        // SAFETY: the driver allows every call on it from every thread.
        #[expect(unsafe_code, reason = "a pointer that the driver guards")]
        unsafe impl Send for $name {}
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "a pointer that the driver guards")]
        unsafe impl Sync for $name {}
    )*};
}
any_thread! { RawStream RawEvent RawGraph }

/// A stream: ours, the caller's, or the one without a name.
#[derive(Debug)]
pub struct RawStream {
    context: Arc<Context>,
    raw: CUstream,
    owned: bool,
}

#[expect(unsafe_code, reason = "foreign calls")]
impl RawStream {
    /// A stream of its own.
    pub fn new(context: &Arc<Context>) -> Done<RawStream> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a pointer is written to a place of ours.
        unsafe { call!(context.driver, cuStreamCreate(&raw mut raw, NON_BLOCKING)) }?;
        Ok(RawStream { context: Arc::clone(context), raw, owned: true })
    }

    /// The stream that every context has.
    pub fn unnamed(context: &Arc<Context>) -> RawStream {
        RawStream { context: Arc::clone(context), raw: std::ptr::null_mut(), owned: false }
    }

    /// A stream of the caller's.
    ///
    /// # Safety
    ///
    /// It is a stream of this context that outlives what is made of it here.
    pub unsafe fn adopt(context: &Arc<Context>, raw: CUstream) -> RawStream {
        RawStream { context: Arc::clone(context), raw, owned: false }
    }

    /// The stream as other libraries take it.
    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// Waits until it has nothing left to do.
    pub fn synchronize(&self) -> Done {
        let _entered = self.context.enter()?;
        // SAFETY: the stream lives as long as this value.
        unsafe { call!(self.context.driver, cuStreamSynchronize(self.raw)) }
    }

    /// Holds it back until the event has passed.
    pub fn wait(&self, event: &RawEvent) -> Done {
        let _entered = self.context.enter()?;
        // SAFETY: both live.
        unsafe { call!(self.context.driver, cuStreamWaitEvent(self.raw, event.raw, 0)) }
    }

    /// From here on, what is queued is written down and not run.
    pub fn begin_capture(&self) -> Result<()> {
        let driver = self.context.driver;
        let begin =
            driver.optional(driver.table.cuStreamBeginCapture_v2, "cuStreamBeginCapture_v2")?;
        let _entered = self.context.enter()?;
        // SAFETY: the stream lives as long as this value.
        let code = unsafe { begin(self.raw, THREAD_LOCAL) };
        Ok(driver.check("cuStreamBeginCapture_v2", code)?)
    }

    /// What was written down, ready to run.
    pub fn end_capture(&self) -> Result<RawGraph> {
        let driver = self.context.driver;
        let table = &driver.table;
        let end = driver.optional(table.cuStreamEndCapture, "cuStreamEndCapture")?;
        let instantiate =
            driver.optional(table.cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags")?;
        let _entered = self.context.enter()?;
        let mut graph = Template { context: &self.context, raw: std::ptr::null_mut() };
        // SAFETY: the stream lives, and a pointer is written to a place of ours.
        driver.check("cuStreamEndCapture", unsafe { end(self.raw, &raw mut graph.raw) })?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the graph is the one of the capture that has just ended.
        let code = unsafe { instantiate(&raw mut raw, graph.raw, 0) };
        driver.check("cuGraphInstantiateWithFlags", code)?;
        Ok(RawGraph { context: Arc::clone(&self.context), raw })
    }
}

impl Drop for RawStream {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        if self.owned
            && let Ok(_entered) = self.context.enter()
        {
            // SAFETY: it was made by `new` and is closed once; what is queued still runs.
            let _ = unsafe { (self.context.driver.table.cuStreamDestroy_v2)(self.raw) };
        }
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct RawEvent {
    context: Arc<Context>,
    raw: CUevent,
}

#[expect(unsafe_code, reason = "foreign calls")]
impl RawEvent {
    /// An event that stands nowhere yet.
    pub fn new(context: &Arc<Context>) -> Done<RawEvent> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a pointer is written to a place of ours.
        unsafe { call!(context.driver, cuEventCreate(&raw mut raw, NO_TIMING)) }?;
        Ok(RawEvent { context: Arc::clone(context), raw })
    }

    /// Puts it behind what the stream has been given so far.
    pub fn record(&self, stream: &RawStream) -> Done {
        let _entered = self.context.enter()?;
        // SAFETY: both live, and belong to one context.
        unsafe { call!(self.context.driver, cuEventRecord(self.raw, stream.raw)) }
    }

    /// Whether the stream is past it.
    pub fn is_done(&self) -> Done<bool> {
        let _entered = self.context.enter()?;
        // SAFETY: the event lives as long as this value.
        match unsafe { call!(self.context.driver, cuEventQuery(self.raw)) } {
            Ok(()) => Ok(true),
            Err(refused) if refused.code == NOT_READY => Ok(false),
            Err(refused) => Err(refused),
        }
    }

    /// Waits until the stream is past it.
    pub fn synchronize(&self) -> Done {
        let _entered = self.context.enter()?;
        // SAFETY: the event lives as long as this value.
        unsafe { call!(self.context.driver, cuEventSynchronize(self.raw)) }
    }
}

impl Drop for RawEvent {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: it was made by `new` and is closed once; streams that wait for it
            // are not disturbed.
            let _ = unsafe { (self.context.driver.table.cuEventDestroy_v2)(self.raw) };
        }
    }
}

/// A graph before it can run.
struct Template<'a> {
    context: &'a Context,
    raw: CUgraph,
}

impl Drop for Template<'_> {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        if let Some(destroy) = self.context.driver.table.cuGraphDestroy
            && !self.raw.is_null()
        {
            // SAFETY: it came from the end of a capture and is closed once.
            let _ = unsafe { destroy(self.raw) };
        }
    }
}

/// A graph that can run.
#[derive(Debug)]
pub struct RawGraph {
    context: Arc<Context>,
    raw: CUgraphExec,
}

impl RawGraph {
    /// Queues all of it.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn launch(&self, stream: &RawStream) -> Result<()> {
        let driver = self.context.driver;
        let launch = driver.optional(driver.table.cuGraphLaunch, "cuGraphLaunch")?;
        let _entered = self.context.enter()?;
        // SAFETY: both live. What the graph's kernels do was promised when they were
        // launched into the capture.
        Ok(driver.check("cuGraphLaunch", unsafe { launch(self.raw, stream.raw) })?)
    }
}

impl Drop for RawGraph {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        if let Some(destroy) = self.context.driver.table.cuGraphExecDestroy
            && let Ok(_entered) = self.context.enter()
        {
            // SAFETY: it was made by an end of a capture and is closed once; what is
            // queued still runs.
            let _ = unsafe { destroy(self.raw) };
        }
    }
}
