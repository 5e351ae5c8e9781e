// SPDX-License-Identifier: GPL-2.0-only
//! Submissions that Slurm refuses, and when they are tried again.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tandem_ab::say::say_line;

/// How often in a row a submission may be refused after an earlier one was not: four minutes, with the waits between.
const SUBMIT_TRIES: u32 = 8;
/// How long is waited after the first refusal; after each other one twice as long as before it.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Refusals in a row.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    many: u32,
    /// When it is tried again.
    again: Option<Instant>,
}

impl Refusals {
    /// One more.
    ///
    /// # Errors
    /// It was the last one, and `ends` the session.
    pub(super) fn add(&mut self, why: &str, now: Instant, ends: bool) -> Result<()> {
        // While others are under way half of the tries stay for when they are not.
        self.many = if ends { self.many + 1 } else { (self.many + 1).min(SUBMIT_TRIES / 2) };
        match self.many {
            SUBMIT_TRIES => bail!("sbatch refused {SUBMIT_TRIES} times in a row, the last time: {why}"),
            1 => say_line(format_args!(
                "tandem: sbatch refused: {why}; it is tried again, {} times at most",
                SUBMIT_TRIES - 1
            )),
            _ => {}
        }
        self.again = Some(now + FIRST_WAIT * 2_u32.pow(self.many - 1));
        Ok(())
    }

    pub(super) fn are_over(&self, now: Instant) -> bool {
        self.again.is_none_or(|again| now >= again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_waited_for_ever_longer_and_not_for_ever() {
        let (mut refusals, mut now, mut waited) = (Refusals::default(), Instant::now(), Duration::ZERO);
        let begin = now;
        for many in 0..SUBMIT_TRIES - 1 {
            refusals.add("away", now, true).unwrap();
            let wait = FIRST_WAIT * 2_u32.pow(many);
            assert!(!refusals.are_over(now + wait / 2) && refusals.are_over(now + wait));
            (now, waited) = (now + wait, waited + wait);
        }
        assert!(waited < Duration::from_secs(240) && now == begin + waited, "{waited:?}");
        let said = refusals.add("away", now, true).unwrap_err().to_string();
        assert_eq!(said, "sbatch refused 8 times in a row, the last time: away");
    }

    #[test]
    fn refusals_while_others_are_under_way_leave_tries_for_later() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        assert!((0..99).all(|_| refusals.add("too many", now, false).is_ok()));
        let later: Vec<bool> = (0..4).map(|_| refusals.add("away", now, true).is_ok()).collect();
        assert_eq!(later, [true, true, true, false]);
    }
}
