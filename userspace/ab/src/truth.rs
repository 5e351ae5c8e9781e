// SPDX-License-Identifier: GPL-2.0-only
//! The lab's ground truth: who accessed which node's memory, counted by the machine model itself.
//!
//! Records hold counters since boot, one record a tenth of a virtual second and one at every mark. The workload marks the begin
//! ([`BEGIN`]) and the end ([`END`]) of its timed part; what lies between is the difference of two records.
//!
//! Terms:
//! - *access*: a line filled from DRAM, by (node of the CPU, node of the memory).
//! - *remote share*: accesses with the two nodes different / all accesses, 0 to 1; absent where there was no access.
//! - *instructions*: what all CPUs executed, programs and kernel, waiting by PAUSE included; a halted CPU executes none.
//! - *load of a node*: time its CPUs were busy / (time x its CPUs), 0 to 1.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// Mark where the timed part begins.
pub const BEGIN: u32 = 1;
/// Mark where the timed part ends.
pub const END: u32 = 2;

/// The remote share up to which a stretch counts as local.
pub const REMOTE_WHEN_LOCAL: f64 = 0.1;
/// A shorter stretch, beside a mark, tells too little to be called local,
const LEAST_STRETCH_S: f64 = 0.05;
/// and so does one with so few of the accesses that it would have if all stretches were alike.
const LEAST_SHARE: f64 = 0.1;

/// The document that the lab leaves.
#[derive(Clone, Debug, Deserialize)]
pub struct Truth {
    cpus_per_node: Vec<usize>,
    records: Vec<Record>,
}

/// Counters since boot at one moment.
#[derive(Clone, Debug, Deserialize)]
struct Record {
    at_ns: u64,
    mark: Option<u32>,
    accesses: Vec<Vec<u64>>,
    busy_ns: Vec<u64>,
    instructions: Vec<u64>,
    #[serde(default)]
    coherence: Coherence,
}

/// Lines fetched from a cache of another CPU, by how far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Coherence {
    /// Below one last-level cache.
    pub same_llc: u64,
    /// On one node.
    pub same_node: u64,
    /// Between nodes.
    pub cross_node: u64,
}

/// What happened in the timed part; on a real machine, in the whole run of the workload, and its accesses are not known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// Accesses to another node / all accesses.
    pub remote_share: Option<f64>,
    /// All accesses.
    pub accesses: Option<u64>,
    /// Lines from other CPUs' caches.
    pub coherence: Option<Coherence>,
    /// Instructions of all CPUs; `None` on a real machine and of older versions.
    #[serde(default)]
    pub instructions: Option<u64>,
    /// Begin of the timed part to the end of the first stretch with a remote share of at most [`REMOTE_WHEN_LOCAL`], in s;
    /// `None` if there is none, on a real machine and of older versions.
    #[serde(default)]
    pub local_after_s: Option<f64>,
    /// Accesses per second in the third quarter of the timed part / in all of it: above 1 where the workload got on faster once
    /// what placed it had learnt (the last quarter would tell of threads that end earlier, too). `None` if there are no two
    /// records in that quarter, on a real machine and of older versions.
    #[serde(default)]
    pub third_quarter_pace: Option<f64>,
    /// Its course, a point a record; none in results that were kept without it, as most of their size.
    #[serde(default)]
    pub series: Vec<Point>,
}

/// One stretch between two records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// End of the stretch, in s since the timed part began (on a real machine, the workload).
    pub at_s: f64,
    /// Remote share in it.
    pub remote_share: Option<f64>,
    /// Load of each node in it.
    pub load: Vec<f64>,
}

impl Truth {
    /// Reads the document.
    ///
    /// # Errors
    /// It is no JSON of that form, or its matrices do not fit each other.
    pub fn parse(text: &str) -> Result<Self> {
        let truth: Self = serde_json::from_str(text)?;
        let nodes = truth.cpus_per_node.len();
        let cpus = truth.cpus_per_node.iter().sum::<usize>();
        for record in &truth.records {
            let square = record.accesses.len() == nodes && record.accesses.iter().all(|row| row.len() == nodes);
            if !square || record.busy_ns.len() != cpus || record.instructions.len() != cpus {
                bail!("the record at {} ns does not have {nodes} nodes and {cpus} CPUs", record.at_ns);
            }
        }
        Ok(truth)
    }

