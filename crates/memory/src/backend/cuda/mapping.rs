//! Physical memory by the page.
//!
//! The driver charges by the handle and hardly by the byte: taking one 14 µs, making it
//! accessible 29 µs, taking it away 19 µs, from 2 to 64 MiB. One call that makes several
//! accessible costs as much as a call for each, so nothing is batched; instead the pool above
//! asks for handles as large as it can use.

#[cfg(unix)]
use std::os::fd::{BorrowedFd, OwnedFd};

use plimsoll_cuda::raw::CUdevice_attribute;

use super::Cuda;
use crate::memory::{Address, Handle, Mapping, refusal};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

impl Cuda {
    /// Maps one page and takes it away again: the only proof that it can be done. On an
    /// Orin the driver has the functions and refuses.
    #[expect(unsafe_code, reason = "memory is mapped by its number")]
    pub(super) fn try_mapping(&self) -> Result<Bytes> {
        let (context, driver) = (&self.context, self.context.driver());
        let says = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
        if driver.attribute(context.device(), says) == Some(0) {
            return Err(Error::Unavailable {
                what: "mapping physical memory".to_string(),
                why: "the device says that it cannot".to_string(),
            });
        }
        driver.require_pages()?;
        let page = context.page_size(self.shareable)?;
        let base = context.reserve(page as usize)?;
        let tried = context.create(page as usize, self.shareable).and_then(|handle| {
            // SAFETY: all three are ours and new, nobody else knows them, no work uses
            // them, and each is returned once.
            unsafe {
                let mapped = context.map(base, handle, page as usize);
                let unmapped = mapped.and_then(|()| context.unmap(base, page as usize));
                unmapped.and(context.destroy(handle))
            }
        });
        // SAFETY: it was reserved above, and nothing is mapped there any more.
        let unreserved = unsafe { context.unreserve(base, page as usize) };
        tried.and(unreserved)?;
        Ok(Bytes(page))
    }

    /// Maps one page at two addresses at once, and reads through each what was written through the
    /// other: the only proof that it can be done.
    #[expect(unsafe_code, reason = "memory is mapped by its number")]
    pub(super) fn try_alias(&self, page: Bytes) -> Result<()> {
        let (context, size) = (&self.context, page.0 as usize);
        let base = context.reserve(2 * size)?;
        let mut same = true;
        let tried = context.create(size, self.shareable).and_then(|handle| {
            let (mut mapped, mut result) = (Vec::new(), Ok(()));
            for address in [base, base + page.0] {
                if result.is_ok() {
                    // SAFETY: all of it is ours and new, and no work uses it.
                    result = unsafe { context.map(address, handle, size) };
                    mapped.extend(result.is_ok().then_some(address));
                }
            }
            for (to, from) in [(base, base + page.0), (base + page.0, base)] {
                let (written, mut read) = (to.to_le_bytes(), [0; 8]);
                // SAFETY: with no failure so far both are mapped, and nobody else knows them.
                result = result.and_then(|()| unsafe {
                    context.write(to, &written).and_then(|()| context.read(from, &mut read))
                });
                same &= result.is_err() || read == written;
            }
            for address in mapped {
                // SAFETY: it was mapped above, and nobody else knows it.
                result = result.and(unsafe { context.unmap(address, size) });
            }
            // SAFETY: it was made above, and is mapped nowhere any more.
            result.and(unsafe { context.destroy(handle) })
        });
        // SAFETY: it was reserved above, and nothing is mapped there any more.
        let unreserved = unsafe { context.unreserve(base, 2 * size) };
        tried.and(unreserved)?;
        let why =
            || "what was written through one address was not read through another".to_string();
        if same { Ok(()) } else { Err(Error::Device { call: "cuMemMap", why: why() }) }
    }

    /// The physical memory behind a range that is mapped by the page, such as a block of a
    /// pool: where each piece begins, its size, and the handle that [`Cuda::export`] takes.
    pub fn pages_behind(&self, at: Address, size: Bytes) -> Result<Vec<(Address, Bytes, Handle)>> {
        let space = self.space();
        space.check(at.pointer(), size.0)?;
        let piece =
            |(base, size, handle)| (Address { buffer: base, offset: 0 }, Bytes(size), handle);
        Ok(space.behind(at.pointer(), size.0).into_iter().map(piece).collect())
    }

    /// A descriptor by which another process can have this physical memory, if the device
    /// was opened to share it ([`CudaOptions::shareable`](super::CudaOptions)).
    #[cfg(unix)]
    #[expect(unsafe_code, reason = "memory is named by its number")]
    pub fn export(&self, handle: Handle) -> Result<OwnedFd> {
        if !self.shareable {
            return Err(Error::Unavailable {
                what: "sharing physical memory".to_string(),
                why: "the device was not opened for it; use CudaOptions::shareable".to_string(),
            });
        }
        let space = self.space();
        space.handle_size(handle)?;
        // SAFETY: the handle is in the table of live ones, and what was locked keeps it.
        Ok(unsafe { self.context.export(handle.0) }?)
    }

