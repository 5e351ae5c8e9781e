// SPDX-License-Identifier: GPL-2.0-only
//! Whether tasks wait for memory so much that page moves should not add to it.
//!
//! Problem: a move needs free pages on another node and bandwidth, which a machine that reclaims or swaps lacks. Mechanism:
//! the kernel's pressure stall information (/proc/pressure/memory, `some avg10`) says in percent of the last 10 s how long
//! at least one task waited for memory. At the bound moves stop; they go on below half of it, so that a value that wavers
//! around the bound does not make them stop and go.

/// What a reading changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Pressure has reached the bound.
    Began,
    /// Pressure has fallen below half of the bound.
    Ended,
}

/// Keeps whether there is pressure.
#[derive(Clone, Copy, Debug)]
pub struct PressureGate {
    bound_percent: f64,
    pressed: bool,
}

impl PressureGate {
    /// Without pressure; it begins when tasks wait for `bound_percent` of the time.
    pub fn new(bound_percent: u32) -> Self {
        Self { bound_percent: f64::from(bound_percent), pressed: false }
    }

    /// Whether there is pressure.
    pub fn is_pressed(&self) -> bool {
        self.pressed
    }

    /// Percent of time below which pressure ends.
    pub fn end_percent(&self) -> f64 {
        self.bound_percent / 2.0
    }

    /// Takes a reading; `None`, for one that could not be had, is no pressure.
    pub fn judge(&mut self, waited_percent: Option<f64>) -> Option<Turn> {
        let limit = if self.pressed { self.end_percent() } else { self.bound_percent };
        let pressed = waited_percent.is_some_and(|percent| percent >= limit);
        let turn = match (self.pressed, pressed) {
            (false, true) => Some(Turn::Began),
            (true, false) => Some(Turn::Ended),
            _ => None,
        };
        self.pressed = pressed;
        turn
    }
}

/// Percent of the last 10 s in which some task waited, from the text of a file below /proc/pressure.
pub fn waited_percent(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let value = some.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?;
    value.parse().ok().filter(|percent: &f64| percent.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_over_10_s_of_some_task_is_read() {
        let text =
            "some avg10=23.45 avg60=7.00 avg300=1.20 total=3068794\nfull avg10=4.00 avg60=1.00 avg300=0.10 total=1\n";
        assert_eq!(waited_percent(text), Some(23.45));
        for odd in ["", "full avg10=4.00 avg60=0.00 avg300=0.00 total=1\n", "some avg60=1.00\n", "some avg10=nan\n"] {
            assert_eq!(waited_percent(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn pressure_begins_at_the_bound_and_ends_below_half_of_it() {
        let mut gate = PressureGate::new(10);
        let readings = [0.0, 9.99, 10.0, 60.0, 9.0, 5.0, 4.99, 6.0, 10.0];
        let turns: Vec<_> = readings.iter().map(|&percent| gate.judge(Some(percent))).collect();
        let (began, ended) = (Some(Turn::Began), Some(Turn::Ended));
        assert_eq!(turns, [None, None, began, None, None, None, ended, None, began]);
        assert!(gate.is_pressed());
        assert_eq!(gate.judge(None), ended, "what cannot be read stops nothing");
        assert_eq!((gate.judge(None), gate.is_pressed()), (None, false));
    }
}