    /// What happened between the marks.
    ///
    /// # Errors
    /// A mark is missing, or the end comes before the begin.
    pub fn timed_part(&self) -> Result<Placement> {
        let (Some(begin), Some(end)) = (self.first(BEGIN), self.first(END)) else {
            bail!("the workload did not mark the begin and the end of its timed part");
        };
        if end <= begin {
            bail!("the timed part ends before it begins");
        }
        let (first, last) = (&self.records[begin], &self.records[end]);
        let series = self.records[begin..=end].windows(2).filter(|pair| pair[1].at_ns > pair[0].at_ns);
        let series: Vec<Point> = series.map(|pair| self.point(first.at_ns, &pair[0], &pair[1])).collect();
        Ok(Placement {
            remote_share: remote_share(first, last),
            accesses: Some(accesses(first, last).0),
            coherence: Some(last.coherence.since(first.coherence)),
            instructions: Some(last.all_instructions().saturating_sub(first.all_instructions())),
            local_after_s: self.local_after_s(begin, end),
            third_quarter_pace: self.third_quarter_pace(begin, end),
            series,
        })
    }

    /// The pace from the first record in the third quarter to the last one, of that of all.
    fn third_quarter_pace(&self, begin: usize, end: usize) -> Option<f64> {
        let (first, last) = (&self.records[begin], &self.records[end]);
        let quarter_ns = |quarter: u64| first.at_ns + last.at_ns.saturating_sub(first.at_ns) * quarter / 4;
        let is_in = |record: &&Record| (quarter_ns(2)..=quarter_ns(3)).contains(&record.at_ns);
        let mut inside = self.records[begin..=end].iter().filter(is_in);
        let (from, to) = (inside.next()?, inside.next_back()?);
        let per_s = |from: &Record, to: &Record| accesses(from, to).0 as f64 / length_s(from, to);
        Some(per_s(from, to) / per_s(first, last)).filter(|pace| pace.is_finite())
    }

    /// End of the first stretch between two records that is local, in s from the first of them.
    fn local_after_s(&self, begin: usize, end: usize) -> Option<f64> {
        let (first, last) = (&self.records[begin], &self.records[end]);
        let mean_per_s = accesses(first, last).0 as f64 / length_s(first, last);
        let is_local = |pair: &&[Record]| {
            let (from, to) = (&pair[0], &pair[1]);
            let enough = accesses(from, to).0 as f64 >= LEAST_SHARE * mean_per_s * length_s(from, to);
            let share = remote_share(from, to).filter(|_| enough && length_s(from, to) >= LEAST_STRETCH_S);
            share.is_some_and(|share| share <= REMOTE_WHEN_LOCAL)
        };
        self.records[begin..=end].windows(2).find(is_local).map(|pair| length_s(first, &pair[1]))
    }

    fn first(&self, mark: u32) -> Option<usize> {
        self.records.iter().position(|record| record.mark == Some(mark))
    }

    fn point(&self, begin_ns: u64, from: &Record, to: &Record) -> Point {
        let length_ns = (to.at_ns - from.at_ns) as f64;
        let mut first_cpu = 0;
        let load = self.cpus_per_node.iter().map(|&cpus| {
            let of_node = first_cpu..first_cpu + cpus;
            first_cpu += cpus;
            let busy_ns: u64 = of_node.map(|cpu| to.busy_ns[cpu].saturating_sub(from.busy_ns[cpu])).sum();
            if cpus == 0 { 0.0 } else { busy_ns as f64 / (length_ns * cpus as f64) }
        });
        Point { load: load.collect(), at_s: (to.at_ns - begin_ns) as f64 / 1e9, remote_share: remote_share(from, to) }
    }
}

impl Record {
    fn all_instructions(&self) -> u64 {
        self.instructions.iter().sum()
    }
}

impl Coherence {
    fn since(self, before: Self) -> Self {
        Self {
            same_llc: self.same_llc.saturating_sub(before.same_llc),
            same_node: self.same_node.saturating_sub(before.same_node),
            cross_node: self.cross_node.saturating_sub(before.cross_node),
        }
    }
}

fn length_s(from: &Record, to: &Record) -> f64 {
    to.at_ns.saturating_sub(from.at_ns) as f64 / 1e9
}

/// All accesses and the remote ones among them, between two records.
fn accesses(from: &Record, to: &Record) -> (u64, u64) {
    let mut sums = (0, 0);
    for (row, (later, earlier)) in to.accesses.iter().zip(&from.accesses).enumerate() {
        for (column, (later, earlier)) in later.iter().zip(earlier).enumerate() {
            let count = later.saturating_sub(*earlier);
            sums.0 += count;
            sums.1 += if row == column { 0 } else { count };
        }
    }
    sums
}

