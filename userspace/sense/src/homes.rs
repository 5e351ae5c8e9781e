// SPDX-License-Identifier: GPL-2.0-only
//! Where pages are: a sample of each group's pages, asked of the kernel with move_pages(2) and no target.

use serde::Serialize;
use tandem_policies::model::{GroupId, NodeId, NodeIndex, PAGE_BYTES, PerNode, ProcessId};

/// Pages per system call.
const BATCH: usize = 1024;
/// Pages of a group, however small, that are asked for at least, if it has so many.
const LEAST_ASKED: u64 = 8;

/// What the queries met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HomeCounters {
    /// Pages asked for.
    pub asked: u64,
    /// Of them not resident: never touched, swapped out or unmapped.
    pub absent: u64,
    /// Answers other than a node or absent.
    pub other: u64,
    /// Calls that failed because the process had ended.
    pub races: u64,
    /// Calls that failed for another reason (permission).
    pub failures: u64,
}

/// Asks for page homes.
pub struct HomeQuery {
    stride_pages: u64,
    /// What the queries met so far.
    pub counters: HomeCounters,
}

impl HomeQuery {
    /// A query of every `stride_pages`-th page of a group, its first page included; of more in small groups.
    pub fn new(stride_pages: u64) -> Self {
        Self { stride_pages: stride_pages.max(1), counters: HomeCounters::default() }
    }

    /// Pages that are asked for in a group of `bytes`.
    pub fn cost_pages(&self, bytes: u64) -> u64 {
        bytes.div_ceil(PAGE_BYTES).div_ceil(self.stride_of(bytes))
    }

    fn stride_of(&self, bytes: u64) -> u64 {
        self.stride_pages.min((bytes.div_ceil(PAGE_BYTES) / LEAST_ASKED).max(1))
    }

    /// Resident pages by node (the kernel's numbers in `nodes`) of each of `groups` (id and bytes; all of `process`),
    /// scaled up from the sample. `None` for groups of which nothing could be learned.
    pub fn resident(
        &mut self,
        process: ProcessId,
        groups: &[(GroupId, u64)],
        nodes: &[NodeId],
    ) -> Vec<Option<PerNode<u64>>> {
        let mut addresses = Vec::new();
        let mut ends = Vec::with_capacity(groups.len());
        for (group, bytes) in groups {
            let stride_bytes = self.stride_of(*bytes) * PAGE_BYTES;
            addresses.extend((0..self.cost_pages(*bytes)).map(|page| group.start + page * stride_bytes));
            ends.push(addresses.len());
        }
        let mut status = vec![-libc::EINVAL; addresses.len()];
        for (addresses, status) in addresses.chunks(BATCH).zip(status.chunks_mut(BATCH)) {
            if !self.ask(process, addresses, status) {
                return vec![None; groups.len()];
            }
        }
        let mut begin = 0;
        let mut homes = Vec::with_capacity(groups.len());
        for ((_, bytes), end) in groups.iter().zip(ends) {
            homes.push(self.count(&status[begin..end], bytes.div_ceil(PAGE_BYTES), nodes));
            begin = end;
        }
        homes
    }

    fn ask(&mut self, process: ProcessId, addresses: &[u64], status: &mut [i32]) -> bool {
        self.counters.asked += addresses.len() as u64;
        let nowhere: *const i32 = std::ptr::null();
        // SAFETY: both arrays have `addresses.len()` elements; with no nodes given the kernel only writes statuses.
        let asked = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                process.0,
                addresses.len(),
                addresses.as_ptr(),
                nowhere,
                status.as_mut_ptr(),
                0,
            )
        };
        if asked >= 0 {
            return true;
        }
        let error = std::io::Error::last_os_error();
        // EINVAL: its main thread has ended, and with it what the kernel finds the memory by.
        if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL)) {
            self.counters.races += 1;
        } else {
            self.counters.failures += 1;
            tracing::debug!(%error, process = process.0, "page homes cannot be read");
        }
        false
    }

    fn count(&mut self, status: &[i32], pages: u64, nodes: &[NodeId]) -> Option<PerNode<u64>> {
        let mut found = PerNode::filled(nodes.len(), 0_u64);
        for &status in status {
            match u32::try_from(status) {
                Ok(node) => match nodes.iter().position(|id| *id == NodeId(node)) {
                    Some(node) => found[NodeIndex(node)] += 1,
                    None => self.counters.other += 1,
                },
                Err(_) if status == -libc::ENOENT || status == -libc::EFAULT => self.counters.absent += 1,
                Err(_) => self.counters.other += 1,
            }
        }
        let asked = status.len() as u64;
        (asked > 0).then(|| PerNode::from_fn(found.len(), |node| (found[node] * pages + asked / 2) / asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_pages_are_resident_and_others_are_not() {
        let pages = 512_usize;
        let bytes = 2 * pages * PAGE_BYTES as usize;
        let (protection, sharing) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, sharing, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: the advice covers the new mapping; small pages keep untouched pages absent.
        unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
        let start = start as u64;
        for page in 0..pages {
            // SAFETY: inside the mapping.
            unsafe { ((start + page as u64 * PAGE_BYTES) as *mut u8).write_volatile(1) };
        }
        let me = ProcessId(std::process::id());
        let half = pages as u64 * PAGE_BYTES;
        let groups = [(GroupId { process: me, start }, half), (GroupId { process: me, start: start + half }, half)];
        let mut query = HomeQuery::new(16);
        let homes = query.resident(me, &groups, &[NodeId(0)]);
        assert_eq!(query.counters, HomeCounters { asked: 64, absent: 32, ..Default::default() });
        assert_eq!(homes[0].as_ref().map(|home| home[NodeIndex(0)]), Some(512));
        assert_eq!(homes[1].as_ref().map(|home| home[NodeIndex(0)]), Some(0));
        // SAFETY: mapped above.
        unsafe { libc::munmap(start as *mut libc::c_void, bytes) };
    }

    #[test]
    fn small_groups_are_looked_at_more_closely() {
        let query = HomeQuery::new(16);
        let pages = [1, 3, 8, 16, 64, 128, 200, 512].map(|pages| (pages, query.cost_pages(pages * PAGE_BYTES)));
        assert_eq!(pages, [(1, 1), (3, 3), (8, 8), (16, 8), (64, 8), (128, 8), (200, 13), (512, 32)]);
    }

    #[test]
    fn a_process_that_ended_is_counted() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = ProcessId(child.id());
        child.wait().unwrap();
        let mut query = HomeQuery::new(16);
        let homes = query.resident(process, &[(GroupId { process, start: 4096 }, 4096)], &[NodeId(0)]);
        assert_eq!((homes, query.counters.races, query.counters.failures), (vec![None], 1, 0));
    }
}
