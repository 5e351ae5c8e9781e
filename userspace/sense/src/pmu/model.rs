// SPDX-License-Identifier: GPL-2.0-only
//! Which CPU this is: the key of event tables and of what hardware gets wrong.

use std::fmt;
use std::path::Path;

use super::sysfs::read_text;

/// A CPU model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuModel {
    /// As CPUID names it.
    X86 {
        /// Twelve letters such as `GenuineIntel`.
        vendor: String,
        /// Family, the extended one included.
        family: u32,
        /// Model, the extended one included.
        model: u32,
        /// Stepping.
        stepping: u32,
    },
    /// As MIDR_EL1 names it.
    Arm {
        /// The register.
        midr: u64,
    },
    /// Neither: the first words that /proc/cpuinfo has.
    Other(String),
}

impl fmt::Display for CpuModel {
    /// The form of the kernel's event tables.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::X86 { vendor, family, model, stepping } => write!(to, "{vendor}-{family}-{model:X}-{stepping:X}"),
            Self::Arm { midr } => write!(to, "{midr:#018x}"),
            Self::Other(name) => write!(to, "{name}"),
        }
    }
}

/// What /proc and /sys tell of the CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processor {
    /// The model of the first CPU.
    pub model: CpuModel,
    /// A hypervisor runs below.
    pub virtual_machine: bool,
}

/// The processor of the system whose root is `root`.
pub fn read(root: &Path) -> Processor {
    let text = read_text(&root.join("proc/cpuinfo")).unwrap_or_default();
    let value = |key: &str| {
        text.lines()
            .find_map(|line| line.split_once(':').filter(|(name, _)| name.trim() == key))
            .map(|(_, at)| at.trim())
    };
    let number = |key: &str| value(key).and_then(|text| text.parse::<u32>().ok());
    let midr = read_text(&root.join("sys/devices/system/cpu/cpu0/regs/identification/midr_el1"))
        .and_then(|text| u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok());
    let model = match (value("vendor_id"), number("cpu family"), number("model"), midr) {
        (Some(vendor), Some(family), Some(model), _) => {
            CpuModel::X86 { vendor: vendor.to_owned(), family, model, stepping: number("stepping").unwrap_or(0) }
        }
        (.., Some(midr)) => CpuModel::Arm { midr },
        _ => CpuModel::Other(value("cpu").or(value("model name")).unwrap_or("unknown").to_owned()),
    };
    let flagged = value("flags").is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"));
    // On Arm only the hypervisor's own tables tell.
    let virtual_machine =
        flagged || root.join("sys/hypervisor/type").exists() || root.join("proc/device-tree/hypervisor").exists();
    Processor { model, virtual_machine }
}
