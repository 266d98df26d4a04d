//! The driver calls that the guard makes itself. Where the driver lacks a function, the call
//! returns what the driver would: not found.

#![expect(non_snake_case, reason = "the driver's names")]

use core::ffi::c_int;

use super::{DriverCode, NOT_FOUND, OpaqueHandle, c_name};
use crate::intercept::RealFunction;

macro_rules! own_calls {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// Pointers point to what the driver reads or writes there.
            pub(super) unsafe fn $name($($arg: $type),*) -> DriverCode {
                static REAL: RealFunction = RealFunction::new(c_name(concat!(stringify!($name), "\0")));
                match REAL.get() {
                    0 => NOT_FOUND,
                    found => {
                        type Function = unsafe extern "C" fn($($type),*) -> DriverCode;
                        // SAFETY: the address is that of the driver's function of this name, which
                        // has this signature; the caller vouches for the arguments.
                        unsafe { core::mem::transmute::<usize, Function>(found)($($arg),*) }
                    }
                }
            }
        )*
    };
}

own_calls! {
    /// The context that is current in this thread.
    cuCtxGetCurrent(out: *mut OpaqueHandle);
    /// The device of that context.
    cuCtxGetDevice(out: *mut c_int);
    /// How many devices this process sees.
    cuDeviceGetCount(out: *mut c_int);
    /// The driver's version.
    cuDriverGetVersion(out: *mut c_int);
    /// The UUID of a device.
    cuDeviceGetUuid(out: *mut [u8; 16], device: c_int);
    /// An attribute of a device.
    cuDeviceGetAttribute(out: *mut c_int, which: c_int, device: c_int);
    /// The size of a device's memory.
    cuDeviceTotalMem_v2(out: *mut usize, device: c_int);
    /// The free and the total memory of the current device.
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    /// The pool that a device's stream-ordered allocations come from.
    cuDeviceGetMemPool(out: *mut OpaqueHandle, device: c_int);
    /// An attribute of a pool.
    cuMemPoolGetAttribute(pool: OpaqueHandle, which: c_int, out: *mut u64);
    /// Returns what a pool does not use to the device.
    cuMemPoolTrimTo(pool: OpaqueHandle, keep: usize);
    /// An attribute of the memory that a device keeps for graphs.
    cuDeviceGetGraphMemAttribute(device: c_int, which: c_int, out: *mut u64);
    /// Exchanges what a stream capture forbids in this thread.
    cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
    /// Whether a stream is capturing a graph.
    cuStreamIsCapturing(stream: OpaqueHandle, out: *mut c_int);
    /// The nodes of a graph.
    cuGraphGetNodes(graph: OpaqueHandle, nodes: *mut OpaqueHandle, count: *mut usize);
    /// The type of a node.
    cuGraphNodeGetType(node: OpaqueHandle, out: *mut c_int);
    /// The parameters of an allocation node.
    cuGraphMemAllocNodeGetParams(node: OpaqueHandle, out: *mut super::graph::AllocNodeParams);
    /// The graph inside a child-graph node.
    cuGraphChildGraphNodeGetGraph(node: OpaqueHandle, out: *mut OpaqueHandle);
    /// Whether a device's primary context exists.
    cuDevicePrimaryCtxGetState(device: c_int, flags: *mut u32, active: *mut c_int);
}

/// Makes calls of the driver that a stream capture in this thread would otherwise forbid or
/// be broken by.
pub(super) fn outside_capture<T>(work: impl FnOnce() -> T) -> T {
    const RELAXED: c_int = 2;
    let mut mode = RELAXED;
    // SAFETY: the number is read and written.
    let changed = unsafe { cuThreadExchangeStreamCaptureMode(&raw mut mode) } == 0;
    let result = work();
    if changed {
        // SAFETY: as above; restores the previous mode.
        unsafe { cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    }
    result
}
