// SPDX-License-Identifier: GPL-2.0-only
//! What /proc says about processes, threads, mappings and migrations.

use crate::topology::CpuId;
use anyhow::{Context, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A thread's fields of `/proc/PID/task/TID/stat` that are used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Thread name: any bytes, blanks and parentheses included.
    pub comm: String,
    /// CPU it last ran on (field 39).
    pub cpu: CpuId,
}

impl Stat {
    /// Reads the stat file of thread `tid` of process `pid`.
    pub fn read(pid: i32, tid: i32) -> Result<Self> {
        let path = format!("/proc/{pid}/task/{tid}/stat");
        let text = std::fs::read(&path).with_context(|| format!("thread {tid} of process {pid} has ended"))?;
        Self::parse(&String::from_utf8_lossy(&text)).with_context(|| format!("{path} is not as expected"))
    }

    fn parse(text: &str) -> Option<Self> {
        // The name is all between the first and the last parenthesis; field 3 follows.
        let (_, after_open) = text.split_once('(')?;
        let (comm, fields) = after_open.rsplit_once(')')?;
        let cpu = fields.split_whitespace().nth(39 - 3)?.parse().ok()?;
        Some(Self { comm: comm.into(), cpu: CpuId(cpu) })
    }
}

/// Counters of `/proc/vmstat` since boot, in pages (events for `numa_hint_faults`).
/// A kernel without NUMA balancing lacks the last three: they are then 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Migrations {
    /// Pages migrated for any reason.
    pub pgmigrate_success: u64,
    /// Pages migrated by NUMA balancing.
    pub numa_pages_migrated: u64,
    /// Page table entries that NUMA balancing made fault.
    pub numa_pte_updates: u64,
    /// Faults so caused.
    pub numa_hint_faults: u64,
}

impl Migrations {
    /// Reads the counters now.
    pub fn read() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/vmstat").context("cannot read /proc/vmstat")?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        Self {
            pgmigrate_success: value("pgmigrate_success"),
            numa_pages_migrated: value("numa_pages_migrated"),
            numa_pte_updates: value("numa_pte_updates"),
            numa_hint_faults: value("numa_hint_faults"),
        }
    }

    /// The sum of two counts.
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            pgmigrate_success: self.pgmigrate_success + other.pgmigrate_success,
            numa_pages_migrated: self.numa_pages_migrated + other.numa_pages_migrated,
            numa_pte_updates: self.numa_pte_updates + other.numa_pte_updates,
            numa_hint_faults: self.numa_hint_faults + other.numa_hint_faults,
        }
    }

    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            pgmigrate_success: self.pgmigrate_success - earlier.pgmigrate_success,
            numa_pages_migrated: self.numa_pages_migrated - earlier.numa_pages_migrated,
            numa_pte_updates: self.numa_pte_updates - earlier.numa_pte_updates,
            numa_hint_faults: self.numa_hint_faults - earlier.numa_hint_faults,
        }
    }
}

/// A writable anonymous mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnonymousMapping {
    /// First byte's address.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Bytes in memory.
    pub resident_bytes: u64,
}

/// The writable anonymous mappings of process `pid`, heap and main stack excepted.
pub fn anonymous_mappings(pid: i32) -> Result<Vec<AnonymousMapping>> {
    let path = format!("/proc/{pid}/smaps");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    Ok(parse_smaps(&text))
}

fn parse_smaps(text: &str) -> Vec<AnonymousMapping> {
    let mut mappings: Vec<Option<AnonymousMapping>> = Vec::new();
    for line in text.lines() {
        if let Some(kib) = line.strip_prefix("Rss:") {
            let kib = kib.trim().trim_end_matches(" kB").parse::<u64>();
            if let (Some(Some(mapping)), Ok(kib)) = (mappings.last_mut(), kib) {
                mapping.resident_bytes = kib << 10;
            }
        } else if let Some((first, last)) = line.split_whitespace().next().and_then(|range| range.split_once('-'))
            && let (Ok(start), Ok(end)) = (u64::from_str_radix(first, 16), u64::from_str_radix(last, 16))
        {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let is_anonymous = fields.len() == 5 && fields[1] == "rw-p" && fields[4] == "0";
            mappings.push(is_anonymous.then_some(AnonymousMapping { start, bytes: end - start, resident_bytes: 0 }));
        }
    }
    mappings.into_iter().flatten().collect()
}

/// Process ids of all processes, ascending.
pub fn all_processes() -> Result<Vec<i32>> {
    numbers_in(Path::new("/proc"))
}

/// Thread ids of process `pid`, ascending.
pub fn threads_of(pid: i32) -> Result<Vec<i32>> {
    numbers_in(&PathBuf::from(format!("/proc/{pid}/task")))
}

fn numbers_in(directory: &Path) -> Result<Vec<i32>> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    let mut numbers: Vec<i32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The name of the program that process `pid` runs (its executable's file name), if it may be known.
pub fn program_of(pid: i32) -> Option<String> {
    let path = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    Some(path.file_name()?.to_string_lossy().into_owned())
}

/// MiB of memory that can be had without swapping.
pub fn available_memory_mib() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let line =
        text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).context("no MemAvailable in meminfo")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().context("MemAvailable is not a number")?;
    Ok(kib >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat_line(comm: &str) -> String {
        // Fields 3 to 52 hold their own numbers, but for the state.
        let fields: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        format!("77 ({comm}) R {}\n", fields.join(" "))
    }

    #[test]
    fn field_39_is_found_behind_any_thread_name() {
        for comm in ["perf", "thread 0/1", "a) R 1 2 (b", "((", "))", "", "x (y) z"] {
            assert_eq!(Stat::parse(&stat_line(comm)), Some(Stat { comm: comm.into(), cpu: CpuId(39) }), "{comm}");
        }
    }

    #[test]
    fn a_cut_off_stat_line_is_refused() {
        assert_eq!(Stat::parse("77 (perf) R 1 2 3"), None);
        assert_eq!(Stat::parse("77 perf R"), None);
    }

    #[test]
    fn vmstat_counters_are_found_by_their_whole_name() {
        let text = "numa_pte_updates_x 9\nnuma_pte_updates 5\npgmigrate_success 12\n";
        let expected = Migrations { pgmigrate_success: 12, numa_pte_updates: 5, ..Migrations::default() };
        assert_eq!(Migrations::parse(text), expected);
    }

    #[test]
    fn only_writable_private_memory_without_file_or_name_counts_as_anonymous() {
        let text = "\
7f0000000000-7f0004200000 rw-p 00000000 00:00 0 \nSize: 67584 kB\nRss:               65536 kB\nVmFlags: rd wr mr\n\
7f0005000000-7f0006000000 ---p 00000000 00:00 0 \nRss: 0 kB\n\
7f0007000000-7f0008000000 rw-s 00000000 00:01 77 /dev/zero (deleted)\nRss: 4 kB\n\
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]\nRss: 8 kB\n";
        let expected = AnonymousMapping { start: 0x7f00_0000_0000, bytes: 66 << 20, resident_bytes: 64 << 20 };
        assert_eq!(parse_smaps(text), [expected]);
    }
}
