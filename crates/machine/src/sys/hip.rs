//! HIP, AMD's runtime, as far as memory needs it: twenty functions, looked up by name.
//!
//! The library is tried by its plain name and by the versions that distributions have.
//! Every function that is missing, a version that is too old, and a machine without a
//! device are errors that name the file; nothing here panics or aborts.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use plimsoll_cuda::library::SharedLibrary;

const FILES: [&str; 4] =
    ["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"];
const REMEDY: &str = "install ROCm's HIP runtime (Debian, Ubuntu: libamdhip64-5 or newer)";
/// 5.0, in HIP's own counting.
const OLDEST: c_int = 50_000_000;

const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
const NOT_READY: c_int = 600;
/// `hipDeviceAttributeIntegrated`; the same in every version since 5.0.
const INTEGRATED: c_int = 16;
const NON_BLOCKING: c_uint = 1;
const WITHOUT_TIMING: c_uint = 2;

type HipCode = c_int;

macro_rules! table {
    ($($name:ident($($argument:ty),*) -> $code:ty;)*) => {
        #[derive(Debug)]
        #[expect(non_snake_case, reason = "the library's own names")]
        struct HipCalls {
            $($name: unsafe extern "C" fn($($argument),*) -> $code,)*
        }

        impl HipCalls {
            /// Looks every function up; the error is the name of the first that is missing.
            #[expect(unsafe_code, reason = "a symbol has no type of its own")]
            fn load(library: &SharedLibrary) -> std::result::Result<HipCalls, &'static str> {
                Ok(HipCalls {
                    // SAFETY: the types are those of HIP's header for these names, which
                    // have not changed since 5.0.
                    $($name: unsafe { library.find(stringify!($name)) }
                        .ok_or(stringify!($name))?,)*
                })
            }
        }
    };
}

table! {
    hipRuntimeGetVersion(*mut c_int) -> HipCode;
    hipGetDeviceCount(*mut c_int) -> HipCode;
    hipSetDevice(c_int) -> HipCode;
    hipDeviceGetName(*mut c_char, c_int, c_int) -> HipCode;
    hipDeviceTotalMem(*mut usize, c_int) -> HipCode;
    hipDeviceGetAttribute(*mut c_int, c_int, c_int) -> HipCode;
    hipMemGetInfo(*mut usize, *mut usize) -> HipCode;
    hipMalloc(*mut *mut c_void, usize) -> HipCode;
    hipFree(*mut c_void) -> HipCode;
    hipMemcpyHtoD(*mut c_void, *const c_void, usize) -> HipCode;
    hipMemcpyDtoH(*mut c_void, *mut c_void, usize) -> HipCode;
    hipStreamCreateWithFlags(*mut *mut c_void, c_uint) -> HipCode;
    hipStreamDestroy(*mut c_void) -> HipCode;
    hipStreamSynchronize(*mut c_void) -> HipCode;
    hipStreamWaitEvent(*mut c_void, *mut c_void, c_uint) -> HipCode;
    hipEventCreateWithFlags(*mut *mut c_void, c_uint) -> HipCode;
    hipEventDestroy(*mut c_void) -> HipCode;
    hipEventRecord(*mut c_void, *mut c_void) -> HipCode;
    hipEventQuery(*mut c_void) -> HipCode;
    hipEventSynchronize(*mut c_void) -> HipCode;
    hipGetErrorName(c_int) -> *const c_char;
}

/// The library, loaded, of a version that we know.
#[derive(Debug)]
pub struct Hip {
    table: HipCalls,
    file: String,
    version: c_int,
}

/// Calls a function of the table and turns its code into a result.
macro_rules! call {
    ($hip:expr, $name:ident($($argument:expr),*)) => {
        $hip.check(stringify!($name), ($hip.table.$name)($($argument),*))
    };
}

