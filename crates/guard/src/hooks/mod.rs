//! The driver calls that the guard intercepts, and what it counts for each.
//!
//! Every intercepted call is one row of [`intercepted_calls`]: the exported name, the driver's
//! signature and the function that handles it. A handler does its work only in a process that
//! belongs to a run. Otherwise, and wherever it does not understand its arguments, the call goes
//! to the driver unchanged. The guard never trusts what a program passes: a null pointer goes to
//! the driver, which returns its own error.
//!
//! # To add a driver call
//!
//! 1. Add a row to `intercepted_calls.rs`, in the section of its family. If the call does the
//!    same as one that is already there, the row is all it takes.
//! 2. If it takes memory in a new way, write its handler in the file of its family (table
//!    below), by `track::allocate` and `track::free`, which do the counting. A new kind of memory
//!    is also a variant of [`crate::log::GuardMemoryKind`].
//! 3. If the guard itself must ask the driver something new, declare that call in
//!    `own_calls.rs`.
//! 4. Add the call to the simulated driver in `tests/fake/cuda.c`, and a case to
//!    `tests/all/kinds.rs`: the simulated driver keeps its own count, and the test compares both.
//!
//! | file | calls |
//! | --- | --- |
//! | `linear.rs` | cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged, cuMemFree |
//! | `host.rs` | pinned host memory: cuMemHostAlloc, cuMemHostRegister |
//! | `array.rs` | arrays and mipmapped arrays |
//! | `physical.rs` | cuMemCreate, cuMemMap and their counterparts |
//! | `pool.rs` | cuMemAllocAsync, memory pools, synchronisation |
//! | `graph.rs` | memory of executable graphs |
//! | `context.rs` | contexts, cuInit |
//! | `kernels.rs` | modules, libraries, launches, streams: what makes the driver load code |
//! | `lookup.rs` | cuGetProcAddress |
//! | `memory_info.rs`, `nvml.rs` | what a program is told about the size of the device |
//!
//! `track.rs` is the one way in which memory is counted; `measure.rs` charges what the driver
//! takes for itself; `devices.rs` finds the device that a call concerns; `tags.rs` separates the
//! memory of a program's threads; `declare.rs` is the macro behind the rows.
//!
//! # Safety of handlers
//!
//! Handlers are `unsafe` for one reason, which is the same for all of them: each gets the
//! program's arguments and may read and write through the pointers as the driver would. So they
//! are called only with the arguments of a call of that driver function.

#![expect(unsafe_code, reason = "calls the driver through addresses that were looked up")]

mod array;
mod context;
mod declare;
mod devices;
mod graph;
mod host;
mod intercepted_calls;
mod kernels;
mod linear;
mod lookup;
mod measure;
mod memory_info;
mod nvml;
mod own_calls;
mod physical;
mod pool;
mod tags;
mod track;

use core::ffi::{CStr, c_int, c_void};

pub(crate) use intercepted_calls::INTERCEPTED_CALLS;

/// The driver's result codes.
pub(crate) const SUCCESS: c_int = 0;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const NOT_FOUND: c_int = 500;
pub(crate) const NOT_SUPPORTED: c_int = 801;

pub(crate) type DriverCode = c_int;
pub(crate) type Pointer = u64;
pub(crate) type OpaqueHandle = *mut c_void;

/// A name that ends with a zero.
const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_until_nul(name.as_bytes()) {
        Ok(name) => name,
        // Cannot happen: the macros append the zero to every name.
        Err(_) => c"",
    }
}
