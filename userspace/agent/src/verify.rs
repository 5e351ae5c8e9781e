// SPDX-License-Identifier: GPL-2.0-only
//! Whether a plan paid: the mean latency of an access, before the plan and after it was carried out.
//!
//! The latency is [`tandem_policies::stall::latency_ns`]. Where it rose, that may be the plan's doing, or the program does something
//! else by now. So what it would be without the plan, for what the program does now, must be lower too
//! ([`tandem_policies::stall::latency_without_ns`]): else there is nothing to be had from undoing it. Both must be so beyond what
//! chance makes of samples ([`tandem_policies::stall::latency_error_ns`]).

use tandem_act::Generation;
use tandem_policies::model::Snapshot;
use tandem_policies::stall::{Changed, Locality, latency_error_ns, latency_without_ns, locality};

/// Rise of the latency that is still taken for noise, however many samples there are; and standard errors that are.
const NOISE: f64 = 0.02;
const ERRORS: f64 = 2.0;
/// Intervals between the end of the last move and the verdict: the first holds the moves themselves.
const SETTLE_INTERVALS: u32 = 2;

/// A plan that was carried out and is watched.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The plan.
    pub generation: Generation,
    /// Latency when it was decided.
    pub before_ns: Option<f64>,
    /// What it changed.
    pub changed: Changed,
    /// Whether it stays whatever it brings: its policy tries things out ([`tandem_policies::registry::Policy::explores`]).
    explores: bool,
    settled_intervals: u32,
}

/// What accesses are like some time after a plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Now.
    pub after: Option<Locality>,
    /// Latency without the plan.
    pub without_ns: Option<f64>,
    /// Standard error of both.
    pub error_ns: f64,
}

impl Seen {
    /// What a snapshot tells of a plan that changed something.
    pub fn of(snapshot: &Snapshot, changed: &Changed) -> Self {
        Self {
            after: locality(snapshot),
            without_ns: latency_without_ns(snapshot, changed),
            error_ns: latency_error_ns(snapshot),
        }
    }
}

/// What is to be done about a watched plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Too early to say.
    Wait,
    /// It stays.
    Keep {
        /// Latency now.
        after_ns: Option<f64>,
    },
    /// It goes.
    Undo {
        /// Latency now.
        after_ns: f64,
    },
    /// Before and after are of different phases, and a new plan brings back what is better where it was.
    Superseded,
}

impl Trial {
    /// Watches a plan from now on; one of a policy that explores stays whatever it brings.
    pub fn new(generation: Generation, before_ns: Option<f64>, changed: Changed, explores: bool) -> Self {
        Self { generation, before_ns, changed, explores, settled_intervals: 0 }
    }

    /// One interval later: `moving` says whether moves are still under way, `turned` whether threads turned to other memory.
    /// Without a signal before or after, nothing speaks against the plan.
    pub fn judge(&mut self, moving: bool, turned: bool, seen: Seen) -> Verdict {
        if moving {
            return Verdict::Wait;
        }
        if turned {
            return Verdict::Superseded;
        }
        self.settled_intervals += 1;
        if self.settled_intervals < SETTLE_INTERVALS {
            return Verdict::Wait;
        }
        let after_ns = seen.after.map(|after| after.latency_ns);
        let noise_ns = |lower_ns: f64| (NOISE * lower_ns).max(ERRORS * seen.error_ns);
        let rose_from = |lower_ns: f64, after_ns: f64| after_ns > lower_ns + noise_ns(lower_ns);
        match (self.before_ns, after_ns, seen.without_ns) {
            (Some(before_ns), Some(after_ns), Some(without_ns))
                if !self.explores && rose_from(before_ns, after_ns) && rose_from(without_ns, after_ns) =>
            {
                Verdict::Undo { after_ns }
            }
            _ => Verdict::Keep { after_ns },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict on a plan without which all would be as before.
    fn judged(before_ns: Option<f64>, after_ns: Option<f64>) -> Verdict {
        judge(Trial::new(Generation(1), before_ns, Changed::default(), false), after_ns, before_ns)
    }

    fn after(latency_ns: Option<f64>) -> Option<Locality> {
        latency_ns.map(|latency_ns| Locality { latency_ns, remote_share: 0.0 })
    }

    fn judge(mut trial: Trial, after_ns: Option<f64>, without_ns: Option<f64>) -> Verdict {
        let bad = Seen { after: after(Some(1e9)), without_ns: Some(1.0), error_ns: 0.0 };
        assert_eq!(trial.judge(true, false, bad), Verdict::Wait, "while moves are under way");
        assert_eq!(trial.judge(false, false, bad), Verdict::Wait, "the interval of the moves");
        trial.judge(false, false, Seen { after: after(after_ns), without_ns, error_ns: 1.0 })
    }

    #[test]
    fn a_plan_that_paid_stays() {
        assert_eq!(judged(Some(200.0), Some(100.0)), Verdict::Keep { after_ns: Some(100.0) });
        assert_eq!(judged(Some(100.0), Some(101.0)), Verdict::Keep { after_ns: Some(101.0) }, "noise");
    }

    #[test]
    fn a_plan_that_made_it_worse_goes() {
        assert_eq!(judged(Some(100.0), Some(103.0)), Verdict::Undo { after_ns: 103.0 });
    }

    #[test]
    fn a_rise_that_chance_explains_is_none() {
        let trial = || Trial::new(Generation(1), Some(10.0), Changed::default(), false);
        assert_eq!(
            judge(trial(), Some(11.9), Some(10.0)),
            Verdict::Keep { after_ns: Some(11.9) },
            "19 %, and two errors"
        );
        assert_eq!(judge(trial(), Some(12.1), Some(10.0)), Verdict::Undo { after_ns: 12.1 });
    }

    #[test]
    fn a_plan_of_a_policy_that_explores_stays_whatever_it_brings() {
        let trial = Trial::new(Generation(1), Some(100.0), Changed::default(), true);
        assert_eq!(judge(trial, Some(300.0), Some(100.0)), Verdict::Keep { after_ns: Some(300.0) });
    }

    #[test]
    fn a_plan_stays_if_it_would_be_no_better_without_it() {
        let judged = |without_ns| {
            let trial = Trial::new(Generation(1), Some(100.0), Changed::default(), false);
            judge(trial, Some(130.0), Some(without_ns))
        };
        assert_eq!(judged(150.0), Verdict::Keep { after_ns: Some(130.0) }, "the program does something else now");
        assert_eq!(judged(130.0), Verdict::Keep { after_ns: Some(130.0) }, "nothing of it is left");
        assert_eq!(judged(120.0), Verdict::Undo { after_ns: 130.0 });
    }

    #[test]
    fn a_plan_whose_threads_turned_is_superseded_once_its_moves_are_done() {
        let mut trial = Trial::new(Generation(1), Some(100.0), Changed::default(), false);
        let worse = Seen { after: after(Some(300.0)), without_ns: Some(100.0), error_ns: 0.0 };
        assert_eq!(trial.judge(true, true, worse), Verdict::Wait);
        assert_eq!(trial.judge(false, true, worse), Verdict::Superseded);
    }

    #[test]
    fn without_a_signal_nothing_is_undone() {
        assert_eq!(judged(None, Some(100.0)), Verdict::Keep { after_ns: Some(100.0) });
        assert_eq!(judged(Some(100.0), None), Verdict::Keep { after_ns: None });
    }
}
