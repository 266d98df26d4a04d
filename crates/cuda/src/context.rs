//! Contexts: the driver's state for one device in one process.
//!
//! We use the device's primary context, the same as the CUDA runtime, so that memory and
//! streams can be passed to libraries that are built on the runtime; or a context of the
//! caller's. Each thread has one current context. Every call of ours makes its context
//! current and restores the previous one, so it does not disturb a thread that works with
//! another context.

use std::ffi::{c_char, c_int};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute};

use super::{CallResult, Driver, call, text};

/// A context. Each call makes it current.
#[derive(Debug)]
pub struct Context {
    pub(crate) driver: &'static Driver,
    pub(crate) raw: CUcontext,
    pub(crate) device: CUdevice,
    /// Whether it is the primary context, which the driver counts references to.
    retained: bool,
}

// SAFETY: the driver allows every call on a context from every thread that has made it
// current, which `enter` does before each call.
#[expect(unsafe_code, reason = "a pointer that the driver guards")]
unsafe impl Send for Context {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a pointer that the driver guards")]
unsafe impl Sync for Context {}

/// Keeps the context current until it is dropped.
pub(crate) struct Entered<'a> {
    context: &'a Context,
    pushed: bool,
}

impl Driver {
    /// The device of a number.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn device(&self, number: u32) -> CallResult<CUdevice> {
        let mut device = 0;
        let number = c_int::try_from(number).unwrap_or(c_int::MAX);
        // SAFETY: the driver writes one number to a variable of ours, and refuses the number
        // of a device that does not exist.
        unsafe { call!(self, cuDeviceGet(&raw mut device, number)) }?;
        Ok(device)
    }

    /// The device's name.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn name(&self, device: CUdevice) -> CallResult<String> {
        let mut name = [0; 256];
        // SAFETY: the driver writes no more than the length that it is told.
        unsafe { call!(self, cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device)) }?;
        Ok(text(&name))
    }

    /// The PCI address, such as `0000:1b:00.0`, as NVML and the system report it.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn bus_id(&self, device: CUdevice) -> Option<String> {
        let function = self.table.cuDeviceGetPCIBusId?;
        let mut id: [c_char; 32] = [0; 32];
        // SAFETY: the driver writes no more than the length that it is told.
        let code = unsafe { function(id.as_mut_ptr(), id.len() as c_int, device) };
        (code == 0).then(|| text(&id))
    }

    /// The total memory of the device in bytes.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn total(&self, device: CUdevice) -> CallResult<u64> {
        let mut total = 0;
        // SAFETY: one number is written to a place of ours.
        unsafe { call!(self, cuDeviceTotalMem_v2(&raw mut total, device)) }?;
        Ok(total as u64)
    }

    /// One of its attributes; `None` where the driver does not know it.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn attribute(&self, device: CUdevice, which: CUdevice_attribute) -> Option<i32> {
        let mut value = 0;
        // SAFETY: the driver writes one number to a variable of ours, and refuses an
        // attribute that it does not know.
        let asked =
            unsafe { call!(self, cuDeviceGetAttribute(&raw mut value, which as c_int, device)) };
        asked.ok().map(|()| value)
    }
}

impl Context {
    /// Retains the primary context of a device; the driver creates it if it does not exist.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn primary(driver: &'static Driver, number: u32) -> CallResult<Context> {
        let device = driver.device(number)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver writes a pointer to a variable of ours; `drop` releases it.
        unsafe { call!(driver, cuDevicePrimaryCtxRetain(&raw mut raw, device)) }?;
        Ok(Context { driver, raw, device, retained: true })
    }

    /// Uses a context of the caller's.
    ///
    /// # Safety
    ///
    /// `raw` is a context of this driver and outlives the returned value.
    #[expect(unsafe_code, reason = "a pointer of the caller's")]
    pub unsafe fn adopt(driver: &'static Driver, raw: CUcontext) -> CallResult<Context> {
        let mut context = Context { driver, raw, device: 0, retained: false };
        let mut device = 0;
        let entered = context.enter()?;
        // SAFETY: the driver writes one number to a variable of ours.
        let asked = unsafe { call!(driver, cuCtxGetDevice(&raw mut device)) };
        drop(entered);
        asked?;
        context.device = device;
        Ok(context)
    }

    /// The driver that it belongs to.
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The device that it is on.
    pub fn device(&self) -> CUdevice {
        self.device
    }

    /// The context as other libraries take it.
    pub fn raw(&self) -> CUcontext {
        self.raw
    }

    /// Makes it current until the returned value is dropped. Where it is current already,
    /// as in most threads, this costs one cheap query.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub(crate) fn enter(&self) -> CallResult<Entered<'_>> {
        let mut current = std::ptr::null_mut();
        // SAFETY: the driver writes a pointer to a variable of ours.
        unsafe { call!(self.driver, cuCtxGetCurrent(&raw mut current)) }?;
        let pushed = current != self.raw;
        if pushed {
            // SAFETY: the context lives as long as this value.
            unsafe { call!(self.driver, cuCtxPushCurrent_v2(self.raw)) }?;
        }
        Ok(Entered { context: self, pushed })
    }

    /// The free memory of the whole device in bytes.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn free_memory(&self) -> CallResult<u64> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two numbers to variables of ours.
        unsafe { call!(self.driver, cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
        Ok(free as u64)
    }
}

impl Drop for Entered<'_> {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: `enter` pushed it in this thread, and every call in between restores
            // the stack. There is nothing to do about a failure.
            let _ = unsafe { (self.context.driver.table.cuCtxPopCurrent_v2)(&raw mut popped) };
        }
    }
}

impl Drop for Context {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        if self.retained {
            // SAFETY: `primary` retained it once. At the end of a process the driver may
            // have shut down already; it then returns an error.
            let _ = unsafe { (self.driver.table.cuDevicePrimaryCtxRelease_v2)(self.device) };
        }
    }
}
