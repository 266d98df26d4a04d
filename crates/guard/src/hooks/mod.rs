//! The driver's functions that the guard stands in for, one file for each family.
//!
//! A hook has the driver's own signature. It does its work only inside a run; otherwise, and
//! wherever it does not understand what it is given, it passes the call on as it came. What
//! a program passes is never trusted: a null pointer goes to the driver, which says what is
//! wrong with it.

#![expect(unsafe_code, reason = "calls the driver through addresses that were looked up")]
#![expect(non_snake_case, reason = "the driver's names")]

mod array;
mod ask;
mod code;
mod context;
mod devices;
mod graph;
mod host;
mod info;
mod linear;
mod measure;
mod nvml;
mod physical;
mod pool;
mod tags;
mod track;

use core::ffi::{CStr, c_char, c_int, c_void};

use crate::here::{Here, here};
use crate::reach::{self, Real, Row};

/// The driver's codes.
pub(crate) const SUCCESS: c_int = 0;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const NOT_FOUND: c_int = 500;
pub(crate) const NOT_SUPPORTED: c_int = 801;

pub(crate) type Code = c_int;
pub(crate) type Pointer = u64;
pub(crate) type Handle = *mut c_void;

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
            pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> Code {
                type Function = unsafe extern "C" fn($($type),*) -> Code;
                let real = reals::$name.get();
                if real == 0 {
                    return NOT_FOUND;
                }
                // SAFETY: the address is that of the driver's function of this name, which
                // has this signature.
                let real = unsafe { core::mem::transmute::<usize, Function>(real) };
                // SAFETY: the arguments are the program's, for the driver.
                let call = || unsafe { real($($arg),*) };
                match here() {
                    // SAFETY: the pointers among the arguments are what the driver takes.
                    Some(here) => unsafe { $body(here, $($arg,)* call) },
                    None if $takes && crate::here::is_closed() => OUT_OF_MEMORY,
                    None => call(),
                }
            }
        )*

        /// Where the driver's own functions are.
        #[expect(non_upper_case_globals, reason = "the driver's names")]
        mod reals {
            use super::{Real, c_name};
            $(pub(super) static $name: Real = Real::new(c_name(concat!(stringify!($name), "\0")));)*
        }

        /// Every function that the guard stands in for.
        pub(crate) static ROWS: &[Row] = &[
            $(Row {
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
        (symbol: *const c_char, found: *mut Handle, version: c_int, flags: u64) = proc_address;
    cuGetProcAddress_v2 "cuGetProcAddress" 12000 false false
        (symbol: *const c_char, found: *mut Handle, version: c_int, flags: u64, status: *mut c_int)
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
        (out: *mut Handle, bytes: usize, flags: u32) = host::alloc;
    cuMemAllocHost_v2 "cuMemAllocHost" 3020 false true
        (out: *mut Handle, bytes: usize) = host::alloc_plain;
    cuMemAllocHost "cuMemAllocHost" 2000 false true
        (out: *mut Handle, bytes: u32) = host::alloc_small;
    cuMemFreeHost "cuMemFreeHost" 2000 false false (at: Handle) = host::free;
    cuMemHostRegister_v2 "cuMemHostRegister" 6050 false true
        (at: Handle, bytes: usize, flags: u32) = host::register;
    cuMemHostRegister "cuMemHostRegister" 4000 false true
        (at: Handle, bytes: usize, flags: u32) = host::register;
    cuMemHostUnregister "cuMemHostUnregister" 4000 false false (at: Handle) = host::free;

    cuArrayCreate_v2 "cuArrayCreate" 3020 false true
        (out: *mut Handle, shape: *const array::Shape) = array::create;
    cuArray3DCreate_v2 "cuArray3DCreate" 3020 false true
        (out: *mut Handle, shape: *const array::Shape3) = array::create3;
    cuArrayCreate "cuArrayCreate" 2000 false true
        (out: *mut Handle, shape: *const array::SmallShape) = array::create_small;
    cuArray3DCreate "cuArray3DCreate" 2000 false true
        (out: *mut Handle, shape: *const array::SmallShape3) = array::create3_small;
    cuArrayDestroy "cuArrayDestroy" 2000 false false (array: Handle) = array::destroy;
    cuMipmappedArrayCreate "cuMipmappedArrayCreate" 5000 false true
        (out: *mut Handle, shape: *const array::Shape3, levels: u32) = array::mipmap;
    cuMipmappedArrayDestroy "cuMipmappedArrayDestroy" 5000 false false (array: Handle) = array::destroy;

    cuMemCreate "cuMemCreate" 10020 false true
        (out: *mut u64, bytes: usize, how: *const physical::Properties, flags: u64)
        = physical::create;
    cuMemRelease "cuMemRelease" 10020 false false (handle: u64) = physical::release;
    cuMemRetainAllocationHandle "cuMemRetainAllocationHandle" 11000 false false
        (out: *mut u64, address: Pointer) = physical::retain;
    cuMemMap "cuMemMap" 10020 false false
        (at: Pointer, bytes: usize, offset: usize, handle: u64, flags: u64) = physical::map;
    cuMemUnmap "cuMemUnmap" 10020 false false (at: Pointer, bytes: usize) = physical::unmap;

    cuMemAllocAsync "cuMemAllocAsync" 11020 false true
        (out: *mut Pointer, bytes: usize, stream: Handle) = pool::alloc;
    cuMemAllocAsync_ptsz "cuMemAllocAsync" 11020 true true
        (out: *mut Pointer, bytes: usize, stream: Handle) = pool::alloc;
    cuMemAllocFromPoolAsync "cuMemAllocFromPoolAsync" 11020 false true
        (out: *mut Pointer, bytes: usize, pool: Handle, stream: Handle) = pool::alloc_from;
    cuMemAllocFromPoolAsync_ptsz "cuMemAllocFromPoolAsync" 11020 true true
        (out: *mut Pointer, bytes: usize, pool: Handle, stream: Handle) = pool::alloc_from;
    cuMemFreeAsync "cuMemFreeAsync" 11020 false false (pointer: Pointer, stream: Handle) = pool::free;
    cuMemFreeAsync_ptsz "cuMemFreeAsync" 11020 true false
        (pointer: Pointer, stream: Handle) = pool::free;
    cuMemPoolCreate "cuMemPoolCreate" 11020 false false
        (out: *mut Handle, how: *const physical::Properties) = pool::create;
    cuMemPoolDestroy "cuMemPoolDestroy" 11020 false false (pool: Handle) = pool::destroy;
    cuMemPoolTrimTo "cuMemPoolTrimTo" 11020 false false (pool: Handle, keep: usize) = pool::trim;
    cuMemPoolImportFromShareableHandle "cuMemPoolImportFromShareableHandle" 11020 false false
        (out: *mut Handle, handle: Handle, kind: c_int, flags: u64) = pool::import;
    cuStreamSynchronize "cuStreamSynchronize" 2000 false false (stream: Handle) = pool::synchronize;
    cuStreamSynchronize_ptsz "cuStreamSynchronize" 7000 true false
        (stream: Handle) = pool::synchronize;
    cuCtxSynchronize "cuCtxSynchronize" 2000 false false () = pool::synchronize_all;

    cuGraphInstantiate_v2 "cuGraphInstantiate" 11000 false false
        (out: *mut Handle, graph: Handle, node: *mut Handle, text: *mut c_char, size: usize)
        = graph::instantiate_v2;
    cuGraphInstantiate "cuGraphInstantiate" 10000 false false
        (out: *mut Handle, graph: Handle, node: *mut Handle, text: *mut c_char, size: usize)
        = graph::instantiate_v2;
    cuGraphInstantiateWithFlags "cuGraphInstantiate" 12000 false false
        (out: *mut Handle, graph: Handle, flags: u64) = graph::instantiate;
    cuGraphInstantiateWithParams "cuGraphInstantiateWithParams" 12000 false false
        (out: *mut Handle, graph: Handle, how: *mut c_void) = graph::instantiate_with;
    cuGraphInstantiateWithParams_ptsz "cuGraphInstantiateWithParams" 12000 true false
        (out: *mut Handle, graph: Handle, how: *mut c_void) = graph::instantiate_with;
    cuGraphLaunch "cuGraphLaunch" 10000 false true (exec: Handle, stream: Handle) = graph::launch;
    cuGraphLaunch_ptsz "cuGraphLaunch" 10000 true true (exec: Handle, stream: Handle) = graph::launch;
    cuGraphUpload "cuGraphUpload" 11010 false true (exec: Handle, stream: Handle) = graph::launch;
    cuGraphUpload_ptsz "cuGraphUpload" 11010 true true (exec: Handle, stream: Handle) = graph::launch;
    cuGraphExecDestroy "cuGraphExecDestroy" 10000 false false (exec: Handle) = graph::destroy;
    cuDeviceGraphMemTrim "cuDeviceGraphMemTrim" 11040 false false (device: c_int) = graph::trim;

    cuCtxCreate_v2 "cuCtxCreate" 3020 false true
        (out: *mut Handle, flags: u32, device: c_int) = context::create_v2;
    cuCtxCreate "cuCtxCreate" 2000 false true
        (out: *mut Handle, flags: u32, device: c_int) = context::create_v2;
    cuCtxCreate_v3 "cuCtxCreate" 11040 false true
        (out: *mut Handle, how: Handle, count: c_int, flags: u32, device: c_int)
        = context::create_v3;
    cuCtxCreate_v4 "cuCtxCreate" 12050 false true
        (out: *mut Handle, how: Handle, flags: u32, device: c_int) = context::create_v4;
    cuCtxDestroy_v2 "cuCtxDestroy" 4000 false false (context: Handle) = context::destroy;
    cuDevicePrimaryCtxRetain "cuDevicePrimaryCtxRetain" 7000 false true
        (out: *mut Handle, device: c_int) = context::retain;
    cuDevicePrimaryCtxRelease "cuDevicePrimaryCtxRelease" 7000 false false
        (device: c_int) = context::let_go;
    cuDevicePrimaryCtxRelease_v2 "cuDevicePrimaryCtxRelease" 11000 false false
        (device: c_int) = context::let_go;
    cuDevicePrimaryCtxReset "cuDevicePrimaryCtxReset" 7000 false false
        (device: c_int) = context::let_go;
    cuDevicePrimaryCtxReset_v2 "cuDevicePrimaryCtxReset" 11000 false false
        (device: c_int) = context::let_go;

    cuModuleLoad "cuModuleLoad" 2000 false true
        (out: *mut Handle, path: *const c_char) = code::load_file;
    cuModuleLoadData "cuModuleLoadData" 2000 false true
        (out: *mut Handle, image: Handle) = code::load_data;
    cuModuleLoadDataEx "cuModuleLoadDataEx" 2010 false true
        (out: *mut Handle, image: Handle, count: u32, names: Handle, values: Handle)
        = code::load_data_ex;
    cuModuleLoadFatBinary "cuModuleLoadFatBinary" 2000 false true
        (out: *mut Handle, image: Handle) = code::load_data;
    cuModuleUnload "cuModuleUnload" 2000 false false (module: Handle) = code::unload;
    cuLibraryLoadData "cuLibraryLoadData" 12000 false true
        (out: *mut Handle, image: Handle, names: Handle, values: Handle, count: u32,
         more_names: Handle, more_values: Handle, more: u32) = code::load_library;
    cuLibraryLoadFromFile "cuLibraryLoadFromFile" 12000 false true
        (out: *mut Handle, path: Handle, names: Handle, values: Handle, count: u32,
         more_names: Handle, more_values: Handle, more: u32) = code::load_library;
    cuLibraryUnload "cuLibraryUnload" 12000 false false (library: Handle) = code::unload;
    cuModuleGetFunction "cuModuleGetFunction" 2000 false false
        (out: *mut Handle, module: Handle, name: *const c_char) = code::find;
    cuLibraryGetKernel "cuLibraryGetKernel" 12000 false false
        (out: *mut Handle, library: Handle, name: *const c_char) = code::find;
    cuLibraryGetModule "cuLibraryGetModule" 12000 false false
        (out: *mut Handle, library: Handle) = code::pick;
    cuKernelGetFunction "cuKernelGetFunction" 12000 false false
        (out: *mut Handle, kernel: Handle) = code::pick;
    cuFuncLoad "cuFuncLoad" 12040 false false (function: Handle) = code::load_now;
    cuFuncGetAttribute "cuFuncGetAttribute" 2020 false false
        (out: *mut c_int, which: c_int, function: Handle) = code::attribute;
    cuFuncSetAttribute "cuFuncSetAttribute" 9000 false false
        (function: Handle, which: c_int, value: c_int) = code::set_attribute;
    cuKernelGetAttribute "cuKernelGetAttribute" 12000 false false
        (out: *mut c_int, which: c_int, kernel: Handle, device: c_int) = code::kernel_attribute;
    cuKernelSetAttribute "cuKernelSetAttribute" 12000 false false
        (which: c_int, value: c_int, kernel: Handle, device: c_int) = code::set_kernel_attribute;
    cuOccupancyMaxActiveBlocksPerMultiprocessor "cuOccupancyMaxActiveBlocksPerMultiprocessor" 6050 false false
        (out: *mut c_int, function: Handle, block: c_int, shared: usize) = code::occupancy;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" 7000 false false
        (out: *mut c_int, function: Handle, block: c_int, shared: usize, flags: u32)
        = code::occupancy_with;
    cuStreamCreate "cuStreamCreate" 2000 false false (out: *mut Handle, flags: u32) = code::stream;
    cuStreamCreateWithPriority "cuStreamCreateWithPriority" 5050 false false
        (out: *mut Handle, flags: u32, priority: c_int) = code::stream_with;
    cuCtxSetLimit "cuCtxSetLimit" 3010 false false (which: c_int, value: usize) = code::set_limit;

    cuLaunchKernel "cuLaunchKernel" 4000 false false
        (function: Handle, a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, shared: u32,
         stream: Handle, arguments: Handle, extra: Handle) = code::launch;
    cuLaunchKernel_ptsz "cuLaunchKernel" 7000 true false
        (function: Handle, a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, shared: u32,
         stream: Handle, arguments: Handle, extra: Handle) = code::launch;
    cuLaunchKernelEx "cuLaunchKernelEx" 11060 false false
        (how: Handle, function: Handle, arguments: Handle, extra: Handle) = code::launch_ex;
    cuLaunchKernelEx_ptsz "cuLaunchKernelEx" 11060 true false
        (how: Handle, function: Handle, arguments: Handle, extra: Handle) = code::launch_ex;
    cuLaunchCooperativeKernel "cuLaunchCooperativeKernel" 9000 false false
        (function: Handle, a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, shared: u32,
         stream: Handle, arguments: Handle) = code::launch_together;
    cuLaunchCooperativeKernel_ptsz "cuLaunchCooperativeKernel" 9000 true false
        (function: Handle, a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, shared: u32,
         stream: Handle, arguments: Handle) = code::launch_together;

    cuMemGetInfo_v2 "cuMemGetInfo" 3020 false false
        (free: *mut usize, total: *mut usize) = info::memory;
    cuDeviceTotalMem_v2 "cuDeviceTotalMem" 3020 false false
        (out: *mut usize, device: c_int) = info::total;
    cuDeviceTotalMem "cuDeviceTotalMem" 2000 false false
        (out: *mut u32, device: c_int) = info::total_small;
    nvmlDeviceGetMemoryInfo "nvmlDeviceGetMemoryInfo" 0 false false
        (device: Handle, info: *mut nvml::Memory) = nvml::memory;
    nvmlDeviceGetMemoryInfo_v2 "nvmlDeviceGetMemoryInfo_v2" 0 false false
        (device: Handle, info: *mut nvml::Memory2) = nvml::memory2;
}

unsafe fn proc_address(
    _: &Here,
    symbol: *const c_char,
    found: *mut Handle,
    version: c_int,
    flags: u64,
    call: impl FnOnce() -> Code,
) -> Code {
    let code = call();
    if code == SUCCESS {
        // SAFETY: the program's own arguments, of a call that succeeded.
        unsafe { reach::replace(symbol, found, version, flags) };
    }
    code
}

unsafe fn proc_address_v2(
    here: &Here,
    symbol: *const c_char,
    found: *mut Handle,
    version: c_int,
    flags: u64,
    _: *mut c_int,
    call: impl FnOnce() -> Code,
) -> Code {
    // SAFETY: handed on.
    unsafe { proc_address(here, symbol, found, version, flags, call) }
}
