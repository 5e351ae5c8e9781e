// SPDX-License-Identifier: GPL-2.0-only
//! What samplers saw, until a snapshot is made of it.
//!
//! A look at a thread (`lookahead`) shows up to some hundred accesses, most of them to a few pages, and all that is made of
//! them depends on the page alone. So one entry stands for the accesses of a look to a page: a program that goes through
//! arrays costs a tenth. What hardware measured stays as it is, since each access has a latency of its own.

use tandem_policies::model::PAGE_BYTES;

use crate::access::{Access, Batch, Counts, Window};

/// Entries kept between two snapshots; what has no room is dropped and counted.
const MAX_ENTRIES: usize = 1 << 20;
/// Entries among which the page of an access is looked for: loops go through few arrays at a time.
const LOOKED_BACK: usize = 8;

/// Accesses of a thread to a page, seen by one look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageAccess {
    /// The first of them.
    pub(crate) access: Access,
    /// How many there were.
    pub(crate) times: u32,
}

impl PageAccess {
    fn stands_for(&self, access: &Access) -> bool {
        let own = &self.access;
        let page = |access: &Access| access.address / PAGE_BYTES;
        own.measured.is_none() && own.process == access.process && page(own) == page(access)
    }
}

/// What came since the last snapshot.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) accesses: Vec<PageAccess>,
    pub(crate) windows: Vec<Window>,
    pub(crate) counts: Vec<Counts>,
}

impl Pending {
    /// Takes a batch in. Returns how many accesses had no room.
    pub(crate) fn add(&mut self, batch: &Batch) -> u64 {
        let had_room = self.accesses.len() < MAX_ENTRIES;
        let dropped = batch.accesses.iter().filter(|access| !self.put(access)).count();
        // Rates are made of both: the windows of accesses that were dropped would make them too small.
        if had_room {
            self.windows.extend_from_slice(&batch.windows);
        }
        self.counts.extend_from_slice(&batch.counts);
        dropped as u64
    }

    fn put(&mut self, access: &Access) -> bool {
        let of_look =
            |entry: &&mut PageAccess| (entry.access.tid, entry.access.time_ns) == (access.tid, access.time_ns);
        let recent = self.accesses.iter_mut().rev().take(LOOKED_BACK).take_while(of_look);
        let known = recent.filter(|_| access.measured.is_none()).find(|entry| entry.stands_for(access));
        if let Some(entry) = known {
            entry.times += 1;
            return true;
        }
        let has_room = self.accesses.len() < MAX_ENTRIES;
        if has_room {
            self.accesses.push(PageAccess { access: *access, times: 1 });
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{CpuId, ProcessId};

    use super::*;
    use crate::access::Measured;
    use crate::source::DataSource;

    fn access(tid: u32, time_ns: u64, address: u64) -> Access {
        let (process, cpu) = (ProcessId(1), CpuId(0));
        Access { process, tid, address, bytes: 8, store: false, time_ns, cpu, measured: None }
    }

    /// (thread, look, page, times) of each entry.
    fn entries(accesses: Vec<Access>) -> Vec<(u32, u64, u64, u32)> {
        let mut pending = Pending::default();
        assert_eq!(pending.add(&Batch { accesses, ..Batch::default() }), 0);
        let of = |entry: &PageAccess| {
            (entry.access.tid, entry.access.time_ns, entry.access.address / PAGE_BYTES, entry.times)
        };
        pending.accesses.iter().map(of).collect()
    }

    #[test]
    fn accesses_of_a_look_to_a_page_are_one_entry() {
        let stencil = (0..6).flat_map(|at| [access(1, 5, 4096 + 8 * at), access(1, 5, 3 * 4096 + 8 * at)]).collect();
        assert_eq!(entries(stencil), [(1, 5, 1, 6), (1, 5, 3, 6)]);
    }

    #[test]
    fn other_looks_threads_and_processes_have_entries_of_their_own() {
        let other = Access { process: ProcessId(2), ..access(1, 6, 4096) };
        let looks = vec![access(1, 5, 4096), access(1, 6, 4096), access(2, 6, 4096), access(1, 6, 4096), other];
        let own = [(1, 5, 1, 1), (1, 6, 1, 1), (2, 6, 1, 1), (1, 6, 1, 1), (1, 6, 1, 1)];
        assert_eq!(entries(looks), own);
    }

    #[test]
    fn what_was_measured_stays_access_by_access() {
        let source = DataSource::default();
        let measured = Some(Measured { latency_ns: Some(90), source, node: None, physical: None, period: 7 });
        let one = Access { measured, ..access(1, 5, 4096) };
        assert_eq!(entries(vec![one, one, access(1, 5, 4096)]).len(), 3);
    }

    #[test]
    fn what_has_no_room_is_counted() {
        let mut pending = Pending::default();
        let each = |page: u64| access(1, 5, page * PAGE_BYTES);
        let accesses = (0..MAX_ENTRIES as u64 + 3).map(each).chain([each(MAX_ENTRIES as u64 - 1)]).collect();
        let windows = vec![Window { process: ProcessId(1), tid: 1, time_ns: 5, instructions: 9 }];
        let batch = Batch { accesses, windows, ..Batch::default() };
        assert_eq!(pending.add(&batch), 3, "the last page has an entry already");
        assert_eq!((pending.add(&batch) > 0, pending.windows.len()), (true, 1));
    }
}
