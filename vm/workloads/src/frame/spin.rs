// SPDX-License-Identifier: GPL-2.0-only
//! Computing without memory: a linear congruential sequence, which cannot be left out unnoticed because its end is
//! known in closed form.

use anyhow::{Result, bail};

/// Multiplier and increment (Knuth's MMIX generator).
const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const INCREMENT: u64 = 1_442_695_040_888_963_407;

/// A sequence and how far it has come.
#[derive(Default)]
pub struct Spin {
    value: u64,
    steps: u64,
}

impl Spin {
    /// Computes so many steps; each takes about six instructions.
    #[inline(always)]
    pub fn steps(&mut self, steps: u64) {
        let mut value = self.value;
        for _ in 0..steps {
            value = std::hint::black_box(value.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT));
        }
        self.value = value;
        self.steps += steps;
    }

    /// Fails unless the value is what the sequence has after so many steps.
    pub fn check(&self) -> Result<()> {
        let expected = after(self.steps);
        if self.value != expected {
            bail!("self-check failed: {} steps computed {}, not {expected}", self.steps, self.value);
        }
        Ok(())
    }
}

/// The value after `steps` steps from 0, by squaring the step.
fn after(steps: u64) -> u64 {
    let (mut multiplier, mut increment, mut value) = (MULTIPLIER, INCREMENT, 0u64);
    for bit in 0..64 {
        if steps >> bit & 1 == 1 {
            value = value.wrapping_mul(multiplier).wrapping_add(increment);
        }
        increment = increment.wrapping_mul(multiplier.wrapping_add(1));
        multiplier = multiplier.wrapping_mul(multiplier);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_add_up_and_a_lost_one_is_noticed() {
        let mut spin = Spin::default();
        spin.check().unwrap();
        for steps in [1, 2, 1000, 77] {
            spin.steps(steps);
            spin.check().unwrap();
        }
        spin.steps += 1;
        assert!(spin.check().is_err());
    }
}
