// SPDX-License-Identifier: GPL-2.0-only
//! Which rights of root this process has, by the kernel's names (capabilities(7)): services and containers have some of them only.

use std::path::Path;

use crate::process_text;

/// One right; its number is the kernel's (linux/capability.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Writing files of other users, those of their processes in /proc among them.
    DacOverride = 1,
    /// Reading them.
    DacReadSearch = 2,
    /// Reading memory of other users' processes, and moving its pages.
    SysPtrace = 19,
    /// Much, the operations of sched_ext among it.
    SysAdmin = 21,
    /// Scheduling classes of other users' threads.
    SysNice = 23,
    /// Programs that trace, and perf events of all CPUs.
    Perfmon = 38,
    /// Programs and maps.
    Bpf = 39,
}

impl Capability {
    /// Without these the scheduler cannot be loaded.
    pub const TO_LOAD: [Self; 3] = [Self::SysAdmin, Self::Perfmon, Self::Bpf];

    /// Without these it goes on, but for what is told of each.
    pub const TO_PLACE: [(Self, &str); 3] = [
        (Self::SysPtrace, "threads and pages of other users stay where they are"),
        (Self::SysNice, "threads of other users are lent to no other class"),
        (
            Self::DacReadSearch,
            "how large the pages of other users' processes are is not seen, nor which of them are virtual machines (vm=)",
        ),
    ];

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::DacOverride => "CAP_DAC_OVERRIDE",
            Self::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Self::SysPtrace => "CAP_SYS_PTRACE",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysNice => "CAP_SYS_NICE",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }
}

/// The rights that are in force for a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// Those of this process on the system whose root is `root`; none if that cannot be read.
    pub fn read(root: &Path) -> Self {
        let status = process_text(&root.join("proc/self/status")).unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        Self(effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0))
    }

    /// Whether this one is among them.
    pub fn has(self, capability: Capability) -> bool {
        self.0 & (1 << capability as u32) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_in_force_count_and_what_cannot_be_read_is_none() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Capabilities::read(root.path()), Capabilities(0));
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let status = "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t0000008000000004\nCapBnd:\t000001ffffffffff\n";
        std::fs::write(root.path().join("proc/self/status"), status).unwrap();
        let held = Capabilities::read(root.path());
        assert!(held.has(Capability::DacReadSearch) && held.has(Capability::Bpf));
        assert!(!held.has(Capability::DacOverride) && !held.has(Capability::SysAdmin));
    }
}
