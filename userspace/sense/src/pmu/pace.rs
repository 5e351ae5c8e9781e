// SPDX-License-Identifier: GPL-2.0-only
//! How often to sample so that the kernel need not stop us.
//!
//! The kernel throttles an event whose interrupts take too much time, and it lowers the rate that it allows at all
//! (kernel.perf_event_max_sample_rate). Each time it does, the frequency is halved; after ten quiet seconds it
//! rises by a quarter, up to the one asked for.

const QUIET_NS: u64 = 10_000_000_000;
const LEAST_HZ: u64 = 10;

/// The sampling frequency in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    wanted_hz: u64,
    present_hz: u64,
    quiet_since_ns: Option<u64>,
}

impl Pace {
    /// Starts with the frequency asked for, or what the kernel allows if that is less.
    pub fn new(wanted_hz: u64, allowed_hz: Option<u64>) -> Self {
        let wanted_hz = wanted_hz.min(allowed_hz.unwrap_or(u64::MAX)).max(1);
        Self { wanted_hz, present_hz: wanted_hz, quiet_since_ns: None }
    }

    /// The frequency in force.
    pub fn hz(&self) -> u64 {
        self.present_hz
    }

    /// Events were throttled `throttled` times since the last call: the new frequency if it changes.
    pub fn adapt(&mut self, throttled: u64, now_ns: u64) -> Option<u64> {
        let quiet_since_ns = *self.quiet_since_ns.get_or_insert(now_ns);
        let next_hz = if throttled > 0 {
            (self.present_hz / 2).max(LEAST_HZ.min(self.wanted_hz))
        } else if now_ns.saturating_sub(quiet_since_ns) >= QUIET_NS {
            (self.present_hz + self.present_hz.div_ceil(4)).min(self.wanted_hz)
        } else {
            return None;
        };
        self.quiet_since_ns = Some(now_ns);
        let changes = next_hz != self.present_hz;
        self.present_hz = next_hz;
        changes.then_some(next_hz)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn throttling_halves_and_quiet_restores() {
        let mut pace = Pace::new(1000, None);
        assert_eq!(pace.adapt(0, 0), None);
        assert_eq!(pace.adapt(3, S), Some(500));
        assert_eq!(pace.adapt(1, 2 * S), Some(250));
        assert_eq!(pace.adapt(0, 11 * S), None, "nine quiet seconds");
        assert_eq!(pace.adapt(0, 12 * S), Some(313));
        assert_eq!(pace.adapt(0, 13 * S), None);
        for at in 3..20 {
            pace.adapt(0, at * 10 * S);
        }
        assert_eq!(pace.hz(), 1000);
        assert_eq!(pace.adapt(0, 500 * S), None, "never above what was asked for");
    }

    #[test]
    fn it_never_stops_altogether_and_keeps_the_kernels_limit() {
        let mut pace = Pace::new(1000, Some(100));
        assert_eq!(pace.hz(), 100);
        for at in 0..20 {
            pace.adapt(1, at * S);
        }
        assert_eq!(pace.hz(), 10);
    }
}
