//! OpenCL, as far as memory needs it: devices, a context, queues, buffers, markers.
//!
//! `cl3` finds the library at run time and gives a code where there is none. What it
//! leaves to the caller is who owns a handle: here each is a type that lets go of it when
//! it is dropped, in the order in which the standard wants it.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cl3::command_queue as queue;
use cl3::device::{self as cl_device, CL_DEVICE_TYPE_ALL};
use cl3::error_codes::{DLOPEN_RUNTIME_LOAD_FAILED, error_text};
use cl3::info_type::InfoType;
use cl3::memory::{self as cl_memory, CL_MEM_READ_WRITE, cl_buffer_region};
use cl3::types::{
    CL_BLOCKING, cl_command_queue, cl_context, cl_device_id, cl_event, cl_int, cl_mem,
};
use cl3::{context as cl_ctx, event as cl_ev, platform as cl_platform};

use plimsoll_machine::error::{Error, Result};

const NO_PLATFORM: cl_int = -1001;
const NO_DEVICE: cl_int = -1;
/// Codes that mean *full now*: of the object, of the device, of the host.
const FULL: [cl_int; 3] = [-4, -5, -6];

/// A failed call.
fn failed(call: &'static str) -> impl FnOnce(cl_int) -> Error {
    move |code| Error::Device { call, why: format!("{} ({code})", error_text(code)) }
}

fn unavailable(why: String) -> Error {
    Error::Unavailable { what: "OpenCL".to_string(), why }
}

/// A device of any driver. The handles of root devices live as long as the process.
#[derive(Debug, Clone)]
pub(crate) struct ClDevice {
    id: cl_device_id,
    pub(crate) platform: String,
    pub(crate) name: String,
    pub(crate) version: String,
    /// CL_DEVICE_TYPE_CPU: its memory is the host's.
    pub(crate) is_cpu: bool,
    pub(crate) shares_host_memory: bool,
    pub(crate) total: u64,
    pub(crate) largest: u64,
    /// Bytes, of the start of a sub-buffer.
    pub(crate) alignment: u64,
    /// On NVIDIA's.
    pub(crate) compute_capability: Option<(u32, u32)>,
    /// On NVIDIA's, the number of the bus, to find it elsewhere.
    pub(crate) pci_bus: Option<u32>,
}

// SAFETY: a device id is a handle that the standard lets every thread use.
#[expect(unsafe_code, reason = "handles are pointers, which Rust ties to a thread")]
unsafe impl Send for ClDevice {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "handles are pointers, which Rust ties to a thread")]
unsafe impl Sync for ClDevice {}

/// Every device of every driver: accelerators first, processors after them. Drivers are
/// asked by one thread and, once they have answered, not again: PoCL's first listing is
/// empty for whoever asks while it is being made.
pub(crate) fn devices() -> Result<Vec<ClDevice>> {
    static LISTED: Mutex<Vec<ClDevice>> = Mutex::new(Vec::new());
    let mut listed = LISTED.lock().unwrap_or_else(PoisonError::into_inner);
    if listed.is_empty() {
        *listed = list()?;
    }
    Ok(listed.clone())
}

