// SPDX-License-Identifier: GPL-2.0-only
//! The descent: changes of one or two threads that cost less, until there are none, and from where.

use super::{Change, FEW_NODES, ROUNDING, State};
use crate::tandem::residents::EXCHANGES;

impl State<'_> {
    /// Descends, and goes on after threads went together.
    pub(super) fn descend_together(&mut self, steps: u64) {
        self.descend(steps);
        let slack = ROUNDING * self.cost().abs();
        if self.gather(steps, slack) {
            self.descend(steps);
        }
    }

    /// Where all nodes are full, descends once more, from where each thread would go by itself, and takes what costs less: threads
    /// of three nodes and more that must all change places come to such a placement by no row of exchanges each of which
    /// saves something.
    pub(super) fn start_again(&mut self, steps: u64) {
        let has_no_room = |&thread: &usize| {
            let (choices, here) = (&self.problem.threads[thread].choices, self.place[thread]);
            choices.iter().all(|&node| node == here || self.would_crowd(thread, node))
        };
        if self.steps >= steps || !self.problem.movable.iter().all(has_no_room) {
            return;
        }
        let mut place = self.place.clone();
        for &thread in &self.problem.movable {
            let (row, choices) = (self.problem.row(thread), &self.problem.threads[thread].choices);
            if let Some(best) = choices.iter().copied().min_by(|&one, &other| row[one].total_cmp(&row[other])) {
                place[thread] = best;
            }
        }
        let mut other = Self { steps: self.steps, ..Self::at(self.problem, place) };
        other.descend_together(steps);
        self.steps = other.steps;
        if other.cost() < self.cost() - ROUNDING * self.cost().abs() {
            *self = Self { next: self.next, ..other };
        }
    }

    /// Makes changes that cost less until there are none, thread by thread in turn.
    fn descend(&mut self, steps: u64) {
        let slack = ROUNDING * self.cost().abs();
        let movable = &self.problem.movable;
        let mut unchanged = 0;
        while unchanged < movable.len() {
            if self.steps >= steps {
                return;
            }
            let thread = movable[self.next];
            self.next = (self.next + 1) % movable.len();
            unchanged += 1;
            if let Some(changes) = self.best_change(thread, slack) {
                self.apply(&changes);
                unchanged = 0;
            }
        }
        self.next = 0;
    }

    /// The change of a thread that saves most, if one saves more than `slack`.
    fn best_change(&mut self, thread: usize, slack: f64) -> Option<Vec<Change>> {
        let from = self.place[thread];
        let companion = self.companion(thread);
        let (mut best, mut least) = (None, -slack);
        for to in self.candidates(thread) {
            let alone = [(thread, to)];
            let cost = self.change(&alone);
            if cost < least {
                (least, best) = (cost, Some(alone.to_vec()));
            }
            let along = companion.filter(|&other| self.problem.threads[other].choices.contains(&to));
            let along = along.map(|other| [(thread, to), (other, to)]);
            let others: Vec<usize> = self.losers(to, from).take(EXCHANGES).collect();
            let exchanges = others.into_iter().map(|other| [(thread, to), (other, from)]);
            for both in exchanges.chain(along) {
                let cost = self.change(&both);
                if cost < least {
                    (least, best) = (cost, Some(both.to_vec()));
                }
            }
        }
        best
    }

    /// The thread on the same node with which it exchanges most lines, or else owns memory.
    fn companion(&self, thread: usize) -> Option<usize> {
        let unknown = &self.problem.threads[thread];
        let is_here = |other: usize| other != thread && self.place[other] == self.place[thread];
        let partners = unknown.partners.iter().filter(|partner| is_here(partner.0));
        let partner = partners.reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|partner| partner.0);
        let owners = || unknown.parts.iter().flat_map(|&part| &self.problem.shared[part].users).map(|user| user.0);
        partner.or_else(|| owners().find(|&owner| is_here(owner)))
    }

    /// Nodes on which a thread is tried.
    fn candidates(&self, thread: usize) -> Vec<usize> {
        let (unknown, here) = (&self.problem.threads[thread], self.place[thread]);
        let choices = || unknown.choices.iter().copied().filter(|&node| node != here);
        if self.problem.nodes <= FEW_NODES {
            return choices().collect();
        }
        let row = self.problem.row(thread);
        let room = |node: usize| self.wanted[node] + self.problem.taken[node] - self.problem.capacity[node];
        let mut nodes = vec![unknown.present];
        nodes.extend(choices().min_by(|&a, &b| row[a].total_cmp(&row[b])));
        nodes.extend(choices().min_by(|&a, &b| room(a).total_cmp(&room(b)).then(row[a].total_cmp(&row[b]))));
        let mut partners = unknown.partners.clone();
        partners.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        nodes.extend(partners.iter().take(2).map(|partner| self.place[partner.0]));
        let parts = unknown.parts.iter().take(2);
        nodes.extend(parts.flat_map(|&part| &self.problem.shared[part].users).map(|user| self.place[user.0]));
        nodes.sort_unstable();
        nodes.dedup();
        nodes.retain(|&node| node != here && unknown.choices.contains(&node));
        nodes
    }
}
