//! A kernel that touches a block: work in flight for replays.

use std::sync::Arc;

use super::{Code, Cuda, Function, Launch};
use crate::memory::{Address, Stream};
use plimsoll_machine::error::Result;
use plimsoll_machine::units::Bytes;

/// One word is written in every so many bytes.
const STEP: u32 = 2 << 20;

/// Queues kernels that write to every page of a block.
#[derive(Debug, Clone)]
pub struct Toucher {
    device: Arc<Cuda>,
    touch: Function,
}

impl Toucher {
    /// Loads the kernel.
    pub fn new(device: &Arc<Cuda>) -> Result<Toucher> {
        let module = device.load(&Code::ptx(include_str!("touch.ptx")))?;
        Ok(Toucher { device: Arc::clone(device), touch: module.function("touch")? })
    }

    /// Queues a write to every page of the range. As with all queued work, the memory must
    /// not go back to the device before it is over; a pool sees to that.
    #[expect(unsafe_code, reason = "compiled code is launched")]
    pub fn touch(&self, stream: Stream, at: Address, size: Bytes) -> Result<()> {
        if size.get() < 4 {
            return Ok(());
        }
        self.device.space().check(at.pointer(), size.get())?;
        let pages = u32::try_from((size.get() - 4) / u64::from(STEP) + 1).unwrap_or(u32::MAX);
        let arguments = [at.into(), pages.into(), STEP.into()];
        // SAFETY: the arguments are those of the kernel's source; it writes four bytes at
        // every step below the size, all of which has memory behind it.
        unsafe { self.touch.launch(stream, Launch::over(pages, 64), &arguments) }
    }
}