fn list() -> Result<Vec<ClDevice>> {
    if let Err(error) = cl3::load_library() {
        return Err(unavailable(format!(
            "libOpenCL.so.1 and what OPENCL_DYLIB_PATH names could not be loaded ({error}); \
             install an OpenCL loader (Debian, Ubuntu: ocl-icd-libopencl1) and a driver"
        )));
    }
    let no_driver = "the loader is there, but no driver is registered (/etc/OpenCL/vendors, or \
                     OCL_ICD_VENDORS); install the GPU's, or pocl-opencl-icd for the processor";
    let platforms = match cl_platform::get_platform_ids() {
        Ok(platforms) if platforms.is_empty() => return Err(unavailable(no_driver.into())),
        Ok(platforms) => platforms,
        Err(NO_PLATFORM) => return Err(unavailable(no_driver.into())),
        Err(code) if code <= DLOPEN_RUNTIME_LOAD_FAILED => {
            return Err(unavailable("libOpenCL.so.1 has no clGetPlatformIDs".to_string()));
        }
        Err(code) => return Err(failed("clGetPlatformIDs")(code)),
    };
    let mut found = Vec::new();
    let mut without = Vec::new();
    for platform in platforms {
        let name = text(cl_platform::get_platform_info(platform, cl_platform::CL_PLATFORM_NAME));
        let name = name.unwrap_or_else(|| "a platform without a name".to_string());
        match cl_device::get_device_ids(platform, CL_DEVICE_TYPE_ALL) {
            Ok(ids) if !ids.is_empty() => {
                found.extend(ids.into_iter().filter_map(|id| ClDevice::ask(id, &name)));
            }
            Ok(_) | Err(NO_DEVICE) => without.push(name),
            Err(code) => without.push(format!("{name} ({})", error_text(code))),
        }
    }
    if found.is_empty() {
        let why = format!("no driver has a device: {}", without.join(", "));
        return Err(unavailable(why));
    }
    found.sort_by_key(|device| device.is_cpu);
    Ok(found)
}

impl ClDevice {
    fn ask(id: cl_device_id, platform: &str) -> Option<ClDevice> {
        let info = |name| cl_device::get_device_info(id, name);
        Some(ClDevice {
            id,
            platform: platform.to_string(),
            name: text(info(cl_device::CL_DEVICE_NAME))?,
            version: text(info(cl_device::CL_DEVICE_VERSION)).unwrap_or_default(),
            is_cpu: number(info(cl_device::CL_DEVICE_TYPE))? & cl_device::CL_DEVICE_TYPE_CPU != 0,
            shares_host_memory: number(info(cl_device::CL_DEVICE_HOST_UNIFIED_MEMORY)) == Some(1),
            total: number(info(cl_device::CL_DEVICE_GLOBAL_MEM_SIZE))?,
            largest: number(info(cl_device::CL_DEVICE_MAX_MEM_ALLOC_SIZE))?,
            alignment: number(info(cl_device::CL_DEVICE_MEM_BASE_ADDR_ALIGN))? / 8,
            compute_capability: small(info(cl_device::CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV))
                .zip(small(info(cl_device::CL_DEVICE_COMPUTE_CAPABILITY_MINOR_NV))),
            pci_bus: small(info(cl_device::CL_DEVICE_PCI_BUS_ID_NV)),
        })
    }

    /// What is free, where the driver has AMD's extension, which counts in KiB.
    pub(crate) fn free(&self) -> Option<u64> {
        match cl_device::get_device_info(self.id, cl_device::CL_DEVICE_GLOBAL_FREE_MEMORY_AMD) {
            Ok(InfoType::VecSize(kib)) => (kib.first().copied()? as u64).checked_mul(1024),
            _ => None,
        }
    }

    /// The handle, for callers who compile and launch on the device.
    pub(crate) fn id(&self) -> cl_device_id {
        self.id
    }
}

/// A figure of whatever width. `InfoType`'s own conversions panic on another.
fn number(info: Result<InfoType, cl_int>) -> Option<u64> {
    match info.ok()? {
        InfoType::Uint(n) => Some(u64::from(n)),
        InfoType::Ulong(n) => Some(n),
        InfoType::Size(n) => Some(n as u64),
        _ => None,
    }
}

fn small(info: Result<InfoType, cl_int>) -> Option<u32> {
    number(info)?.try_into().ok()
}

fn text(info: Result<InfoType, cl_int>) -> Option<String> {
    let InfoType::VecUchar(bytes) = info.ok()? else { return None };
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_matches(['\0', ' ', '\n']);
    (!text.is_empty()).then(|| text.to_string())
}

