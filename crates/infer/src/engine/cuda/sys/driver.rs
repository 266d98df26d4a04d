//! The CUDA driver, as far as it is asked itself: one stream on the primary context.
//!
//! The driver is found at run time; engines run on its primary context, and so does this. The
//! stream made here is handed to the engine: copies and the model's work are then in order
//! without a wait between them, and one wait at the end is all.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};

use libloading::Library;

use super::{Failure, Result};
use crate::engine::cuda::ledger::Ledger;

const FILES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

pub(in crate::engine) type Handle = *mut c_void;

/// Declares a table of a library's functions that are called here, and its loader.
macro_rules! table {
    ($table:ident; $($name:ident = $symbol:literal ($($kind:ty),*);)*) => {
        #[derive(Debug)]
        pub(in crate::engine) struct $table {
            $(pub(in crate::engine) $name: unsafe extern "C" fn($($kind),*) -> std::ffi::c_int,)*
        }

        impl $table {
            fn load(library: &'static libloading::Library) -> std::result::Result<$table, String> {
                Ok($table {$(
                    // SAFETY: these are the signatures in the library's own header.
                    $name: *unsafe {
                        library.get::<unsafe extern "C" fn($($kind),*) -> std::ffi::c_int>($symbol)
                    }.map_err(|error| $crate::engine::cuda::sys::driver::plain(&error))?,
                )*})
            }
        }
    };
}
pub(in crate::engine) use table;

