// SPDX-License-Identifier: GPL-2.0-only
//! What this process takes of the machine: CPU time of all its threads, and memory.

use std::collections::BTreeMap;
use std::fs;

use serde::Serialize;
use tandem_sense::{monotonic_ns, process_cpu_ns, thread_cpu_ns};

/// What the loop spends its time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Waiting, renewing leases, and all that is done at each look at the samples besides.
    Tick,
    /// Taking in samples.
    Sample,
    /// Moving pages, on this thread.
    Move,
    /// Looking whether threads came, or turned to other memory.
    Look,
    /// Making a snapshot.
    Sense,
    /// Judging the plan under trial.
    Verify,
    /// Asking the policies.
    Decide,
    /// Carrying out a plan.
    Act,
    /// Telling others.
    Tell,
}

/// What it took so far.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CostReport {
    /// CPU time of all threads since the scheduler was there.
    pub cpu_ns: u64,
    /// The same in percent of one CPU.
    pub cpu_percent: f64,
    /// In the last interval, in percent of one CPU.
    pub interval_cpu_percent: f64,
    /// Most memory that was ever resident (`VmHWM`); `None` where the kernel does not tell.
    pub peak_resident_bytes: Option<u64>,
    /// CPU time of the agent's thread by what it did.
    pub work_ns: BTreeMap<Work, u64>,
    #[serde(skip)]
    charged_ns: Option<u64>,
    #[serde(skip)]
    first: Option<Moment>,
    #[serde(skip)]
    last: Option<Moment>,
}

/// CPU time at a time.
#[derive(Clone, Copy, Debug)]
struct Moment {
    time_ns: u64,
    cpu_ns: u64,
}

impl Moment {
    fn now() -> Self {
        Self { time_ns: monotonic_ns(), cpu_ns: process_cpu_ns() }
    }

    fn percent_since(self, earlier: Self) -> f64 {
        let elapsed_ns = self.time_ns.saturating_sub(earlier.time_ns).max(1);
        self.cpu_ns.saturating_sub(earlier.cpu_ns) as f64 / elapsed_ns as f64 * 100.0
    }
}

impl CostReport {
    /// From now on costs count; a second call changes nothing.
    pub fn begin(&mut self) {
        self.first.get_or_insert_with(Moment::now);
    }

    /// What this thread took since the last call was for `work`.
    pub fn charge(&mut self, work: Work) {
        self.charge_at(work, thread_cpu_ns());
    }

    fn charge_at(&mut self, work: Work, now_ns: u64) {
        let since_ns = self.charged_ns.replace(now_ns);
        *self.work_ns.entry(work).or_default() += since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
    }

    /// An interval has ended.
    pub fn note_interval(&mut self) {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        self.note(Moment::now(), status_bytes(&status, "VmHWM:"));
    }

    fn note(&mut self, now: Moment, peak_resident_bytes: Option<u64>) {
        let first = *self.first.get_or_insert(now);
        self.cpu_ns = now.cpu_ns.saturating_sub(first.cpu_ns);
        self.cpu_percent = now.percent_since(first);
        self.interval_cpu_percent = now.percent_since(self.last.unwrap_or(first));
        self.peak_resident_bytes = peak_resident_bytes;
        self.last = Some(now);
    }
}

/// A field of /proc/PID/status, with its colon, that is given in kB there.
pub(crate) fn status_bytes(status: &str, field: &str) -> Option<u64> {
    let kib: u64 = status.lines().find_map(|line| line.strip_prefix(field))?.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_told_since_the_beginning_and_of_the_last_interval() {
        let mut cost = CostReport::default();
        for (time_ns, cpu_ns) in [(1000, 400), (2000, 500), (3000, 510)] {
            cost.note(Moment { time_ns, cpu_ns }, Some(7));
        }
        assert_eq!((cost.cpu_ns, cost.cpu_percent, cost.interval_cpu_percent), (110, 5.5, 1.0));
        assert_eq!(cost.peak_resident_bytes, Some(7));
    }

    #[test]
    fn each_step_is_charged_what_passed_since_the_one_before() {
        let mut cost = CostReport::default();
        for (work, now_ns) in [(Work::Tick, 100), (Work::Sample, 130), (Work::Tick, 135), (Work::Sample, 145)] {
            cost.charge_at(work, now_ns);
        }
        assert_eq!(cost.work_ns, [(Work::Tick, 5), (Work::Sample, 40)].into());
    }

    #[test]
    fn what_this_process_takes_grows_with_what_it_does() {
        let mut cost = CostReport::default();
        cost.begin();
        cost.note_interval();
        let (before_ns, before_bytes) = (cost.cpu_ns, cost.peak_resident_bytes.expect("Linux tells"));
        let touched = std::thread::spawn(|| vec![1u8; 64 << 20].iter().map(|&byte| u64::from(byte)).sum::<u64>());
        assert_eq!(touched.join().unwrap(), 64 << 20);
        cost.note_interval();
        assert!(cost.cpu_ns > before_ns && cost.cpu_percent > 0.0 && cost.interval_cpu_percent > 0.0);
        assert!(cost.peak_resident_bytes.unwrap() >= before_bytes.max(64 << 20));
    }

    #[test]
    fn the_peak_is_in_kib() {
        assert_eq!(status_bytes("Name:\tx\nVmPeak:\t   99 kB\nVmHWM:\t    12 kB\n", "VmHWM:"), Some(12288));
        assert_eq!(status_bytes("Name:\tx\n", "VmHWM:"), None);
    }
}