macro_rules! owned {
    ($(#[$doc:meta])* $name:ident($handle:ty), $release:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name($handle);

        // SAFETY: the standard lets every thread use a handle of this kind.
        #[expect(unsafe_code, reason = "handles are pointers, which Rust ties to a thread")]
        unsafe impl Send for $name {}
        // SAFETY: as above; calls that change the object are made atomic by the driver.
        #[expect(unsafe_code, reason = "handles are pointers, which Rust ties to a thread")]
        unsafe impl Sync for $name {}

        impl Drop for $name {
            #[expect(unsafe_code, reason = "a foreign call")]
            fn drop(&mut self) {
                // SAFETY: the handle came from the driver with one reference, which is
                // ours, and is given back once. An error leaves nothing to be done.
                let _ = unsafe { $release(self.0) };
            }
        }
    };
}

/// Held while a context is made or let go of: a driver need not like that from two threads.
static CONTEXTS: Mutex<()> = Mutex::new(());

/// Lets go of a context.
///
/// # Safety
///
/// The context is live, and the reference that is given back is the caller's.
#[expect(unsafe_code, reason = "a foreign call")]
unsafe fn release_context(context: cl_context) -> Result<(), cl_int> {
    let _turn = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the caller's word.
    unsafe { cl_ctx::release_context(context) }
}

owned!(
    /// A context of one device.
    ClContext(cl_context), release_context
);
owned!(
    /// A queue that works in order.
    ClQueue(cl_command_queue), queue::release_command_queue
);
owned!(
    /// A buffer, or a part of one.
    ClBuffer(cl_mem), cl_memory::release_mem_object
);
owned!(
    /// A point in a queue.
    ClMarker(cl_event), cl_ev::release_event
);

/// The handles of those that callers may use themselves; each lives as long as its owner.
macro_rules! raw {
    ($($name:ident: $handle:ty;)*) => {$(
        impl $name {
            pub(crate) fn raw(&self) -> $handle {
                self.0
            }
        }
    )*};
}

raw! {
    ClContext: cl_context;
    ClQueue: cl_command_queue;
    ClBuffer: cl_mem;
}

impl ClContext {
    pub(crate) fn new(device: &ClDevice) -> Result<ClContext> {
        let _turn = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        cl_ctx::create_context(&[device.id], ptr::null(), None, ptr::null_mut())
            .map(ClContext)
            .map_err(failed("clCreateContext"))
    }

    #[expect(unsafe_code, reason = "a foreign call")]
    pub(crate) fn queue(&self, device: &ClDevice) -> Result<ClQueue> {
        // SAFETY: the device is the context's own; no property is asked for.
        unsafe { queue::create_command_queue(self.0, device.id, 0) }
            .map(ClQueue)
            .map_err(failed("clCreateCommandQueue"))
    }

    /// A buffer of this many bytes; `None` where the driver has no more.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub(crate) fn buffer(&self, size: usize) -> Result<Option<Arc<ClBuffer>>> {
        // SAFETY: no host pointer is given, and none is asked for by the flags.
        match unsafe { cl_memory::create_buffer(self.0, CL_MEM_READ_WRITE, size, ptr::null_mut()) }
        {
            Ok(handle) => Ok(Some(Arc::new(ClBuffer(handle)))),
            Err(code) if FULL.contains(&code) => Ok(None),
            Err(code) => Err(failed("clCreateBuffer")(code)),
        }
    }
}

impl ClBuffer {
    /// A part of the buffer, as kernels take it. The driver keeps the whole alive.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub(crate) fn part(&self, origin: usize, size: usize) -> Result<ClBuffer> {
        let region = cl_buffer_region { origin, size };
        // SAFETY: the region outlives the call, and its type is the one that is named.
        unsafe {
            cl_memory::create_sub_buffer(
                self.0,
                CL_MEM_READ_WRITE,
                cl_memory::CL_BUFFER_CREATE_TYPE_REGION,
                ptr::from_ref(&region).cast::<c_void>(),
            )
        }
        .map(ClBuffer)
        .map_err(failed("clCreateSubBuffer"))
    }
}

