//! The shim's functions as C has them, found in a library or linked in.

use std::ffi::{c_char, c_void};
use std::path::Path;

use crate::engine::messages::loader_message;

/// The budget that the shim reserves device memory from, as C has it.
#[repr(C)]
pub(super) struct RawBudget {
    pub(super) user: *mut c_void,
    pub(super) charge: extern "C" fn(*mut c_void, u64) -> i32,
    pub(super) release: extern "C" fn(*mut c_void, u64),
}

/// A tensor, as the shim reports it.
#[repr(C)]
pub(super) struct RawTensor {
    pub(super) name: *const c_char,
    pub(super) is_input: i32,
    pub(super) element: i32,
    pub(super) rank: i32,
    pub(super) dims: [i64; 8],
}

/// Bytes that the shim reads while it builds.
#[repr(C)]
pub(super) struct RawBytes {
    pub(super) data: *const c_void,
    pub(super) length: u64,
}

impl RawBytes {
    pub(super) fn of(bytes: &[u8]) -> RawBytes {
        RawBytes { data: bytes.as_ptr().cast(), length: bytes.len() as u64 }
    }
}

#[repr(C)]
pub(super) struct RawBuild {
    pub(super) fp16: i32,
    pub(super) int8: i32,
    pub(super) no_tactic_sources: i32,
    pub(super) quick: i32,
    pub(super) workspace: u64,
    pub(super) timings: RawBytes,
    pub(super) ranges: RawBytes,
    pub(super) user: *mut c_void,
    pub(super) next: extern "C" fn(*mut c_void, *mut c_void, u64) -> i32,
    pub(super) keep: extern "C" fn(*mut c_void, i32, *const c_void, u64),
}

/// The version of the interface between the shim and this file.
const ABI: i32 = 3;

/// Every function of the shim.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShimTable {
    pub(super) load: unsafe extern "C" fn(*const c_char, *mut i32, *mut c_char, usize) -> i32,
    pub(super) open: unsafe extern "C" fn(
        *const c_void,
        u64,
        i32,
        i32,
        *mut c_void,
        *const RawBudget,
        *mut *mut c_void,
        *mut c_char,
        usize,
    ) -> i32,
    pub(super) close: unsafe extern "C" fn(*mut c_void),
    pub(super) tensors: unsafe extern "C" fn(*const c_void) -> i32,
    pub(super) tensor:
        unsafe extern "C" fn(*const c_void, i32, *mut RawTensor, *mut c_char, usize) -> i32,
    pub(super) shape:
        unsafe extern "C" fn(*mut c_void, i32, i32, *const i64, *mut c_char, usize) -> i32,
    pub(super) prepare: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> i32,
    pub(super) run:
        unsafe extern "C" fn(*mut c_void, *const *mut c_void, *mut c_char, usize) -> i32,
    pub(super) wait: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> i32,
    pub(super) device: unsafe extern "C" fn(*const c_void, i32) -> u64,
    pub(super) has_graph: unsafe extern "C" fn(*const c_void) -> i32,
    pub(super) scratch: unsafe extern "C" fn(*const c_void) -> u64,
    pub(super) build: unsafe extern "C" fn(
        *const c_void,
        u64,
        i32,
        *const RawBuild,
        *mut *mut c_void,
        *mut u64,
        *mut c_char,
        usize,
    ) -> i32,
    pub(super) free: unsafe extern "C" fn(*mut c_void),
}