fn remote_share(from: &Record, to: &Record) -> Option<f64> {
    let (all, remote) = accesses(from, to);
    (all > 0).then(|| remote as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes of two CPUs; the timed part lasts from 2 s to 4 s.
    fn document() -> serde_json::Value {
        let record = |at_s: u64, mark: Option<u32>, local: u64, remote: u64, busy: [u64; 4]| {
            serde_json::json!({"at_ns": at_s * 1_000_000_000, "mark": mark, "accesses": [[local, remote], [0, local]],
                "busy_ns": busy.map(|s| s * 1_000_000_000), "instructions": busy.map(|s| s * 7), "coherence": {"same_llc": 1, "same_node": 0, "cross_node": local}})
        };
        serde_json::json!({"schema": 1, "cpus_per_node": [2, 2], "records": [
            record(1, None, 0, 900, [0, 0, 0, 0]),
            record(2, Some(1), 100, 1000, [1, 1, 1, 1]),
            record(3, None, 100, 1100, [2, 2, 1, 1]),
            record(4, Some(2), 250, 1100, [3, 3, 2, 1]),
            record(5, None, 250, 9999, [4, 4, 4, 4]),
        ]})
    }

    fn timed_part(document: &serde_json::Value) -> Result<Placement> {
        Truth::parse(&document.to_string()).and_then(|truth| truth.timed_part())
    }

    #[test]
    fn only_what_lies_between_the_marks_counts() {
        let placement = timed_part(&document()).unwrap();
        assert_eq!((placement.accesses, placement.remote_share), (Some(400), Some(0.25)));
        assert_eq!(placement.coherence, Some(Coherence { same_llc: 0, same_node: 0, cross_node: 150 }));
        assert_eq!(placement.instructions, Some(35), "of all CPUs");
    }

    #[test]
    fn the_series_has_a_point_for_each_record() {
        let series = timed_part(&document()).unwrap().series;
        assert_eq!(series.iter().map(|point| point.at_s).collect::<Vec<_>>(), [1.0, 2.0]);
        assert_eq!(series.iter().map(|point| point.remote_share).collect::<Vec<_>>(), [Some(1.0), Some(0.0)]);
        assert_eq!(series[0].load, [1.0, 0.0]);
        assert_eq!(series[1].load, [1.0, 0.5]);
    }

    /// The timed part of stretches of so many ms, local and remote accesses, and a last one of 100, 50 and 50.
    fn of_stretches(stretches: &[(u64, u64, u64)]) -> Placement {
        let (mut at_ms, mut local, mut remote) = (1000, 0, 0);
        let mut record = |(ms, more_local, more_remote): (u64, u64, u64), mark: Option<u32>| {
            (at_ms, local, remote) = (at_ms + ms, local + more_local, remote + more_remote);
            serde_json::json!({"at_ns": at_ms * 1_000_000, "mark": mark, "accesses": [[local, remote], [0, 0]],
                "busy_ns": [0, 0], "instructions": [0, 0]})
        };
        let mut records = vec![record((0, 0, 0), Some(BEGIN))];
        records.extend(stretches.iter().map(|&stretch| record(stretch, None)));
        records.push(record((100, 50, 50), Some(END)));
        timed_part(&serde_json::json!({"cpus_per_node": [1, 1], "records": records})).unwrap()
    }

    #[test]
    fn the_pace_of_the_third_quarter_is_from_its_first_record_to_its_last_of_that_of_all() {
        let pace = |third: u64| of_stretches(&[(100, 50, 50), (100, 50, 50), (100, third, 0)]).third_quarter_pace;
        assert_eq!(pace(100), Some(1.0));
        assert_eq!(pace(300), Some(2.0), "300 in 0.1 s, 600 in 0.4 s");
        let between = [(190, 0, 0), (60, 10, 0), (40, 30, 0), (10, 60, 0)];
        assert_eq!(
            of_stretches(&between).third_quarter_pace,
            Some(3.6),
            "90 in 0.05 s behind the record at 250 ms, 200 in 0.4 s"
        );
        assert_eq!(of_stretches(&[(250, 100, 0)]).third_quarter_pace, None, "one record in it");
    }

    #[test]
    fn it_is_local_from_the_end_of_the_first_long_stretch_that_is() {
        let after_s = |stretches: &[(u64, u64, u64)]| of_stretches(stretches).local_after_s;
        let begun = [(10, 100, 0), (100, 50, 50), (100, 5, 0), (100, 0, 0)];
        assert_eq!(after_s(&begun), None, "short, remote, hardly any accesses, none");
        assert_eq!(after_s(&[begun.as_slice(), &[(100, 90, 10), (100, 100, 0), (100, 10, 90)]].concat()), Some(0.41));
    }

    #[test]
    fn a_run_without_marks_has_no_timed_part() {
        let mut document = document();
        document["records"][3]["mark"] = serde_json::Value::Null;
        assert!(timed_part(&document).unwrap_err().to_string().contains("did not mark"));
    }

    #[test]
    fn records_must_fit_the_machine() {
        let mut document = document();
        document["cpus_per_node"] = serde_json::json!([2, 2, 1]);
        assert!(timed_part(&document).unwrap_err().to_string().contains("3 nodes and 5 CPUs"));
    }
}