    /// The physical memory that was exported, in this process or another, and is of this
    /// size. It counts as held here, too.
    #[cfg(unix)]
    #[expect(unsafe_code, reason = "memory is returned by its number")]
    pub fn import(&self, descriptor: BorrowedFd<'_>, size: Bytes) -> Result<Handle> {
        self.claim(size)?;
        let imported = self.context.import(descriptor);
        let handle = imported.inspect_err(|_| self.space_mut().unclaim(size.0))?;
        let mut space = self.space_mut();
        if space.handle_size(Handle(handle)).is_ok() {
            space.unclaim(size.0);
            // SAFETY: the import counted it once more, and this takes that back.
            let _ = unsafe { self.context.destroy(handle) };
            let why = "this memory has been imported, or made, here before".to_string();
            return Err(Error::Device { call: "cuMemImportFromShareableHandle", why });
        }
        space.add_handle(handle, size.0);
        Ok(Handle(handle))
    }

    fn claim(&self, size: Bytes) -> Result<()> {
        let full = |left| refusal(&self.info.name, size, left, self.info.total);
        self.space_mut().claim(size.0).map_err(full)
    }

    fn whole(&self, call: &'static str, size: Bytes) -> Result<usize> {
        let page = self.page_size().0;
        if size.0 == 0 || !size.0.is_multiple_of(page) {
            let why = format!("{} is not a multiple of {page}", size.0);
            return Err(Error::Device { call, why });
        }
        Ok(size.0 as usize)
    }
}

impl Mapping for Cuda {
    fn page_size(&self) -> Bytes {
        *self.page.as_ref().unwrap_or(&Bytes(1))
    }

    fn can_alias(&self) -> bool {
        self.aliases.is_ok()
    }

    fn reserve(&self, size: Bytes) -> Result<u64> {
        let base = self.context.reserve(self.whole("reserve", size)?)?;
        self.space_mut().add_range(base, size.0);
        Ok(base)
    }

    #[expect(unsafe_code, reason = "a range is returned by its address")]
    fn unreserve(&self, base: u64, size: Bytes) -> Result<()> {
        self.space_mut().take_range(base, size.0)?;
        // SAFETY: it was in the table of ranges with nothing mapped, and is no longer.
        let returned = unsafe { self.context.unreserve(base, size.0 as usize) };
        Ok(returned.inspect_err(|_| self.space_mut().add_range(base, size.0))?)
    }

    fn create(&self, size: Bytes) -> Result<Handle> {
        let bytes = self.whole("create", size)?;
        self.claim(size)?;
        match self.context.create(bytes, self.shareable) {
            Ok(handle) => {
                self.space_mut().add_handle(handle, size.0);
                Ok(Handle(handle))
            }
            Err(refused) => {
                self.space_mut().unclaim(size.0);
                Err(self.refused(size, refused))
            }
        }
    }

    #[expect(unsafe_code, reason = "memory is returned by its number")]
    fn destroy(&self, handle: Handle, size: Bytes) -> Result<()> {
        self.space_mut().take_handle(handle, size.0)?;
        // SAFETY: it was in the table of live handles, mapped nowhere, and is no longer.
        match unsafe { self.context.destroy(handle.0) } {
            Ok(()) => {
                self.space_mut().unclaim(size.0);
                Ok(())
            }
            Err(refused) => {
                self.space_mut().add_handle(handle.0, size.0);
                Err(refused.into())
            }
        }
    }

    #[expect(unsafe_code, reason = "memory is mapped by its number")]
    fn map(&self, address: u64, handle: Handle, size: Bytes) -> Result<()> {
        self.space_mut().add_mapping(address, handle, size.0)?;
        // SAFETY: the table had the range, the handle of this size, and nothing there.
        let mapped = unsafe { self.context.map(address, handle.0, size.0 as usize) };
        Ok(mapped.inspect_err(|_| drop(self.space_mut().take_mapping(address, size.0)))?)
    }

    #[expect(unsafe_code, reason = "memory is unmapped by its address")]
    fn unmap(&self, address: u64, size: Bytes) -> Result<()> {
        let handle = self.space_mut().take_mapping(address, size.0)?;
        // SAFETY: the table had this mapping, and has it no longer; that no work uses it
        // is what the trait asks of its callers, and a device faults where one does.
        let unmapped = unsafe { self.context.unmap(address, size.0 as usize) };
        Ok(unmapped.inspect_err(|_| drop(self.space_mut().add_mapping(address, handle, size.0)))?)
    }
}
