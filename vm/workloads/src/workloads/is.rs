// SPDX-License-Identifier: GPL-2.0-only
//! `is`: sorting integers by buckets, with the sharing pattern of the NAS code IS.
//!
//! Records are partitioned. In each sort a thread counts its records by bucket, learns from all threads' counts where
//! its records go, and scatters them over the whole other array: one half of the accesses is to the own part, the other
//! goes everywhere. Every sort has another order (the key times an odd number, upper bits). At the end the records must
//! stand in the last order, and none may be lost or doubled.

use crate::frame::memory::{LINE_BYTES, LINE_WORDS, Line, Memory};
use crate::frame::plan::{Fill, Home, Plan, Program, Region, Request};
use crate::frame::seating::mix;
use crate::frame::spec::{Metric, Spec, THREADS, size};
use crate::frame::worker::Worker;
use crate::workloads::kernel::{BEST, Layout, WORST, alone, part};
use anyhow::{Result, bail};

const BUCKETS: usize = 256;
/// Regions: the two arrays of records, and the threads' counts.
const COUNTS: usize = 2;
const COUNT_LINES: usize = BUCKETS / LINE_WORDS;
/// Words of a record.
const KEY: usize = 0;
const NUMBER: usize = 1;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "is",
    summary: "sorting integers by buckets: every thread reads its own part and writes all over the other array",
    sizes: &[
        THREADS,
        size("array-mib", 48, "MiB", "each of the two arrays of records"),
        size("sorts", 850, "sorts", "sorts, from one array to the other"),
    ],
    metric: Metric::Seconds,
    work_unit: "records",
    best: BEST,
    worst: WORST,
    timed: false,
    plan,
};

fn plan(request: &Request) -> Result<Plan> {
    let layout = Layout::of_machine(request)?;
    let records = request.sizes.mib("array-mib") / LINE_BYTES;
    Ok(alone(program(&layout, records, request.sizes.of("sorts"), request.random(0))))
}

/// A program that sorts so many records so many times.
pub fn program(layout: &Layout, records: usize, sorts: u64, seed: u64) -> Program {
    let array = |lines: usize, home: Home, fill: Fill| Region { bytes: lines * LINE_BYTES, home, fill };
    let first: Fill = Box::new(move |lines, range| {
        for record in range {
            lines[record].set(KEY, mix(seed ^ record as u64));
            lines[record].set(NUMBER, record as u64);
        }
    });
    let empty = || -> Fill { Box::new(|lines, range| range.for_each(|record| lines[record].set(KEY, 0))) };
    let threads = layout.places.len();
    let counts_home = match &layout.home {
        Home::Parts(nodes) => Home::on(nodes[0]),
        other => other.clone(),
    };
    let regions = vec![
        array(records, layout.home.clone(), first),
        array(records, layout.home.clone(), empty()),
        array(threads * COUNT_LINES, counts_home, empty()),
    ];
    let threads = layout.threads(move |worker| {
        (0..sorts).for_each(|sort| sort_once(worker, sort, records, threads));
        Ok(())
    });
    let check = move |memory: &[Memory]| check(memory[sorts as usize % 2].lines(), sorts, seed);
    Program { start: layout.start, regions, threads, check: Some(Box::new(check)) }
}

/// The bucket of a key in sort `sort`.
#[inline(always)]
fn bucket(key: u64, sort: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.wrapping_add(2 * sort)) >> 56) as usize
}

/// A thread's part of one sort.
fn sort_once(worker: &mut Worker, sort: u64, records: usize, threads: usize) {
    let (from, to) = (worker.lines(sort as usize % 2), worker.lines((sort as usize + 1) % 2));
    let counts = worker.lines(COUNTS);
    let own = &from[part(records, worker.number, threads)];
    let count_of =
        |thread: usize, bucket: usize| (&counts[thread * COUNT_LINES + bucket / LINE_WORDS], bucket % LINE_WORDS);

    let mut of_bucket = [0u64; BUCKETS];
    own.iter().for_each(|record| of_bucket[bucket(record.get(KEY), sort)] += 1);
    for (bucket, count) in of_bucket.iter().enumerate() {
        let (line, word) = count_of(worker.number, bucket);
        line.set(word, *count);
    }
    worker.meet();
    // Bucket after bucket, and within a bucket thread after thread.
    let mut next = [0usize; BUCKETS];
    let mut place = 0;
    for (bucket, next) in next.iter_mut().enumerate() {
        for thread in 0..threads {
            if thread == worker.number {
                *next = place;
            }
            let (line, word) = count_of(thread, bucket);
            place += line.get(word) as usize;
        }
    }
    scatter(own, to, sort, &mut next);
    worker.meet();
    worker.notes.work += own.len() as u64;
}

/// Copies every record to the next free place of its bucket.
#[inline(never)]
fn scatter(own: &[Line], to: &[Line], sort: u64, next: &mut [usize; BUCKETS]) {
    for record in own {
        let key = record.get(KEY);
        let next = &mut next[bucket(key, sort)];
        to[*next].set(KEY, key);
        to[*next].set(NUMBER, record.get(NUMBER));
        *next += 1;
    }
}

/// Fails unless the records are in the last sort's order and every one is there once, with its key.
fn check(records: &[Line], sorts: u64, seed: u64) -> Result<()> {
    let mut seen = vec![false; records.len()];
    let mut before = 0;
    for (place, record) in records.iter().enumerate() {
        let (key, number) = (record.get(KEY), record.get(NUMBER));
        let in_bucket = bucket(key, sorts - 1);
        if in_bucket < before {
            bail!("self-check failed: the record at {place} is out of order");
        }
        before = in_bucket;
        if key != mix(seed ^ number) {
            bail!("self-check failed: record {number} has lost its key");
        }
        if std::mem::replace(&mut seen[number as usize], true) {
            bail!("self-check failed: record {number} is there twice");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::kernel::tests::{anywhere, run};

    #[test]
    fn records_are_sorted_and_complete_with_any_number_of_threads() {
        for threads in [1, 2, 3] {
            run(&program(&anywhere(threads), 1000, 3, 5), |_| {}).unwrap();
        }
    }

    #[test]
    fn a_record_that_is_doubled_or_out_of_order_or_damaged_fails_the_check() {
        let error = |damage: &dyn Fn(&[Line])| {
            let program = program(&anywhere(2), 1000, 3, 5);
            run(&program, |memory| damage(memory[1].lines())).unwrap_err().to_string()
        };
        let copy = |lines: &[Line], from: usize, to: usize| {
            lines[to].set(KEY, lines[from].get(KEY));
            lines[to].set(NUMBER, lines[from].get(NUMBER));
        };
        assert!(error(&|lines| copy(lines, 10, 11)).contains("twice"));
        assert!(error(&|lines| copy(lines, 999, 10)).contains("out of order"));
        assert!(error(&|lines| lines[10].set(NUMBER, lines[11].get(NUMBER))).contains("lost its key"));
    }
}
