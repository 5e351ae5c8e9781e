// SPDX-License-Identifier: GPL-2.0-only
//! Which control group each process is in, by the kernel's number, so that policies may keep those of one together.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::processes::Processes;

/// Where the unified hierarchy is mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// Control groups of processes, read once for each.
#[derive(Default)]
pub struct ControlGroups(BTreeMap<u32, Option<u64>>);

impl ControlGroups {
    /// The number of the control group that a process was in when it was first asked for; `None` for the root's, in which nothing
    /// belongs together, and if it cannot be told.
    pub fn number(&mut self, process: u32) -> Option<u64> {
        *self.0.entry(process).or_insert_with(|| {
            let mut processes = Processes::default();
            let path = processes.control_group(process).filter(|path| !path.trim_matches('/').is_empty())?;
            // A group's number is that of its directory.
            Some(fs::metadata(format!("{MOUNT}{path}")).ok()?.ino())
        })
    }

    /// Forgets processes that are not managed any more, for another may get their number.
    pub fn keep(&mut self, is_managed: impl Fn(u32) -> bool) {
        self.0.retain(|&process, _| is_managed(process));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_the_number_of_its_groups_directory_and_keeps_it() {
        let own = std::process::id();
        let path = Processes::default().control_group(own).map(str::to_owned);
        let number =
            path.filter(|path| path != "/").and_then(|path| Some(fs::metadata(format!("{MOUNT}{path}")).ok()?.ino()));
        let mut groups = ControlGroups::default();
        assert_eq!(groups.number(own), number);
        assert_eq!(groups.number(u32::MAX), None, "there is no such process");
        groups.0.insert(own, Some(7));
        assert_eq!(groups.number(own), Some(7), "it is read once");
        groups.keep(|_| false);
        assert_eq!(groups.number(own), number);
    }
}
