// SPDX-License-Identifier: GPL-2.0-only
//! Lines that threads exchange, and what is in doubt of them.
//!
//! Transfers that were counted are put down to the threads that are shared with, by shares that are known from samples; a wake-up
//! counts for [`super::problem::Prices::wake_lines`].
//!
//! | source | variance of its lines per second |
//! |---|---|
//! | n wake-ups in the interval | that of a count: n, x square of the lines of each / square of the interval |
//! | share p of the lines, by n samples of what the thread shares | lines^2 x p / n; 0 where samples are not counted |
//!
//! What both threads of a pair tell rests on the same events, so it is their standard deviations that add up.

use super::build::Facts;
use super::problem::Problem;
use crate::model::{Thread, ThreadId};
use crate::signals::sound;

/// Variance of the lines per second of each partner, by thread, in the order of its partners.
pub struct Variances(Vec<Vec<f64>>);

/// Lines per second with a thread at a position, and their variance.
type Exchange = (usize, f64, f64);

impl Problem {
    /// Takes in the lines that threads exchange.
    pub(super) fn pair_up(&mut self, facts: &Facts) -> Variances {
        let mut all: Vec<Vec<Exchange>> = vec![vec![]; self.threads.len()];
        let mut pair = |at: usize, partner: ThreadId, per_s: f64, variance: f64| {
            let other = facts.snapshot.threads.binary_search_by_key(&partner, |thread| thread.id);
            if let Some(other) = other.ok().filter(|&other| other != at) {
                all[at].push((other, per_s, variance));
                all[other].push((at, per_s, variance));
            }
        };
        let interval_s = facts.snapshot.interval_ns.max(1) as f64 / 1e9;
        for (at, thread) in facts.snapshot.threads.iter().enumerate() {
            if let Some((partner, wakes_per_s)) = thread.woken_by {
                let (wakes_per_s, lines) = (sound(wakes_per_s), facts.prices.wake_lines);
                pair(at, partner, wakes_per_s * lines, wakes_per_s / interval_s * lines * lines);
            }
            let Some(lines) = thread.transfers_per_s else { continue };
            let lines_per_s = sound(lines.within_node) + sound(lines.across_nodes);
            let shared: f64 = thread.sharing.iter().map(|cell| sound(cell.1)).sum();
            if lines_per_s <= 0.0 || shared <= 0.0 {
                continue;
            }
            let of_sample = of_sample(facts, thread, shared);
            for &(partner, cell) in &thread.sharing {
                let share = sound(cell) / shared;
                pair(at, partner, lines_per_s * share, lines_per_s * lines_per_s * share * of_sample);
            }
        }
        let sums = all.into_iter().map(sum_by_partner);
        let (partners, variances): (Vec<_>, Vec<_>) = sums.unzip();
        self.threads.iter_mut().zip(partners).for_each(|(thread, partners)| thread.partners = partners);
        Variances(variances)
    }

    /// By other node, what is in doubt of what a thread saves with its partners where they are, if it goes there from one.
    pub(super) fn doubts_of_partners(&self, facts: &Facts, of: &Variances, at: usize, from: usize) -> Vec<f64> {
        // What it saves, and the variance of that.
        let mut gains = vec![(0.0, 0.0); self.nodes];
        for (&(other, per_s), of_it) in self.threads[at].partners.iter().zip(&of.0[at]) {
            let (partner, there) = (&self.threads[other], self.threads[other].present);
            let now_ns = self.between_ns(from, there);
            let goes_anywhere = partner.choices.len() == self.nodes;
            for (to, ((gain, variance), then_ns)) in gains.iter_mut().zip(self.latencies.between(there)).enumerate() {
                let alone_ns = now_ns - then_ns;
                // If the partner comes as well, what both save is in doubt for each of them by half.
                let both_ns = (now_ns - self.latency_ns(to, to)) / 2.0;
                let comes = || goes_anywhere || partner.choices.binary_search(&to).is_ok();
                let nearer_ns = if both_ns > alone_ns.max(0.0) && comes() { both_ns } else { alone_ns };
                *gain += per_s * nearer_ns;
                *variance += of_it * nearer_ns * nearer_ns;
            }
        }
        // Who leaves its partners does so for something else.
        let doubt = |(gain, variance): (f64, f64)| {
            if gain > 0.0 { facts.prices.doubt_of(gain, libm::sqrt(variance)) } else { 0.0 }
        };
        gains.into_iter().map(doubt).collect()
    }
}

/// The part that one sample is of the accesses to what a thread shares, which it makes so many of at most; 0 where samples are not
/// counted.
fn of_sample(facts: &Facts, thread: &Thread, shared: f64) -> f64 {
    let accesses: f64 = thread.accesses_per_s.iter().flat_map(|row| row.values()).map(|&rate| sound(rate)).sum();
    if accesses > 0.0 { facts.owners.per_sample(thread.process) / accesses.min(shared) } else { 0.0 }
}

/// Partners with their lines per second and, beside them, the variance of these; ascending, each once, without those that exchange
/// nothing.
fn sum_by_partner(mut exchanges: Vec<Exchange>) -> (Vec<(usize, f64)>, Vec<f64>) {
    exchanges.sort_by_key(|exchange| exchange.0);
    exchanges.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            let error = libm::sqrt(kept.2) + libm::sqrt(next.2);
            *kept = (kept.0, kept.1 + next.1, error * error);
        }
        same
    });
    exchanges.retain(|exchange| exchange.1 > 0.0);
    exchanges.into_iter().map(|(other, per_s, variance)| ((other, per_s), variance)).unzip()
}
