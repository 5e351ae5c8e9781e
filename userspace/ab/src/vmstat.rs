// SPDX-License-Identifier: GPL-2.0-only
//! What the kernel counted while a workload ran: differences of two readings of /proc/vmstat, the workload's
//! initialisation included.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Counts of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelCounts {
    /// Page table entries that NUMA balancing made fault.
    pub numa_pte_updates: u64,
    /// Faults on them.
    pub numa_hint_faults: u64,
    /// Pages that NUMA balancing moved.
    pub numa_pages_migrated: u64,
    /// Pages that anything moved (`pgmigrate_success`): NUMA balancing, system calls, compaction.
    pub page_moves: u64,
}

impl KernelCounts {
    /// What was counted from `before` to `after`. A kernel without NUMA balancing counts none of it.
    ///
    /// # Errors
    /// A line is no `name count`, or `pgmigrate_success` is missing.
    pub fn between(before: &str, after: &str) -> Result<Self> {
        let count = |name: &str| -> Result<Option<u64>> {
            let (Some(after), Some(before)) = (value(after, name)?, value(before, name)?) else { return Ok(None) };
            Ok(Some(after.saturating_sub(before)))
        };
        Ok(Self {
            numa_pte_updates: count("numa_pte_updates")?.unwrap_or(0),
            numa_hint_faults: count("numa_hint_faults")?.unwrap_or(0),
            numa_pages_migrated: count("numa_pages_migrated")?.unwrap_or(0),
            page_moves: count("pgmigrate_success")?.context("/proc/vmstat has no pgmigrate_success")?,
        })
    }
}

fn value(text: &str, name: &str) -> Result<Option<u64>> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|count| count.trim().parse().with_context(|| format!("/proc/vmstat: {name} is '{count}'"))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_taken_by_whole_names() {
        let before = "numa_hint_faults 10\nnuma_hint_faults_local 7\npgmigrate_success 5\nnuma_pte_updates 0\nnuma_pages_migrated 1\n";
        let after = "numa_hint_faults_local 99\nnuma_hint_faults 30\npgmigrate_success 9\nnuma_pte_updates 4\nnuma_pages_migrated 3\n";
        let counts = KernelCounts { numa_pte_updates: 4, numa_hint_faults: 20, numa_pages_migrated: 2, page_moves: 4 };
        assert_eq!(KernelCounts::between(before, after).unwrap(), counts);
    }

    #[test]
    fn a_kernel_without_balancing_counts_nothing_of_it() {
        let counts = KernelCounts::between("pgmigrate_success 5\n", "pgmigrate_success 6\n").unwrap();
        assert_eq!((counts.numa_pte_updates, counts.page_moves), (0, 1));
        assert!(KernelCounts::between("", "").is_err());
    }
}
