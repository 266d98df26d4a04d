//! What the table records: resources of the driver, and the keys by which they are found.

use crate::log::GuardMemoryKind;

/// What kind of key an entry has: an address and a handle may be the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ResourceClass {
    /// No key: what fresh memory, all zeros, reads as.
    Empty = 0,
    Pointer,
    Array,
    Host,
    Physical,
    Handle,
    Mapping,
    /// A mapping that the driver is being asked to undo: it is in no chain, and cannot be found.
    Unmapping,
    Pool,
    Graph,
    GraphMemory,
    Context,
    Module,
}

/// What an entry records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum DriverResource {
    /// Nothing: what fresh memory, all zeros, reads as.
    Empty = 0,
    /// Memory that the driver has allocated.
    Block {
        class: BlockClass,
        kind: GuardMemoryKind,
        device: u8,
        tag: BlockTag,
        /// The size that the program asked for.
        bytes: u64,
        /// What is charged for it: 0 for a block inside a pool.
        charge: u64,
        /// The context that it belongs to.
        context: u64,
    },
    /// Physical memory, by a number that the guard gives it. It exists while handles or mappings
    /// hold it.
    Physical { device: u8, tag: BlockTag, bytes: u64, holders: u64 },
    /// A handle to physical memory, and how often it must be released.
    Handle { memory: u64, releases: u64 },
    /// A mapping of physical memory, by its address.
    Mapping { memory: u64, bytes: u64 },
    /// A memory pool and what it has reserved; `None` for a pool that this process does not count.
    Pool { device: u8, reserved: Option<u64> },
    /// An executable graph, and what its allocation nodes ask for.
    Graph { wanted: u64 },
    /// What a device has reserved for all graphs, by the device's index.
    GraphMemory { reserved: u64 },
    /// A context, and what the driver took for it.
    Context { device: u8, charge: u64 },
    /// A module or library, the context that it was loaded into, and what the driver took for it.
    Module { device: u8, context: u64, charge: u64 },
}

/// The kind of key that a block is found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BlockClass {
    /// Its address on the device.
    Pointer = ResourceClass::Pointer as u8,
    /// The handle of an array or a mipmapped array.
    Array = ResourceClass::Array as u8,
    /// Its address on the host, where the device shares the host's memory.
    Host = ResourceClass::Host as u8,
}

impl BlockClass {
    pub(crate) fn resource_class(self) -> ResourceClass {
        match self {
            BlockClass::Pointer => ResourceClass::Pointer,
            BlockClass::Array => ResourceClass::Array,
            BlockClass::Host => ResourceClass::Host,
        }
    }
}

/// The tag of the thread that allocated a block, if this process counts by tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockTag(u8);

impl BlockTag {
    /// This process does not count by tags.
    pub(crate) const NONE: BlockTag = BlockTag(0);
    const COUNTED: u8 = 0x80;

    pub(crate) fn counted(number: u8) -> BlockTag {
        BlockTag(number | BlockTag::COUNTED)
    }

    /// The number under which it is counted.
    #[inline(always)]
    pub(crate) fn number(self) -> Option<u8> {
        (self.0 & BlockTag::COUNTED != 0).then_some(self.0 & !BlockTag::COUNTED)
    }
}

/// What a block or physical memory is logged and given back as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CountedMemory {
    pub(crate) kind: GuardMemoryKind,
    pub(crate) device: u8,
    pub(crate) tag: BlockTag,
    pub(crate) bytes: u64,
    pub(crate) charge: u64,
}

impl CountedMemory {
    /// What its tag is charged: the block's charge, or for a block inside a pool its size.
    #[inline(always)]
    pub(crate) fn share(&self) -> u64 {
        if self.charge > 0 { self.charge } else { self.bytes }
    }
}

impl DriverResource {
    #[inline(always)]
    pub(crate) fn class(&self) -> ResourceClass {
        match self {
            DriverResource::Empty => ResourceClass::Empty,
            DriverResource::Block { class, .. } => class.resource_class(),
            DriverResource::Physical { .. } => ResourceClass::Physical,
            DriverResource::Handle { .. } => ResourceClass::Handle,
            DriverResource::Mapping { .. } => ResourceClass::Mapping,
            DriverResource::Pool { .. } => ResourceClass::Pool,
            DriverResource::Graph { .. } => ResourceClass::Graph,
            DriverResource::GraphMemory { .. } => ResourceClass::GraphMemory,
            DriverResource::Context { .. } => ResourceClass::Context,
            DriverResource::Module { .. } => ResourceClass::Module,
        }
    }

    /// The memory that this resource is, if it is a block or physical memory.
    #[inline(always)]
    pub(crate) fn memory(&self) -> Option<CountedMemory> {
        match *self {
            DriverResource::Block { kind, device, tag, bytes, charge, .. } => {
                Some(CountedMemory { kind, device, tag, bytes, charge })
            }
            DriverResource::Physical { device, tag, bytes, .. } => Some(CountedMemory {
                kind: GuardMemoryKind::Physical,
                device,
                tag,
                bytes,
                charge: bytes,
            }),
            _ => None,
        }
    }
}

/// A resource under its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResourceEntry {
    pub(crate) key: u64,
    pub(crate) resource: DriverResource,
}