impl ShimTable {
    /// Loads a library and finds the functions in it.
    pub(super) fn from_file(path: &Path) -> Result<ShimTable, String> {
        // SAFETY: loading a library runs its initialisers. It is a file that the user
        // named, or one of ours in a directory that only the user writes to.
        let library = unsafe { libloading::Library::new(path) };
        let library = library.map_err(|error| loader_message(&error))?;
        // Never unloaded: TensorRT keeps pointers into it until the process ends.
        let library = Box::leak(Box::new(library));
        // SAFETY: it takes nothing and returns a number, in every version.
        let abi = unsafe {
            let abi = library.get::<unsafe extern "C" fn() -> i32>(b"plimsoll_trt_abi\0");
            abi.map_err(|_| "it is not our library for TensorRT".to_string())?()
        };
        if abi != ABI {
            return Err(format!(
                "it speaks version {abi} of our interface, and this plimsoll speaks {ABI}: build \
                 it again with the `plimsoll generate --tensorrt` of this one"
            ));
        }
        macro_rules! find {
            ($($field:ident: $name:literal,)*) => {
                ShimTable { $($field: {
                    // SAFETY: these are the signatures in shim.cpp of this version.
                    *unsafe { library.get($name) }.map_err(|_| {
                        let name = String::from_utf8_lossy($name);
                        format!("it has no {}", name.trim_end_matches('\0'))
                    })?
                },)* }
            };
        }
        Ok(find! {
            load: b"plimsoll_trt_load\0",
            open: b"plimsoll_trt_open\0",
            close: b"plimsoll_trt_close\0",
            tensors: b"plimsoll_trt_tensors\0",
            tensor: b"plimsoll_trt_tensor\0",
            shape: b"plimsoll_trt_shape\0",
            prepare: b"plimsoll_trt_prepare\0",
            run: b"plimsoll_trt_run\0",
            wait: b"plimsoll_trt_wait\0",
            device: b"plimsoll_trt_device\0",
            has_graph: b"plimsoll_trt_has_graph\0",
            scratch: b"plimsoll_trt_scratch\0",
            build: b"plimsoll_trt_build\0",
            free: b"plimsoll_trt_free\0",
        })
    }

    /// The functions that were compiled in.
    #[cfg(feature = "tensorrt")]
    pub(super) fn linked() -> ShimTable {
        // SAFETY: declarations of what build.rs compiled from shim.cpp, with the same types.
        unsafe extern "C" {
            fn plimsoll_trt_load(a: *const c_char, b: *mut i32, c: *mut c_char, d: usize) -> i32;
            fn plimsoll_trt_open(
                a: *const c_void,
                b: u64,
                c: i32,
                d: i32,
                e: *mut c_void,
                f: *const RawBudget,
                g: *mut *mut c_void,
                h: *mut c_char,
                i: usize,
            ) -> i32;
            fn plimsoll_trt_close(a: *mut c_void);
            fn plimsoll_trt_tensors(a: *const c_void) -> i32;
            fn plimsoll_trt_tensor(
                a: *const c_void,
                b: i32,
                c: *mut RawTensor,
                d: *mut c_char,
                e: usize,
            ) -> i32;
            fn plimsoll_trt_shape(
                a: *mut c_void,
                b: i32,
                c: i32,
                d: *const i64,
                e: *mut c_char,
                f: usize,
            ) -> i32;
            fn plimsoll_trt_prepare(a: *mut c_void, b: *mut c_char, c: usize) -> i32;
            fn plimsoll_trt_run(
                a: *mut c_void,
                b: *const *mut c_void,
                c: *mut c_char,
                d: usize,
            ) -> i32;
            fn plimsoll_trt_wait(a: *mut c_void, b: *mut c_char, c: usize) -> i32;
            fn plimsoll_trt_device(a: *const c_void, b: i32) -> u64;
            fn plimsoll_trt_has_graph(a: *const c_void) -> i32;
            fn plimsoll_trt_scratch(a: *const c_void) -> u64;
            fn plimsoll_trt_build(
                a: *const c_void,
                b: u64,
                c: i32,
                d: *const RawBuild,
                e: *mut *mut c_void,
                f: *mut u64,
                g: *mut c_char,
                h: usize,
            ) -> i32;
            fn plimsoll_trt_free(a: *mut c_void);
        }
        ShimTable {
            load: plimsoll_trt_load,
            open: plimsoll_trt_open,
            close: plimsoll_trt_close,
            tensors: plimsoll_trt_tensors,
            tensor: plimsoll_trt_tensor,
            shape: plimsoll_trt_shape,
            prepare: plimsoll_trt_prepare,
            run: plimsoll_trt_run,
            wait: plimsoll_trt_wait,
            device: plimsoll_trt_device,
            has_graph: plimsoll_trt_has_graph,
            scratch: plimsoll_trt_scratch,
            build: plimsoll_trt_build,
            free: plimsoll_trt_free,
        }
    }
}
