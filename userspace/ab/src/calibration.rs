// SPDX-License-Identifier: GPL-2.0-only
//! Whether the machine model gives what the machine file says: without that, no time of an experiment means anything.
//!
//! Walks through memory by dependent loads, pinned, all local and all remote, must take within [`TOLERANCE`] of what the
//! machine file's costs give per line.

use serde::{Deserialize, Serialize};

/// Largest deviation of a walk, as a share of what is expected.
pub const TOLERANCE: f64 = 0.01;

/// One pinned walk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Walk {
    /// Id of the node whose CPU walks.
    pub from: u32,
    /// Id of the node whose memory is walked.
    pub to: u32,
    /// Measured time of one line in ns.
    pub measured_ns: f64,
    /// What the machine file's costs give, in ns.
    pub expected_ns: f64,
}

/// The calibration of one experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Whether all walks are within the tolerance.
    pub valid: bool,
    /// Why not, or why there is none, in one sentence.
    pub reason: Option<String>,
    /// The walks.
    pub walks: Vec<Walk>,
}

impl Walk {
    /// Which walk it is, in words.
    pub fn name(&self) -> String {
        if self.from == self.to {
            format!("node {} local", self.from)
        } else {
            format!("node {} to node {}", self.from, self.to)
        }
    }

    /// (measured - expected) / expected.
    pub fn deviation(&self) -> f64 {
        (self.measured_ns - self.expected_ns) / self.expected_ns
    }
}

impl Calibration {
    /// Judges some walks.
    pub fn of(walks: Vec<Walk>) -> Self {
        let within = |walk: &&Walk| walk.deviation().abs() <= TOLERANCE;
        let off = walks.iter().find(|walk| !within(walk));
        let reason = match off {
            Some(walk) => Some(format!(
                "the walk {} takes {:.2} ns a line, {:+.2} % off the {:.2} ns of the machine file (allowed: {:.0} %)",
                walk.name(),
                walk.measured_ns,
                walk.deviation() * 100.0,
                walk.expected_ns,
                TOLERANCE * 100.0
            )),
            None if walks.is_empty() => Some("no walk was measured".to_owned()),
            None => None,
        };
        Self { valid: reason.is_none(), reason, walks }
    }

    /// On a real machine there is no model whose costs could be off.
    pub fn not_needed() -> Self {
        Self { valid: true, reason: None, walks: Vec::new() }
    }

    /// A calibration that could not be made.
    pub fn failed(reason: String) -> Self {
        Self { valid: false, reason: Some(reason), walks: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(to: u32, measured_ns: f64, expected_ns: f64) -> Walk {
        Walk { from: 0, to, measured_ns, expected_ns }
    }

    #[test]
    fn walks_within_one_percent_are_valid() {
        let calibration = Calibration::of(vec![walk(0, 96.9, 96.0), walk(1, 184.2, 186.0)]);
        assert!(calibration.valid, "{calibration:?}");
    }

    #[test]
    fn a_walk_beyond_one_percent_voids_and_says_which() {
        let calibration = Calibration::of(vec![walk(0, 96.0, 96.0), walk(1, 188.0, 186.0)]);
        assert!(!calibration.valid);
        let said = calibration.reason.unwrap();
        assert!(said.contains("the walk node 0 to node 1 takes 188.00 ns a line, +1.08 % off the 186.00 ns"), "{said}");
    }

    #[test]
    fn no_walk_and_no_number_are_not_valid() {
        assert!(!Calibration::of(Vec::new()).valid);
        assert!(!Calibration::of(vec![walk(0, f64::NAN, 96.0)]).valid);
        assert!(!Calibration::of(vec![walk(0, 0.0, 0.0)]).valid);
    }
}
