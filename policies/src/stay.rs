// SPDX-License-Identifier: GPL-2.0-only
//! Why a policy leaves a thread where it is, though the memory that it uses most is on another node.

use std::fmt;

use crate::model::{NodeIndex, ThreadId};

/// Below this many ns per second, nobody would notice.
const NOTICED_NS_PER_S: f64 = 5e5;

/// What a policy counts for a thread that goes to the node whose memory it uses most, alone and with the memory that would follow it;
/// all in ns per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stay {
    /// The thread.
    pub thread: ThreadId,
    /// Where it stays.
    pub at: NodeIndex,
    /// The node whose memory it uses most.
    pub nearest: NodeIndex,
    /// Waiting for memory, and for lines of other threads, that it and those who share with it would save.
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

/// As the end of a sentence: "there it would ...".
impl fmt::Display for Stay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = |ns_per_s: f64| format!("{:.3} s", ns_per_s.abs() / 1e9);
        let saved = self.saved_ns_per_s;
        match saved {
            _ if saved <= -NOTICED_NS_PER_S => {
                write!(f, "there it and those that it shares with would stall {} longer", s(saved))?
            }
            _ if saved < NOTICED_NS_PER_S => f.write_str("there it would not stall less")?,
            _ => write!(f, "there it would save {} of stall", s(saved))?,
        }
        f.write_str(" per second")?;
        let parts = [(self.cpus_ns_per_s, "for want of CPUs"), (self.waits_ns_per_s, "of waiting at busy memories")];
        let costs: Vec<String> = parts
            .iter()
            .filter(|(ns_per_s, _)| *ns_per_s >= NOTICED_NS_PER_S)
            .map(|(ns_per_s, what)| format!("{} {what}", s(*ns_per_s)))
            .collect();
        if !costs.is_empty() {
            let link = if saved >= NOTICED_NS_PER_S { "but cost" } else { "and cost" };
            write!(f, ", {link} {}", costs.join(" and "))?;
        }
        if saved >= NOTICED_NS_PER_S && self.price_ns_per_s >= NOTICED_NS_PER_S {
            write!(f, ", where {} is the least that pays for the move", s(self.price_ns_per_s))?;
        }
        if self.gain_ns_per_s() > 0.0 {
            f.write_str(", and no plan that is worth a trial has taken it there yet")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stay(saved_ms: f64, cpus_ms: f64, waits_ms: f64, price_ms: f64) -> String {
        let [saved, cpus, waits, price] = [saved_ms, cpus_ms, waits_ms, price_ms].map(|ms| ms * 1e6);
        let (thread, at, nearest) = (ThreadId { tid: 1, start_boottime_ns: 0 }, NodeIndex(0), NodeIndex(1));
        Stay {
            thread,
            at,
            nearest,
            saved_ns_per_s: saved,
            cpus_ns_per_s: cpus,
            waits_ns_per_s: waits,
            price_ns_per_s: price,
        }
        .to_string()
    }

    #[test]
    fn what_speaks_for_a_move_and_against_it_is_told_as_far_as_anybody_would_notice() {
        let price =
            "there it would save 0.120 s of stall per second, where 0.200 s is the least that pays for the move";
        assert_eq!(stay(120.0, 0.0, 0.4, 200.0), price);
        let both = "there it would save 0.120 s of stall per second, but cost 0.980 s for want of CPUs and 0.003 s of waiting at \
                    busy memories, where 0.002 s is the least that pays for the move";
        assert_eq!(stay(120.0, 980.0, 3.0, 2.0), both);
        assert_eq!(
            stay(-30.0, -5.0, 0.0, 9.0),
            "there it and those that it shares with would stall 0.030 s longer per second"
        );
        assert_eq!(
            stay(0.1, 980.0, 0.0, 9.0),
            "there it would not stall less per second, and cost 0.980 s for want of CPUs"
        );
        let gain =
            "there it would save 0.120 s of stall per second, and no plan that is worth a trial has taken it there yet";
        assert_eq!(stay(120.0, 0.0, 0.0, 0.0), gain);
    }
}
