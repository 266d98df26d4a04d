//! The driver's functions that the guard stands in for, one file for each family.
//!
//! A hook has the driver's own signature. It does its work only inside a run; otherwise, and
//! wherever it does not understand what it is given, it passes the call on as it came. What
//! a program passes is never trusted: a null pointer goes to the driver, which says what is
//! wrong with it.

#![expect(unsafe_code, reason = "calls the driver through addresses that were looked up")]
#![expect(non_snake_case, reason = "the driver's names")]

mod array;
mod context;
mod devices;
mod graph;
mod host;
mod kernels;
mod linear;
mod measure;
mod memory_info;
mod nvml;
mod own_calls;
mod physical;
mod pool;
mod tags;
mod track;

use core::ffi::{CStr, c_char, c_int, c_void};

use crate::attach::{ProcessGuard, attached};
use crate::intercept::{self, HookEntry, RealFunction};

/// The driver's codes.
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
        // Every name is given its zero where it is made.
        Err(_) => c"",
    }
}

/// Declares hooks: for each, the exported function, where the real one is, and its row.
///
/// `name "base" since per_thread takes (arguments) = body`: the body is a function that takes this
/// process's part, the arguments, and the call of the real function with them. `takes` says whether
/// memory is taken by it: a process that cannot be counted is refused it.
macro_rules! hooks {
    ($($name:ident $base:literal $since:literal $thread:literal $takes:literal
       ($($arg:ident: $type:ty),*) = $body:path;)*) => {
        $(
            /// Stands in for the driver's function of this name.
            ///
            /// # Safety
            ///
            /// As the driver's.
            #[cfg_attr(preload, unsafe(no_mangle))]
            pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> DriverCode {
                type Function = unsafe extern "C" fn($($type),*) -> DriverCode;
                let real = reals::$name.get();
                if real == 0 {
                    return NOT_FOUND;
                }
                // SAFETY: the address is that of the driver's function of this name, which
                // has this signature.
                let real = unsafe { core::mem::transmute::<usize, Function>(real) };
                // SAFETY: the arguments are the program's, for the driver.
                let call = || unsafe { real($($arg),*) };
                match attached() {
                    // SAFETY: the pointers among the arguments are what the driver takes.
                    Some(guard) => unsafe { $body(guard, $($arg,)* call) },
                    None if $takes && crate::attach::is_closed() => OUT_OF_MEMORY,
                    None => call(),
                }
            }
        )*

        /// Where the driver's own functions are.
        #[expect(non_upper_case_globals, reason = "the driver's names")]
        mod reals {
            use super::{RealFunction, c_name};
            $(pub(super) static $name: RealFunction = RealFunction::new(c_name(concat!(stringify!($name), "\0")));)*
        }

        /// Every function that the guard stands in for.
        pub(crate) static ROWS: &[HookEntry] = &[
            $(HookEntry {
                name: c_name(concat!(stringify!($name), "\0")),
                base: $base.as_bytes(),
                since: $since,
                per_thread: $thread,
                hook: $name as *const (),
                real: &reals::$name,
            },)*
        ];
    };
}