/// What the loader said: it is the cause of the error, not its text.
pub(in crate::engine) fn plain(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Loads the first of some files that is there; it is never unloaded.
pub(in crate::engine) fn open<T>(
    what: &str,
    files: &[&str],
    load: impl FnOnce(&'static Library) -> std::result::Result<T, String>,
) -> std::result::Result<T, String> {
    let mut tried = Vec::new();
    for &file in files {
        // SAFETY: loading NVIDIA's libraries runs their initialisers, as every CUDA program
        // does.
        match unsafe { Library::new(file) } {
            Ok(library) => return load(Box::leak(Box::new(library))),
            Err(error) => tried.push(format!("{file}: {}", plain(&error))),
        }
    }
    Err(format!("no {what}: {}", tried.join("; ")))
}

table! {
    Table;
    init = b"cuInit\0"(c_uint);
    error_name = b"cuGetErrorName\0"(c_int, *mut *const c_char);
    device = b"cuDeviceGet\0"(*mut c_int, c_int);
    retain = b"cuDevicePrimaryCtxRetain\0"(*mut Handle, c_int);
    release = b"cuDevicePrimaryCtxRelease_v2\0"(c_int);
    set_current = b"cuCtxSetCurrent\0"(Handle);
    stream_create = b"cuStreamCreate\0"(*mut Handle, c_uint);
    stream_destroy = b"cuStreamDestroy_v2\0"(Handle);
    stream_wait = b"cuStreamSynchronize\0"(Handle);
    to_device = b"cuMemcpyHtoDAsync_v2\0"(u64, *const c_void, usize, Handle);
    to_host = b"cuMemcpyDtoHAsync_v2\0"(*mut c_void, u64, usize, Handle);
    pin = b"cuMemHostRegister_v2\0"(*mut c_void, usize, c_uint);
    unpin = b"cuMemHostUnregister\0"(*mut c_void);
    allocate = b"cuMemAlloc_v2\0"(*mut u64, usize);
    free = b"cuMemFree_v2\0"(u64);
    attribute = b"cuDeviceGetAttribute\0"(*mut c_int, c_int, c_int);
    module_load = b"cuModuleLoadData\0"(*mut Handle, *const c_void);
    module_unload = b"cuModuleUnload\0"(Handle);
    module_function = b"cuModuleGetFunction\0"(*mut Handle, Handle, *const c_char);
    launch = b"cuLaunchKernel\0"(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *mut *mut c_void, *mut *mut c_void
    );
}

/// A stream that does not wait for the stream that all share.
const NON_BLOCKING: c_uint = 1;
/// The attribute for memory that is the host's as well.
const INTEGRATED: c_int = 18;
/// The attributes for the two parts of the compute capability.
const CAPABILITY: [c_int; 2] = [75, 76];

impl Table {
    /// The one table of the process.
    fn get() -> std::result::Result<&'static Table, String> {
        static TABLE: OnceLock<std::result::Result<Table, String>> = OnceLock::new();
        let table = TABLE.get_or_init(|| open("CUDA driver", &FILES, Table::load));
        table.as_ref().map_err(Clone::clone)
    }

    pub(in crate::engine) fn check(&self, what: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the place for the answer is ours; the answer is a static string or null.
        let told = unsafe { (self.error_name)(code, &raw mut name) } == 0 && !name.is_null();
        let name = if told {
            // SAFETY: not null, static and terminated, by the driver's documentation.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            format!("code {code}")
        };
        Err(Failure::new(format!("the CUDA driver cannot {what}: {name}")))
    }
}

/// A device's primary context and a stream on it.
#[derive(Debug)]
pub(in crate::engine) struct Stream {
    pub(in crate::engine) table: &'static Table,
    device: c_int,
    context: Handle,
    pub(in crate::engine) stream: Handle,
    /// Who is asked for what is taken on the device beside the engine.
    pub(in crate::engine) ledger: Arc<Ledger>,
}

// SAFETY: the driver's handles may be used from any thread; each use makes the context
// current first.
unsafe impl Send for Stream {}
// SAFETY: the same; the driver locks inside.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream on a device; what buffers take there is asked of the ledger.
    pub(in crate::engine) fn new(device: u32, ledger: &Arc<Ledger>) -> Result<Arc<Stream>> {
        let table = Table::get().map_err(Failure::new)?;
        let number = c_int::try_from(device).unwrap_or(c_int::MAX);
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: the driver is initialised before all else, and the places for the answers
        // are ours; each step is taken only after the one before it worked.
        unsafe {
            table.check("start", (table.init)(0))?;
            table.check("find the device", (table.device)(&raw mut device, number))?;
            table.check("open the device", (table.retain)(&raw mut context, device))?;
        }
        let (stream, ledger) = (std::ptr::null_mut(), Arc::clone(ledger));
        let mut made = Stream { table, device, context, stream, ledger };
        made.enter()?;
        // SAFETY: the context is current, the place for the answer ours.
        let code = unsafe { (table.stream_create)(&raw mut made.stream, NON_BLOCKING) };
        table.check("make a stream", code)?;
        Ok(Arc::new(made))
    }

    pub(in crate::engine) fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained until this is dropped.
        self.table.check("enter the context", unsafe { (self.table.set_current)(self.context) })
    }

    /// The device's compute capability.
    pub(in crate::engine) fn capability(&self) -> Result<(c_int, c_int)> {
        let mut found = [0; 2];
        for (place, which) in found.iter_mut().zip(CAPABILITY) {
            // SAFETY: the device is open, the place for the answer ours.
            let code = unsafe { (self.table.attribute)(place, which, self.device) };
            self.table.check("tell its capability", code)?;
        }
        Ok((found[0], found[1]))
    }

    /// Whether the device's memory is the host's as well. What does not tell counts as such.
    pub(in crate::engine) fn is_integrated(&self) -> bool {
        let mut found = 1;
        // SAFETY: the device is open, the place for the answer ours.
        let code = unsafe { (self.table.attribute)(&raw mut found, INTEGRATED, self.device) };
        code != 0 || found != 0
    }

    pub(in crate::engine) fn wait(&self) -> Result<()> {
        // SAFETY: the stream lives until this is dropped.
        self.table.check("wait", unsafe { (self.table.stream_wait)(self.stream) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.enter().is_err() {
            return;
        }
        // SAFETY: both are ours and used no more; a null stream was never made.
        unsafe {
            if !self.stream.is_null() {
                (self.table.stream_destroy)(self.stream);
            }
            (self.table.release)(self.device);
        }
    }
}
