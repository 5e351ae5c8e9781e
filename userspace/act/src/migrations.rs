// SPDX-License-Identifier: GPL-2.0-only
//! How many pages others than a mover migrate, as the kernel counts them for the whole machine.

use std::fs;
use std::path::{Path, PathBuf};

/// What counts them: also pages that the kernel compacts memory with, and a huge page as all of its base pages.
const COUNTER: &str = "pgmigrate_success";

/// Pages migrated since the first look.
#[derive(Debug)]
pub struct Migrations {
    vmstat: PathBuf,
    /// All that the kernel had counted at the first look, and those of them that were ours.
    first: Option<(u64, u64)>,
}

impl Migrations {
    /// None yet. `proc` is `/proc` but for tests.
    pub fn new(proc: &Path) -> Self {
        Self { vmstat: proc.join("vmstat"), first: None }
    }

    /// Base pages that others migrated since the first look, when we moved `own_pages` so far and none are on their way; `None`
    /// where the kernel does not count.
    pub fn by_others(&mut self, own_pages: u64) -> Option<u64> {
        let all = counted(&fs::read_to_string(&self.vmstat).ok()?)?;
        let (first_all, first_own) = *self.first.get_or_insert((all, own_pages));
        Some(all.saturating_sub(first_all).saturating_sub(own_pages.saturating_sub(first_own)))
    }
}

fn counted(vmstat: &str) -> Option<u64> {
    let is_meant = |line: &&str| line.split(' ').next() == Some(COUNTER);
    vmstat.lines().find(is_meant)?.split(' ').nth(1)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_migrate_is_what_is_counted_beyond_our_own_since_the_first_look() {
        let proc = tempfile::tempdir().unwrap();
        let mut migrations = Migrations::new(proc.path());
        let mut look = |all: u64, own| {
            let text = format!("pgmigrate_success_not 9\npgmigrate_success {all}\npgmigrate_fail 7\n");
            fs::write(proc.path().join("vmstat"), text).unwrap();
            migrations.by_others(own)
        };
        assert_eq!(look(5000, 100), Some(0), "what was before");
        assert_eq!(look(5512, 612), Some(0));
        assert_eq!(look(5600, 612), Some(88));
        assert_eq!(look(5650, 712), Some(38), "a page of ours that the kernel did not count");
    }

    #[test]
    fn a_kernel_that_does_not_count_is_no_witness() {
        let proc = tempfile::tempdir().unwrap();
        assert_eq!(Migrations::new(proc.path()).by_others(0), None);
        fs::write(proc.path().join("vmstat"), "pgfault 1\n").unwrap();
        assert_eq!(Migrations::new(proc.path()).by_others(0), None);
    }
}
