//! The shim's functions, found in a library or linked in: all foreign calls of this engine.

#![expect(unsafe_code, reason = "foreign calls; every block says why it is sound")]

mod session;
mod table;

use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::sync::Arc;

pub(super) use session::{Buffer, Session, Tensor};

use self::table::{RawBuild, RawLedger, Table};
use crate::engine::cuda::Ledger;
use crate::engine::cuda::sys::driver::Stream;

/// Room for what went wrong.
const ROOM: usize = 8192;

type Why = (*mut c_char, usize);

/// The shim, with TensorRT loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shim {
    table: Table,
    /// As TensorRT numbers itself: 8501, 101303.
    pub(super) version: i32,
}

/// Fills the bytes of an image, or says that there is none.
pub(super) type Calibrate<'a> = &'a mut dyn FnMut(&mut [u8]) -> bool;

/// How an engine should be built.
pub(super) struct Build<'a> {
    pub(super) fp16: bool,
    pub(super) no_tactic_sources: bool,
    pub(super) quick: bool,
    pub(super) workspace: u64,
    /// Writes one more picture to find ranges by, or says that there is none.
    pub(super) calibrate: Option<Calibrate<'a>>,
}

/// Runs a call that fills `why` on failure.
fn told(call: impl FnOnce(Why) -> i32) -> Result<(), String> {
    let mut room = vec![0u8; ROOM];
    if call((room.as_mut_ptr().cast(), ROOM)) == 0 {
        return Ok(());
    }
    let end = room.iter().position(|&byte| byte == 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&room[..end]).trim().to_string();
    Err(if text.is_empty() { "no reason was given".into() } else { text })
}

impl Shim {
    /// Loads the shim from a file, and TensorRT behind it.
    pub(super) fn from_file(path: &Path) -> Result<Shim, String> {
        Shim::new(Table::from_file(path)?)
    }

    /// The shim that was compiled in.
    #[cfg(feature = "tensorrt")]
    pub(super) fn linked() -> Result<Shim, String> {
        Shim::new(Table::linked())
    }

    fn new(table: Table) -> Result<Shim, String> {
        let nvinfer =
            std::env::var("PLIMSOLL_NVINFER").ok().and_then(|path| CString::new(path).ok());
        let nvinfer = nvinfer.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
        let mut version = 0;
        told(|(why, room)| {
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

    /// Makes an engine of a plan, on a stream of its device where one is given. All its memory
    /// is asked of the ledger.
    pub(super) fn open(
        &self,
        plan: &[u8],
        (device, stream): (u32, Option<&Arc<Stream>>),
        graph: bool,
        ledger: &Arc<Ledger>,
    ) -> Result<Session, String> {
        let ledger = Arc::clone(ledger);
        let raw = RawLedger { user: Arc::as_ptr(&ledger).cast_mut().cast(), charge, release };
        let device = i32::try_from(device).map_err(|_| "no such device".to_string())?;
        let mut engine = std::ptr::null_mut();
        told(|(why, room)| {
            // SAFETY: the plan is alive for the call; the ledger is copied by the shim, and
            // what it points to is kept alive by the session until the engine is closed, as
            // the stream is.
            unsafe {
                (self.table.open)(
                    plan.as_ptr().cast(),
                    plan.len() as u64,
                    device,
                    i32::from(graph),
                    stream.map_or(std::ptr::null_mut(), |stream| stream.stream),
                    &raw const raw,
                    &raw mut engine,
                    why,
                    room,
                )
            }
        })?;
        let (table, sizes, stream) = (self.table, Vec::new(), stream.map(Arc::clone));
        Ok(Session { table, engine, sizes, _stream: stream, _ledger: ledger })
    }

    /// Builds a plan from an ONNX file.
    pub(super) fn build(
        &self,
        onnx: &[u8],
        device: u32,
        build: Build<'_>,
    ) -> Result<Vec<u8>, String> {
        let device = i32::try_from(device).map_err(|_| "no such device".to_string())?;
        let Build { fp16, no_tactic_sources, quick, workspace, mut calibrate } = build;
        let raw = RawBuild {
            fp16: fp16.into(),
            int8: calibrate.is_some().into(),
            no_tactic_sources: no_tactic_sources.into(),
            quick: quick.into(),
            workspace,
            user: (&raw mut calibrate).cast(),
            next,
        };
        let (mut blob, mut length) = (std::ptr::null_mut(), 0u64);
        told(|(why, room)| {
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
        Ok(plan)
    }
}

extern "C" fn charge(user: *mut c_void, bytes: u64) -> i32 {
    // SAFETY: the session that the shim works for keeps the ledger alive.
    let ledger = unsafe { &*user.cast::<Ledger>() };
    ledger.charge(bytes).into()
}

extern "C" fn release(user: *mut c_void, bytes: u64) {
    // SAFETY: as above.
    let ledger = unsafe { &*user.cast::<Ledger>() };
    ledger.release(bytes);
}

extern "C" fn next(user: *mut c_void, image: *mut c_void, bytes: u64) -> i32 {
    let Ok(bytes) = usize::try_from(bytes) else { return 0 };
    // SAFETY: `build` handed over this very place, and waits while it is used.
    let calibrate = unsafe { &mut *user.cast::<Option<Calibrate<'_>>>() };
    // SAFETY: the shim owns so many bytes there, and reads them only afterwards.
    let image = unsafe { std::slice::from_raw_parts_mut(image.cast::<u8>(), bytes) };
    // A panic must not cross into foreign code.
    let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        calibrate.as_mut().is_some_and(|calibrate| calibrate(image))
    }));
    shown.unwrap_or(false).into()
}
