//! What the guard itself asks of the driver. A function that is missing answers as the
//! driver would: not found.

use core::ffi::c_int;

use super::{DriverCode, NOT_FOUND, OpaqueHandle, c_name};
use crate::intercept::RealFunction;

macro_rules! ask {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// Pointers point to what the driver writes there.
            pub(super) unsafe fn $name($($arg: $type),*) -> DriverCode {
                static REAL: RealFunction = RealFunction::new(c_name(concat!(stringify!($name), "\0")));
                match REAL.get() {
                    0 => NOT_FOUND,
                    found => {
                        type Function = unsafe extern "C" fn($($type),*) -> DriverCode;
                        // SAFETY: the address is that of the function of this name, which has
                        // this signature; the arguments are as the caller promises.
                        unsafe { core::mem::transmute::<usize, Function>(found)($($arg),*) }
                    }
                }
            }
        )*
    };
}

ask! {
    /// The thread's context.
    cuCtxGetCurrent(out: *mut OpaqueHandle);
    /// Its device.
    cuCtxGetDevice(out: *mut c_int);
    /// How many this process sees.
    cuDeviceGetCount(out: *mut c_int);
    /// The driver's version.
    cuDriverGetVersion(out: *mut c_int);
    /// Who a device is.
    cuDeviceGetUuid(out: *mut [u8; 16], device: c_int);
    /// A property of it.
    cuDeviceGetAttribute(out: *mut c_int, which: c_int, device: c_int);
    /// All of its memory.
    cuDeviceTotalMem_v2(out: *mut usize, device: c_int);
    /// What is free, and all there is.
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    /// The pool that stream-ordered allocations of a device come from.
    cuDeviceGetMemPool(out: *mut OpaqueHandle, device: c_int);
    /// A figure of a pool.
    cuMemPoolGetAttribute(pool: OpaqueHandle, which: c_int, out: *mut u64);
    /// Lets go of what a pool does not use.
    cuMemPoolTrimTo(pool: OpaqueHandle, keep: usize);
    /// A figure of the memory of graphs.
    cuDeviceGetGraphMemAttribute(device: c_int, which: c_int, out: *mut u64);
    /// What a capture in this thread forbids.
    cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
    /// Whether a stream records a graph.
    cuStreamIsCapturing(stream: OpaqueHandle, out: *mut c_int);
    /// The nodes of a graph.
    cuGraphGetNodes(graph: OpaqueHandle, nodes: *mut OpaqueHandle, count: *mut usize);
    /// What a node is.
    cuGraphNodeGetType(node: OpaqueHandle, out: *mut c_int);
    /// What an allocation node asks for.
    cuGraphMemAllocNodeGetParams(node: OpaqueHandle, out: *mut super::graph::AllocNodeParams);
    /// The graph in a node.
    cuGraphChildGraphNodeGetGraph(node: OpaqueHandle, out: *mut OpaqueHandle);
    /// Whether a device's primary context exists.
    cuDevicePrimaryCtxGetState(device: c_int, flags: *mut u32, active: *mut c_int);
}

/// Runs what a capture in this thread must not see.
pub(super) fn outside_capture<T>(work: impl FnOnce() -> T) -> T {
    const RELAXED: c_int = 2;
    let mut mode = RELAXED;
    // SAFETY: the number is read and written.
    let changed = unsafe { cuThreadExchangeStreamCaptureMode(&raw mut mode) } == 0;
    let result = work();
    if changed {
        // SAFETY: as above; puts back what was there.
        unsafe { cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    }
    result
}
