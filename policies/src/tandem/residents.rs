// SPDX-License-Identifier: GPL-2.0-only
//! Which movable threads are on which node, and who of them would lose least by going to another.
//!
//! An exchange is tried with those that lose least by it, for each thread and node. To look at all threads of the node each time
//! would be quadratic in their number. So the first of each pair of nodes are kept in order and follow every change: what is kept
//! is a true beginning of that order, and the threads are sorted anew only when most of it has gone.

use super::problem::Problem;

/// Threads of a node with which an exchange is tried, those that lose least by it.
pub const EXCHANGES: usize = 4;
/// Threads that are kept in order by pair of nodes.
const KEPT: usize = 32;

/// A loss in ns per second, and whose it is.
type Loss = (f64, usize);

fn precedes(one: &Loss, other: &Loss) -> bool {
    one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)).is_lt()
}

/// The threads of a node that lose least by going to another, the least loss first.
#[derive(Clone, Debug)]
struct Ranking {
    first: Vec<Loss>,
    /// Whether all that may go there are among them.
    is_all: bool,
}

/// Threads by node.
#[derive(Clone, Debug)]
pub struct Residents {
    on: Vec<Vec<usize>>,
    /// By thread, its position among those of its node.
    seat: Vec<usize>,
    /// By the node that threads are on, then by the one that they would go to; `None` until it is asked for.
    rankings: Vec<Option<Ranking>>,
}

impl Residents {
    /// The movable threads where `place` has them.
    pub fn of(problem: &Problem, place: &[usize]) -> Self {
        let mut residents = Self {
            on: vec![vec![]; problem.nodes],
            seat: vec![0; problem.threads.len()],
            rankings: vec![None; problem.nodes * problem.nodes],
        };
        problem.movable.iter().for_each(|&thread| residents.sit(thread, place[thread]));
        residents
    }

    /// Threads on a node, in no order.
    pub fn on(&self, node: usize) -> &[usize] {
        &self.on[node]
    }

    fn sit(&mut self, thread: usize, node: usize) {
        self.seat[thread] = self.on[node].len();
        self.on[node].push(thread);
    }

    /// A thread goes.
    pub fn go(&mut self, problem: &Problem, thread: usize, from: usize, to: usize) {
        let seat = self.seat[thread];
        self.on[from].swap_remove(seat);
        if let Some(&last) = self.on[from].get(seat) {
            self.seat[last] = seat;
        }
        self.sit(thread, to);
        for other in 0..problem.nodes {
            if let Some(ranking) = &mut self.rankings[from * problem.nodes + other] {
                ranking.forget(loss(problem, thread, from, other));
            }
            if let Some(ranking) = &mut self.rankings[to * problem.nodes + other]
                && may_go(problem, thread, other)
            {
                ranking.take(loss(problem, thread, to, other));
            }
        }
    }

    /// The threads of `on` that lose least when they go to `to`, in this order: at least [`EXCHANGES`] if there are so many.
    pub fn losers(&mut self, problem: &Problem, on: usize, to: usize) -> impl Iterator<Item = usize> {
        let (residents, ranking) = (&self.on[on], &mut self.rankings[on * problem.nodes + to]);
        if ranking.as_ref().is_none_or(|known| !known.is_all && known.first.len() < EXCHANGES) {
            *ranking = Some(Ranking::of(problem, residents, on, to));
        }
        let first = ranking.as_ref().map_or(&[][..], |known| &known.first);
        first.iter().map(|loss| loss.1)
    }

    /// Forgets who would lose least, while changes are many and nobody asks.
    pub fn forget_losers(&mut self) {
        self.rankings.fill(None);
    }
}

impl Ranking {
    fn of(problem: &Problem, residents: &[usize], on: usize, to: usize) -> Self {
        let may_go = residents.iter().filter(|&&thread| may_go(problem, thread, to));
        let mut first: Vec<Loss> = may_go.map(|&thread| loss(problem, thread, on, to)).collect();
        let order = |a: &Loss, b: &Loss| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        let is_all = first.len() <= KEPT;
        if !is_all {
            first.select_nth_unstable_by(KEPT, order);
            first.truncate(KEPT);
        }
        first.sort_unstable_by(order);
        Self { first, is_all }
    }

    fn forget(&mut self, loss: Loss) {
        self.first.retain(|known| known.1 != loss.1);
    }

    fn take(&mut self, loss: Loss) {
        let at = self.first.partition_point(|known| precedes(known, &loss));
        if at == self.first.len() && !self.is_all {
            return;
        }
        self.first.insert(at, loss);
        if self.first.len() > KEPT {
            self.first.truncate(KEPT);
            self.is_all = false;
        }
    }
}

fn may_go(problem: &Problem, thread: usize, to: usize) -> bool {
    problem.threads[thread].choices.contains(&to)
}

fn loss(problem: &Problem, thread: usize, from: usize, to: usize) -> Loss {
    (problem.row(thread)[to] - problem.row(thread)[from], thread)
}
