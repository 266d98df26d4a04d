//! The driver's functions that we call, under the names that the driver exports.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUlaunchConfig,
    CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmodule, CUstream,
};

use crate::library::SharedLibrary;

/// A function that gives the driver's static text for a code.
pub(crate) type ErrorText = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// Declares the table. A missing function is an error unless it is listed as optional.
macro_rules! table {
    (
        required { $($name:ident($($argument:ty),*);)* }
        optional { $($other:ident($($given:ty),*);)* }
    ) => {
        #[derive(Debug)]
        #[expect(non_snake_case, reason = "the driver's own names")]
        pub(crate) struct DriverTable {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
            $(pub(crate) $other: Option<unsafe extern "C" fn($($given),*) -> c_int>,)*
        }

        impl DriverTable {
            /// Looks up every function; the error is the name of the first missing one.
            #[expect(unsafe_code, reason = "a symbol has no type of its own")]
            pub(crate) fn load(library: &SharedLibrary) -> Result<DriverTable, &'static str> {
                Ok(DriverTable {
                    // SAFETY: the types are those of the driver's header. A driver never
                    // changes them: a new signature gets a new name.
                    $($name: unsafe { library.find(stringify!($name)) }
                        .ok_or(stringify!($name))?,)*
                    // SAFETY: as above.
                    $($other: unsafe { library.find(stringify!($other)) },)*
                })
            }
        }
    };
}

table! {
    required {
        cuInit(c_uint);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDeviceTotalMem_v2(*mut usize, CUdevice);
        cuDeviceGetAttribute(*mut c_int, c_int, CUdevice);
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuDevicePrimaryCtxRelease_v2(CUdevice);
        cuCtxGetCurrent(*mut CUcontext);
        cuCtxPushCurrent_v2(CUcontext);
        cuCtxPopCurrent_v2(*mut CUcontext);
        cuCtxGetDevice(*mut CUdevice);
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAlloc_v2(*mut CUdeviceptr, usize);
        cuMemFree_v2(CUdeviceptr);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuMemAllocManaged(*mut CUdeviceptr, usize, c_uint);
        cuMemcpyHtoD_v2(CUdeviceptr, *const c_void, usize);
        cuMemcpyDtoH_v2(*mut c_void, CUdeviceptr, usize);
        cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
        cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
        cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
        cuStreamCreate(*mut CUstream, c_uint);
        cuStreamDestroy_v2(CUstream);
        cuStreamSynchronize(CUstream);
        cuStreamWaitEvent(CUstream, CUevent, c_uint);
        cuEventCreate(*mut CUevent, c_uint);
        cuEventDestroy_v2(CUevent);
        cuEventRecord(CUevent, CUstream);
        cuEventQuery(CUevent);
        cuEventSynchronize(CUevent);
        cuModuleLoadData(*mut CUmodule, *const c_void);
        cuModuleUnload(CUmodule);
        cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
            *mut *mut c_void, *mut *mut c_void
        );
    }
    optional {
        cuFuncSetAttribute(CUfunction, c_int, c_int);
        cuLaunchKernelEx(
            *const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void
        );
        cuGetErrorName(c_int, *mut *const c_char);
        cuGetErrorString(c_int, *mut *const c_char);
        cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
        cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, c_int);
        cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        cuMemAddressFree(CUdeviceptr, usize);
        cuMemCreate(
            *mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong
        );
        cuMemRelease(CUmemGenericAllocationHandle);
        cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
        cuMemUnmap(CUdeviceptr, usize);
        cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        cuMemExportToShareableHandle(
            *mut c_void, CUmemGenericAllocationHandle, c_int, c_ulonglong
        );
        cuMemImportFromShareableHandle(*mut CUmemGenericAllocationHandle, *mut c_void, c_int);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuStreamBeginCapture_v2(CUstream, c_int);
        cuStreamEndCapture(CUstream, *mut CUgraph);
        cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
        cuGraphLaunch(CUgraphExec, CUstream);
        cuGraphExecDestroy(CUgraphExec);
        cuGraphDestroy(CUgraph);
    }
}

/// The CUDA version of a driver. We ask for it before we look up functions: for an old
/// driver, "it is too old" is a better error than the name of a missing function.
#[expect(unsafe_code, reason = "a foreign call")]
pub(crate) fn version(library: &SharedLibrary) -> Result<c_int, String> {
    type Version = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: the type is that of the driver's header.
    let function = unsafe { library.find::<Version>("cuDriverGetVersion") }
        .ok_or("has no cuDriverGetVersion: it is not NVIDIA's driver")?;
    let mut version = 0;
    // SAFETY: the driver writes one number to a variable of ours; the call is allowed before
    // cuInit.
    match unsafe { function(&raw mut version) } {
        0 => Ok(version),
        code => Err(format!("does not report its version: code {code}")),
    }
}
