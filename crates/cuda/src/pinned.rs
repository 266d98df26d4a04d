//! Host memory of the caller's that is page-locked, so that copies between it and a device run
//! at full speed and beside other work. [`BlockKind::Pinned`](crate::BlockKind) is memory that
//! the driver allocates page-locked instead.

use std::ffi::c_void;
use std::sync::Arc;

use crate::Context;
use crate::error::CudaResult;

/// Page-locked for every context.
const PORTABLE: u32 = 0x01;

/// A range of host memory that is page-locked until this value is dropped.
#[derive(Debug)]
pub struct PinnedRange {
    context: Arc<Context>,
    start: *mut c_void,
}

// SAFETY: only the driver uses the address, and it accepts it from every thread.
#[expect(unsafe_code, reason = "an address that only the driver uses")]
unsafe impl Send for PinnedRange {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "an address that only the driver uses")]
unsafe impl Sync for PinnedRange {}

impl PinnedRange {
    /// Page-locks a range.
    ///
    /// # Safety
    ///
    /// The memory stays allocated at this address until the returned value is dropped, and no
    /// copy of it is under way then.
    #[expect(unsafe_code, reason = "a foreign call")]
    pub unsafe fn new<T>(context: &Arc<Context>, memory: &mut [T]) -> CudaResult<PinnedRange> {
        let driver = context.driver;
        let register =
            driver.optional(driver.table.cuMemHostRegister_v2, "cuMemHostRegister_v2")?;
        driver.optional(driver.table.cuMemHostUnregister, "cuMemHostUnregister")?;
        let _entered = context.enter()?;
        let start = memory.as_mut_ptr().cast::<c_void>();
        // SAFETY: the range is that of a slice, and the caller promises that it stays.
        let code = unsafe { register(start, size_of_val(memory), PORTABLE) };
        driver.check("cuMemHostRegister_v2", code)?;
        Ok(PinnedRange { context: Arc::clone(context), start })
    }
}

impl Drop for PinnedRange {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        if let Some(unregister) = self.context.driver.table.cuMemHostUnregister
            && let Ok(_entered) = self.context.enter()
        {
            // SAFETY: `new` registered it, and it is unregistered once.
            let _ = unsafe { unregister(self.start) };
        }
    }
}
