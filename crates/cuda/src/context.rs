//! A context: what the driver keeps for one device in one process.
//!
//! Ours is the device's primary one, the same that the CUDA runtime uses, so that memory
//! and streams can be passed to libraries that are built on it; or one of the caller's.
//! A context is current by thread. Every call of ours enters the context and leaves it
//! again as it found it, so a thread that works with another one is not disturbed.

use std::ffi::{c_char, c_int};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute};

use super::{Done, Driver, call, text};

/// A context, entered by each call.
#[derive(Debug)]
pub struct Context {
    pub(crate) driver: &'static Driver,
    pub(crate) raw: CUcontext,
    pub(crate) device: CUdevice,
    /// Whether it is the primary one, which is counted.
    retained: bool,
}

// SAFETY: the driver allows every call on a context from every thread; it is made current
// in the thread before each.
#[expect(unsafe_code, reason = "a pointer that the driver guards")]
unsafe impl Send for Context {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a pointer that the driver guards")]
unsafe impl Sync for Context {}

/// While it lives the context is current.
pub(crate) struct Entered<'a> {
    context: &'a Context,
    pushed: bool,
}

impl Driver {
    /// The device of a number.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn device(&self, number: u32) -> Done<CUdevice> {
        let mut device = 0;
        let number = c_int::try_from(number).unwrap_or(c_int::MAX);
        // SAFETY: one number is written to a place of ours; a number that is none of a
        // device's is refused.
        unsafe { call!(self, cuDeviceGet(&raw mut device, number)) }?;
        Ok(device)
    }

    /// As the device calls itself.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn name(&self, device: CUdevice) -> Done<String> {
        let mut name = [0; 256];
        // SAFETY: the driver writes no more than the length that it is told.
        unsafe { call!(self, cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device)) }?;
        Ok(text(&name))
    }

    /// Where it sits: `0000:1b:00.0`, as NVML and the system have it, too.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn bus_id(&self, device: CUdevice) -> Option<String> {
        let function = self.table.cuDeviceGetPCIBusId?;
        let mut id: [c_char; 32] = [0; 32];
        // SAFETY: the driver writes no more than the length that it is told.
        let code = unsafe { function(id.as_mut_ptr(), id.len() as c_int, device) };
        (code == 0).then(|| text(&id))
    }

    /// All of its memory.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn total(&self, device: CUdevice) -> Done<u64> {
        let mut total = 0;
        // SAFETY: one number is written to a place of ours.
        unsafe { call!(self, cuDeviceTotalMem_v2(&raw mut total, device)) }?;
        Ok(total as u64)
    }

    /// One of its attributes; nothing where the driver does not know it.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn attribute(&self, device: CUdevice, which: CUdevice_attribute) -> Option<i32> {
        let mut value = 0;
        // SAFETY: one number is written to a place of ours; an attribute that an older
        // driver does not know is refused.
        let asked =
            unsafe { call!(self, cuDeviceGetAttribute(&raw mut value, which as c_int, device)) };
        asked.ok().map(|()| value)
    }
}

impl Context {
    /// The primary context of a device, made if there is none yet.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn primary(driver: &'static Driver, number: u32) -> Done<Context> {
        let device = driver.device(number)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a pointer is written to a place of ours; it is released when dropped.
        unsafe { call!(driver, cuDevicePrimaryCtxRetain(&raw mut raw, device)) }?;
        Ok(Context { driver, raw, device, retained: true })
    }

    /// A context of the caller's.
    ///
    /// # Safety
    ///
    /// `raw` is a context of this driver that outlives what is made of it here.
    #[expect(unsafe_code, reason = "a pointer of the caller's")]
    pub unsafe fn adopt(driver: &'static Driver, raw: CUcontext) -> Done<Context> {
        let mut context = Context { driver, raw, device: 0, retained: false };
        let mut device = 0;
        let entered = context.enter()?;
        // SAFETY: one number is written to a place of ours, about the current context.
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

    /// Makes it current until what is returned is dropped. Where it is current already,
    /// as in most threads, that is one cheap question.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub(crate) fn enter(&self) -> Done<Entered<'_>> {
        let mut current = std::ptr::null_mut();
        // SAFETY: a pointer is written to a place of ours.
        unsafe { call!(self.driver, cuCtxGetCurrent(&raw mut current)) }?;
        let pushed = current != self.raw;
        if pushed {
            // SAFETY: the context lives as long as this value.
            unsafe { call!(self.driver, cuCtxPushCurrent_v2(self.raw)) }?;
        }
        Ok(Entered { context: self, pushed })
    }

    /// What nobody holds now, on the whole device.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub fn free_memory(&self) -> Done<u64> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: two numbers are written to places of ours.
        unsafe { call!(self.driver, cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
        Ok(free as u64)
    }
}

impl Drop for Entered<'_> {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: it was pushed in this thread by `enter`, and calls in between leave
            // the stack as they found it. A failure leaves nothing that could be mended.
            let _ = unsafe { (self.context.driver.table.cuCtxPopCurrent_v2)(&raw mut popped) };
        }
    }
}

impl Drop for Context {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        if self.retained {
            // SAFETY: it was retained once, by `primary`. At the end of a process the
            // driver may be gone already, and says so.
            let _ = unsafe { (self.driver.table.cuDevicePrimaryCtxRelease_v2)(self.device) };
        }
    }
}
