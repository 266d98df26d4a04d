//! The shim's functions, found in a library or linked in: all foreign calls of this engine.

#![expect(unsafe_code, reason = "foreign calls; every block says why it is sound")]

mod session;
mod table;

use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll::{Budget, Bytes};

pub(super) use session::{EngineTensor, Session, TensorBuffer};

use self::table::{RawBudget, RawBuild, RawBytes, ShimTable};
use crate::engine::cuda::sys::gpu::EngineGpu;

/// Bytes for an error message.
const MESSAGE_BYTES: usize = 8192;

/// A buffer for an error message, as the shim takes it.
type MessageBuffer = (*mut c_char, usize);

/// What TensorRT allocates by itself for an engine: reserved from the engine's budget before, and
/// refused past its limit.
#[derive(Debug)]
pub(super) struct ShimBudget {
    budget: Arc<Budget>,
    /// The largest request that was refused.
    refused: AtomicU64,
}

impl ShimBudget {
    pub(super) fn new(budget: &Arc<Budget>) -> Arc<ShimBudget> {
        Arc::new(ShimBudget { budget: Arc::clone(budget), refused: AtomicU64::new(0) })
    }

    fn reserve(&self, bytes: u64) -> bool {
        let reserved = self.budget.reserve(Bytes(bytes)).is_ok();
        if !reserved {
            self.refused.fetch_max(bytes, Ordering::AcqRel);
        }
        reserved
    }

    /// The largest request that was refused, where one was.
    pub(super) fn refused(&self) -> Option<Bytes> {
        Some(Bytes(self.refused.load(Ordering::Acquire))).filter(|&bytes| bytes > Bytes::ZERO)
    }
}

/// The shim, with TensorRT loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shim {
    table: ShimTable,
    /// As TensorRT numbers itself: 8501, 101303.
    pub(super) version: i32,
}

/// Fills the bytes of an image, or says that there is none.
pub(super) type Calibrate<'a> = &'a mut dyn FnMut(&mut [u8]) -> bool;

/// How an engine should be built.
pub(super) struct BuildRequest<'a> {
    pub(super) fp16: bool,
    pub(super) no_tactic_sources: bool,
    pub(super) quick: bool,
    pub(super) int8: bool,
    pub(super) workspace: u64,
    /// Timings and ranges of an earlier build, as [`PlanParts`] has them.
    pub(super) timings: &'a [u8],
    pub(super) ranges: &'a [u8],
    /// Writes one more picture to find ranges by, or says that there is none.
    pub(super) calibrate: Calibrate<'a>,
}

/// What a build gives.
#[derive(Debug, Default)]
pub(super) struct PlanParts {
    pub(super) plan: Vec<u8>,
    /// How long each way to compute a layer took here.
    pub(super) timings: Option<Vec<u8>>,
    /// The ranges of eight bits, where pictures were shown.
    pub(super) ranges: Option<Vec<u8>>,
}

/// What the shim's callbacks work on while it builds.
struct BuildCallbacks<'a> {
    calibrate: Calibrate<'a>,
    parts: PlanParts,
}

/// Runs a call that writes an error message on failure.
fn reporting(call: impl FnOnce(MessageBuffer) -> i32) -> Result<(), String> {
    let mut room = vec![0u8; MESSAGE_BYTES];
    if call((room.as_mut_ptr().cast(), MESSAGE_BYTES)) == 0 {
        return Ok(());
    }
    let end = room.iter().position(|&byte| byte == 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&room[..end]).trim().to_string();
    Err(if text.is_empty() { "no reason was given".into() } else { text })
}

impl Shim {
    /// Loads the shim from a file, and TensorRT behind it.
    pub(super) fn from_file(path: &Path) -> Result<Shim, String> {
        Shim::new(ShimTable::from_file(path)?)
    }

    /// The shim that was compiled in.
    #[cfg(feature = "tensorrt")]
    pub(super) fn linked() -> Result<Shim, String> {
        Shim::new(ShimTable::linked())
    }

    fn new(table: ShimTable) -> Result<Shim, String> {
        let nvinfer =
            std::env::var("PLIMSOLL_NVINFER").ok().and_then(|path| CString::new(path).ok());
        let nvinfer = nvinfer.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
        let mut version = 0;
        reporting(|(why, room)| {
            // SAFETY: the path is terminated or null, the places are ours and large enough.
            unsafe { (table.load)(nvinfer, &raw mut version, why, room) }
        })?;
        Ok(Shim { table, version })
    }

    /// The version in words.
    pub(super) fn version_text(&self) -> String {
        let (major, minor, patch) = match self.version {
            new @ 10_000.. => (new / 10_000, new / 100 % 100, new % 100),
            old => (old / 1000, old / 100 % 10, old % 100),
        };
        format!("{major}.{minor}.{patch}")
    }

    /// The major version.
    pub(super) fn major(&self) -> i32 {
        if self.version >= 10_000 { self.version / 10_000 } else { self.version / 1000 }
    }

