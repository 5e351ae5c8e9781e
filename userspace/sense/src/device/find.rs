// SPDX-License-Identifier: GPL-2.0-only
//! Where the ring is: BAR 2 of the PCI device 1af4:1110.

use std::fs;
use std::path::{Path, PathBuf};

use super::DeviceError;
use crate::pmu::sysfs::read_text;

const VENDOR: &str = "0x1af4";
const DEVICE: &str = "0x1110";

/// The file to map, of the system whose root is `root`. Its device is enabled if nobody did that before.
pub(super) fn ring_file(root: &Path) -> Result<PathBuf, DeviceError> {
    let devices = fs::read_dir(root.join("sys/bus/pci/devices")).map_err(|_| DeviceError::None)?;
    let is_the_one = |folder: &PathBuf| {
        let has = |file: &str, id: &str| read_text(&folder.join(file)).is_some_and(|text| text.trim() == id);
        // What a driver of the kernel has is not the lab's.
        has("vendor", VENDOR) && has("device", DEVICE) && !folder.join("driver").exists()
    };
    let folder = devices.flatten().map(|entry| entry.path()).find(is_the_one).ok_or(DeviceError::None)?;
    let enable = folder.join("enable");
    if read_text(&enable).is_none_or(|text| text.trim() == "0") {
        fs::write(&enable, "1").map_err(|source| DeviceError::Unreadable { path: enable, source })?;
    }
    Ok(folder.join("resource2"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmu::testing::FakeSystem;

    const AT: &str = "sys/bus/pci/devices/0000:00:05.0";

    fn with_device(device: &str) -> FakeSystem {
        FakeSystem::new()
            .file("sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086\n")
            .file(&format!("{AT}/vendor"), "0x1af4\n")
            .file(&format!("{AT}/device"), &format!("{device}\n"))
            .file(&format!("{AT}/enable"), "0\n")
    }

    #[test]
    fn the_device_is_found_by_its_ids_and_enabled_once() {
        let system = with_device("0x1110");
        let folder = system.root().join(AT);
        for _ in 0..2 {
            assert_eq!(ring_file(system.root()).unwrap(), folder.join("resource2"));
            assert_eq!(fs::read_to_string(folder.join("enable")).unwrap().trim(), "1");
        }
    }

    #[test]
    fn other_devices_and_those_with_a_driver_are_left_alone() {
        let driven = with_device("0x1110").file(&format!("{AT}/driver/module"), "uio_ivshmem");
        for system in [FakeSystem::new(), with_device("0x1000"), driven] {
            let refused = ring_file(system.root()).unwrap_err().to_string();
            assert!(refused.contains("1af4:1110") && refused.contains("vm/lab.py run --timing"), "{refused}");
            let enabled = read_text(&system.root().join(AT).join("enable"));
            assert!(enabled.is_none_or(|text| text.trim() == "0"));
        }
    }
}
