// SPDX-License-Identifier: GPL-2.0-only
//! How much is said about moves: a plan may have thousands, and a plan that is not carried out is made again at each interval.
//!
//! A bucket of lines: [`MOST`] at once, one more each [`EVERY_NS`].

/// Lines that may be said at once.
pub const MOST: u64 = 100;
/// Time that pays for a line.
pub const EVERY_NS: u64 = 500_000_000;

/// Lines that may be said.
#[derive(Debug)]
pub struct Talk {
    left: u64,
    /// Until when time has been turned into lines.
    paid_ns: u64,
}

impl Talk {
    /// The whole bucket.
    pub fn new(now_ns: u64) -> Self {
        Self { left: MOST, paid_ns: now_ns }
    }

    /// How many of `wanted` lines may be said now; they are taken from the bucket.
    pub fn take(&mut self, now_ns: u64, wanted: usize) -> usize {
        let earned = now_ns.saturating_sub(self.paid_ns) / EVERY_NS;
        self.paid_ns += earned * EVERY_NS;
        self.left = (self.left + earned).min(MOST);
        let taken = self.left.min(wanted as u64);
        self.left -= taken;
        taken as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_plan_is_told_whole_and_a_large_one_up_to_the_bucket() {
        let mut talk = Talk::new(7);
        assert_eq!((talk.take(7, 3), talk.take(7, 10_000), talk.take(7, 1)), (3, 97, 0));
    }

    #[test]
    fn time_fills_the_bucket_up_to_its_rim() {
        let mut talk = Talk::new(0);
        talk.take(0, 1000);
        // What is not a whole line yet counts for the next one.
        assert_eq!((talk.take(EVERY_NS * 3 / 2, 9), talk.take(EVERY_NS * 2, 9)), (1, 1));
        assert_eq!(talk.take(EVERY_NS * 1_000_000, 1000), MOST as usize);
    }
}
