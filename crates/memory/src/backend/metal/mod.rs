//! Apple's devices, by Metal, on macOS.
//!
//! Metal comes with the system, so nothing is looked up at run time: on macOS it is
//! linked, and elsewhere there is none and the answer says so.

use std::sync::Arc;

use crate::memory::Device;
use plimsoll_machine::error::Result;

#[cfg(target_os = "macos")]
mod device;
#[cfg(target_os = "macos")]
pub use device::Metal;

/// How many devices there are, or why there is none.
pub fn count() -> Result<u32> {
    #[cfg(target_os = "macos")]
    return device::count();
    #[cfg(not(target_os = "macos"))]
    Err(elsewhere())
}

/// The device of a number.
pub fn open(number: u32) -> Result<Arc<dyn Device>> {
    #[cfg(target_os = "macos")]
    return Ok(Arc::new(Metal::open(number)?));
    #[cfg(not(target_os = "macos"))]
    {
        let _ = number;
        Err(elsewhere())
    }
}

#[cfg(not(target_os = "macos"))]
fn elsewhere() -> plimsoll_machine::error::Error {
    plimsoll_machine::error::Error::Unavailable {
        what: "Metal".to_string(),
        why: format!("it exists on macOS only, and this is {}", std::env::consts::OS),
    }
}
