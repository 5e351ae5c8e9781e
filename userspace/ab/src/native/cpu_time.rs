// SPDX-License-Identifier: GPL-2.0-only
//! What CPUs did with their time since boot, as /proc/stat counts it.

use std::iter::Sum;
use std::ops::Add;

/// Time of one CPU or of several together, in ticks of the kernel (commonly 10 ms).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// All of it.
    all: u64,
    /// Neither idle nor waiting for a device; time stolen by a hypervisor counts as busy.
    busy: u64,
}

impl CpuTime {
    /// What follows the name of a CPU (or `cpu`, all together): user, nice, system, idle, iowait, irq, softirq, steal; what
    /// comes then is contained in these. `None` when it is something else.
    pub fn parse(line: &str) -> Option<Self> {
        let ticks: Vec<u64> = line.split_whitespace().take(8).map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let (all, idle) = (ticks.iter().sum::<u64>(), ticks.get(3)? + ticks.get(4)?);
        Some(Self { all, busy: all - idle })
    }

    /// Busy share of the time from `earlier` until now, 0 to 1; 0 if none passed.
    pub fn busy_share_since(self, earlier: Self) -> f64 {
        // The kernel's counts of idle time may go back by a little.
        let (all, busy) = (self.all.saturating_sub(earlier.all), self.busy.saturating_sub(earlier.busy));
        if all == 0 { 0.0 } else { busy.min(all) as f64 / all as f64 }
    }
}

impl Add for CpuTime {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { all: self.all + other.all, busy: self.busy + other.busy }
    }
}

impl Sum for CpuTime {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        times.fold(Self::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_for_devices_is_not_busy_and_guests_are_not_counted_twice() {
        let before = CpuTime::parse("  10 0 0 90 0 0 0 0 0 0").unwrap();
        let after = CpuTime::parse("  14 0 2 180 1 0 0 3 99 0").unwrap();
        assert_eq!(after.busy_share_since(before), 0.09);
        assert_eq!((before.busy_share_since(before), before.busy_share_since(after)), (0.0, 0.0));
    }

    #[test]
    fn a_line_of_something_else_is_no_time() {
        for line in ["", "1 2 3 4", "1 2 3 4 five 6 7 8"] {
            assert_eq!(CpuTime::parse(line), None, "{line}");
        }
    }
}
