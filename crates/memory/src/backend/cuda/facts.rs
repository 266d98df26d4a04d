//! What a device says of itself, without a context being made on it.

use std::path::Path;

use plimsoll_cuda::raw::CUdevice_attribute as Attribute;

use plimsoll_cuda::Driver;
use plimsoll_machine::error::Result;
use plimsoll_machine::units::Bytes;

/// What a device says of itself. What it does not say is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaFacts {
    /// As it calls itself.
    pub name: Option<String>,
    /// All of its memory.
    pub total: Option<Bytes>,
    /// Whether it shares the system's memory.
    pub integrated: Option<bool>,
    /// Major and minor: 9.0 is a Hopper.
    pub compute_capability: Option<(u32, u32)>,
    /// How many multiprocessors it has.
    pub multiprocessors: Option<u32>,
    /// The version of CUDA that the driver serves: 12080 is 12.8.
    pub driver_version: u32,
    /// Where it sits: `0000:1b:00.0`.
    pub bus_id: Option<String>,
    /// Whether the driver says that physical memory can be mapped by the page. Whether it
    /// can is found out when the device is opened.
    pub says_it_maps: Option<bool>,
}

impl CudaFacts {
    /// The number of the PCI bus: 0x1b of `0000:1b:00.0`.
    pub(super) fn pci_bus(&self) -> Option<u32> {
        u32::from_str_radix(self.bus_id.as_deref()?.split(':').nth(1)?, 16).ok()
    }
}

/// How many devices there are, or why there is none.
pub fn count() -> Result<u32> {
    Ok(Driver::load(None)?.devices()?)
}

/// What a device says of itself, by the system's driver or the one in this file.
pub fn facts(number: u32, library: Option<&Path>) -> Result<CudaFacts> {
    let driver = Driver::load(library)?;
    Ok(of(driver, driver.device(number)?))
}

pub(super) fn of(driver: &Driver, device: i32) -> CudaFacts {
    let ask = |attribute| driver.attribute(device, attribute);
    let number = |attribute| ask(attribute).and_then(|value| u32::try_from(value).ok());
    let yes = |attribute| ask(attribute).map(|value| value != 0);
    CudaFacts {
        name: driver.name(device).ok(),
        total: driver.total(device).ok().map(Bytes),
        integrated: yes(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED),
        compute_capability: number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
            .zip(number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)),
        multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        driver_version: driver.version(),
        bus_id: driver.bus_id(device),
        says_it_maps: yes(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED),
    }
}
