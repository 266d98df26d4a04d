//! Device memory: plain blocks, mapped pages and copies.
//!
//! Addresses and handles are numbers, and the driver does not check all of them. So these
//! calls are unsafe; `plimsoll_memory::backend::cuda` keeps the tables that check them.

use std::ffi::{c_int, c_void};
#[cfg(unix)]
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemLocation, CUmemLocationType,
};

use super::{CallResult, Context, Driver, RawStream, call};
use crate::error::CudaResult;

/// Host memory that every context may use and that has an address on the device.
const PORTABLE_AND_MAPPED: u32 = 0x01 | 0x02;
/// Managed memory that every stream may use.
const GLOBAL: u32 = 0x01;
/// Asks for the smallest page size, not the recommended one.
const MINIMUM: c_int = 0;

/// The kind of memory of a plain block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// Memory of the device.
    Device,
    /// Page-locked memory of the host.
    Pinned,
    /// Memory that the driver moves between host and device.
    Managed,
}

/// Calls an optional function that [`Driver::require_pages`] has checked.
macro_rules! page_call {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $driver.table.$function {
            Some(function) => $driver.check(stringify!($function), function($($argument),*)),
            None => Err(super::CudaRefusal {
                call: stringify!($function),
                code: 0,
                why: "the driver does not have it".to_string(),
            }),
        }
    };
}

impl Driver {
    /// Returns an error unless the driver has every function that mapping pages needs.
    pub fn require_pages(&self) -> CudaResult<()> {
        let table = &self.table;
        self.optional(table.cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity")?;
        self.optional(table.cuMemAddressReserve, "cuMemAddressReserve")?;
        self.optional(table.cuMemAddressFree, "cuMemAddressFree")?;
        self.optional(table.cuMemCreate, "cuMemCreate")?;
        self.optional(table.cuMemRelease, "cuMemRelease")?;
        self.optional(table.cuMemMap, "cuMemMap")?;
        self.optional(table.cuMemUnmap, "cuMemUnmap")?;
        self.optional(table.cuMemSetAccess, "cuMemSetAccess").map(drop)
    }
}

#[expect(unsafe_code, reason = "foreign calls")]
impl Context {
    /// Allocates a plain block.
    pub fn take(&self, kind: BlockKind, size: usize) -> CallResult<u64> {
        let _entered = self.enter()?;
        let mut address = 0u64;
        let mut pointer: *mut c_void = std::ptr::null_mut();
        // SAFETY: each call writes one address to a variable of ours.
        unsafe {
            match kind {
                BlockKind::Device => call!(self.driver, cuMemAlloc_v2(&raw mut address, size)),
                BlockKind::Pinned => {
                    let flags = PORTABLE_AND_MAPPED;
                    call!(self.driver, cuMemHostAlloc(&raw mut pointer, size, flags))
                }
                BlockKind::Managed => {
                    call!(self.driver, cuMemAllocManaged(&raw mut address, size, GLOBAL))
                }
            }
        }?;
        Ok(if kind == BlockKind::Pinned { pointer as u64 } else { address })
    }

    /// Frees a plain block.
    ///
    /// # Safety
    ///
    /// The address came from [`Context::take`] with this kind, it is freed once, and no work
    /// uses it any more.
    pub unsafe fn give_back(&self, kind: BlockKind, address: u64) -> CallResult {
        let _entered = self.enter()?;
        // SAFETY: the caller's promise.
        unsafe {
            match kind {
                BlockKind::Pinned => call!(self.driver, cuMemFreeHost(address as *mut c_void)),
                BlockKind::Device | BlockKind::Managed => {
                    call!(self.driver, cuMemFree_v2(address))
                }
            }
        }
    }

