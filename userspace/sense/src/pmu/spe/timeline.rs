// SPDX-License-Identifier: GPL-2.0-only
//! Who ran on a CPU at a time, and which time a tick of the timer is.

use std::collections::VecDeque;

use tandem_policies::model::ProcessId;

/// Switches remembered of a CPU.
const MAX_SWITCHES: usize = 1 << 16;

/// Converts ticks of the timer to perf's clock, as the control page of a ring says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TickClock {
    /// Time of tick 0.
    pub zero_ns: u64,
    /// Nanoseconds of a tick, times two to the power of `shift`.
    pub multiplier: u32,
    /// See `multiplier`.
    pub shift: u16,
}

impl TickClock {
    /// The time of a tick.
    pub fn time_ns(self, ticks: u64) -> u64 {
        let scaled = u128::from(ticks) * u128::from(self.multiplier);
        self.zero_ns.wrapping_add(scaled.checked_shr(u32::from(self.shift)).unwrap_or(0) as u64)
    }
}

/// A thread and its process.
pub type Runner = (ProcessId, u32);

/// Who ran on one CPU since when.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    switches: VecDeque<(u64, Option<Runner>)>,
}

impl Timeline {
    /// From `time_ns` on this thread runs, or nobody that is known.
    pub fn switch(&mut self, time_ns: u64, runner: Option<Runner>) {
        if self.switches.len() == MAX_SWITCHES {
            self.switches.pop_front();
        }
        // Records of one CPU come in order; what does not is damage and would break the search.
        if self.switches.back().is_none_or(|(last_ns, _)| *last_ns <= time_ns) {
            self.switches.push_back((time_ns, runner));
        }
    }

    /// Who ran then; `None` if that is not known.
    pub fn at(&self, time_ns: u64) -> Option<Runner> {
        let after = self.switches.partition_point(|(since_ns, _)| *since_ns <= time_ns);
        self.switches.get(after.checked_sub(1)?)?.1
    }

    /// How long each runner ran between two times, run by run; the last one that is known runs on.
    pub fn runs(&self, from_ns: u64, to_ns: u64) -> impl Iterator<Item = (Runner, u64)> {
        let ends = self.switches.iter().skip(1).map(|(since_ns, _)| *since_ns).chain([u64::MAX]);
        self.switches.iter().zip(ends).filter_map(move |(&(since_ns, runner), end_ns)| {
            let ran_ns = end_ns.min(to_ns).checked_sub(since_ns.max(from_ns)).filter(|ns| *ns > 0)?;
            Some((runner?, ran_ns))
        })
    }

    /// The time of the last switch.
    pub fn latest_ns(&self) -> Option<u64> {
        self.switches.back().map(|(time_ns, _)| *time_ns)
    }

    /// Forgets what was over before `time_ns`.
    pub fn forget_before(&mut self, time_ns: u64) {
        while self.switches.get(1).is_some_and(|(since_ns, _)| *since_ns <= time_ns) {
            self.switches.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runner_is_who_was_switched_in_last() {
        let (one, two) = ((ProcessId(1), 11), (ProcessId(2), 22));
        let mut timeline = Timeline::default();
        timeline.switch(100, Some(one));
        timeline.switch(200, None);
        timeline.switch(300, Some(two));
        timeline.switch(250, Some(one));
        let seen = [99, 100, 199, 200, 299, 300, 9999].map(|time_ns| timeline.at(time_ns));
        assert_eq!(seen, [None, Some(one), Some(one), None, None, Some(two), Some(two)]);
        timeline.forget_before(299);
        assert_eq!((timeline.at(199), timeline.at(250), timeline.at(300)), (None, None, Some(two)));
        assert_eq!(timeline.latest_ns(), Some(300));
    }

    #[test]
    fn runs_are_cut_at_both_ends_and_the_last_goes_on() {
        let (one, two) = ((ProcessId(1), 11), (ProcessId(2), 22));
        let mut timeline = Timeline::default();
        timeline.switch(100, Some(one));
        timeline.switch(200, None);
        timeline.switch(300, Some(two));
        let runs = |from_ns, to_ns| timeline.runs(from_ns, to_ns).collect::<Vec<_>>();
        assert_eq!(runs(0, 1000), [(one, 100), (two, 700)]);
        assert_eq!(runs(150, 310), [(one, 50), (two, 10)]);
        assert_eq!(runs(200, 300), []);
        assert_eq!(runs(400, 500), [(two, 100)]);
        assert_eq!(Timeline::default().runs(0, 9).count(), 0);
    }

    #[test]
    fn ticks_of_25_mhz_are_40_ns() {
        let clock = TickClock { zero_ns: 1000, multiplier: 40 << 16, shift: 16 };
        assert_eq!(clock.time_ns(5), 1200);
        assert_eq!(clock.time_ns(1 << 55), 1000 + (40 << 55));
        assert_eq!(TickClock { zero_ns: 7, multiplier: 1, shift: 200 }.time_ns(u64::MAX), 7, "no shift is a panic");
    }
}