    /// Makes an engine of a plan, on our stream of its device where there is one. All its memory
    /// is reserved from the budget.
    pub(super) fn open(
        &self,
        plan: &[u8],
        (device, gpu): (u32, Option<&Arc<EngineGpu>>),
        graph: bool,
        budget: &Arc<ShimBudget>,
    ) -> Result<Session, String> {
        let budget = Arc::clone(budget);
        let raw = RawBudget { user: Arc::as_ptr(&budget).cast_mut().cast(), charge, release };
        let stream = gpu.map_or(Ok(std::ptr::null_mut()), |gpu| gpu.raw_stream());
        let stream = stream.map_err(|error| error.to_string())?;
        let device = i32::try_from(device).map_err(|_| "no such device".to_string())?;
        let mut engine = std::ptr::null_mut();
        reporting(|(why, room)| {
            // SAFETY: the plan outlives the call; the shim copies the callbacks of the budget.
            // The session keeps the budget and the stream until the engine is closed.
            unsafe {
                (self.table.open)(
                    plan.as_ptr().cast(),
                    plan.len() as u64,
                    device,
                    i32::from(graph),
                    stream,
                    &raw const raw,
                    &raw mut engine,
                    why,
                    room,
                )
            }
        })?;
        let (table, sizes, gpu) = (self.table, Vec::new(), gpu.map(Arc::clone));
        Ok(Session { table, engine, sizes, _gpu: gpu, _budget: budget })
    }

    /// Builds a plan from an ONNX file.
    pub(super) fn build(
        &self,
        onnx: &[u8],
        device: u32,
        build: BuildRequest<'_>,
    ) -> Result<PlanParts, String> {
        let device = i32::try_from(device).map_err(|_| "no such device".to_string())?;
        let mut callbacks =
            BuildCallbacks { calibrate: build.calibrate, parts: PlanParts::default() };
        let raw = RawBuild {
            fp16: build.fp16.into(),
            int8: build.int8.into(),
            no_tactic_sources: build.no_tactic_sources.into(),
            quick: build.quick.into(),
            workspace: build.workspace,
            timings: RawBytes::of(build.timings),
            ranges: RawBytes::of(build.ranges),
            user: (&raw mut callbacks).cast(),
            next,
            keep,
        };
        let (mut blob, mut length) = (std::ptr::null_mut(), 0u64);
        reporting(|(why, room)| {
            // SAFETY: everything handed over outlives the call, and nothing is kept.
            unsafe {
                (self.table.build)(
                    onnx.as_ptr().cast(),
                    onnx.len() as u64,
                    device,
                    &raw const raw,
                    &raw mut blob,
                    &raw mut length,
                    why,
                    room,
                )
            }
        })?;
        let length = usize::try_from(length).map_err(|_| "a plan past everything".to_string())?;
        // SAFETY: the shim made so many bytes, which nobody else has.
        let plan = unsafe { std::slice::from_raw_parts(blob.cast::<u8>(), length) }.to_vec();
        // SAFETY: given to us by the call above, and used no more.
        unsafe { (self.table.free)(blob) };
        Ok(PlanParts { plan, ..callbacks.parts })
    }
}

extern "C" fn charge(user: *mut c_void, bytes: u64) -> i32 {
    // SAFETY: the session that the shim works for keeps the budget alive.
    let shim = unsafe { &*user.cast::<ShimBudget>() };
    shim.reserve(bytes).into()
}

extern "C" fn release(user: *mut c_void, bytes: u64) {
    // SAFETY: as above.
    let shim = unsafe { &*user.cast::<ShimBudget>() };
    shim.budget.credit(Bytes(bytes));
}

extern "C" fn next(user: *mut c_void, image: *mut c_void, bytes: u64) -> i32 {
    let Ok(bytes) = usize::try_from(bytes) else { return 0 };
    // SAFETY: `build` passed this pointer, and waits while it is used.
    let callbacks = unsafe { &mut *user.cast::<BuildCallbacks<'_>>() };
    // SAFETY: the shim owns so many bytes there, and reads them only afterwards.
    let image = unsafe { std::slice::from_raw_parts_mut(image.cast::<u8>(), bytes) };
    // A panic must not cross into foreign code.
    let shown =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (callbacks.calibrate)(image)));
    shown.unwrap_or(false).into()
}

extern "C" fn keep(user: *mut c_void, what: i32, data: *const c_void, bytes: u64) {
    let Ok(bytes) = usize::try_from(bytes) else { return };
    if data.is_null() || bytes == 0 {
        return;
    }
    // SAFETY: `build` passed this pointer, and waits while it is used.
    let callbacks = unsafe { &mut *user.cast::<BuildCallbacks<'_>>() };
    // SAFETY: the shim has so many bytes there for the time of the call.
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) }.to_vec();
    match what {
        0 => callbacks.parts.timings = Some(data),
        _ => callbacks.parts.ranges = Some(data),
    }
}
