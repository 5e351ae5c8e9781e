// SPDX-License-Identifier: GPL-2.0-only
//! Where the pages are that were sampled: what the kernel said while their process lived.
//!
//! Once a process has ended nobody can tell any more, so it is asked often, and first for pages of which nothing is known.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tandem_policies::model::{GroupId, NodeId, PAGE_BYTES, ProcessId};
use tandem_profile::PageUse;
use tandem_profile::trace::Trace;
use tandem_sense::homes::HomeQuery;

/// Time between two questions: what a program accessed last before it ended stays unknown.
pub const HOMES_EVERY: Duration = Duration::from_millis(200);
/// Pages that are asked for at once, at most.
const MOST_AT_ONCE: usize = 1 << 12;

/// A page of a process.
type Page = (u32, u64);

/// The homes of sampled pages.
pub struct PageHomes {
    query: HomeQuery,
    /// Pages that were accessed and not asked for since.
    recent: BTreeSet<Page>,
    /// Index of the node.
    known: BTreeMap<Page, usize>,
}

impl PageHomes {
    /// None yet.
    pub fn new() -> Self {
        Self { query: HomeQuery::new(1), recent: BTreeSet::new(), known: BTreeMap::new() }
    }

    /// `page` of `process` was accessed.
    pub fn accessed(&mut self, process: u32, page: u64) {
        self.recent.insert((process, page));
    }

    /// Asks the kernel for pages that were accessed since it was asked for them.
    pub fn ask(&mut self, nodes: &[NodeId]) {
        let mut by_process: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (pid, page) in self.take(MOST_AT_ONCE) {
            by_process.entry(pid).or_default().push(page);
        }
        for (pid, pages) in by_process {
            let process = ProcessId(pid);
            let one = |&page: &u64| (GroupId { process, start: page * PAGE_BYTES }, PAGE_BYTES);
            let groups: Vec<(GroupId, u64)> = pages.iter().map(one).collect();
            let found = self.query.resident(process, &groups, nodes);
            for (page, resident) in pages.into_iter().zip(found) {
                let home = resident
                    .and_then(|resident| resident.iter().find(|(_, count)| **count > 0).map(|(node, _)| node.0));
                self.known.extend(home.map(|home| ((pid, page), home)));
            }
        }
    }

    /// The pages to ask for, `most` at most. Those without a home come first, and wait for the next time if there are more.
    fn take(&mut self, most: usize) -> Vec<Page> {
        let (known, mut unknown): (Vec<Page>, Vec<Page>) =
            std::mem::take(&mut self.recent).into_iter().partition(|page| self.known.contains_key(page));
        self.recent.extend(unknown.drain(most.min(unknown.len())..));
        let room = most - unknown.len();
        unknown.extend(known.into_iter().take(room));
        unknown
    }

    /// Index of the node of each of the trace's pages; `None` if the kernel never told.
    pub fn of(&self, trace: &Trace) -> Vec<Option<usize>> {
        let home = |page: &PageUse| self.known.get(&(trace.processes[page.process].pid as u32, page.page)).copied();
        trace.pages.iter().map(home).collect()
    }
}

#[cfg(test)]
mod tests {
    use tandem_profile::samples::Samples;

    use super::*;

    #[test]
    fn a_page_of_which_the_kernel_never_told_has_no_home() {
        let mut samples = Samples::new(0, 1000);
        for (process, page) in [(40, 1), (40, 2), (41, 1)] {
            samples.add(process, process, 1, page * PAGE_BYTES);
        }
        let mut homes = PageHomes::new();
        homes.known.extend([((40, 2), 3), ((41, 1), 0), ((42, 1), 1)]);
        assert_eq!(homes.of(&samples.trace(1000).unwrap()), [None, Some(3), Some(0)]);
    }

    #[test]
    fn pages_without_a_home_are_asked_for_first_and_wait_if_there_are_too_many() {
        let mut homes = PageHomes::new();
        homes.known.extend([((40, 1), 0), ((40, 2), 0)]);
        (1..=6).for_each(|page| homes.accessed(40, page));
        assert_eq!(homes.take(3), [(40, 3), (40, 4), (40, 5)]);
        homes.accessed(40, 2);
        assert_eq!(homes.take(3), [(40, 6), (40, 2)]);
        assert_eq!(homes.take(3), []);
    }

    #[test]
    fn what_lives_is_asked_and_what_has_ended_stays_unknown() {
        let topology = tandem_machine::read_running().unwrap().topology;
        let data = vec![1u8; 4 * PAGE_BYTES as usize];
        let (me, page) = (std::process::id(), data.as_ptr() as u64 / PAGE_BYTES + 1);
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let mut homes = PageHomes::new();
        for process in [me, ended.id()] {
            homes.accessed(process, page);
        }
        homes.ask(&topology.node_ids());
        assert_eq!(homes.known.keys().collect::<Vec<_>>(), [&(me, page)]);
    }
}
