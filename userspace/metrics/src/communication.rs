// SPDX-License-Identifier: GPL-2.0-only
//! How much and how unevenly threads share.
//!
//! T: number of threads. M: events by pair of threads, symmetric ([`SharingMatrix`]). Mn: M scaled so that its largest
//! cell is 100. Node of a thread: by a mapping, from 0.
//!
//! Errata. The diagonal of M is empty. Counted as a zero, as the formulas print it, pure pairs and all-to-all get the same
//! C_H, 10^4 (T - 1) / T^2; so [`Communication::c_h`] leaves it out and all-to-all is 0. The value by the printed formula
//! is kept beside it for comparison with published ones.

use serde::{Deserialize, Serialize};
use tandem_policies::sharing::{Diagonal, SharingMatrix};

/// What one matrix says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Communication {
    /// Equation 1 (kMAF), events^2: sum over i, j of (mean of row i - M[i][j])^2 / T^2. Grows with the amount, so it
    /// compares slices of one program and not two programs.
    pub heterogeneity: f64,
    /// Equation 2 (Characterizing), C_H: equation 1 of Mn, the diagonal left out. High: some pairs share much more than
    /// others, and putting them together pays. 0: it does not matter who is where.
    pub c_h: f64,
    /// Equation 2 as printed, an empty diagonal counted as zero.
    pub c_h_as_printed: f64,
    /// Equation 3 (kMAF's SharingAmount, Characterizing's C_A), events: sum over i, j of M[i][j] / T^2. Small: threads
    /// hardly meet, and placing them by what they share brings nothing.
    pub amount: f64,
    /// Equation 4 (ours), events: sum over pairs i < j of M[i][j].
    pub events: f64,
}

impl Communication {
    /// The metrics of a matrix.
    pub fn of(matrix: &SharingMatrix) -> Self {
        Self {
            heterogeneity: matrix.heterogeneity(Diagonal::LeftOut),
            c_h: matrix.communication_heterogeneity(Diagonal::LeftOut),
            c_h_as_printed: matrix.communication_heterogeneity(Diagonal::Counted),
            amount: matrix.sharing_amount(),
            events: matrix.pairs().map(|pair| pair.2).sum(),
        }
    }
}

/// Equation 5 (ours): which part of the sharing goes on between the same threads from one matrix to another, 0 to 1: sum
/// over pairs of min(M / sum of M, M' / sum of M'). `None` if one of them is empty. Near 1 the threads share as before; low
/// values show that they found other partners, which C_H cannot see: it is the same for all pairings.
pub fn kept_partners(before: &SharingMatrix, after: &SharingMatrix) -> Option<f64> {
    let total = |matrix: &SharingMatrix| matrix.pairs().map(|pair| pair.2).sum::<f64>();
    let (all_before, all_after) = (total(before), total(after));
    if all_before <= 0.0 || all_after <= 0.0 {
        return None;
    }
    let inside = |one: usize, other: usize| one < after.threads() && other < after.threads();
    let common = before.pairs().filter(|&(one, other, _)| inside(one, other));
    Some(common.map(|(one, other, events)| (events / all_before).min(after.cell(one, other) / all_after)).sum())
}

/// Equation 6 (ours): which part of the sharing crosses nodes under a mapping, 0 to 1; `None` without sharing. It is what
/// a placement of threads can lower: each such event is a cache line that travels between nodes.
///
/// # Panics
/// If `node_of` has fewer entries than there are threads.
pub fn across_nodes(matrix: &SharingMatrix, node_of: &[usize]) -> Option<f64> {
    let (mut across, mut all) = (0.0, 0.0);
    for (one, other, events) in matrix.pairs() {
        all += events;
        if node_of[one] != node_of[other] {
            across += events;
        }
    }
    (all > 0.0).then(|| across / all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `threads` threads that share in pairs, `apart` from each other.
    fn pairs(threads: usize, apart: usize) -> SharingMatrix {
        let first = (0..threads).filter(|thread| (thread / apart).is_multiple_of(2));
        SharingMatrix::new(threads, first.map(|thread| (thread, thread + apart, 5.0)))
    }

    fn all_to_all(threads: usize) -> SharingMatrix {
        let cells = (0..threads).flat_map(|one| (0..one).map(move |other| (one, other, 5.0)));
        SharingMatrix::new(threads, cells)
    }

    fn close(value: f64, expected: f64) -> bool {
        (value - expected).abs() < 1e-9 * expected.abs().max(1.0)
    }

    #[test]
    fn threads_that_all_share_alike_have_no_heterogeneity_and_pairs_have_a_high_one() {
        let (even, paired) = (Communication::of(&all_to_all(8)), Communication::of(&pairs(8, 1)));
        assert!(close(even.c_h, 0.0) && close(even.heterogeneity, 0.0));
        assert!(close(paired.c_h, 7500.0 / 7.0));
        assert!(close(even.amount, 5.0 * 56.0 / 64.0) && close(even.events, 5.0 * 28.0));
    }

    /// Erratum: with the printed formula and an empty diagonal these two cannot be told apart.
    #[test]
    fn as_printed_pairs_and_all_to_all_have_the_same_heterogeneity() {
        for matrix in [pairs(8, 1), pairs(8, 4), all_to_all(8)] {
            assert!(close(Communication::of(&matrix).c_h_as_printed, 1093.75));
        }
    }

    /// Blind spot: C_H does not change when only which threads pair changes; the kept partners do.
    #[test]
    fn new_partners_are_seen_by_equation_5_and_not_by_heterogeneity() {
        let (before, after) = (pairs(8, 1), pairs(8, 4));
        assert_eq!(Communication::of(&before).c_h, Communication::of(&after).c_h);
        assert_eq!(kept_partners(&before, &after), Some(0.0));
        assert_eq!(kept_partners(&before, &before), Some(1.0));
        // One pair of four keeps its partner.
        let partly = SharingMatrix::new(8, [(0, 1, 2.0), (2, 4, 2.0), (3, 5, 2.0), (6, 7, 2.0)]);
        assert_eq!(kept_partners(&before, &partly), Some(0.5));
        assert_eq!(kept_partners(&before, &SharingMatrix::new(8, [])), None);
    }

    /// Blind spot: the least heterogeneity for which the source migrates, 100, rejects them.
    #[test]
    fn pure_pairs_of_more_than_98_threads_are_below_100() {
        assert!(Communication::of(&pairs(98, 1)).c_h > 100.0 && Communication::of(&pairs(100, 1)).c_h < 100.0);
    }

    #[test]
    fn the_amount_does_not_change_heterogeneity_after_scaling() {
        let ten = SharingMatrix::new(8, pairs(8, 1).pairs().map(|(one, other, events)| (one, other, 10.0 * events)));
        let (once, tenfold) = (Communication::of(&pairs(8, 1)), Communication::of(&ten));
        assert!(close(once.c_h, tenfold.c_h) && close(tenfold.heterogeneity, 100.0 * once.heterogeneity));
        assert!(close(tenfold.amount, 10.0 * once.amount));
    }

    #[test]
    fn sharing_across_nodes_is_all_none_or_the_part_that_is() {
        let matrix = SharingMatrix::new(4, [(0, 1, 3.0), (2, 3, 1.0)]);
        assert_eq!(across_nodes(&matrix, &[0, 0, 1, 1]), Some(0.0));
        assert_eq!(across_nodes(&matrix, &[0, 1, 1, 1]), Some(0.75));
        assert_eq!(across_nodes(&matrix, &[0, 1, 0, 1]), Some(1.0));
        assert_eq!(across_nodes(&SharingMatrix::new(4, []), &[0; 4]), None);
    }
}
