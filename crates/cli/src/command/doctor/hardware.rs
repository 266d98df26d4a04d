//! Which makes of GPU the machine has, by its buses: a missing driver matters only where there is
//! something to drive.

use super::root::Root;

/// The makes of GPU in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct GpuHardware {
    pub(super) nvidia: bool,
    pub(super) amd: bool,
    /// Of any make.
    pub(super) any: bool,
}

impl GpuHardware {
    pub(super) fn of(root: &Root, jetson: bool) -> GpuHardware {
        let machine = root.machine();
        let mut found = GpuHardware { nvidia: jetson, amd: false, any: jetson };
        for device in machine.list("/sys/bus/pci/devices") {
            let read = |name: &str| machine.read(&format!("{device}/{name}")).unwrap_or_default();
            // Class 3 is display controllers; compute cards without an output are among them.
            if !read("class").starts_with("0x03") {
                continue;
            }
            found.any = true;
            match read("vendor").as_str() {
                "0x10de" => found.nvidia = true,
                "0x1002" => found.amd = true,
                _ => {}
            }
        }
        // In a container the bus may be hidden while the driver is there.
        let driver = machine.has_file("/proc/driver/nvidia/version");
        found.nvidia |= driver;
        found.any |= driver;
        found
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn makes_are_known_by_the_bus() {
        let tree = |name: &str| {
            let trees = Path::new(env!("CARGO_MANIFEST_DIR")).join("../machine/tests/machines");
            GpuHardware::of(&Root::new(&trees.join(name)), false)
        };
        assert_eq!(tree("desktop"), GpuHardware { nvidia: true, amd: false, any: true });
        assert!(GpuHardware::of(&Root::new(Path::new("/nowhere")), true).nvidia, "a Jetson");
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("sys/bus/pci/devices/0000:03:00.0");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("class"), "0x030000\n").unwrap();
        std::fs::write(device.join("vendor"), "0x1002\n").unwrap();
        let found = GpuHardware::of(&Root::new(folder.path()), false);
        assert_eq!(found, GpuHardware { nvidia: false, amd: true, any: true });
    }
}
