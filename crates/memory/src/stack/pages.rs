//! What every storey that minds physical memory does alike.
//!
//! A pool takes pages, not blocks, where it can. A storey under it that counts must see
//! them come and go; addresses and mappings it forwards.

use crate::memory::{Handle, Mapping, Memory};
use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// A storey that minds physical memory which is taken and returned.
pub(super) trait MindsPages: Memory {
    /// The memory below.
    fn below(&self) -> &dyn Memory;
    /// Takes physical memory from below.
    fn take(&self, below: &dyn Mapping, size: Bytes) -> Result<Handle>;
    /// Returns it there.
    fn give_back(&self, below: &dyn Mapping, handle: Handle, size: Bytes) -> Result<()>;

    /// Pages, where the memory below has them.
    fn below_pages(&self) -> Result<&dyn Mapping> {
        self.below().mapping().ok_or_else(|| Error::Unavailable {
            what: "mapping physical memory".to_string(),
            why: format!("{} does not offer it", self.below().name()),
        })
    }
}

impl<T: MindsPages> Mapping for T {
    fn page_size(&self) -> Bytes {
        self.below().mapping().map_or(Bytes::ZERO, Mapping::page_size)
    }

    fn reserve(&self, size: Bytes) -> Result<u64> {
        self.below_pages()?.reserve(size)
    }

    fn unreserve(&self, base: u64, size: Bytes) -> Result<()> {
        self.below_pages()?.unreserve(base, size)
    }

    fn create(&self, size: Bytes) -> Result<Handle> {
        self.take(self.below_pages()?, size)
    }

    fn destroy(&self, handle: Handle, size: Bytes) -> Result<()> {
        self.give_back(self.below_pages()?, handle, size)
    }

    fn map(&self, address: u64, handle: Handle, size: Bytes) -> Result<()> {
        self.below_pages()?.map(address, handle, size)
    }

    fn unmap(&self, address: u64, size: Bytes) -> Result<()> {
        self.below_pages()?.unmap(address, size)
    }
}
