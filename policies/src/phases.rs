// SPDX-License-Identifier: GPL-2.0-only
//! When a program begins to share otherwise than before: phases, from one number a slice.
//!
//! Problem: what was right for a program in one phase is wrong in the next. Mechanism (Diener et al., Performance
//! Evaluation 2015): the mean of C_H over the last n slices is compared with that over the n before; a phase starts with
//! the slice at which they differ by at least `min_change` of the later one.
//!
//! Ours, where the source is unclear: the first full window is a phase too. While the two windows differ it is one change
//! and not one a slice; phases shorter than two windows are therefore not told apart.
//!
//! Ours, too: the same from threads that turned to other memory ([`threads_turned`]), which is known within a slice.

use std::collections::VecDeque;

/// Share of the threads at work that turn to other memory when a program goes on to its next phase, as a divisor: the memory of
/// many is on the same node as before.
const TURNING_DIVISOR: usize = 4;

/// Whether so many of the threads at work turned to other memory that the program is in another phase.
pub fn threads_turned(turned: usize, working: usize) -> bool {
    turned > 0 && TURNING_DIVISOR * turned >= working
}

/// What a slice begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Nothing: the phase goes on, or the first window is not full yet.
    Nothing,
    /// The first phase: the first window is full.
    First,
    /// A further phase.
    Change,
}

/// The latest slices of one program.
#[derive(Clone, Debug, Default)]
pub struct PhaseWatch {
    /// C_H of the latest slices, at most two windows of them.
    heterogeneity: VecDeque<f64>,
    /// Whether the two windows differ.
    changing: bool,
    begun: bool,
}

impl PhaseWatch {
    /// One more slice, of `window` slices a window: what starts with it.
    pub fn add(&mut self, heterogeneity: f64, window: usize, min_change: f64) -> Start {
        self.heterogeneity.push_back(heterogeneity);
        while self.heterogeneity.len() > 2 * window {
            self.heterogeneity.pop_front();
        }
        let changing = self.differs(window, min_change);
        let was_changing = std::mem::replace(&mut self.changing, changing);
        if !self.begun && self.heterogeneity.len() >= window {
            self.begun = true;
            return Start::First;
        }
        if self.changing && !was_changing { Start::Change } else { Start::Nothing }
    }

    /// Mean C_H of the last `window` slices, or of those there are.
    pub fn mean(&self, window: usize) -> f64 {
        self.mean_before(0, window)
    }

    /// Mean C_H of the `window` slices before the last `skip` ones, or of those there are; 0 of none.
    fn mean_before(&self, skip: usize, window: usize) -> f64 {
        let count = self.heterogeneity.len().saturating_sub(skip).min(window);
        self.heterogeneity.iter().rev().skip(skip).take(window).sum::<f64>() / count.max(1) as f64
    }

    fn differs(&self, window: usize, min_change: f64) -> bool {
        self.heterogeneity.len() == 2 * window
            && is_change(self.mean_before(window, window), self.mean(window), min_change)
    }
}

/// Whether C_H went from a mean of `before` to one of `now` by at least `min_change` of `now`.
fn is_change(before: f64, now: f64, min_change: f64) -> bool {
    (now - before).abs() >= min_change * now && now != before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_one_however_long_the_windows_differ() {
        let mut watch = PhaseWatch::default();
        let starts: Vec<Start> = (0..40).map(|slice| watch.add(if slice < 20 { 9.0 } else { 3.0 }, 5, 0.2)).collect();
        let at = |what: Start| (0..40).filter(|&slice| starts[slice] == what).collect::<Vec<_>>();
        assert_eq!((at(Start::First), at(Start::Change)), (vec![4], vec![21]));
        assert_eq!((watch.mean(5), watch.mean(100)), (3.0, 3.0), "only two windows are kept");
    }

    #[test]
    fn a_quarter_of_the_threads_at_work_turns_to_another_phase_and_fewer_do_not() {
        assert!(threads_turned(2, 8) && threads_turned(1, 4) && threads_turned(1, 1));
        assert!(!threads_turned(1, 8) && !threads_turned(2, 9) && !threads_turned(0, 0) && !threads_turned(0, 4));
    }

    /// The formula divides by the later mean.
    #[test]
    fn threads_that_stop_sharing_unevenly_are_a_change_though_the_formula_divides_by_zero() {
        assert!(is_change(5.0, 0.0, 0.2) && is_change(0.0, 5.0, 0.2));
        assert!(!is_change(0.0, 0.0, 0.2) && !is_change(100.0, 120.0, 0.2) && is_change(100.0, 125.0, 0.2));
    }
}
