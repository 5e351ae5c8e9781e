// SPDX-License-Identifier: GPL-2.0-only
//! Phases of a program: stretches of slices over which C_H stays about the same.

use serde::{Deserialize, Serialize};
use tandem_policies::phases::{PhaseWatch, Start};

/// Slices of a window in the source: 50 of 10 ms.
pub const WINDOW: usize = 50;
/// Least change of C_H in the source.
pub const MIN_CHANGE: f64 = 0.2;

/// One phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Its first slice, from 0.
    pub first: usize,
    /// The slice after its last one.
    pub end: usize,
    /// Mean C_H of its slices.
    pub c_h: f64,
}

/// Equation 7 (Characterizing): the phases of a program with this C_H by slice. A phase starts at slice t when
/// |mean of the last `window` - mean of the `window` before| / mean of the last >= `min_change`; it is noticed a few slices
/// after the change. The first one starts with the program. Few long phases: one placement each pays. Many short ones:
/// place for the whole run. Phases shorter than two windows are not told apart. `window` 0 counts as 1.
pub fn phases(c_h: &[f64], window: usize, min_change: f64) -> Vec<Phase> {
    let window = window.max(1);
    let mut watch = PhaseWatch::default();
    let changes = c_h.iter().enumerate().filter(|&(_, &value)| watch.add(value, window, min_change) == Start::Change);
    let mut starts: Vec<usize> = changes.map(|(slice, _)| slice).collect();
    if !c_h.is_empty() {
        starts.insert(0, 0);
    }
    let ends = starts.iter().skip(1).copied().chain([c_h.len()]);
    let phase = |(&first, end): (&usize, usize)| {
        let slices = &c_h[first..end];
        Phase { first, end, c_h: slices.iter().sum::<f64>() / slices.len() as f64 }
    };
    starts.iter().zip(ends).map(phase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(c_h: &[f64]) -> Vec<usize> {
        phases(c_h, WINDOW, MIN_CHANGE).iter().map(|phase| phase.first).collect()
    }

    /// The source's example: pairs, then all-to-all, by turns of 2 s in slices of 10 ms.
    #[test]
    fn phases_of_two_seconds_are_found_within_half_a_second() {
        let c_h: Vec<f64> = (0..1000).map(|slice| if slice / 200 % 2 == 0 { 1071.0 } else { 0.0 }).collect();
        let starts = found(&c_h);
        assert_eq!(starts.len(), 5, "{starts:?}");
        for (phase, start) in starts.iter().enumerate() {
            assert!((200 * phase..=200 * phase + 50).contains(start), "{starts:?}");
        }
        let all = phases(&c_h, WINDOW, MIN_CHANGE);
        assert!(all.windows(2).all(|pair| pair[0].end == pair[1].first) && all[4].end == 1000);
    }

    #[test]
    fn a_steady_program_has_one_phase_and_no_slices_have_none() {
        assert_eq!(found(&[300.0; 500]), [0]);
        assert_eq!(found(&[300.0; 3]), [0]);
        assert_eq!(found(&[]), [0; 0]);
    }

    #[test]
    fn a_change_counts_from_a_fifth_of_the_later_value() {
        let step = |to: f64| [[100.0; 200], [to; 200]].concat();
        assert_eq!(found(&step(119.0)).len(), 1);
        assert_eq!(found(&step(130.0)).len(), 2);
    }

    #[test]
    fn a_phase_has_the_mean_of_its_slices() {
        let all = phases(&[[100.0; 200], [400.0; 200]].concat(), WINDOW, MIN_CHANGE);
        assert_eq!(all[0].first, 0);
        assert!(all[0].c_h < 140.0 && all[1].c_h == 400.0, "{all:?}");
    }
}
