// SPDX-License-Identifier: GPL-2.0-only
//! Which control group each process is in, by the kernel's number, so that policies may keep those of one together.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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
        self.number_by(read, process, now_ns)
    }

    fn number_by(&mut self, read: impl Fn(u32) -> Option<u64>, process: u32, now_ns: u64) -> Option<u64> {
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
    number_of(Path::new(MOUNT), Processes::default().control_group(process)?)
}

/// A group's number, which is that of its directory below `mount`; the root's has none.
fn number_of(mount: &Path, path: &str) -> Option<u64> {
    let below = path.trim_matches('/');
    if below.is_empty() {
        return None;
    }
    Some(fs::metadata(mount.join(below)).ok()?.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_the_number_of_its_directory_and_the_root_has_none() {
        let mount = tempfile::tempdir().unwrap();
        fs::create_dir_all(mount.path().join("a.slice/b.scope")).unwrap();
        let directory = fs::metadata(mount.path().join("a.slice/b.scope")).unwrap().ino();
        let number = |path: &str| number_of(mount.path(), path);
        assert_eq!(number("/a.slice/b.scope"), Some(directory));
        assert!(number("/a.slice").is_some_and(|other| other != directory));
        assert_eq!((number("/"), number("/gone.scope")), (None, None));
        assert_eq!(read(u32::MAX), None, "there is no such process");
    }

    #[test]
    fn what_was_read_counts_for_some_time_and_while_the_process_is_managed() {
        let mut groups = ControlGroups::default();
        let mut number =
            |group: u64, now_ns: u64| groups.number_by(|process| Some(group + u64::from(process)), 1, now_ns);
        assert_eq!((number(7, 0), number(8, RENEWAL_NS - 1)), (Some(8), Some(8)), "it is not read each time");
        assert_eq!(number(9, RENEWAL_NS), Some(10), "it may have been moved meanwhile");
        groups.keep(|process| process == 1);
        assert_eq!(groups.number_by(|_| None, 1, RENEWAL_NS), Some(10));
        groups.keep(|_| false);
        assert_eq!(groups.number_by(|_| Some(3), 1, RENEWAL_NS), Some(3));
    }
}
