//! Compiled code: modules, their functions, and launches.

use std::ffi::{CString, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    CUfunction, CUlaunchAttribute_st, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
    CUmodule,
};

use super::{CallResult, Context, CudaRefusal, RawStream, call};
use crate::error::CudaResult;

/// A loaded module; unloaded when it is dropped.
#[derive(Debug)]
pub struct RawModule {
    context: Arc<Context>,
    raw: CUmodule,
    /// Functions with more shared memory than the default, and how much: to tell the driver takes
    /// a good part of a launch.
    shared: Mutex<Vec<(RawFunction, u32)>>,
}

/// How a launch differs from a plain one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchMode {
    /// The kernel may start before the previous kernel has finished.
    Early,
    /// All blocks run at the same time (a cooperative launch).
    Together,
}

/// A function of a module; valid as long as the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawFunction(CUfunction);

// SAFETY: the driver allows every call on a module from every thread.
#[expect(unsafe_code, reason = "a pointer that the driver guards")]
unsafe impl Send for RawModule {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a pointer that the driver guards")]
unsafe impl Sync for RawModule {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a pointer that the driver guards")]
unsafe impl Send for RawFunction {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a pointer that the driver guards")]
unsafe impl Sync for RawFunction {}

#[expect(unsafe_code, reason = "foreign calls")]
impl RawModule {
    /// Loads PTX or a cubin.
    ///
    /// # Safety
    ///
    /// A compiler of NVIDIA's made the image: the driver reads as many bytes as the image's
    /// own headers say.
    pub unsafe fn load(context: &Arc<Context>, image: &[u8]) -> CallResult<RawModule> {
        let _entered = context.enter()?;
        // PTX is a text that ends with a zero.
        let mut bytes = image.to_vec();
        bytes.push(0);
        let mut raw = std::ptr::null_mut();
        let image = bytes.as_ptr().cast();
        // SAFETY: the driver writes a pointer to a variable of ours, and reads the image before
        // it returns: a text up to its zero, a binary as the caller promised.
        unsafe { call!(context.driver, cuModuleLoadData(&raw mut raw, image)) }?;
        Ok(RawModule { context: Arc::clone(context), raw, shared: Mutex::default() })
    }

    /// A function by its name.
    pub fn function(&self, name: &str) -> CallResult<RawFunction> {
        let name = CString::new(name).map_err(|_| CudaRefusal {
            call: "cuModuleGetFunction",
            code: 1,
            why: format!("{name:?} has a zero in it"),
        })?;
        let _entered = self.context.enter()?;
        let mut raw = std::ptr::null_mut();
        let driver = self.context.driver;
        // SAFETY: the module lives, the name is terminated, and the driver writes a pointer to
        // a variable of ours.
        unsafe { call!(driver, cuModuleGetFunction(&raw mut raw, self.raw, name.as_ptr())) }?;
        Ok(RawFunction(raw))
    }

    /// Launches a function.
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
    ) -> CallResult {
        let _entered = self.context.enter()?;
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        let (stream, none) = (stream.raw(), std::ptr::null_mut());
        let values = arguments.as_mut_ptr();
        // SAFETY: the caller's promise; the driver copies the values before it returns.
        unsafe {
            call!(
                self.context.driver,
                cuLaunchKernel(function.0, gx, gy, gz, bx, by, bz, shared, stream, values, none)
            )
        }
    }
}

#[expect(unsafe_code, reason = "foreign calls")]
impl RawModule {
    /// Lets launches of a function use more dynamic shared memory than the default limit.
    pub fn allow_shared(&self, function: RawFunction, bytes: u32) -> CudaResult<()> {
        const MAX_DYNAMIC_SHARED: c_int = 8;
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.iter().any(|(known, allowed)| *known == function && *allowed >= bytes) {
            return Ok(());
        }
        let driver = self.context.driver;
        let set = driver.optional(driver.table.cuFuncSetAttribute, "cuFuncSetAttribute")?;
        let _entered = self.context.enter()?;
        let number = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: the function belongs to this module, which lives.
        let code = unsafe { set(function.0, MAX_DYNAMIC_SHARED, number) };
        driver.check("cuFuncSetAttribute", code)?;
        shared.retain(|(known, _)| *known != function);
        shared.push((function, bytes));
        Ok(())
    }

    /// Launches a function in a mode that plain launches do not have.
    ///
    /// # Safety
    ///
    /// As for [`RawModule::launch`]; and a function that starts early waits by itself for the
    /// data that it needs.
    pub unsafe fn launch_with(
        &self,
        mode: LaunchMode,
        function: RawFunction,
        stream: &RawStream,
        (grid, block, shared): ([u32; 3], [u32; 3], u32),
        arguments: &mut [*mut c_void],
    ) -> CudaResult<()> {
        let driver = self.context.driver;
        let launch = driver.optional(driver.table.cuLaunchKernelEx, "cuLaunchKernelEx")?;
        let (id, value) = match mode {
            LaunchMode::Early => (
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
            ),
            LaunchMode::Together => (
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
        // SAFETY: the caller's promise; everything pointed to outlives the call.
        let code = unsafe {
            launch(&raw const config, function.0, arguments.as_mut_ptr(), std::ptr::null_mut())
        };
        Ok(driver.check("cuLaunchKernelEx", code)?)
    }
}

impl Drop for RawModule {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: `load` created it, and it is unloaded once; the driver waits for work
            // that runs its code.
            let _ = unsafe { (self.context.driver.table.cuModuleUnload)(self.raw) };
        }
    }
}
