//! The shim's functions, found in a library or linked in: all foreign calls of this engine.

#![expect(unsafe_code, reason = "foreign calls; every block says why it is sound")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::sync::Arc;

use super::ledger::Ledger;

/// The version of the interface between the shim and this file.
const ABI: i32 = 1;
/// Room for what went wrong.
const ROOM: usize = 8192;

/// Who to ask for memory, as the shim wants it.
#[repr(C)]
struct RawLedger {
    user: *mut c_void,
    charge: extern "C" fn(*mut c_void, u64) -> i32,
    release: extern "C" fn(*mut c_void, u64),
}

/// A tensor, as the shim tells it.
#[repr(C)]
struct RawTensor {
    name: *const c_char,
    is_input: i32,
    element: i32,
    rank: i32,
    dims: [i64; 8],
}

#[repr(C)]
struct RawBuild {
    fp16: i32,
    int8: i32,
    no_tactic_sources: i32,
    quick: i32,
    workspace: u64,
    user: *mut c_void,
    next: extern "C" fn(*mut c_void, *mut c_void, u64) -> i32,
}

type Why = (*mut c_char, usize);

/// Every function of the shim.
#[derive(Debug, Clone, Copy)]
struct Table {
    abi: unsafe extern "C" fn() -> i32,
    load: unsafe extern "C" fn(*const c_char, *mut i32, *mut c_char, usize) -> i32,
    open: unsafe extern "C" fn(
        *const c_void,
        u64,
        i32,
        i32,
        *const RawLedger,
        *mut *mut c_void,
        *mut c_char,
        usize,
    ) -> i32,
    close: unsafe extern "C" fn(*mut c_void),
    tensors: unsafe extern "C" fn(*const c_void) -> i32,
    tensor: unsafe extern "C" fn(*const c_void, i32, *mut RawTensor, *mut c_char, usize) -> i32,
    shape: unsafe extern "C" fn(*mut c_void, i32, i32, *const i64, *mut c_char, usize) -> i32,
    prepare: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> i32,
    run: unsafe extern "C" fn(*mut c_void, *const *mut c_void, *mut c_char, usize) -> i32,
    has_graph: unsafe extern "C" fn(*const c_void) -> i32,
    scratch: unsafe extern "C" fn(*const c_void) -> u64,
    build: unsafe extern "C" fn(
        *const c_void,
        u64,
        i32,
        *const RawBuild,
        *mut *mut c_void,
        *mut u64,
        *mut c_char,
        usize,
    ) -> i32,
    free: unsafe extern "C" fn(*mut c_void),
}

/// The shim, with TensorRT loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shim {
    table: Table,
    /// As TensorRT numbers itself: 8501, 101303.
    pub(super) version: i32,
}

/// A tensor of an engine.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) is_input: bool,
    /// TensorRT's number for the type of its elements.
    pub(super) element: i32,
    /// -1 where an extent is not fixed.
    pub(super) shape: Vec<i64>,
}

impl Tensor {
    /// Bytes of one element.
    fn width(&self) -> usize {
        match self.element {
            0 | 3 => 4,
            1 | 7 => 2,
            8 => 8,
            _ => 1,
        }
    }

    /// Elements, where every extent is settled.
    pub(super) fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |all, &extent| {
            all.checked_mul(usize::try_from(extent).ok().filter(|&extent| extent > 0)?)
        })
    }

    fn bytes(&self) -> Option<usize> {
        self.elements()?.checked_mul(self.width())
    }
}

