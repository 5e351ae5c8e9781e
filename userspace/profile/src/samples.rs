// SPDX-License-Identifier: GPL-2.0-only
//! A trace of a program that runs, made of samples of its accesses.
//!
//! Time is real time in ns. Two threads meet on a page of 4 KiB in a slice as often as the one of them was seen there that was
//! seen there less. Counts are of samples: they tell of proportions, not of how often anything happened.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use tandem_policies::model::PAGE_BYTES;

use crate::trace::{Process, Record, Trace};

/// Samples of the threads of some processes.
#[derive(Clone, Debug)]
pub struct Samples {
    begin_ns: u64,
    slice_ns: u64,
    /// Thread ids by process, in the order in which they were noticed: their numbers.
    threads: BTreeMap<u32, Vec<u32>>,
    /// Samples by thread number, of (process, slice, page).
    seen: BTreeMap<(u32, u64, u64), BTreeMap<usize, u64>>,
    /// CPU time by (process, thread id).
    cpu_ns: BTreeMap<(u32, u32), u64>,
}

impl Samples {
    /// None yet; slices of `slice_ns` begin at `begin_ns`, on CLOCK_MONOTONIC.
    pub fn new(begin_ns: u64, slice_ns: u64) -> Self {
        let slice_ns = slice_ns.max(1);
        Self { begin_ns, slice_ns, threads: BTreeMap::new(), seen: BTreeMap::new(), cpu_ns: BTreeMap::new() }
    }

    /// Thread `tid` of `process` was seen to access `address` at `time_ns`.
    pub fn add(&mut self, process: u32, tid: u32, time_ns: u64, address: u64) {
        let number = self.number(process, tid);
        let slice = time_ns.saturating_sub(self.begin_ns) / self.slice_ns;
        *self.seen.entry((process, slice, address / PAGE_BYTES)).or_default().entry(number).or_insert(0) += 1;
    }

    /// Thread `tid` of `process` has used so much CPU time since the begin.
    pub fn ran(&mut self, process: u32, tid: u32, cpu_ns: u64) {
        self.number(process, tid);
        self.cpu_ns.insert((process, tid), cpu_ns);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.seen.values().flat_map(BTreeMap::values).sum()
    }

    /// (process, thread id) of every thread, in the order in which the trace numbers them.
    pub fn threads(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.threads.iter().flat_map(|(&process, tids)| tids.iter().map(move |&tid| (process, tid)))
    }

    fn number(&mut self, process: u32, tid: u32) -> usize {
        let tids = self.threads.entry(process).or_default();
        tids.iter().position(|&known| known == tid).unwrap_or_else(|| {
            tids.push(tid);
            tids.len() - 1
        })
    }

    /// The trace of the time up to `end_ns`.
    ///
    /// # Errors
    /// None; the type is that of reading files.
    pub fn trace(&self, end_ns: u64) -> Result<Trace> {
        let passed_ns = end_ns.saturating_sub(self.begin_ns);
        let process = |&pid: &u32| Process {
            path: PathBuf::new(),
            pid: u64::from(pid),
            end: Some(passed_ns),
            ..Process::default()
        };
        let processes: Vec<Process> = self.threads.keys().map(process).collect();
        let index: BTreeMap<u32, usize> = self.threads.keys().enumerate().map(|(at, &pid)| (pid, at)).collect();
        let mut records: BTreeMap<(usize, u64, usize), Record> = BTreeMap::new();
        let mut record = |process: u32, slice: u64, thread: usize, change: &dyn Fn(&mut Record)| {
            let new = || Record { slice: slice + 1, thread, ..Record::default() };
            change(records.entry((index[&process], slice, thread)).or_insert_with(new));
        };
        for (&(process, slice, page), users) in &self.seen {
            for (&thread, &count) in users {
                record(process, slice, thread, &|record| record.pages.push((page, count, false)));
                for (&other, &others) in users.range(thread + 1..) {
                    record(process, slice, thread, &|record| record.met.push((other, count.min(others))));
                }
            }
        }
        for (&(process, tid), &cpu_ns) in &self.cpu_ns {
            let number = self.threads[&process].iter().position(|&known| known == tid).expect("noticed in `ran`");
            record(process, 0, number, &|record| record.instructions += cpu_ns);
        }
        let slices = passed_ns.div_ceil(self.slice_ns) as usize;
        Trace::of_records(
            processes,
            records.into_iter().map(|((at, ..), record)| (at, record)).collect(),
            self.slice_ns,
            slices,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_meet_on_pages_within_a_slice_as_often_as_the_rarer_was_seen() {
        let mut samples = Samples::new(1000, 100);
        for (tid, time_ns, address) in
            [(7, 1001, 4096), (7, 1002, 8191), (8, 1099, 5000), (8, 1100, 4096), (9, 1101, 4096), (9, 1102, 8192)]
        {
            samples.add(40, tid, time_ns, address);
        }
        samples.ran(40, 8, 500);
        let trace = samples.trace(1450).unwrap();
        let met: Vec<Vec<_>> =
            trace.slices.iter().map(|slice| slice.iter().map(|(pair, count)| (*pair, *count)).collect()).collect();
        assert_eq!(met, [vec![((0, 1), 1)], vec![((1, 2), 1)], vec![], vec![], vec![]]);
        let pages: Vec<_> = trace.pages.iter().map(|page| (page.page, page.first, page.accesses.clone())).collect();
        assert_eq!(pages, [(1, None, vec![(0, 2), (1, 2), (2, 1)]), (2, None, vec![(2, 1)])]);
        let totals: Vec<_> = trace.threads.iter().map(|thread| (thread.instructions, thread.accesses)).collect();
        assert_eq!((totals, samples.count()), (vec![(0, 2), (500, 2), (0, 2)], 6));
        assert_eq!(samples.threads().collect::<Vec<_>>(), [(40, 7), (40, 8), (40, 9)]);
        assert_eq!((trace.processes[0].end, trace.slice_instructions), (Some(450), 100));
    }

    #[test]
    fn threads_of_different_processes_do_not_meet() {
        let mut samples = Samples::new(0, 100);
        samples.add(41, 5, 1, 4096);
        samples.add(40, 6, 1, 4096);
        let trace = samples.trace(100).unwrap();
        assert_eq!((trace.slices[0].len(), trace.pages.len()), (0, 2));
        assert_eq!(trace.threads.iter().map(|thread| thread.process).collect::<Vec<_>>(), [0, 1]);
    }
}
