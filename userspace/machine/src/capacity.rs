// SPDX-License-Identifier: GPL-2.0-only
//! Capacities of unlike CPUs, as the kernel or the firmware states them.
//!
//! `cpu_capacity` is what the kernel's own scheduler uses, 1024 for the fastest; architectures without it have the firmware's
//! `acpi_cppc/highest_perf`, in a unit of its own. That one also ranks cores of one kind, which then are a few percent apart or
//! all unlike: neither says that some are slow.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tandem_policies::model::FULL_CAPACITY;

use crate::sysfs::{SysfsError, number, optional};

/// Files below a CPU's folder, the first that all CPUs have counts.
const SOURCES: [&str; 2] = ["cpu_capacity", "acpi_cppc/highest_perf"];
/// CPUs that are at most this much slower than the fastest are as fast.
const SAME: f64 = 0.1;
/// More unlike numbers than this are a ranking.
const MOST_CLASSES: usize = 4;

/// Those of the CPUs `online` that are slower than the fastest, with their capacity; none if the kernel does not say.
///
/// # Errors
/// A file has something else than a number.
pub(crate) fn slow_cpus(root: &Path, online: &BTreeSet<u32>) -> Result<BTreeMap<u32, u32>, SysfsError> {
    for source in SOURCES {
        let mut performance = BTreeMap::new();
        for &cpu in online {
            match optional(number(&root.join(format!("cpu/cpu{cpu}")).join(source)))? {
                Some(value) => performance.insert(cpu, value),
                None => break,
            };
        }
        if performance.len() == online.len() {
            return Ok(slower(&performance));
        }
    }
    Ok(BTreeMap::new())
}

fn slower(performance: &BTreeMap<u32, u32>) -> BTreeMap<u32, u32> {
    let kinds: BTreeSet<u32> = performance.values().copied().collect();
    let best = kinds.last().copied().unwrap_or(0);
    if best == 0 || kinds.len() > MOST_CLASSES {
        return BTreeMap::new();
    }
    let is_slow = |value: u32| f64::from(value) < f64::from(best) * (1.0 - SAME);
    let capacity = |value: u32| (u64::from(value) * FULL_CAPACITY / u64::from(best)).max(1) as u32;
    performance.iter().filter(|&(_, &value)| is_slow(value)).map(|(&cpu, &value)| (cpu, capacity(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(performance: &[u32]) -> Vec<(u32, u32)> {
        slower(&performance.iter().enumerate().map(|(cpu, &value)| (cpu as u32, value)).collect()).into_iter().collect()
    }

    #[test]
    fn capacities_are_relative_to_the_fastest() {
        assert_eq!(slow(&[1024, 446, 1024]), [(1, 446)]);
        assert_eq!(slow(&[40, 20]), [(1, 512)]);
        assert_eq!(slow(&[40, 0]), [(1, 1)], "a CPU that is there can do something");
    }

    #[test]
    fn a_ranking_of_cores_of_one_kind_makes_none_slow() {
        assert!(slow(&[236, 231, 226, 221, 166]).is_empty(), "all unlike");
        assert!(slow(&[67, 65, 65, 65]).is_empty(), "a few percent apart");
        assert!(slow(&[0, 0]).is_empty());
    }
}
