// SPDX-License-Identifier: GPL-2.0-only
//! Which control group each process is in, by the kernel's number, so that policies may keep those of one together.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::processes::Processes;

/// Where the unified hierarchy is mounted.
const MOUNT: &str = "/sys/fs/cgroup";

/// How long what was read of a process counts: service managers and batch systems move processes some time after they began.
const RENEWAL_NS: u64 = 10_000_000_000;

/// Control groups of processes, each with when it was read.
#[derive(Default)]
pub struct ControlGroups(BTreeMap<u32, (u64, Option<u64>)>);

impl ControlGroups {
    /// The number of the control group that a process was in a short time ago (`now_ns` on CLOCK_MONOTONIC); `None` for the
    /// root's, in which nothing belongs together, and if it cannot be told.
    pub fn number(&mut self, process: u32, now_ns: u64) -> Option<u64> {
        let fresh = |&&(read_ns, _): &&(u64, _)| now_ns.saturating_sub(read_ns) < RENEWAL_NS;
        if let Some(&(_, number)) = self.0.get(&process).filter(fresh) {
            return number;
        }
        let number = read(process);
        self.0.insert(process, (now_ns, number));
        number
    }

    /// Forgets processes that are not managed any more, for another may get their number.
    pub fn keep(&mut self, is_managed: impl Fn(u32) -> bool) {
        self.0.retain(|&process, _| is_managed(process));
    }
}

fn read(process: u32) -> Option<u64> {
    let mut processes = Processes::default();
    let path = processes.control_group(process).filter(|path| !path.trim_matches('/').is_empty())?;
    // A group's number is that of its directory.
    Some(fs::metadata(format!("{MOUNT}{path}")).ok()?.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_the_number_of_its_groups_directory_for_some_time() {
        let own = std::process::id();
        let path = Processes::default().control_group(own).map(str::to_owned);
        let number =
            path.filter(|path| path != "/").and_then(|path| Some(fs::metadata(format!("{MOUNT}{path}")).ok()?.ino()));
        let mut groups = ControlGroups::default();
        assert_eq!(groups.number(own, 0), number);
        assert_eq!(groups.number(u32::MAX, 0), None, "there is no such process");
        groups.0.insert(own, (0, Some(7)));
        assert_eq!(groups.number(own, RENEWAL_NS - 1), Some(7), "it is not read each time");
        assert_eq!(groups.number(own, RENEWAL_NS), number, "it may have been moved meanwhile");
        groups.0.insert(own, (RENEWAL_NS, Some(7)));
        groups.keep(|_| false);
        assert_eq!(groups.number(own, RENEWAL_NS), number);
    }
}
