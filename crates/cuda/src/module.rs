//! Compiled code: loaded, looked up, launched.

use std::ffi::{CString, c_int, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUfunction, CUlaunchAttribute_st, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
    CUmodule,
};

use super::{Context, Done, RawStream, Refused, call};
use crate::error::Result;

/// A module; unloaded when it is dropped.
#[derive(Debug)]
pub struct Module {
    context: Arc<Context>,
    raw: CUmodule,
}

/// What a launch can have beside the ordinary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extra {
    /// It may start before the work before it is over.
    Early,
    /// All of its blocks are there at once.
    Together,
}

/// A function of a module; good as long as the module.
#[derive(Debug, Clone, Copy)]
pub struct RawFunction(CUfunction);

// SAFETY: the driver allows every call on a module from every thread.
#[expect(unsafe_code, reason = "a pointer that the driver guards")]
unsafe impl Send for Module {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a pointer that the driver guards")]
unsafe impl Sync for Module {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a pointer that the driver guards")]
unsafe impl Send for RawFunction {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a pointer that the driver guards")]
unsafe impl Sync for RawFunction {}

#[expect(unsafe_code, reason = "foreign calls")]
impl Module {
    /// Loads PTX or a cubin.
    ///
    /// # Safety
    ///
    /// The image is one that a compiler of NVIDIA's made: the driver reads a binary one as
    /// far as its own headers say.
    pub unsafe fn load(context: &Arc<Context>, image: &[u8]) -> Done<Module> {
        let _entered = context.enter()?;
        // PTX is a text, and ends with a zero.
        let mut bytes = image.to_vec();
        bytes.push(0);
        let mut raw = std::ptr::null_mut();
        let image = bytes.as_ptr().cast();
        // SAFETY: a pointer is written to a place of ours; the image is read before this
        // returns, a text up to its zero and a binary as the caller promised.
        unsafe { call!(context.driver, cuModuleLoadData(&raw mut raw, image)) }?;
        Ok(Module { context: Arc::clone(context), raw })
    }

    /// A function by its name.
    pub fn function(&self, name: &str) -> Done<RawFunction> {
        let name = CString::new(name).map_err(|_| Refused {
            call: "cuModuleGetFunction",
            code: 1,
            why: format!("{name:?} has a zero in it"),
        })?;
        let _entered = self.context.enter()?;
        let mut raw = std::ptr::null_mut();
        let driver = self.context.driver;
        // SAFETY: the module lives, the name ends with a zero, and a pointer is written to
        // a place of ours.
        unsafe { call!(driver, cuModuleGetFunction(&raw mut raw, self.raw, name.as_ptr())) }?;
        Ok(RawFunction(raw))
    }

    /// Queues a function.
    ///
    /// # Safety
    ///
    /// The function is of this module; the arguments point to values of the types that it
    /// takes, as many as it takes; and what it does with them is right.
    pub unsafe fn launch(
        &self,
        function: RawFunction,
        stream: &RawStream,
        (grid, block, shared): ([u32; 3], [u32; 3], u32),
        arguments: &mut [*mut c_void],
    ) -> Done {
        let _entered = self.context.enter()?;
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        let (stream, none) = (stream.raw(), std::ptr::null_mut());
        let values = arguments.as_mut_ptr();
        // SAFETY: the caller's word; the values are copied before this returns.
        unsafe {
            call!(
                self.context.driver,
                cuLaunchKernel(function.0, gx, gy, gz, bx, by, bz, shared, stream, values, none)
            )
        }
    }
}

#[expect(unsafe_code, reason = "foreign calls")]
impl Module {
    /// Lets a function ask for more shared memory at its launches than every device has.
    pub fn allow_shared(&self, function: RawFunction, bytes: u32) -> Result<()> {
        const MAX_DYNAMIC_SHARED: c_int = 8;
        let driver = self.context.driver;
        let set = driver.optional(driver.table.cuFuncSetAttribute, "cuFuncSetAttribute")?;
        let _entered = self.context.enter()?;
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: the function is of this module, which lives; two numbers are passed.
        let code = unsafe { set(function.0, MAX_DYNAMIC_SHARED, bytes) };
        Ok(driver.check("cuFuncSetAttribute", code)?)
    }

    /// Queues a function with something that plain launches do not have.
    ///
    /// # Safety
    ///
    /// As for [`Module::launch`]; and a function that starts early waits by itself for what it
    /// needs.
    pub unsafe fn launch_with(
        &self,
        extra: Extra,
        function: RawFunction,
        stream: &RawStream,
        (grid, block, shared): ([u32; 3], [u32; 3], u32),
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let driver = self.context.driver;
        let launch = driver.optional(driver.table.cuLaunchKernelEx, "cuLaunchKernelEx")?;
        let (id, value) = match extra {
            Extra::Early => (
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            ),
            Extra::Together => (
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                CUlaunchAttributeValue { cooperative: 1 },
            ),
        };
        let mut attribute = CUlaunchAttribute_st { id, pad: [0; 4], value };
        let config = CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: block[0],
            blockDimY: block[1],
            blockDimZ: block[2],
            sharedMemBytes: shared,
            hStream: stream.raw(),
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        let _entered = self.context.enter()?;
        // SAFETY: the caller's word; what is pointed to lives until the call has copied it.
        let code = unsafe {
            launch(&raw const config, function.0, arguments.as_mut_ptr(), std::ptr::null_mut())
        };
        Ok(driver.check("cuLaunchKernelEx", code)?)
    }
}

impl Drop for Module {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: it was made by `load` and is unloaded once; the driver waits for
            // work that runs its code.
            let _ = unsafe { (self.context.driver.table.cuModuleUnload)(self.raw) };
        }
    }
}