impl Hip {
    /// Loads the library, from this file or from where the system has it. It stays loaded.
    pub fn load(file: Option<&Path>) -> Result<&'static Hip> {
        static LOADED: Mutex<Vec<(Option<PathBuf>, &'static Hip)>> = Mutex::new(Vec::new());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, hip)) = loaded.iter().find(|(known, _)| known.as_deref() == file) {
            return Ok(hip);
        }
        let hip: &'static Hip = Box::leak(Box::new(Hip::open(file)?));
        loaded.push((file.map(Path::to_path_buf), hip));
        Ok(hip)
    }

    #[expect(unsafe_code, reason = "a foreign call")]
    fn open(file: Option<&Path>) -> Result<Hip> {
        let library = match file {
            Some(file) => SharedLibrary::open("ROCm", &[file], REMEDY)?,
            None => SharedLibrary::open("ROCm", &FILES, REMEDY)?,
        };
        let table = HipCalls::load(&library).map_err(|missing| {
            unavailable(library.file(), &format!("has no {missing}; it is broken or too old"))
        })?;
        let mut hip = Hip { table, file: library.file().to_string(), version: 0 };
        let mut version = 0;
        // SAFETY: one number is written to a place of ours.
        unsafe { call!(hip, hipRuntimeGetVersion(&raw mut version)) }
            .map_err(|error| unavailable(&hip.file, &error.to_string()))?;
        hip.version = version;
        if version < OLDEST {
            let shown = hip.version();
            let why = format!("is HIP {shown}, older than 5.0; install a newer ROCm");
            return Err(unavailable(&hip.file, &why));
        }
        Ok(hip)
    }

    /// "5.2".
    pub fn version(&self) -> String {
        format!("{}.{}", self.version / 10_000_000, self.version / 100_000 % 100)
    }

    /// How many devices there are; none is an error with the reason.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn devices(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: one number is written to a place of ours.
        let code = unsafe { (self.table.hipGetDeviceCount)(&raw mut count) };
        let none = "sees no device (/dev/kfd must be readable: groups render and video; \
                    HIP_VISIBLE_DEVICES hides devices, too)";
        match (code, u32::try_from(count).unwrap_or(0)) {
            (NO_DEVICE, _) | (0, 0) => Err(unavailable(&self.file, none)),
            (0, count) => Ok(count),
            (code, _) => Err(unavailable(
                &self.file,
                &format!("hipGetDeviceCount says {}", self.words(code)),
            )),
        }
    }

    fn check(&self, call: &'static str, code: HipCode) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        Err(Error::Device { call, why: self.words(code) })
    }

    #[expect(unsafe_code, reason = "a foreign call")]
    fn words(&self, code: HipCode) -> String {
        // SAFETY: takes any number, and gives a text that the library keeps, or null.
        let text = unsafe { (self.table.hipGetErrorName)(code) };
        if text.is_null() {
            return format!("code {code}");
        }
        // SAFETY: not null, so it is a text with an end that lives as long as the library.
        format!("{} ({code})", unsafe { CStr::from_ptr(text) }.to_string_lossy())
    }
}

fn unavailable(file: &str, why: &str) -> Error {
    Error::Unavailable { what: "ROCm".to_string(), why: format!("{file} {why}") }
}

/// A device, as every call needs it: HIP keeps the current one by thread.
#[derive(Debug, Clone, Copy)]
pub struct HipGpu {
    hip: &'static Hip,
    number: c_int,
}

impl HipGpu {
    /// The device of a number.
    pub fn new(hip: &'static Hip, number: u32) -> Result<HipGpu> {
        let number = c_int::try_from(number).unwrap_or(c_int::MAX);
        let gpu = HipGpu { hip, number };
        gpu.enter().map(|()| gpu)
    }

    /// The library that it belongs to.
    pub fn hip(&self) -> &'static Hip {
        self.hip
    }

    /// Makes this the device of the calls that this thread makes next.
    #[expect(unsafe_code, reason = "a foreign call")]
    fn enter(&self) -> Result<()> {
        // SAFETY: takes a number, and refuses those that it does not have.
        unsafe { call!(self.hip, hipSetDevice(self.number)) }
    }

    /// As the device calls itself.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn name(&self) -> Result<String> {
        let mut text: [c_char; 256] = [0; 256];
        let room = text.len() as c_int - 1;
        // SAFETY: writes at most so many characters; the last one stays 0.
        unsafe { call!(self.hip, hipDeviceGetName(text.as_mut_ptr(), room, self.number)) }?;
        // SAFETY: it ends in 0 within its own room.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// All of its memory, in bytes.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn total(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: one number is written to a place of ours.
        unsafe { call!(self.hip, hipDeviceTotalMem(&raw mut bytes, self.number)) }?;
        Ok(bytes as u64)
    }

    /// Whether it shares the system's memory; `None` where the driver does not say.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn is_integrated(&self) -> Option<bool> {
        let mut value = 0;
        let number = self.number;
        // SAFETY: one number is written to a place of ours.
        unsafe { call!(self.hip, hipDeviceGetAttribute(&raw mut value, INTEGRATED, number)) }
            .ok()?;
        Some(value != 0)
    }

    /// What nobody holds now, in bytes.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn free(&self) -> Result<u64> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: two numbers are written to places of ours.
        unsafe { call!(self.hip, hipMemGetInfo(&raw mut free, &raw mut total)) }?;
        Ok(free as u64)
    }

    /// Device memory of this many bytes; `None` where there is no more.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn take(&self, size: usize) -> Result<Option<u64>> {
        self.enter()?;
        let mut pointer = ptr::null_mut();
        // SAFETY: one pointer is written to a place of ours.
        match unsafe { (self.hip.table.hipMalloc)(&raw mut pointer, size) } {
            OUT_OF_MEMORY => Ok(None),
            code => self.hip.check("hipMalloc", code).map(|()| Some(pointer as u64)),
        }
    }

    /// Gives device memory back.
    ///
    /// # Safety
    ///
    /// The address came from [`HipGpu::take`] and is given back once.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub unsafe fn give_back(&self, address: u64) -> Result<()> {
        self.enter()?;
        // SAFETY: the caller's word.
        unsafe { call!(self.hip, hipFree(address as *mut c_void)) }
    }

    /// Copies bytes onto the device, and returns when they are there.
    ///
    /// # Safety
    ///
    /// This many bytes from the address on lie in memory from [`HipGpu::take`].
    #[expect(unsafe_code, reason = "a foreign call")]
    pub unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.enter()?;
        let (to, from) = (to as *mut c_void, bytes.as_ptr().cast());
        // SAFETY: the caller's word, and a slice of ours.
        unsafe { call!(self.hip, hipMemcpyHtoD(to, from, bytes.len())) }
    }

    /// Copies bytes from the device, and returns when they are here.
    ///
    /// # Safety
    ///
    /// As [`HipGpu::write`].
    #[expect(unsafe_code, reason = "a foreign call")]
    pub unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> Result<()> {
        self.enter()?;
        let (from, to) = (from as *mut c_void, bytes.as_mut_ptr().cast());
        // SAFETY: the caller's word, and a slice that nobody else has meanwhile.
        unsafe { call!(self.hip, hipMemcpyDtoH(to, from, bytes.len())) }
    }

    /// The stream that every device has.
    pub fn default_queue(&self) -> HipQueue {
        HipQueue { gpu: *self, handle: ptr::null_mut() }
    }

    /// A new stream that does not wait for the default one.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn queue(&self) -> Result<HipQueue> {
        self.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: one handle is written to a place of ours.
        unsafe { call!(self.hip, hipStreamCreateWithFlags(&raw mut handle, NON_BLOCKING)) }?;
        Ok(HipQueue { gpu: *self, handle })
    }
}