impl ClQueue {
    /// Makes the driver find memory for a buffer now, by writing a byte of it: many only do
    /// at its first use, and would fail there. False where it has none.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub(crate) fn settle(&self, buffer: &ClBuffer) -> Result<bool> {
        let byte = 0u8;
        let from = (&raw const byte).cast();
        // SAFETY: the call blocks, so the byte outlives its use; every buffer has one.
        let written = unsafe {
            queue::enqueue_write_buffer(self.0, buffer.0, CL_BLOCKING, 0, 1, from, 0, ptr::null())
        };
        match written.map(ClMarker) {
            Ok(_) => Ok(true),
            Err(code) if FULL.contains(&code) => Ok(false),
            Err(code) => Err(failed("clEnqueueWriteBuffer")(code)),
        }
    }

    /// A point behind everything that was queued, on its way to the device.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub(crate) fn mark(&self) -> Result<ClMarker> {
        // SAFETY: the queue is live, and there are no events to wait for.
        let marker = unsafe { queue::enqueue_marker_with_wait_list(self.0, 0, ptr::null()) }
            .map(ClMarker)
            .map_err(failed("clEnqueueMarkerWithWaitList"))?;
        // Another queue may wait for it for ever unless it is sent off.
        queue::flush(self.0).map_err(failed("clFlush"))?;
        Ok(marker)
    }

    /// Holds back whatever is queued from now on until the point has been passed.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub(crate) fn wait(&self, marker: &ClMarker) -> Result<()> {
        let handle = marker.0;
        // SAFETY: the queue is live, and the one event is.
        unsafe { queue::enqueue_barrier_with_wait_list(self.0, 1, &raw const handle) }
            .map(ClMarker)
            .map(drop)
            .map_err(failed("clEnqueueBarrierWithWaitList"))
    }

    /// Waits until everything that was queued is done.
    pub(crate) fn finish(&self) -> Result<()> {
        queue::finish(self.0).map_err(failed("clFinish"))
    }

    /// Copies bytes into a buffer, and returns when they are there.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub(crate) fn write(&self, to: &ClBuffer, offset: usize, bytes: &[u8]) -> Result<()> {
        let (len, from) = (bytes.len(), bytes.as_ptr().cast());
        // SAFETY: the call blocks, so the slice outlives its use; the driver checks that
        // the range lies in the buffer.
        unsafe {
            queue::enqueue_write_buffer(
                self.0,
                to.0,
                CL_BLOCKING,
                offset,
                len,
                from,
                0,
                ptr::null(),
            )
        }
        .map(ClMarker)
        .map(drop)
        .map_err(failed("clEnqueueWriteBuffer"))
    }

    /// Copies bytes from a buffer, and returns when they are here.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub(crate) fn read(&self, from: &ClBuffer, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let (len, to) = (bytes.len(), bytes.as_mut_ptr().cast());
        // SAFETY: as in `write`; nobody else has the slice meanwhile.
        unsafe {
            queue::enqueue_read_buffer(self.0, from.0, CL_BLOCKING, offset, len, to, 0, ptr::null())
        }
        .map(ClMarker)
        .map(drop)
        .map_err(failed("clEnqueueReadBuffer"))
    }
}

impl ClMarker {
    /// Whether the point has been passed. Work that failed has been passed, too, and says
    /// so.
    pub(crate) fn is_done(&self) -> Result<bool> {
        match cl_ev::get_event_info(self.0, cl_ev::CL_EVENT_COMMAND_EXECUTION_STATUS) {
            Ok(InfoType::Int(status)) if status < 0 => Err(failed("queued work")(status)),
            Ok(InfoType::Int(status)) => Ok(status == 0),
            Ok(_) => Err(failed("clGetEventInfo")(-30)),
            Err(code) => Err(failed("clGetEventInfo")(code)),
        }
    }

    /// Waits, on the host, until the point has been passed.
    pub(crate) fn synchronize(&self) -> Result<()> {
        cl_ev::wait_for_events(&[self.0]).map_err(failed("clWaitForEvents"))
    }
}
