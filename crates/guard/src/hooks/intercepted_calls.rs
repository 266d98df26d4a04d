//! The table of intercepted driver calls, one row each; [`super`] says how to add one.
//!
//! A driver exports several versions of a call and keeps the old ones. `cuGetProcAddress` knows
//! them all by one name and chooses by the CUDA version that the program was built for, so a row
//! also says that name and the first version for which it means this function. NVML's functions
//! are not reached that way and have version 0.

#![cfg_attr(not(preload), expect(non_snake_case, reason = "the driver's names"))]

use core::ffi::{c_char, c_int, c_void};

use super::array::{Array3dDescriptor, ArrayDescriptor};
use super::declare::{flag, intercepted_calls};
use super::nvml::{NvmlMemoryInfo, NvmlMemoryInfoV2};
use super::physical::AllocationProperties;
use super::{DriverCode, NOT_FOUND, OUT_OF_MEMORY, OpaqueHandle as Handle, Pointer, c_name};
use crate::attach::attached;
use crate::intercept::{HookEntry, RealFunction};
use crate::log::GuardMemoryKind::{Array, Mipmap};

intercepted_calls! {
    // Looking functions up: the answer is replaced by the guard's own function.
    cuGetProcAddress as "cuGetProcAddress" since 11030
        (symbol: *const c_char, found: *mut Handle, version: c_int, flags: u64)
        => lookup::proc_address(symbol, found, version, flags);
    cuGetProcAddress_v2 as "cuGetProcAddress" since 12000
        (symbol: *const c_char, found: *mut Handle, version: c_int, flags: u64, status: *mut c_int)
        => lookup::proc_address(symbol, found, version, flags);
    cuInit as "cuInit" since 2000 [TAKES_MEMORY] (flags: u32) => context::init();

    // Plain memory: the size of the block. The first versions have 32-bit addresses and sizes.
    cuMemAlloc_v2 as "cuMemAlloc" since 3020 [TAKES_MEMORY]
        (out: *mut Pointer, bytes: usize) => linear::alloc(out, bytes);
    cuMemAlloc as "cuMemAlloc" since 2000 [TAKES_MEMORY]
        (out: *mut u32, bytes: u32) => linear::alloc(out, bytes as usize);
    cuMemAllocPitch_v2 as "cuMemAllocPitch" since 3020 [TAKES_MEMORY]
        (out: *mut Pointer, pitch: *mut usize, width: usize, height: usize, element: u32)
        => linear::pitch(out, pitch, width as u64, height as u64);
    cuMemAllocPitch as "cuMemAllocPitch" since 2000 [TAKES_MEMORY]
        (out: *mut u32, pitch: *mut u32, width: u32, height: u32, element: u32)
        => linear::pitch(out, pitch, width.into(), height.into());
    cuMemAllocManaged as "cuMemAllocManaged" since 6000 [TAKES_MEMORY]
        (out: *mut Pointer, bytes: usize, flags: u32) => linear::managed(out, bytes);
    cuMemFree_v2 as "cuMemFree" since 3020 (pointer: Pointer) => linear::free(pointer);
    cuMemFree as "cuMemFree" since 2000 (pointer: u32) => linear::free(pointer.into());

    // Pinned host memory: its size, where the device shares the host's memory.
    cuMemHostAlloc as "cuMemHostAlloc" since 2020 [TAKES_MEMORY]
        (out: *mut Handle, bytes: usize, flags: u32) => host::alloc(out, bytes);
    cuMemAllocHost_v2 as "cuMemAllocHost" since 3020 [TAKES_MEMORY]
        (out: *mut Handle, bytes: usize) => host::alloc(out, bytes);
    cuMemAllocHost as "cuMemAllocHost" since 2000 [TAKES_MEMORY]
        (out: *mut Handle, bytes: u32) => host::alloc(out, bytes as usize);
    cuMemHostRegister_v2 as "cuMemHostRegister" since 6050 [TAKES_MEMORY]
        (at: Handle, bytes: usize, flags: u32) => host::register(at, bytes);
    cuMemHostRegister as "cuMemHostRegister" since 4000 [TAKES_MEMORY]
        (at: Handle, bytes: usize, flags: u32) => host::register(at, bytes);
    cuMemFreeHost as "cuMemFreeHost" since 2000 (at: Handle) => host::free(at);
    cuMemHostUnregister as "cuMemHostUnregister" since 4000 (at: Handle) => host::free(at);

    // Arrays: what their shape and format take.
    cuArrayCreate_v2 as "cuArrayCreate" since 3020 [TAKES_MEMORY]
        (out: *mut Handle, how: *const ArrayDescriptor<usize>) => array::create(out, how, 1, Array);
    cuArrayCreate as "cuArrayCreate" since 2000 [TAKES_MEMORY]
        (out: *mut Handle, how: *const ArrayDescriptor<u32>) => array::create(out, how, 1, Array);
    cuArray3DCreate_v2 as "cuArray3DCreate" since 3020 [TAKES_MEMORY]
        (out: *mut Handle, how: *const Array3dDescriptor<usize>) => array::create(out, how, 1, Array);
    cuArray3DCreate as "cuArray3DCreate" since 2000 [TAKES_MEMORY]
        (out: *mut Handle, how: *const Array3dDescriptor<u32>) => array::create(out, how, 1, Array);
    cuMipmappedArrayCreate as "cuMipmappedArrayCreate" since 5000 [TAKES_MEMORY]
        (out: *mut Handle, how: *const Array3dDescriptor<usize>, levels: u32)
        => array::create(out, how, levels, Mipmap);
    cuArrayDestroy as "cuArrayDestroy" since 2000 (array: Handle) => array::destroy(array);
    cuMipmappedArrayDestroy as "cuMipmappedArrayDestroy" since 5000
        (array: Handle) => array::destroy(array);

    // Physical memory: its size, for as long as a handle or a mapping of it exists.
    cuMemCreate as "cuMemCreate" since 10020 [TAKES_MEMORY]
        (out: *mut u64, bytes: usize, how: *const AllocationProperties, flags: u64)
        => physical::create(out, bytes, how);
    cuMemRelease as "cuMemRelease" since 10020 (handle: u64) => physical::release(handle);
    cuMemRetainAllocationHandle as "cuMemRetainAllocationHandle" since 11000
        (out: *mut u64, address: Pointer) => physical::retain(out, address);
    cuMemMap as "cuMemMap" since 10020
        (at: Pointer, bytes: usize, offset: usize, handle: u64, flags: u64)
        => physical::map(at, bytes, handle);
    cuMemUnmap as "cuMemUnmap" since 10020 (at: Pointer, bytes: usize) => physical::unmap(at, bytes);

    // Stream-ordered memory: what the pool has reserved.
    cuMemAllocAsync as "cuMemAllocAsync" since 11020 [TAKES_MEMORY]
        (out: *mut Pointer, bytes: usize, stream: Handle) => pool::alloc(out, bytes, stream);
    cuMemAllocAsync_ptsz as "cuMemAllocAsync" since 11020 [TAKES_MEMORY PER_THREAD]
        (out: *mut Pointer, bytes: usize, stream: Handle) => pool::alloc(out, bytes, stream);
    cuMemAllocFromPoolAsync as "cuMemAllocFromPoolAsync" since 11020 [TAKES_MEMORY]
        (out: *mut Pointer, bytes: usize, pool: Handle, stream: Handle)
        => pool::alloc_from(out, bytes, pool, stream);
    cuMemAllocFromPoolAsync_ptsz as "cuMemAllocFromPoolAsync" since 11020 [TAKES_MEMORY PER_THREAD]
        (out: *mut Pointer, bytes: usize, pool: Handle, stream: Handle)
        => pool::alloc_from(out, bytes, pool, stream);
    cuMemFreeAsync as "cuMemFreeAsync" since 11020
        (pointer: Pointer, stream: Handle) => pool::free(pointer, stream);
    cuMemFreeAsync_ptsz as "cuMemFreeAsync" since 11020 [PER_THREAD]
        (pointer: Pointer, stream: Handle) => pool::free(pointer, stream);
    cuMemPoolCreate as "cuMemPoolCreate" since 11020
        (out: *mut Handle, how: *const AllocationProperties) => pool::create(out, how);
    cuMemPoolDestroy as "cuMemPoolDestroy" since 11020 (pool: Handle) => pool::destroy(pool);
    cuMemPoolTrimTo as "cuMemPoolTrimTo" since 11020
        (pool: Handle, keep: usize) => pool::trim(pool);
    cuMemPoolImportFromShareableHandle as "cuMemPoolImportFromShareableHandle" since 11020
        (out: *mut Handle, handle: Handle, kind: c_int, flags: u64) => pool::import(out);
    cuStreamSynchronize as "cuStreamSynchronize" since 2000 (stream: Handle) => pool::synchronize();
    cuStreamSynchronize_ptsz as "cuStreamSynchronize" since 7000 [PER_THREAD]
        (stream: Handle) => pool::synchronize();
    cuCtxSynchronize as "cuCtxSynchronize" since 2000 () => pool::synchronize();

    // Graphs: what the device reserves for their allocation nodes.
    cuGraphInstantiate as "cuGraphInstantiate" since 10000
        (out: *mut Handle, graph: Handle, node: *mut Handle, text: *mut c_char, size: usize)
        => graph::instantiate(out, graph);
    cuGraphInstantiate_v2 as "cuGraphInstantiate" since 11000
        (out: *mut Handle, graph: Handle, node: *mut Handle, text: *mut c_char, size: usize)
        => graph::instantiate(out, graph);
    cuGraphInstantiateWithFlags as "cuGraphInstantiate" since 12000
        (out: *mut Handle, graph: Handle, flags: u64) => graph::instantiate(out, graph);
    cuGraphInstantiateWithParams as "cuGraphInstantiateWithParams" since 12000
        (out: *mut Handle, graph: Handle, how: *mut c_void) => graph::instantiate(out, graph);
    cuGraphInstantiateWithParams_ptsz as "cuGraphInstantiateWithParams" since 12000 [PER_THREAD]
        (out: *mut Handle, graph: Handle, how: *mut c_void) => graph::instantiate(out, graph);
    cuGraphLaunch as "cuGraphLaunch" since 10000 [TAKES_MEMORY]
        (exec: Handle, stream: Handle) => graph::launch(exec);
    cuGraphLaunch_ptsz as "cuGraphLaunch" since 10000 [TAKES_MEMORY PER_THREAD]
        (exec: Handle, stream: Handle) => graph::launch(exec);
    cuGraphUpload as "cuGraphUpload" since 11010 [TAKES_MEMORY]
        (exec: Handle, stream: Handle) => graph::launch(exec);
    cuGraphUpload_ptsz as "cuGraphUpload" since 11010 [TAKES_MEMORY PER_THREAD]
        (exec: Handle, stream: Handle) => graph::launch(exec);
    cuGraphExecDestroy as "cuGraphExecDestroy" since 10000 (exec: Handle) => graph::destroy(exec);
    cuDeviceGraphMemTrim as "cuDeviceGraphMemTrim" since 11040 (device: c_int) => graph::trim(device);

    // Contexts: what the device was seen to lose when one was made.
    cuCtxCreate as "cuCtxCreate" since 2000 [TAKES_MEMORY]
        (out: *mut Handle, flags: u32, device: c_int) => context::create(out, device);
    cuCtxCreate_v2 as "cuCtxCreate" since 3020 [TAKES_MEMORY]
        (out: *mut Handle, flags: u32, device: c_int) => context::create(out, device);
    cuCtxCreate_v3 as "cuCtxCreate" since 11040 [TAKES_MEMORY]
        (out: *mut Handle, how: Handle, count: c_int, flags: u32, device: c_int)
        => context::create(out, device);
    cuCtxCreate_v4 as "cuCtxCreate" since 12050 [TAKES_MEMORY]
        (out: *mut Handle, how: Handle, flags: u32, device: c_int) => context::create(out, device);
    cuCtxDestroy_v2 as "cuCtxDestroy" since 4000 (context: Handle) => context::destroy(context);
    cuDevicePrimaryCtxRetain as "cuDevicePrimaryCtxRetain" since 7000 [TAKES_MEMORY]
        (out: *mut Handle, device: c_int) => context::retain(out, device);
    cuDevicePrimaryCtxRelease as "cuDevicePrimaryCtxRelease" since 7000
        (device: c_int) => context::release_primary(device);
    cuDevicePrimaryCtxRelease_v2 as "cuDevicePrimaryCtxRelease" since 11000
        (device: c_int) => context::release_primary(device);
    cuDevicePrimaryCtxReset as "cuDevicePrimaryCtxReset" since 7000
        (device: c_int) => context::release_primary(device);
    cuDevicePrimaryCtxReset_v2 as "cuDevicePrimaryCtxReset" since 11000
        (device: c_int) => context::release_primary(device);

    // Modules and libraries: what the device was seen to lose when one was loaded.
    cuModuleLoad as "cuModuleLoad" since 2000 [TAKES_MEMORY]
        (out: *mut Handle, path: *const c_char) => kernels::load(out);
    cuModuleLoadData as "cuModuleLoadData" since 2000 [TAKES_MEMORY]
        (out: *mut Handle, image: Handle) => kernels::load(out);
    cuModuleLoadDataEx as "cuModuleLoadDataEx" since 2010 [TAKES_MEMORY]
        (out: *mut Handle, image: Handle, count: u32, names: Handle, values: Handle)
        => kernels::load(out);
    cuModuleLoadFatBinary as "cuModuleLoadFatBinary" since 2000 [TAKES_MEMORY]
        (out: *mut Handle, image: Handle) => kernels::load(out);
    cuModuleUnload as "cuModuleUnload" since 2000 (module: Handle) => kernels::unload(module);
    cuLibraryLoadData as "cuLibraryLoadData" since 12000 [TAKES_MEMORY]
        (out: *mut Handle, image: Handle, names: Handle, values: Handle, count: u32,
         more_names: Handle, more_values: Handle, more: u32) => kernels::load(out);
    cuLibraryLoadFromFile as "cuLibraryLoadFromFile" since 12000 [TAKES_MEMORY]
        (out: *mut Handle, path: Handle, names: Handle, values: Handle, count: u32,
         more_names: Handle, more_values: Handle, more: u32) => kernels::load(out);
    cuLibraryUnload as "cuLibraryUnload" since 12000 (library: Handle) => kernels::unload(library);

    // Looking a kernel up or asking about it may load its code: measured the first time.
    cuModuleGetFunction as "cuModuleGetFunction" since 2000
        (out: *mut Handle, module: Handle, name: *const c_char) => kernels::query(module);
    cuLibraryGetKernel as "cuLibraryGetKernel" since 12000
        (out: *mut Handle, library: Handle, name: *const c_char) => kernels::query(library);
    cuLibraryGetModule as "cuLibraryGetModule" since 12000
        (out: *mut Handle, library: Handle) => kernels::query(library);
    cuKernelGetFunction as "cuKernelGetFunction" since 12000
        (out: *mut Handle, kernel: Handle) => kernels::query(kernel);
    cuFuncLoad as "cuFuncLoad" since 12040 (function: Handle) => kernels::query(function);
    cuFuncGetAttribute as "cuFuncGetAttribute" since 2020
        (out: *mut c_int, which: c_int, function: Handle) => kernels::query(function);
    cuFuncSetAttribute as "cuFuncSetAttribute" since 9000
        (function: Handle, which: c_int, value: c_int) => kernels::query(function);
    cuKernelGetAttribute as "cuKernelGetAttribute" since 12000
        (out: *mut c_int, which: c_int, kernel: Handle, device: c_int) => kernels::query(kernel);
    cuKernelSetAttribute as "cuKernelSetAttribute" since 12000
        (which: c_int, value: c_int, kernel: Handle, device: c_int) => kernels::query(kernel);
    cuOccupancyMaxActiveBlocksPerMultiprocessor as "cuOccupancyMaxActiveBlocksPerMultiprocessor" since 6050
        (out: *mut c_int, function: Handle, block: c_int, shared: usize) => kernels::query(function);
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
        as "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" since 7000
        (out: *mut c_int, function: Handle, block: c_int, shared: usize, flags: u32)
        => kernels::query(function);

    // A stream has queues on the device; limits size the heaps and stacks of kernels.
    cuStreamCreate as "cuStreamCreate" since 2000
        (out: *mut Handle, flags: u32) => kernels::may_grow();
    cuStreamCreateWithPriority as "cuStreamCreateWithPriority" since 5050
        (out: *mut Handle, flags: u32, priority: c_int) => kernels::may_grow();
    cuCtxSetLimit as "cuCtxSetLimit" since 3010 (which: c_int, value: usize) => kernels::may_grow();

    // Launches: the first of a kernel may load code and make local memory.
    cuLaunchKernel as "cuLaunchKernel" since 4000
        (function: Handle, a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, shared: u32,
         stream: Handle, arguments: Handle, extra: Handle) => kernels::launch(function);
    cuLaunchKernel_ptsz as "cuLaunchKernel" since 7000 [PER_THREAD]
        (function: Handle, a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, shared: u32,
         stream: Handle, arguments: Handle, extra: Handle) => kernels::launch(function);
    cuLaunchKernelEx as "cuLaunchKernelEx" since 11060
        (how: Handle, function: Handle, arguments: Handle, extra: Handle)
        => kernels::launch(function);
    cuLaunchKernelEx_ptsz as "cuLaunchKernelEx" since 11060 [PER_THREAD]
        (how: Handle, function: Handle, arguments: Handle, extra: Handle)
        => kernels::launch(function);
    cuLaunchCooperativeKernel as "cuLaunchCooperativeKernel" since 9000
        (function: Handle, a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, shared: u32,
         stream: Handle, arguments: Handle) => kernels::launch(function);
    cuLaunchCooperativeKernel_ptsz as "cuLaunchCooperativeKernel" since 9000 [PER_THREAD]
        (function: Handle, a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, shared: u32,
         stream: Handle, arguments: Handle) => kernels::launch(function);

    // What a program is told about the device: the limit in place of its size.
    cuMemGetInfo_v2 as "cuMemGetInfo" since 3020
        (free: *mut usize, total: *mut usize) => memory_info::free_and_total(free, total);
    cuDeviceTotalMem_v2 as "cuDeviceTotalMem" since 3020
        (out: *mut usize, device: c_int) => memory_info::total(out, device);
    cuDeviceTotalMem as "cuDeviceTotalMem" since 2000
        (out: *mut u32, device: c_int) => memory_info::total(out, device);
    nvmlDeviceGetMemoryInfo as "nvmlDeviceGetMemoryInfo" since 0
        (device: Handle, info: *mut NvmlMemoryInfo) => nvml::memory_info(device, info);
    nvmlDeviceGetMemoryInfo_v2 as "nvmlDeviceGetMemoryInfo_v2" since 0
        (device: Handle, info: *mut NvmlMemoryInfoV2) => nvml::memory_info(device, info);
}
