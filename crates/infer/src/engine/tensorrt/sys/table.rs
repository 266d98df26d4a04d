//! The shim's functions as C has them, found in a library or linked in.

use std::ffi::{c_char, c_void};
use std::path::Path;

/// Who to ask for memory, as the shim wants it.
#[repr(C)]
pub(super) struct RawLedger {
    pub(super) user: *mut c_void,
    pub(super) charge: extern "C" fn(*mut c_void, u64) -> i32,
    pub(super) release: extern "C" fn(*mut c_void, u64),
}

/// A tensor, as the shim tells it.
#[repr(C)]
pub(super) struct RawTensor {
    pub(super) name: *const c_char,
    pub(super) is_input: i32,
    pub(super) element: i32,
    pub(super) rank: i32,
    pub(super) dims: [i64; 8],
}

#[repr(C)]
pub(super) struct RawBuild {
    pub(super) fp16: i32,
    pub(super) int8: i32,
    pub(super) no_tactic_sources: i32,
    pub(super) quick: i32,
    pub(super) workspace: u64,
    pub(super) user: *mut c_void,
    pub(super) next: extern "C" fn(*mut c_void, *mut c_void, u64) -> i32,
}

/// Every function of the shim.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    pub(super) abi: unsafe extern "C" fn() -> i32,
    pub(super) load: unsafe extern "C" fn(*const c_char, *mut i32, *mut c_char, usize) -> i32,
    pub(super) open: unsafe extern "C" fn(
        *const c_void,
        u64,
        i32,
        i32,
        *const RawLedger,
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

impl Table {
    /// Loads the library of a file, and finds them in it.
    pub(super) fn from_file(path: &Path) -> Result<Table, String> {
        // SAFETY: loading a library runs its initialisers. It is a file that the user
        // named, or one of ours in a directory that only the user writes to.
        let library = unsafe { libloading::Library::new(path) }.map_err(|e| e.to_string())?;
        // Never unloaded: TensorRT keeps what it was given for as long as the process runs.
        let library = Box::leak(Box::new(library));
        macro_rules! find {
            ($($field:ident: $name:literal,)*) => {
                Table { $($field: {
                    // SAFETY: these are the signatures in shim.cpp; `abi` is asked before
                    // any other is called.
                    *unsafe { library.get($name) }.map_err(|_| {
                        let name = String::from_utf8_lossy($name);
                        format!("it has no {}", name.trim_end_matches('\0'))
                    })?
                },)* }
            };
        }
        Ok(find! {
            abi: b"plimsoll_trt_abi\0",
            load: b"plimsoll_trt_load\0",
            open: b"plimsoll_trt_open\0",
            close: b"plimsoll_trt_close\0",
            tensors: b"plimsoll_trt_tensors\0",
            tensor: b"plimsoll_trt_tensor\0",
            shape: b"plimsoll_trt_shape\0",
            prepare: b"plimsoll_trt_prepare\0",
            run: b"plimsoll_trt_run\0",
            has_graph: b"plimsoll_trt_has_graph\0",
            scratch: b"plimsoll_trt_scratch\0",
            build: b"plimsoll_trt_build\0",
            free: b"plimsoll_trt_free\0",
        })
    }

    /// Those that were compiled in.
    #[cfg(feature = "tensorrt")]
    pub(super) fn linked() -> Table {
        // SAFETY: declarations of what build.rs compiled from shim.cpp, with the same types.
        unsafe extern "C" {
            fn plimsoll_trt_abi() -> i32;
            fn plimsoll_trt_load(a: *const c_char, b: *mut i32, c: *mut c_char, d: usize) -> i32;
            fn plimsoll_trt_open(
                a: *const c_void,
                b: u64,
                c: i32,
                d: i32,
                e: *const RawLedger,
                f: *mut *mut c_void,
                g: *mut c_char,
                h: usize,
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
        Table {
            abi: plimsoll_trt_abi,
            load: plimsoll_trt_load,
            open: plimsoll_trt_open,
            close: plimsoll_trt_close,
            tensors: plimsoll_trt_tensors,
            tensor: plimsoll_trt_tensor,
            shape: plimsoll_trt_shape,
            prepare: plimsoll_trt_prepare,
            run: plimsoll_trt_run,
            has_graph: plimsoll_trt_has_graph,
            scratch: plimsoll_trt_scratch,
            build: plimsoll_trt_build,
            free: plimsoll_trt_free,
        }
    }
}
