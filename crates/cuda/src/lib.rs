//! NVIDIA's driver and its run-time compiler, loaded when they are first used. This is the
//! only crate that calls them: `memory` builds its CUDA backend on it, and `points` and
//! `infer` use that backend.
//!
//! Types and layouts are those of cudarc's driver interface. Its loader is not used, for
//! two reasons. It panics where the library or a function is missing, and looks functions
//! up as late as their first call, so a check beforehand would have to repeat the look-up
//! anyway. And it declares that functions return a Rust `enum`, which is undefined
//! behaviour as soon as a newer driver returns a code that this version of cudarc does not
//! list. Here every function is looked up once, when the driver is opened, and returns a
//! number; what is missing is an error that names it.
//!
//! `table` lists the functions, `context` holds what belongs to a device, `memory` allocates,
//! maps and copies, `pinned` page-locks host memory, `work` has streams, events and graphs,
//! `module` compiled code, `nvrtc` the compiler.

mod context;
mod error;
pub mod library;
mod memory;
mod module;
mod nvrtc;
mod pinned;
mod table;
mod work;

use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::library::SharedLibrary;

pub use context::Context;
pub use cudarc::driver::sys as raw;
pub use error::{CallResult, CudaError, CudaRefusal, CudaResult};
pub use memory::BlockKind;
pub use module::{LaunchMode, RawFunction, RawModule};
pub use nvrtc::compile;
pub use pinned::PinnedRange;
use table::DriverTable;
pub use work::{RawEvent, RawGraph, RawStream};

/// CUDA 10.2, the first with memory that is mapped by the page.
const OLDEST: c_int = 10_020;

#[cfg(windows)]
const FILES: [&str; 1] = ["nvcuda.dll"];
#[cfg(not(windows))]
const FILES: [&str; 3] = ["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"];

const REMEDY: &str = "install NVIDIA's driver (on a Jetson: L4T's), or run where there is one";

/// The codes that we treat specially; every other code is reported with the driver's text.
pub const OUT_OF_MEMORY: c_int = 2;
const NOT_READY: c_int = 600;
const NO_DEVICE: c_int = 100;

/// Calls a function of the table and turns its code into a result. The caller wraps it in an
/// `unsafe` block that says why the arguments are right.
macro_rules! call {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $driver.check(stringify!($function), ($driver.table.$function)($($argument),*))
    };
}
use call;

/// The driver, loaded and initialized.
#[derive(Debug)]
pub struct Driver {
    table: DriverTable,
    library: SharedLibrary,
    version: c_int,
}

impl Driver {
    /// Loads the driver, from this file or from where the system has it. It is never unloaded.
    pub fn load(file: Option<&Path>) -> CudaResult<&'static Driver> {
        static LOADED: Mutex<Vec<(Option<PathBuf>, &'static Driver)>> = Mutex::new(Vec::new());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, driver)) = loaded.iter().find(|(known, _)| known.as_deref() == file) {
            return Ok(driver);
        }
        let driver: &'static Driver = Box::leak(Box::new(Driver::open(file)?));
        loaded.push((file.map(Path::to_path_buf), driver));
        Ok(driver)
    }

    fn open(file: Option<&Path>) -> CudaResult<Driver> {
        let library = match file {
            Some(file) => SharedLibrary::open("CUDA", &[file], REMEDY)?,
            None => SharedLibrary::open("CUDA", &FILES, REMEDY)?,
        };
        let version = table::version(&library).map_err(|why| unavailable(&library, why))?;
        let shown = format!("{}.{}", version / 1000, version % 1000 / 10);
        if version < OLDEST {
            let why = format!("serves CUDA {shown}, older than 10.2; update the driver");
            return Err(unavailable(&library, why));
        }
        let table = DriverTable::load(&library).map_err(|missing| {
            let why = format!("serves CUDA {shown} and has no {missing}; reinstall the driver");
            unavailable(&library, why)
        })?;
        let driver = Driver { table, library, version };
        driver.init()?;
        Ok(driver)
    }

    #[expect(unsafe_code, reason = "a foreign call")]
    fn init(&self) -> CudaResult<()> {
        // SAFETY: the argument must be 0; the call may be repeated.
        unsafe { call!(self, cuInit(0)) }.map_err(|refused| {
            let remedy = match refused.code {
                NO_DEVICE => "no device is visible (CUDA_VISIBLE_DEVICES hides them, too)",
                _ => "see that the driver's kernel module is loaded and of the same version",
            };
            unavailable(&self.library, format!("cuInit says {}; {remedy}", refused.why))
        })
    }

    /// The version of CUDA that it serves: 12080 is 12.8.
    pub fn version(&self) -> u32 {
        self.version.unsigned_abs()
    }

    /// How many devices there are.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn devices(&self) -> CudaResult<u32> {
        let mut count = 0;
        // SAFETY: the driver writes one number to a variable of ours.
        unsafe { call!(self, cuDeviceGetCount(&raw mut count)) }?;
        match u32::try_from(count).unwrap_or(0) {
            0 => Err(unavailable(&self.library, "sees no device".to_string())),
            count => Ok(count),
        }
    }

    /// Turns a code into a result.
    fn check(&self, call: &'static str, code: c_int) -> CallResult {
        if code == 0 {
            return Ok(());
        }
        Err(CudaRefusal { call, code, why: self.explain(code) })
    }

    /// The driver's name and description of a code.
    #[expect(unsafe_code, reason = "a foreign call")]
    fn explain(&self, code: c_int) -> String {
        let ask = |function: table::ErrorText| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: the driver writes a pointer to a static text to a variable of ours, and
            // leaves null there for a code that it does not know.
            let found = unsafe { function(code, &raw mut text) } == 0 && !text.is_null();
            // SAFETY: the driver's texts end with a zero and are never freed.
            found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        match (self.table.cuGetErrorName.and_then(ask), self.table.cuGetErrorString.and_then(ask)) {
            (Some(name), Some(text)) => format!("{name} ({code}), {text}"),
            (Some(name), None) => format!("{name} ({code})"),
            _ => format!("code {code}"),
        }
    }

    /// Unwraps a function that older drivers lack.
    fn optional<F>(&self, function: Option<F>, name: &'static str) -> CudaResult<F> {
        function.ok_or_else(|| unavailable(&self.library, format!("has no {name}; update it")))
    }
}

fn unavailable(library: &SharedLibrary, why: String) -> CudaError {
    CudaError::Unavailable { what: "CUDA".to_string(), why: format!("{} {why}", library.file()) }
}

/// A text that the driver wrote into a buffer of ours.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
