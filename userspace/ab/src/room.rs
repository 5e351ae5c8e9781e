// SPDX-License-Identifier: GPL-2.0-only
//! How many guests run side by side when nobody says: one per CPU of this machine, as far as its memory suffices.
//!
//! A guest takes the memory of its machine file, an eighth of that for the timing plugin's directory, and what QEMU takes
//! itself; `check_memory` of `vm/lab/qemu.py` reckons alike and refuses a guest that does not fit. Sizes are in MB of 2^20
//! bytes, as the kernel's and the machine file's.

use anyhow::{Context, Result};
use tandem_machine::MachineFile;

/// What QEMU takes besides the guest's memory.
const OWN_MB: u64 = 256;
/// Of the guest's memory, the part that the timing plugin's directory has.
const DIRECTORY_PART: u64 = 8;

/// How many guests, and why not more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideBySide {
    /// Guests at a time, at least 1.
    pub guests: usize,
    /// The sentence to say when there are fewer than CPUs.
    pub lowered: Option<String>,
}

impl SideBySide {
    /// For guests like `machine` where there are `cpus` CPUs; `meminfo` is the content of /proc/meminfo.
    ///
    /// # Errors
    /// `meminfo` does not tell the available memory.
    pub fn of(machine: &MachineFile, cpus: usize, meminfo: &str) -> Result<Self> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let kb = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let available_mb = kb.context("/proc/meminfo does not say how much memory is available")? / 1024;
        let memory_mb: u64 = machine.memory_mb.iter().sum();
        let guest_mb = OWN_MB + memory_mb + memory_mb / DIRECTORY_PART;
        // One that does not fit the lab refuses itself.
        let fit = usize::try_from(available_mb / guest_mb).unwrap_or(usize::MAX).max(1);
        let lowered = (fit < cpus).then(|| {
            format!(
                "{fit} at a time, although there are {cpus} CPUs: a guest of {} takes {guest_mb} MB, {available_mb} MB are available",
                machine.name
            )
        });
        Ok(Self { guests: fit.min(cpus), lowered })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes of 768 MB: a guest takes 256 + 1536 + 192 = 1984 MB.
    fn machine() -> MachineFile {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("two.toml");
        std::fs::write(&file, "name = \"two\"\nnodes = 2\ncpus_per_node = 4\nmemory_mb = 768\n").unwrap();
        MachineFile::load(&file).unwrap()
    }

    fn with(cpus: usize, available_mb: u64) -> SideBySide {
        let meminfo = format!("MemTotal: 99999999 kB\nMemAvailable: {:>9} kB\n", available_mb * 1024);
        SideBySide::of(&machine(), cpus, &meminfo).unwrap()
    }

    #[test]
    fn there_is_a_guest_for_each_cpu_if_they_fit() {
        assert_eq!(with(4, 4 * 1984), SideBySide { guests: 4, lowered: None });
        assert_eq!(with(1, 1_000_000), SideBySide { guests: 1, lowered: None });
    }

    #[test]
    fn there_are_fewer_where_memory_is_short_and_why_is_said() {
        let short = with(4, 4 * 1984 - 1);
        let sentence = "3 at a time, although there are 4 CPUs: a guest of two takes 1984 MB, 7935 MB are available";
        assert_eq!(short, SideBySide { guests: 3, lowered: Some(sentence.to_owned()) });
        assert_eq!((with(2, 100).guests, with(1, 100).lowered), (1, None), "the lab itself refuses what does not fit");
    }

    #[test]
    fn it_must_be_known_how_much_is_available() {
        let said = SideBySide::of(&machine(), 2, "MemTotal: 5 kB\n").unwrap_err().to_string();
        assert_eq!(said, "/proc/meminfo does not say how much memory is available");
    }
}