/// Where a tensor's numbers are on the host.
pub(super) enum Buffer<'a> {
    /// An input of f32.
    In(&'a [f32]),
    /// An output of f32.
    Out(&'a mut [f32]),
    /// Either, of another type.
    Raw(&'a mut [u8]),
}

impl Buffer<'_> {
    fn bytes(&self) -> usize {
        match self {
            Buffer::In(data) => size_of_val(*data),
            Buffer::Out(data) => size_of_val(*data),
            Buffer::Raw(data) => data.len(),
        }
    }

    fn pointer(&mut self) -> *mut c_void {
        match self {
            Buffer::In(data) => data.as_ptr().cast_mut().cast(),
            Buffer::Out(data) => data.as_mut_ptr().cast(),
            Buffer::Raw(data) => data.as_mut_ptr().cast(),
        }
    }
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
        // SAFETY: loading a library runs its initialisers. It is a file that the user
        // named, or one of ours in a directory that only the user writes to.
        let library = unsafe { libloading::Library::new(path) }.map_err(|e| e.to_string())?;
        // Never unloaded: TensorRT keeps what it was given for as long as the process runs.
        let library = Box::leak(Box::new(library));
        macro_rules! find {
            ($($field:ident: $name:literal,)*) => {
                Table { $($field: {
                    // SAFETY: these are the signatures in shim.cpp; `abi` is asked before
                    // any other is called.
                    *unsafe { library.get($name) }.map_err(|_| {
                        let name = String::from_utf8_lossy($name);
                        format!("it has no {}", name.trim_end_matches('\0'))
                    })?
                },)* }
            };
        }
        Shim::new(find! {
            abi: b"plimsoll_trt_abi\0",
            load: b"plimsoll_trt_load\0",
            open: b"plimsoll_trt_open\0",
            close: b"plimsoll_trt_close\0",
            tensors: b"plimsoll_trt_tensors\0",
            tensor: b"plimsoll_trt_tensor\0",
            shape: b"plimsoll_trt_shape\0",
            prepare: b"plimsoll_trt_prepare\0",
            run: b"plimsoll_trt_run\0",
            has_graph: b"plimsoll_trt_has_graph\0",
            scratch: b"plimsoll_trt_scratch\0",
            build: b"plimsoll_trt_build\0",
            free: b"plimsoll_trt_free\0",
        })
    }

    /// The shim that was compiled in.
    #[cfg(feature = "tensorrt")]
    pub(super) fn linked() -> Result<Shim, String> {
        // SAFETY: declarations of what build.rs compiled from shim.cpp, with the same types.
        unsafe extern "C" {
            fn plimsoll_trt_abi() -> i32;
            fn plimsoll_trt_load(a: *const c_char, b: *mut i32, c: *mut c_char, d: usize) -> i32;
            fn plimsoll_trt_open(
                a: *const c_void,
                b: u64,
                c: i32,
                d: i32,
                e: *const RawLedger,
                f: *mut *mut c_void,
                g: *mut c_char,
                h: usize,
            ) -> i32;
            fn plimsoll_trt_close(a: *mut c_void);
            fn plimsoll_trt_tensors(a: *const c_void) -> i32;
            fn plimsoll_trt_tensor(
                a: *const c_void,
                b: i32,
                c: *mut RawTensor,
                d: *mut c_char,
                e: usize,
            ) -> i32;
            fn plimsoll_trt_shape(
                a: *mut c_void,
                b: i32,
                c: i32,
                d: *const i64,
                e: *mut c_char,
                f: usize,
            ) -> i32;
            fn plimsoll_trt_prepare(a: *mut c_void, b: *mut c_char, c: usize) -> i32;
            fn plimsoll_trt_run(
                a: *mut c_void,
                b: *const *mut c_void,
                c: *mut c_char,
                d: usize,
            ) -> i32;
            fn plimsoll_trt_has_graph(a: *const c_void) -> i32;
            fn plimsoll_trt_scratch(a: *const c_void) -> u64;
            fn plimsoll_trt_build(
                a: *const c_void,
                b: u64,
                c: i32,
                d: *const RawBuild,
                e: *mut *mut c_void,
                f: *mut u64,
                g: *mut c_char,
                h: usize,
            ) -> i32;
            fn plimsoll_trt_free(a: *mut c_void);
        }
        Shim::new(Table {
            abi: plimsoll_trt_abi,
            load: plimsoll_trt_load,
            open: plimsoll_trt_open,
            close: plimsoll_trt_close,
            tensors: plimsoll_trt_tensors,
            tensor: plimsoll_trt_tensor,
            shape: plimsoll_trt_shape,
            prepare: plimsoll_trt_prepare,
            run: plimsoll_trt_run,
            has_graph: plimsoll_trt_has_graph,
            scratch: plimsoll_trt_scratch,
            build: plimsoll_trt_build,
            free: plimsoll_trt_free,
        })
    }

    fn new(table: Table) -> Result<Shim, String> {
        // SAFETY: it takes nothing and returns a number, in every version.
        let abi = unsafe { (table.abi)() };
        if abi != ABI {
            return Err(format!("it speaks version {abi} of our interface, and {ABI} is needed"));
        }
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

    /// Makes an engine of a plan. All its memory is asked of the ledger.
    pub(super) fn open(
        &self,
        plan: &[u8],
        device: u32,
        graph: bool,
        ledger: &Arc<Ledger>,
    ) -> Result<Session, String> {
        let ledger = Arc::clone(ledger);
        let raw = RawLedger { user: Arc::as_ptr(&ledger).cast_mut().cast(), charge, release };
        let device = i32::try_from(device).map_err(|_| "no such device".to_string())?;
        let mut engine = std::ptr::null_mut();
        told(|(why, room)| {
            // SAFETY: the plan is alive for the call; the ledger is copied by the shim, and
            // what it points to is kept alive by the session until the engine is closed.
            unsafe {
                (self.table.open)(
                    plan.as_ptr().cast(),
                    plan.len() as u64,
                    device,
                    i32::from(graph),
                    &raw const raw,
                    &raw mut engine,
                    why,
                    room,
                )
            }
        })?;
        Ok(Session { table: self.table, engine, sizes: Vec::new(), _ledger: ledger })
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

/// An engine that was opened.
#[derive(Debug)]
pub(super) struct Session {
    table: Table,
    engine: *mut c_void,
    /// Bytes of every tensor; none before it is prepared.
    sizes: Vec<usize>,
    // Behind the engine, which asks it until it is closed.
    _ledger: Arc<Ledger>,
}

// SAFETY: the shim makes its context current at the start of every call, and a session is
// used by one thread at a time, as its methods that change it take `&mut self`.
unsafe impl Send for Session {}

impl Session {
    /// Its inputs and outputs.
    pub(super) fn tensors(&self) -> Result<Vec<Tensor>, String> {
        // SAFETY: the engine is open.
        let count = unsafe { (self.table.tensors)(self.engine) };
        (0..count).map(|index| self.tensor(index)).collect()
    }

    fn tensor(&self, index: i32) -> Result<Tensor, String> {
        let mut raw =
            RawTensor { name: std::ptr::null(), is_input: 0, element: 0, rank: 0, dims: [0; 8] };
        told(|(why, room)| {
            // SAFETY: the engine is open, the place is ours, the index is within the count.
            unsafe { (self.table.tensor)(self.engine, index, &raw mut raw, why, room) }
        })?;
        if raw.name.is_null() {
            return Err("a tensor without a name".into());
        }
        // SAFETY: not null, terminated, and kept by the engine.
        let name = unsafe { CStr::from_ptr(raw.name) }.to_string_lossy().into_owned();
        let rank = usize::try_from(raw.rank).unwrap_or(0).min(8);
        let shape = raw.dims[..rank].to_vec();
        Ok(Tensor { name, is_input: raw.is_input != 0, element: raw.element, shape })
    }

    /// Settles the shape of an input.
    pub(super) fn set_shape(&mut self, index: usize, shape: &[i64]) -> Result<(), String> {
        let (index, rank) = (index as i32, shape.len().min(8) as i32);
        told(|(why, room)| {
            // SAFETY: the engine is open; so many extents are there.
            unsafe { (self.table.shape)(self.engine, index, rank, shape.as_ptr(), why, room) }
        })
    }

    /// Takes memory, and records a run where that was asked for.
    pub(super) fn prepare(&mut self) -> Result<(), String> {
        // SAFETY: the engine is open.
        told(|(why, room)| unsafe { (self.table.prepare)(self.engine, why, room) })?;
        let sizes = self.tensors()?.iter().map(Tensor::bytes).collect::<Option<Vec<usize>>>();
        self.sizes = sizes.ok_or("a tensor whose size is not settled")?;
        Ok(())
    }

    /// Runs, with a buffer for every tensor in their order.
    pub(super) fn run(&mut self, buffers: &mut [Buffer<'_>]) -> Result<(), String> {
        let lengths = buffers.iter().map(Buffer::bytes);
        if buffers.len() != self.sizes.len() || !lengths.eq(self.sizes.iter().copied()) {
            return Err("a buffer has another size than its tensor".into());
        }
        let hosts: Vec<*mut c_void> = buffers.iter_mut().map(Buffer::pointer).collect();
        told(|(why, room)| {
            // SAFETY: the engine is open and was prepared; every buffer is alive and as
            // large as its tensor; the shim reads those of inputs and writes the others,
            // which are borrowed exclusively.
            unsafe { (self.table.run)(self.engine, hosts.as_ptr(), why, room) }
        })
    }

    /// Whether a recorded run is replayed.
    pub(super) fn has_graph(&self) -> bool {
        // SAFETY: the engine is open.
        unsafe { (self.table.has_graph)(self.engine) != 0 }
    }

    /// Bytes of scratch memory.
    pub(super) fn scratch(&self) -> u64 {
        // SAFETY: the engine is open.
        unsafe { (self.table.scratch)(self.engine) }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; the ledger goes after this.
        unsafe { (self.table.close)(self.engine) };
    }
}