hooks! {
    cuGetProcAddress "cuGetProcAddress" 11030 false false
        (symbol: *const c_char, found: *mut OpaqueHandle, version: c_int, flags: u64) = proc_address;
    cuGetProcAddress_v2 "cuGetProcAddress" 12000 false false
        (symbol: *const c_char, found: *mut OpaqueHandle, version: c_int, flags: u64, status: *mut c_int)
        = proc_address_v2;
    cuInit "cuInit" 2000 false true (flags: u32) = context::init;

    cuMemAlloc_v2 "cuMemAlloc" 3020 false true (out: *mut Pointer, bytes: usize) = linear::alloc;
    cuMemAllocPitch_v2 "cuMemAllocPitch" 3020 false true
        (out: *mut Pointer, pitch: *mut usize, width: usize, height: usize, element: u32)
        = linear::pitch;
    cuMemAllocManaged "cuMemAllocManaged" 6000 false true
        (out: *mut Pointer, bytes: usize, flags: u32) = linear::managed;
    cuMemFree_v2 "cuMemFree" 3020 false false (pointer: Pointer) = linear::free;
    cuMemAlloc "cuMemAlloc" 2000 false true (out: *mut u32, bytes: u32) = linear::alloc_small;
    cuMemAllocPitch "cuMemAllocPitch" 2000 false true
        (out: *mut u32, pitch: *mut u32, width: u32, height: u32, element: u32)
        = linear::pitch_small;
    cuMemFree "cuMemFree" 2000 false false (pointer: u32) = linear::free_small;

    cuMemHostAlloc "cuMemHostAlloc" 2020 false true
        (out: *mut OpaqueHandle, bytes: usize, flags: u32) = host::alloc;
    cuMemAllocHost_v2 "cuMemAllocHost" 3020 false true
        (out: *mut OpaqueHandle, bytes: usize) = host::alloc_plain;
    cuMemAllocHost "cuMemAllocHost" 2000 false true
        (out: *mut OpaqueHandle, bytes: u32) = host::alloc_small;
    cuMemFreeHost "cuMemFreeHost" 2000 false false (at: OpaqueHandle) = host::free;
    cuMemHostRegister_v2 "cuMemHostRegister" 6050 false true
        (at: OpaqueHandle, bytes: usize, flags: u32) = host::register;
    cuMemHostRegister "cuMemHostRegister" 4000 false true
        (at: OpaqueHandle, bytes: usize, flags: u32) = host::register;
    cuMemHostUnregister "cuMemHostUnregister" 4000 false false (at: OpaqueHandle) = host::free;

    cuArrayCreate_v2 "cuArrayCreate" 3020 false true
        (out: *mut OpaqueHandle, shape: *const array::ArrayDescriptor) = array::create;
    cuArray3DCreate_v2 "cuArray3DCreate" 3020 false true
        (out: *mut OpaqueHandle, shape: *const array::Array3dDescriptor) = array::create3;
    cuArrayCreate "cuArrayCreate" 2000 false true
        (out: *mut OpaqueHandle, shape: *const array::ArrayDescriptorV1) = array::create_small;
    cuArray3DCreate "cuArray3DCreate" 2000 false true
        (out: *mut OpaqueHandle, shape: *const array::Array3dDescriptorV1) = array::create3_small;
    cuArrayDestroy "cuArrayDestroy" 2000 false false (array: OpaqueHandle) = array::destroy;
    cuMipmappedArrayCreate "cuMipmappedArrayCreate" 5000 false true
        (out: *mut OpaqueHandle, shape: *const array::Array3dDescriptor, levels: u32) = array::mipmap;
    cuMipmappedArrayDestroy "cuMipmappedArrayDestroy" 5000 false false (array: OpaqueHandle) = array::destroy;

    cuMemCreate "cuMemCreate" 10020 false true
        (out: *mut u64, bytes: usize, how: *const physical::AllocationProperties, flags: u64)
        = physical::create;
    cuMemRelease "cuMemRelease" 10020 false false (handle: u64) = physical::release;
    cuMemRetainAllocationHandle "cuMemRetainAllocationHandle" 11000 false false
        (out: *mut u64, address: Pointer) = physical::retain;
    cuMemMap "cuMemMap" 10020 false false
        (at: Pointer, bytes: usize, offset: usize, handle: u64, flags: u64) = physical::map;
    cuMemUnmap "cuMemUnmap" 10020 false false (at: Pointer, bytes: usize) = physical::unmap;

    cuMemAllocAsync "cuMemAllocAsync" 11020 false true
        (out: *mut Pointer, bytes: usize, stream: OpaqueHandle) = pool::alloc;
    cuMemAllocAsync_ptsz "cuMemAllocAsync" 11020 true true
        (out: *mut Pointer, bytes: usize, stream: OpaqueHandle) = pool::alloc;
    cuMemAllocFromPoolAsync "cuMemAllocFromPoolAsync" 11020 false true
        (out: *mut Pointer, bytes: usize, pool: OpaqueHandle, stream: OpaqueHandle) = pool::alloc_from;
    cuMemAllocFromPoolAsync_ptsz "cuMemAllocFromPoolAsync" 11020 true true
        (out: *mut Pointer, bytes: usize, pool: OpaqueHandle, stream: OpaqueHandle) = pool::alloc_from;
    cuMemFreeAsync "cuMemFreeAsync" 11020 false false (pointer: Pointer, stream: OpaqueHandle) = pool::free;
    cuMemFreeAsync_ptsz "cuMemFreeAsync" 11020 true false
        (pointer: Pointer, stream: OpaqueHandle) = pool::free;
    cuMemPoolCreate "cuMemPoolCreate" 11020 false false
        (out: *mut OpaqueHandle, how: *const physical::AllocationProperties) = pool::create;
    cuMemPoolDestroy "cuMemPoolDestroy" 11020 false false (pool: OpaqueHandle) = pool::destroy;
    cuMemPoolTrimTo "cuMemPoolTrimTo" 11020 false false (pool: OpaqueHandle, keep: usize) = pool::trim;
    cuMemPoolImportFromShareableHandle "cuMemPoolImportFromShareableHandle" 11020 false false
        (out: *mut OpaqueHandle, handle: OpaqueHandle, kind: c_int, flags: u64) = pool::import;
    cuStreamSynchronize "cuStreamSynchronize" 2000 false false (stream: OpaqueHandle) = pool::synchronize;
    cuStreamSynchronize_ptsz "cuStreamSynchronize" 7000 true false
        (stream: OpaqueHandle) = pool::synchronize;
    cuCtxSynchronize "cuCtxSynchronize" 2000 false false () = pool::synchronize_all;

    cuGraphInstantiate_v2 "cuGraphInstantiate" 11000 false false
        (out: *mut OpaqueHandle, graph: OpaqueHandle, node: *mut OpaqueHandle, text: *mut c_char, size: usize)
        = graph::instantiate_v2;
    cuGraphInstantiate "cuGraphInstantiate" 10000 false false
        (out: *mut OpaqueHandle, graph: OpaqueHandle, node: *mut OpaqueHandle, text: *mut c_char, size: usize)
        = graph::instantiate_v2;
    cuGraphInstantiateWithFlags "cuGraphInstantiate" 12000 false false
        (out: *mut OpaqueHandle, graph: OpaqueHandle, flags: u64) = graph::instantiate;
    cuGraphInstantiateWithParams "cuGraphInstantiateWithParams" 12000 false false
        (out: *mut OpaqueHandle, graph: OpaqueHandle, how: *mut c_void) = graph::instantiate_with;
    cuGraphInstantiateWithParams_ptsz "cuGraphInstantiateWithParams" 12000 true false
        (out: *mut OpaqueHandle, graph: OpaqueHandle, how: *mut c_void) = graph::instantiate_with;
    cuGraphLaunch "cuGraphLaunch" 10000 false true (exec: OpaqueHandle, stream: OpaqueHandle) = graph::launch;
    cuGraphLaunch_ptsz "cuGraphLaunch" 10000 true true (exec: OpaqueHandle, stream: OpaqueHandle) = graph::launch;
    cuGraphUpload "cuGraphUpload" 11010 false true (exec: OpaqueHandle, stream: OpaqueHandle) = graph::launch;
    cuGraphUpload_ptsz "cuGraphUpload" 11010 true true (exec: OpaqueHandle, stream: OpaqueHandle) = graph::launch;
    cuGraphExecDestroy "cuGraphExecDestroy" 10000 false false (exec: OpaqueHandle) = graph::destroy;
    cuDeviceGraphMemTrim "cuDeviceGraphMemTrim" 11040 false false (device: c_int) = graph::trim;

    cuCtxCreate_v2 "cuCtxCreate" 3020 false true
        (out: *mut OpaqueHandle, flags: u32, device: c_int) = context::create_v2;
    cuCtxCreate "cuCtxCreate" 2000 false true
        (out: *mut OpaqueHandle, flags: u32, device: c_int) = context::create_v2;
    cuCtxCreate_v3 "cuCtxCreate" 11040 false true
        (out: *mut OpaqueHandle, how: OpaqueHandle, count: c_int, flags: u32, device: c_int)
        = context::create_v3;
    cuCtxCreate_v4 "cuCtxCreate" 12050 false true
        (out: *mut OpaqueHandle, how: OpaqueHandle, flags: u32, device: c_int) = context::create_v4;
    cuCtxDestroy_v2 "cuCtxDestroy" 4000 false false (context: OpaqueHandle) = context::destroy;
    cuDevicePrimaryCtxRetain "cuDevicePrimaryCtxRetain" 7000 false true
        (out: *mut OpaqueHandle, device: c_int) = context::retain;
    cuDevicePrimaryCtxRelease "cuDevicePrimaryCtxRelease" 7000 false false
        (device: c_int) = context::release_primary;
    cuDevicePrimaryCtxRelease_v2 "cuDevicePrimaryCtxRelease" 11000 false false
        (device: c_int) = context::release_primary;
    cuDevicePrimaryCtxReset "cuDevicePrimaryCtxReset" 7000 false false
        (device: c_int) = context::release_primary;
    cuDevicePrimaryCtxReset_v2 "cuDevicePrimaryCtxReset" 11000 false false
        (device: c_int) = context::release_primary;

    cuModuleLoad "cuModuleLoad" 2000 false true
        (out: *mut OpaqueHandle, path: *const c_char) = kernels::load_file;
    cuModuleLoadData "cuModuleLoadData" 2000 false true
        (out: *mut OpaqueHandle, image: OpaqueHandle) = kernels::load_data;
    cuModuleLoadDataEx "cuModuleLoadDataEx" 2010 false true
        (out: *mut OpaqueHandle, image: OpaqueHandle, count: u32, names: OpaqueHandle, values: OpaqueHandle)
        = kernels::load_data_ex;
    cuModuleLoadFatBinary "cuModuleLoadFatBinary" 2000 false true
        (out: *mut OpaqueHandle, image: OpaqueHandle) = kernels::load_data;
    cuModuleUnload "cuModuleUnload" 2000 false false (module: OpaqueHandle) = kernels::unload;
    cuLibraryLoadData "cuLibraryLoadData" 12000 false true
        (out: *mut OpaqueHandle, image: OpaqueHandle, names: OpaqueHandle, values: OpaqueHandle, count: u32,
         more_names: OpaqueHandle, more_values: OpaqueHandle, more: u32) = kernels::load_library;
    cuLibraryLoadFromFile "cuLibraryLoadFromFile" 12000 false true
        (out: *mut OpaqueHandle, path: OpaqueHandle, names: OpaqueHandle, values: OpaqueHandle, count: u32,
         more_names: OpaqueHandle, more_values: OpaqueHandle, more: u32) = kernels::load_library;
    cuLibraryUnload "cuLibraryUnload" 12000 false false (library: OpaqueHandle) = kernels::unload;
    cuModuleGetFunction "cuModuleGetFunction" 2000 false false
        (out: *mut OpaqueHandle, module: OpaqueHandle, name: *const c_char) = kernels::find;
    cuLibraryGetKernel "cuLibraryGetKernel" 12000 false false
        (out: *mut OpaqueHandle, library: OpaqueHandle, name: *const c_char) = kernels::find;
    cuLibraryGetModule "cuLibraryGetModule" 12000 false false
        (out: *mut OpaqueHandle, library: OpaqueHandle) = kernels::pick;
    cuKernelGetFunction "cuKernelGetFunction" 12000 false false
        (out: *mut OpaqueHandle, kernel: OpaqueHandle) = kernels::pick;
    cuFuncLoad "cuFuncLoad" 12040 false false (function: OpaqueHandle) = kernels::load_now;
    cuFuncGetAttribute "cuFuncGetAttribute" 2020 false false
        (out: *mut c_int, which: c_int, function: OpaqueHandle) = kernels::attribute;
    cuFuncSetAttribute "cuFuncSetAttribute" 9000 false false
        (function: OpaqueHandle, which: c_int, value: c_int) = kernels::set_attribute;
    cuKernelGetAttribute "cuKernelGetAttribute" 12000 false false
        (out: *mut c_int, which: c_int, kernel: OpaqueHandle, device: c_int) = kernels::kernel_attribute;
    cuKernelSetAttribute "cuKernelSetAttribute" 12000 false false
        (which: c_int, value: c_int, kernel: OpaqueHandle, device: c_int) = kernels::set_kernel_attribute;
    cuOccupancyMaxActiveBlocksPerMultiprocessor "cuOccupancyMaxActiveBlocksPerMultiprocessor" 6050 false false
        (out: *mut c_int, function: OpaqueHandle, block: c_int, shared: usize) = kernels::occupancy;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" 7000 false false
        (out: *mut c_int, function: OpaqueHandle, block: c_int, shared: usize, flags: u32)
        = kernels::occupancy_with;
    cuStreamCreate "cuStreamCreate" 2000 false false (out: *mut OpaqueHandle, flags: u32) = kernels::stream;
    cuStreamCreateWithPriority "cuStreamCreateWithPriority" 5050 false false
        (out: *mut OpaqueHandle, flags: u32, priority: c_int) = kernels::stream_with;
    cuCtxSetLimit "cuCtxSetLimit" 3010 false false (which: c_int, value: usize) = kernels::set_limit;

    cuLaunchKernel "cuLaunchKernel" 4000 false false
        (function: OpaqueHandle, a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, shared: u32,
         stream: OpaqueHandle, arguments: OpaqueHandle, extra: OpaqueHandle) = kernels::launch;
    cuLaunchKernel_ptsz "cuLaunchKernel" 7000 true false
        (function: OpaqueHandle, a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, shared: u32,
         stream: OpaqueHandle, arguments: OpaqueHandle, extra: OpaqueHandle) = kernels::launch;
    cuLaunchKernelEx "cuLaunchKernelEx" 11060 false false
        (how: OpaqueHandle, function: OpaqueHandle, arguments: OpaqueHandle, extra: OpaqueHandle) = kernels::launch_ex;
    cuLaunchKernelEx_ptsz "cuLaunchKernelEx" 11060 true false
        (how: OpaqueHandle, function: OpaqueHandle, arguments: OpaqueHandle, extra: OpaqueHandle) = kernels::launch_ex;
    cuLaunchCooperativeKernel "cuLaunchCooperativeKernel" 9000 false false
        (function: OpaqueHandle, a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, shared: u32,
         stream: OpaqueHandle, arguments: OpaqueHandle) = kernels::launch_together;
    cuLaunchCooperativeKernel_ptsz "cuLaunchCooperativeKernel" 9000 true false
        (function: OpaqueHandle, a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, shared: u32,
         stream: OpaqueHandle, arguments: OpaqueHandle) = kernels::launch_together;

    cuMemGetInfo_v2 "cuMemGetInfo" 3020 false false
        (free: *mut usize, total: *mut usize) = memory_info::memory;
    cuDeviceTotalMem_v2 "cuDeviceTotalMem" 3020 false false
        (out: *mut usize, device: c_int) = memory_info::total;
    cuDeviceTotalMem "cuDeviceTotalMem" 2000 false false
        (out: *mut u32, device: c_int) = memory_info::total_small;
    nvmlDeviceGetMemoryInfo "nvmlDeviceGetMemoryInfo" 0 false false
        (device: OpaqueHandle, info: *mut nvml::NvmlMemory) = nvml::memory;
    nvmlDeviceGetMemoryInfo_v2 "nvmlDeviceGetMemoryInfo_v2" 0 false false
        (device: OpaqueHandle, info: *mut nvml::NvmlMemoryV2) = nvml::memory2;
}

unsafe fn proc_address(
    _: &ProcessGuard,
    symbol: *const c_char,
    found: *mut OpaqueHandle,
    version: c_int,
    flags: u64,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    let code = call();
    if code == SUCCESS {
        // SAFETY: the program's own arguments, of a call that succeeded.
        unsafe { intercept::replace(symbol, found, version, flags) };
    }
    code
}

unsafe fn proc_address_v2(
    guard: &ProcessGuard,
    symbol: *const c_char,
    found: *mut OpaqueHandle,
    version: c_int,
    flags: u64,
    _: *mut c_int,
    call: impl FnOnce() -> DriverCode,
) -> DriverCode {
    // SAFETY: handed on.
    unsafe { proc_address(guard, symbol, found, version, flags, call) }
}
