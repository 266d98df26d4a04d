//! How a device is opened.

use std::path::{Path, PathBuf};

use plimsoll_cuda::{Context, Driver};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::platform::system_memory;
use plimsoll_machine::units::Bytes;

/// What blocks are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum CudaMemory {
    /// The device's own memory.
    #[default]
    Device,
    /// System memory that stays where it is and that the device reaches by itself.
    Pinned,
    /// Memory that moves between the two as it is used.
    Managed,
}

/// How a device is opened.
///
/// ```
/// use plimsoll_memory::Bytes;
/// use plimsoll_memory::backend::cuda::{Cuda, CudaMemory, CudaOptions};
/// let options = CudaOptions::new(0).total(Bytes::gib(4)).memory(CudaMemory::Pinned);
/// match Cuda::open_with(&options) {
///     Ok(device) => println!("{device:?}"),
///     Err(error) => println!("{error}"), // names the files that were tried
/// }
/// ```
#[derive(Debug, Clone, Default)]
pub struct CudaOptions {
    pub(super) number: u32,
    pub(super) library: Option<PathBuf>,
    pub(super) context: Option<usize>,
    pub(super) total: Option<Bytes>,
    pub(super) mapping: bool,
    pub(super) aliases: bool,
    pub(super) shareable: bool,
    pub(super) memory: CudaMemory,
}

impl CudaOptions {
    /// The device of a number, its own memory, mapped by the page where that works.
    #[must_use]
    pub fn new(number: u32) -> CudaOptions {
        CudaOptions { number, mapping: true, aliases: true, ..CudaOptions::default() }
    }

    /// The driver in this file, not the one that the system has.
    #[must_use]
    pub fn library(mut self, file: impl AsRef<Path>) -> Self {
        self.library = Some(file.as_ref().to_path_buf());
        self
    }

    /// As if the device had no more memory than this.
    #[must_use]
    pub fn total(mut self, total: impl Into<Bytes>) -> Self {
        self.total = Some(total.into());
        self
    }

    /// What blocks are made of.
    #[must_use]
    pub fn memory(mut self, memory: CudaMemory) -> Self {
        self.memory = memory;
        self
    }

    /// Whether physical memory may be mapped by the page, where the device can.
    #[must_use]
    pub fn mapping(mut self, mapping: bool) -> Self {
        self.mapping = mapping;
        self
    }

    /// Whether physical memory may be mapped at several addresses at once, where the device shows that it
    /// can, so that a pool that moves it finds it again without a call to the driver.
    #[must_use]
    pub fn aliases(mut self, aliases: bool) -> Self {
        self.aliases = aliases;
        self
    }

    /// Whether physical memory can be passed to other processes
    /// ([`Cuda::export`](super::Cuda)): it must be asked for when it is taken.
    #[must_use]
    pub fn shareable(mut self, shareable: bool) -> Self {
        self.shareable = shareable;
        self
    }

    /// A context of the caller's (a `CUcontext`) instead of the primary one; the device is
    /// that of the context.
    ///
    /// # Safety
    ///
    /// It is a context of the same driver, and outlives every device that is opened so.
    #[must_use]
    #[expect(unsafe_code, reason = "a pointer of the caller's")]
    pub unsafe fn context(mut self, raw: *mut std::ffi::c_void) -> Self {
        self.context = Some(raw as usize);
        self
    }

    #[expect(unsafe_code, reason = "a pointer of the caller's")]
    pub(super) fn enter(&self, driver: &'static Driver) -> Result<Context> {
        let count = driver.devices()?;
        if self.number >= count {
            return Err(Error::Unavailable {
                what: format!("cuda:{}", self.number),
                why: format!("the driver sees {count} of them, numbered from 0"),
            });
        }
        match self.context {
            // SAFETY: `context` passed the promise on to the caller.
            Some(raw) => Ok(unsafe { Context::adopt(driver, raw as *mut _) }?),
            None => Ok(Context::primary(driver, self.number)?),
        }
    }

    /// The device's size, or the system's for memory that lies there, and no more than told.
    pub(super) fn size(&self, context: &Context) -> Result<Bytes> {
        let size = match self.memory {
            CudaMemory::Device => Bytes(context.driver().total(context.device())?),
            CudaMemory::Pinned | CudaMemory::Managed => {
                system_memory(Path::new("/"))?.total.ok_or_else(|| Error::Unavailable {
                    what: "the size of system memory".to_string(),
                    why: "/proc/meminfo has no MemTotal".to_string(),
                })?
            }
        };
        Ok(self.total.map_or(size, |total| total.min(size)))
    }
}