/// A stream.
#[derive(Debug)]
pub struct HipQueue {
    gpu: HipGpu,
    handle: *mut c_void,
}

/// A point in a stream.
#[derive(Debug)]
pub struct HipMarker {
    gpu: HipGpu,
    handle: *mut c_void,
}

// SAFETY: HIP's handles may be used by every thread.
#[expect(unsafe_code, reason = "handles are pointers, which Rust ties to a thread")]
unsafe impl Send for HipQueue {}
// SAFETY: as above; the library locks what it changes.
#[expect(unsafe_code, reason = "handles are pointers, which Rust ties to a thread")]
unsafe impl Sync for HipQueue {}
// SAFETY: HIP's handles may be used by every thread.
#[expect(unsafe_code, reason = "handles are pointers, which Rust ties to a thread")]
unsafe impl Send for HipMarker {}
// SAFETY: as above; the library locks what it changes.
#[expect(unsafe_code, reason = "handles are pointers, which Rust ties to a thread")]
unsafe impl Sync for HipMarker {}

impl HipQueue {
    /// A point behind everything that was queued.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn mark(&self) -> Result<HipMarker> {
        let hip = self.gpu.hip;
        self.gpu.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: one handle is written to a place of ours.
        unsafe { call!(hip, hipEventCreateWithFlags(&raw mut handle, WITHOUT_TIMING)) }?;
        let marker = HipMarker { gpu: self.gpu, handle };
        // SAFETY: both handles are live and of one device.
        unsafe { call!(hip, hipEventRecord(handle, self.handle)) }?;
        Ok(marker)
    }

    /// Holds back whatever is queued from now on until the point has been passed.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn wait(&self, marker: &HipMarker) -> Result<()> {
        self.gpu.enter()?;
        // SAFETY: both handles are live and of one device.
        unsafe { call!(self.gpu.hip, hipStreamWaitEvent(self.handle, marker.handle, 0)) }
    }

    /// Waits until everything that was queued is done.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn finish(&self) -> Result<()> {
        self.gpu.enter()?;
        // SAFETY: the handle is live, or null for the default stream.
        unsafe { call!(self.gpu.hip, hipStreamSynchronize(self.handle)) }
    }

    /// The `hipStream_t`; null for the default stream.
    pub fn raw(&self) -> *mut c_void {
        self.handle
    }
}

impl HipMarker {
    /// Whether the point has been passed.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: the handle is live.
        match unsafe { (self.gpu.hip.table.hipEventQuery)(self.handle) } {
            NOT_READY => Ok(false),
            code => self.gpu.hip.check("hipEventQuery", code).map(|()| true),
        }
    }

    /// Waits, on the host, until the point has been passed.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the handle is live.
        unsafe { call!(self.gpu.hip, hipEventSynchronize(self.handle)) }
    }
}

impl Drop for HipQueue {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle is ours and is given back once. An error leaves nothing
            // to be done.
            let _ = unsafe { (self.gpu.hip.table.hipStreamDestroy)(self.handle) };
        }
    }
}

impl Drop for HipMarker {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        // SAFETY: the handle is ours and is given back once. An error leaves nothing to be
        // done.
        let _ = unsafe { (self.gpu.hip.table.hipEventDestroy)(self.handle) };
    }
}
