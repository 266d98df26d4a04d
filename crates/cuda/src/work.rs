//! Streams, events and graphs. Each keeps its context and is destroyed when it is dropped.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUgraph, CUgraphExec, CUstream};

use super::{CallResult, Context, NOT_READY, call};
use crate::error::CudaResult;

/// The stream does not wait for the default stream.
const NON_BLOCKING: u32 = 0x1;
/// Events without timing are cheaper, and we measure no times.
const NO_TIMING: u32 = 0x2;
/// Driver calls of other threads do not invalidate a capture.
const THREAD_LOCAL: c_int = 1;

/// Declares types whose pointers the driver guards against concurrent use.
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

/// A stream: our own, the caller's, or the default stream.
#[derive(Debug)]
pub struct RawStream {
    context: Arc<Context>,
    raw: CUstream,
    owned: bool,
}

#[expect(unsafe_code, reason = "foreign calls")]
impl RawStream {
    /// Creates a stream.
    pub fn new(context: &Arc<Context>) -> CallResult<RawStream> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver writes a pointer to a variable of ours.
        unsafe { call!(context.driver, cuStreamCreate(&raw mut raw, NON_BLOCKING)) }?;
        Ok(RawStream { context: Arc::clone(context), raw, owned: true })
    }

    /// The context's default stream.
    pub fn unnamed(context: &Arc<Context>) -> RawStream {
        RawStream { context: Arc::clone(context), raw: std::ptr::null_mut(), owned: false }
    }

    /// Uses a stream of the caller's.
    ///
    /// # Safety
    ///
    /// It is a stream of this context and outlives the returned value.
    pub unsafe fn adopt(context: &Arc<Context>, raw: CUstream) -> RawStream {
        RawStream { context: Arc::clone(context), raw, owned: false }
    }

    /// The stream as other libraries take it.
    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// Waits until all queued work is done.
    pub fn synchronize(&self) -> CallResult {
        let _entered = self.context.enter()?;
        // SAFETY: the stream lives as long as this value.
        unsafe { call!(self.context.driver, cuStreamSynchronize(self.raw)) }
    }

    /// Makes later work of this stream wait for the event.
    pub fn wait(&self, event: &RawEvent) -> CallResult {
        let _entered = self.context.enter()?;
        // SAFETY: the borrows keep both alive.
        unsafe { call!(self.context.driver, cuStreamWaitEvent(self.raw, event.raw, 0)) }
    }

    /// Begins a capture: from here on, the driver records queued work and does not run it.
    pub fn begin_capture(&self) -> CudaResult<()> {
        let driver = self.context.driver;
        let begin =
            driver.optional(driver.table.cuStreamBeginCapture_v2, "cuStreamBeginCapture_v2")?;
        let _entered = self.context.enter()?;
        // SAFETY: the stream lives as long as this value.
        let code = unsafe { begin(self.raw, THREAD_LOCAL) };
        Ok(driver.check("cuStreamBeginCapture_v2", code)?)
    }

    /// Ends the capture and instantiates its graph.
    pub fn end_capture(&self) -> CudaResult<RawGraph> {
        let driver = self.context.driver;
        let table = &driver.table;
        let end = driver.optional(table.cuStreamEndCapture, "cuStreamEndCapture")?;
        let instantiate =
            driver.optional(table.cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags")?;
        let _entered = self.context.enter()?;
        let mut graph = CapturedGraph { context: &self.context, raw: std::ptr::null_mut() };
        // SAFETY: the stream lives, and the driver writes a pointer to a variable of ours.
        driver.check("cuStreamEndCapture", unsafe { end(self.raw, &raw mut graph.raw) })?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the graph is that of the capture that has just ended.
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
            // SAFETY: `new` created it, and it is destroyed once; queued work still runs.
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
    /// Creates an event that is not recorded yet.
    pub fn new(context: &Arc<Context>) -> CallResult<RawEvent> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver writes a pointer to a variable of ours.
        unsafe { call!(context.driver, cuEventCreate(&raw mut raw, NO_TIMING)) }?;
        Ok(RawEvent { context: Arc::clone(context), raw })
    }

    /// Records it behind the work that is queued on the stream so far.
    pub fn record(&self, stream: &RawStream) -> CallResult {
        let _entered = self.context.enter()?;
        // SAFETY: the borrows keep both alive, and they belong to one context.
        unsafe { call!(self.context.driver, cuEventRecord(self.raw, stream.raw)) }
    }

    /// Whether the stream has reached it.
    pub fn is_done(&self) -> CallResult<bool> {
        let _entered = self.context.enter()?;
        // SAFETY: the event lives as long as this value.
        match unsafe { call!(self.context.driver, cuEventQuery(self.raw)) } {
            Ok(()) => Ok(true),
            Err(refused) if refused.code == NOT_READY => Ok(false),
            Err(refused) => Err(refused),
        }
    }

    /// Waits until the stream has reached it.
    pub fn synchronize(&self) -> CallResult {
        let _entered = self.context.enter()?;
        // SAFETY: the event lives as long as this value.
        unsafe { call!(self.context.driver, cuEventSynchronize(self.raw)) }
    }
}

impl Drop for RawEvent {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: `new` created it, and it is destroyed once; streams that wait for it
            // still do.
            let _ = unsafe { (self.context.driver.table.cuEventDestroy_v2)(self.raw) };
        }
    }
}

/// A graph that is not instantiated yet.
struct CapturedGraph<'a> {
    context: &'a Context,
    raw: CUgraph,
}

impl Drop for CapturedGraph<'_> {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        if let Some(destroy) = self.context.driver.table.cuGraphDestroy
            && !self.raw.is_null()
        {
            // SAFETY: it came from the end of a capture and is destroyed once.
            let _ = unsafe { destroy(self.raw) };
        }
    }
}

/// An instantiated graph.
#[derive(Debug)]
pub struct RawGraph {
    context: Arc<Context>,
    raw: CUgraphExec,
}

impl RawGraph {
    /// Queues the graph.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn launch(&self, stream: &RawStream) -> CudaResult<()> {
        let driver = self.context.driver;
        let launch = driver.optional(driver.table.cuGraphLaunch, "cuGraphLaunch")?;
        let _entered = self.context.enter()?;
        // SAFETY: the borrows keep both alive. The caller vouched for the kernels when it
        // launched them into the capture.
        Ok(driver.check("cuGraphLaunch", unsafe { launch(self.raw, stream.raw) })?)
    }
}

impl Drop for RawGraph {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        if let Some(destroy) = self.context.driver.table.cuGraphExecDestroy
            && let Ok(_entered) = self.context.enter()
        {
            // SAFETY: `end_capture` created it, and it is destroyed once; queued work still
            // runs.
            let _ = unsafe { destroy(self.raw) };
        }
    }
}
