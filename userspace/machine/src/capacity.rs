// SPDX-License-Identifier: GPL-2.0-only
//! Capacities of unlike CPUs, as the kernel or the firmware states them.
//!
//! `cpu_capacity` is what the kernel's own scheduler uses, 1024 for the fastest; architectures without it have the firmware's
//! `acpi_cppc/highest_perf`, in a unit of its own. That one also ranks cores of one kind, which then are a few percent apart or
//! all unlike: neither says that some are slow. A CPU whose clock is limited (`cpufreq/scaling_max_freq` below
//! `cpuinfo_max_freq`, in kHz) has that part of its capacity.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use tandem_policies::model::FULL_CAPACITY;

use crate::sysfs::{SysfsError, number};

/// Files below a CPU's folder, the first that all CPUs have counts.
const SOURCES: [&str; 2] = ["cpu_capacity", "acpi_cppc/highest_perf"];
/// CPUs that are at most this much slower than the fastest are as fast.
const SAME: f64 = 0.1;
/// More unlike numbers than this are a ranking.
const MOST_CLASSES: usize = 4;

/// Those of the CPUs `online` that are slower than the fastest, with their capacity. What cannot be read goes into `assumed`, a
/// sentence for each kind of file.
///
/// # Errors
/// A file has something else than a number.
pub(crate) fn slow_cpus(
    root: &Path,
    online: &BTreeSet<u32>,
    assumed: &mut Vec<String>,
) -> Result<BTreeMap<u32, u32>, SysfsError> {
    let mut unread = BTreeMap::new();
    let mut performance = stated(root, online, &mut unread)?;
    for (&cpu, performance) in &mut performance {
        let mut clock = |file: &'static str| hint(root, cpu, file, &mut unread);
        if let (Some(limit_khz), Some(most_khz)) =
            (clock("cpufreq/scaling_max_freq")?, clock("cpufreq/cpuinfo_max_freq")?)
            && limit_khz < most_khz
        {
            *performance *= f64::from(limit_khz) / f64::from(most_khz);
        }
    }
    assumed.extend(unread.values().map(|error| format!("{error}: capacities of CPUs are found without")));
    Ok(slower(&performance))
}

/// What a CPU's `file` says, if the machine has it. Firmware and drivers answer such files, with any error (EIO, EFAULT, EBUSY): the
/// first of each kind is kept in `unread`, and it is as if the file were not there.
fn hint(
    root: &Path,
    cpu: u32,
    file: &'static str,
    unread: &mut BTreeMap<&'static str, SysfsError>,
) -> Result<Option<u32>, SysfsError> {
    match number(&root.join(format!("cpu/cpu{cpu}")).join(file)) {
        Ok(value) => Ok(Some(value)),
        Err(SysfsError::Read { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error @ SysfsError::Read { .. }) => {
            unread.entry(file).or_insert(error);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Performance of the CPUs in any unit; all alike if neither kernel nor firmware says more.
fn stated(
    root: &Path,
    online: &BTreeSet<u32>,
    unread: &mut BTreeMap<&'static str, SysfsError>,
) -> Result<BTreeMap<u32, f64>, SysfsError> {
    for source in SOURCES {
        let mut performance = BTreeMap::new();
        for &cpu in online {
            match hint(root, cpu, source, unread)? {
                Some(value) => performance.insert(cpu, f64::from(value)),
                None => break,
            };
        }
        let kinds: BTreeSet<u64> = performance.values().map(|value| value.to_bits()).collect();
        if performance.len() == online.len() && kinds.len() <= MOST_CLASSES {
            return Ok(performance);
        }
    }
    Ok(online.iter().map(|&cpu| (cpu, 1.0)).collect())
}

fn slower(performance: &BTreeMap<u32, f64>) -> BTreeMap<u32, u32> {
    let best = performance.values().copied().fold(0.0, f64::max);
    if best == 0.0 {
        return BTreeMap::new();
    }
    let capacity = |value: f64| ((FULL_CAPACITY as f64 * value / best) as u32).max(1);
    let is_slow = |value: f64| value < best * (1.0 - SAME);
    performance.iter().filter(|&(_, &value)| is_slow(value)).map(|(&cpu, &value)| (cpu, capacity(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(performance: &[f64]) -> Vec<(u32, u32)> {
        slower(&performance.iter().enumerate().map(|(cpu, &value)| (cpu as u32, value)).collect()).into_iter().collect()
    }

    #[test]
    fn capacities_are_relative_to_the_fastest() {
        assert_eq!(slow(&[1024.0, 446.0, 1024.0]), [(1, 446)]);
        assert_eq!(slow(&[40.0, 20.0]), [(1, 512)]);
        assert_eq!(slow(&[40.0, 0.0]), [(1, 1)], "a CPU that is there can do something");
    }

    #[test]
    fn cpus_a_few_percent_apart_are_alike() {
        assert!(slow(&[67.0, 65.0, 61.0]).is_empty());
        assert!(slow(&[0.0, 0.0]).is_empty());
    }
}