    /// Describes pages on this device, shareable with other processes where asked for.
    fn pages(&self, shareable: bool) -> CUmemAllocationProp {
        CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: if shareable {
                CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
            } else {
                CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE
            },
            location: self.location(),
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: 0,
                usage: 0,
                reserved: [0; 4],
            },
        }
    }

    fn location(&self) -> CUmemLocation {
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: self.device }
    }

    /// The smallest page size.
    pub fn page_size(&self, shareable: bool) -> CallResult<u64> {
        let (mut size, prop) = (0usize, self.pages(shareable));
        // SAFETY: the driver writes one number to a variable of ours; the description is
        // complete.
        unsafe {
            page_call!(
                self.driver,
                cuMemGetAllocationGranularity(&raw mut size, &raw const prop, MINIMUM)
            )
        }?;
        Ok(size as u64)
    }

    /// Reserves an address range.
    pub fn reserve(&self, size: usize) -> CallResult<u64> {
        let mut address = 0;
        // SAFETY: the driver writes one address to a variable of ours.
        unsafe { page_call!(self.driver, cuMemAddressReserve(&raw mut address, size, 0, 0, 0)) }?;
        Ok(address)
    }

    /// Gives an address range back.
    ///
    /// # Safety
    ///
    /// It came from [`Context::reserve`] with this size, and nothing is mapped there.
    pub unsafe fn unreserve(&self, address: u64, size: usize) -> CallResult {
        // SAFETY: the caller's promise.
        unsafe { page_call!(self.driver, cuMemAddressFree(address, size)) }
    }

    /// Allocates physical memory.
    pub fn create(&self, size: usize, shareable: bool) -> CallResult<u64> {
        let (mut handle, prop) = (0, self.pages(shareable));
        // SAFETY: the driver writes one handle to a variable of ours; the description is
        // complete.
        unsafe { page_call!(self.driver, cuMemCreate(&raw mut handle, size, &raw const prop, 0)) }?;
        Ok(handle)
    }

    /// Frees physical memory.
    ///
    /// # Safety
    ///
    /// The handle came from [`Context::create`] or [`Context::import`] and is freed once.
    pub unsafe fn destroy(&self, handle: u64) -> CallResult {
        // SAFETY: the caller's promise.
        unsafe { page_call!(self.driver, cuMemRelease(handle)) }
    }

    /// Maps physical memory and lets the device read and write it.
    ///
    /// # Safety
    ///
    /// The handle is live and of this size, and the addresses lie in a reserved range in
    /// which nothing is mapped there.
    pub unsafe fn map(&self, address: u64, handle: u64, size: usize) -> CallResult {
        let access = CUmemAccessDesc {
            location: self.location(),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the caller's promise; the description is complete.
        unsafe {
            page_call!(self.driver, cuMemMap(address, size, 0, handle, 0))?;
            let open = page_call!(self.driver, cuMemSetAccess(address, size, &raw const access, 1));
            if open.is_err() {
                // Nobody knows the address yet.
                let _ = self.unmap(address, size);
            }
            open
        }
    }

    /// Unmaps physical memory.
    ///
    /// # Safety
    ///
    /// It was made by [`Context::map`] with this size, and no work uses it any more.
    pub unsafe fn unmap(&self, address: u64, size: usize) -> CallResult {
        // SAFETY: the caller's promise.
        unsafe { page_call!(self.driver, cuMemUnmap(address, size)) }
    }

    /// Copies bytes to the device, and waits for the copy.
    ///
    /// # Safety
    ///
    /// All of the range has memory behind it that this process may write.
    pub unsafe fn write(&self, to: u64, bytes: &[u8]) -> CallResult {
        let _entered = self.enter()?;
        // SAFETY: the caller's promise for the range; the call reads the slice before it
        // returns.
        unsafe { call!(self.driver, cuMemcpyHtoD_v2(to, bytes.as_ptr().cast(), bytes.len())) }
    }

    /// Copies bytes from the device, and waits for the copy.
    ///
    /// # Safety
    ///
    /// All of the range has memory behind it.
    pub unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> CallResult {
        let _entered = self.enter()?;
        let (to, len) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: the caller's promise for the range; the call writes the slice before it
        // returns.
        unsafe { call!(self.driver, cuMemcpyDtoH_v2(to, from, len)) }
    }

    /// Queues a copy to the device and returns; [`Context::write_on`] waits for it.
    ///
    /// # Safety
    ///
    /// As for [`Context::write`]; and both ranges stay as they are until the stream has
    /// finished the copy.
    pub unsafe fn queue_write(&self, stream: &RawStream, to: u64, bytes: &[u8]) -> CallResult {
        let _entered = self.enter()?;
        let (from, len) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the caller's promise.
        unsafe { call!(self.driver, cuMemcpyHtoDAsync_v2(to, from, len, stream.raw())) }
    }

    /// Queues a copy from the device and returns; [`Context::read_on`] waits for it.
    ///
    /// # Safety
    ///
    /// As for [`Context::read`]; and nobody uses the slice until the stream has finished the
    /// copy.
    pub unsafe fn queue_read(&self, stream: &RawStream, from: u64, bytes: &mut [u8]) -> CallResult {
        let _entered = self.enter()?;
        let (to, len) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: the caller's promise.
        unsafe { call!(self.driver, cuMemcpyDtoHAsync_v2(to, from, len, stream.raw())) }
    }

    /// Copies bytes to the device behind the work of a stream, and waits for it.
    ///
    /// # Safety
    ///
    /// As for [`Context::write`].
    pub unsafe fn write_on(&self, stream: &RawStream, to: u64, bytes: &[u8]) -> CallResult {
        // SAFETY: the caller's promise for the range. The stream is waited for, also after a
        // failure, so the slice outlives the copy.
        let queued = unsafe { self.queue_write(stream, to, bytes) };
        stream.synchronize().and(queued)
    }

    /// Copies bytes from the device behind the work of a stream, and waits for it.
    ///
    /// # Safety
    ///
    /// As for [`Context::read`].
    pub unsafe fn read_on(&self, stream: &RawStream, from: u64, bytes: &mut [u8]) -> CallResult {
        // SAFETY: as in `write_on`.
        let queued = unsafe { self.queue_read(stream, from, bytes) };
        stream.synchronize().and(queued)
    }

    /// Queues a copy within the device.
    ///
    /// # Safety
    ///
    /// Both ranges have memory behind them, and keep it until the stream has finished.
    pub unsafe fn copy_on(&self, stream: &RawStream, to: u64, from: u64, len: usize) -> CallResult {
        let _entered = self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { call!(self.driver, cuMemcpyDtoDAsync_v2(to, from, len, stream.raw())) }
    }

    /// Queues a fill with one byte.
    ///
    /// # Safety
    ///
    /// The range has memory behind it, and keeps it until the stream has finished.
    pub unsafe fn fill_on(&self, stream: &RawStream, to: u64, byte: u8, len: usize) -> CallResult {
        let _entered = self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { call!(self.driver, cuMemsetD8Async(to, byte, len, stream.raw())) }
    }
}

#[cfg(unix)]
#[expect(unsafe_code, reason = "foreign calls")]
impl Context {
    /// Exports physical memory as a file descriptor that another process can import.
    ///
    /// # Safety
    ///
    /// The handle is live.
    pub unsafe fn export(&self, handle: u64) -> CallResult<OwnedFd> {
        let mut fd: c_int = -1;
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0 as c_int;
        // SAFETY: the caller's promise; for this kind the driver writes one `int` to a
        // variable of ours.
        unsafe {
            page_call!(
                self.driver,
                cuMemExportToShareableHandle((&raw mut fd).cast(), handle, kind, 0)
            )
        }?;
        // SAFETY: the driver has just opened it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Imports physical memory that this or another process has exported.
    pub fn import(&self, fd: BorrowedFd<'_>) -> CallResult<u64> {
        let mut handle = 0;
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0 as c_int;
        let fd = fd.as_raw_fd() as usize as *mut c_void;
        // SAFETY: the driver writes one handle to a variable of ours; the descriptor is open,
        // and the driver refuses one that is not such memory.
        unsafe {
            page_call!(self.driver, cuMemImportFromShareableHandle(&raw mut handle, fd, kind))
        }?;
        Ok(handle)
    }
}
