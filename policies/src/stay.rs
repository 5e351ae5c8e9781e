// SPDX-License-Identifier: GPL-2.0-only
//! Why a policy leaves a thread where it is, though the memory that it uses most is on another node.

use std::fmt;

use crate::model::{NodeIndex, ThreadId};

/// Below this many ns per second, nobody would notice.
const NOTICED_NS_PER_S: f64 = 5e5;

/// What a policy counts for a thread that goes to the node whose memory it uses most, while no other thread goes; all in ns per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stay {
    /// The thread.
    pub thread: ThreadId,
    /// Where it stays.
    pub at: NodeIndex,
    /// The node whose memory it uses most.
    pub preferred: NodeIndex,
    /// What it and those who share with it would save of waiting for memory and for each other's lines, and of moving memory: pages
    /// count where they pay best, wherever threads are.
    pub saved_ns_per_s: f64,
    /// CPU time that the threads there would be short of, less what those here are short of now.
    pub cpus_ns_per_s: f64,
    /// Waiting at busy memories that would be added.
    pub waits_ns_per_s: f64,
    /// What the move must bring: its cost over the horizon, the least gain, and errors of the samples.
    pub price_ns_per_s: f64,
}

impl Stay {
    /// What would be left of what it saves.
    pub fn gain_ns_per_s(&self) -> f64 {
        self.saved_ns_per_s - self.cpus_ns_per_s - self.waits_ns_per_s - self.price_ns_per_s
    }
}

/// As the end of a sentence.
impl fmt::Display for Stay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("stall and page moves", -self.saved_ns_per_s),
            ("want of CPUs", self.cpus_ns_per_s),
            ("waits at busy memories", self.waits_ns_per_s),
        ];
        let noticed = parts.into_iter().filter(|(_, more_ns_per_s)| more_ns_per_s.abs() >= NOTICED_NS_PER_S);
        let told = noticed.map(|(what, more_ns_per_s)| {
            format!("{what} {} {}", in_s(more_ns_per_s), if more_ns_per_s > 0.0 { "more" } else { "less" })
        });
        let told: Vec<String> = told.collect();
        match told.is_empty() {
            true => f.write_str("all would cost as much there")?,
            false => write!(f, "there would be {} per second", told.join(", "))?,
        }
        if self.saved_ns_per_s > 0.0 && self.price_ns_per_s >= NOTICED_NS_PER_S {
            write!(f, ", where {} is the least that pays for the move", in_s(self.price_ns_per_s))?;
        }
        if self.gain_ns_per_s() > 0.0 {
            f.write_str(", and no plan that takes it there was worth a trial yet, or sure to be more than chance")?;
        }
        Ok(())
    }
}

fn in_s(ns_per_s: f64) -> String {
    format!("{:.3} s", ns_per_s.abs() / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stay(saved_ms: f64, cpus_ms: f64, waits_ms: f64, price_ms: f64) -> String {
        let [saved, cpus, waits, price] = [saved_ms, cpus_ms, waits_ms, price_ms].map(|ms| ms * 1e6);
        let (thread, at, preferred) = (ThreadId { tid: 1, start_boottime_ns: 0 }, NodeIndex(0), NodeIndex(1));
        Stay {
            thread,
            at,
            preferred,
            saved_ns_per_s: saved,
            cpus_ns_per_s: cpus,
            waits_ns_per_s: waits,
            price_ns_per_s: price,
        }
        .to_string()
    }

    #[test]
    fn what_speaks_for_a_move_and_against_it_is_told_as_far_as_anybody_would_notice() {
        let price = "there would be stall and page moves 0.120 s less per second, where 0.200 s is the least that pays for the move";
        assert_eq!(stay(120.0, 0.0, 0.4, 200.0), price);
        let all = "there would be stall and page moves 0.120 s less, want of CPUs 0.980 s more, waits at busy memories 0.003 s more per \
                   second, where 0.002 s is the least that pays for the move";
        assert_eq!(stay(120.0, 980.0, 3.0, 2.0), all);
        let yet = ", and no plan that takes it there was worth a trial yet, or sure to be more than chance";
        let gain =
            format!("there would be stall and page moves 0.030 s more, want of CPUs 0.980 s less per second{yet}");
        assert_eq!(stay(-30.0, -980.0, 0.0, 9.0), gain);
        assert_eq!(stay(0.1, 0.1, 0.1, 0.1), "all would cost as much there");
    }
}
