// SPDX-License-Identifier: GPL-2.0-only
//! A mapping with its residents by place, kept while it changes.

use std::collections::VecDeque;

use super::problem::Problem;

/// A place for every thread, the residents of every place, and the cost.
#[derive(Clone)]
pub struct Placement {
    pub place: Vec<u32>,
    pub residents: Vec<Vec<u32>>,
    position: Vec<u32>,
    pub cost: f64,
}

const NOWHERE: u32 = u32::MAX;

impl Placement {
    /// The threads at `place`, which keeps capacities.
    pub fn new(problem: &Problem, place: &[u32]) -> Self {
        let mut placement = Self::empty(problem);
        for (thread, &at) in place.iter().enumerate() {
            placement.join(thread, at as usize);
        }
        placement.cost = problem.cost(place);
        placement
    }

    fn empty(problem: &Problem) -> Self {
        let (threads, places) = (problem.threads(), problem.places);
        let (place, position) = (vec![NOWHERE; threads], vec![0; threads]);
        Self { place, residents: vec![Vec::new(); places], position, cost: 0.0 }
    }

    /// The threads where they are wanted as far as capacities and allowed places let them be; every other one where there is
    /// room and it costs least, for which others make room if they must.
    ///
    /// # Errors
    /// The first thread that finds no place.
    pub fn complete(problem: &Problem, wanted: &[Option<u32>]) -> Result<Self, usize> {
        let mut placement = Self::empty(problem);
        for (thread, at) in wanted.iter().enumerate() {
            let Some(at) = at.map(|at| at as usize) else { continue };
            if problem.allows(thread, at) && placement.has_room(problem, at) {
                placement.join(thread, at);
            }
        }
        for thread in 0..problem.threads() {
            if placement.place[thread] == NOWHERE {
                placement.insert(problem, thread)?;
            }
        }
        placement.cost = problem.cost(&placement.place);
        Ok(placement)
    }

    pub fn has_room(&self, problem: &Problem, place: usize) -> bool {
        self.residents[place].len() < problem.capacity[place]
    }

    /// Puts a thread that is nowhere.
    fn insert(&mut self, problem: &Problem, thread: usize) -> Result<(), usize> {
        let pulls = problem.pulls(&self.place, thread, |other| self.place[other] != NOWHERE);
        let open = (0..problem.places).filter(|&at| problem.allows(thread, at) && self.has_room(problem, at));
        if let Some(at) = open.min_by(|&a, &b| pulls[a].total_cmp(&pulls[b])) {
            self.join(thread, at);
            return Ok(());
        }
        self.make_room(problem, thread).ok_or(thread)
    }

    /// Finds the shortest chain of threads that push each other on to a place with room, and moves them.
    fn make_room(&mut self, problem: &Problem, thread: usize) -> Option<()> {
        let mut comes: Vec<u32> = vec![NOWHERE; problem.places];
        let mut queue = VecDeque::from([thread]);
        while let Some(mover) = queue.pop_front() {
            for at in 0..problem.places {
                if comes[at] != NOWHERE || !problem.allows(mover, at) || problem.capacity[at] == 0 {
                    continue;
                }
                comes[at] = mover as u32;
                if self.has_room(problem, at) {
                    self.push_on(&comes, at);
                    return Some(());
                }
                queue.extend(self.residents[at].iter().map(|&resident| resident as usize));
            }
        }
        None
    }

    fn push_on(&mut self, comes: &[u32], mut to: usize) {
        loop {
            let thread = comes[to] as usize;
            let from = self.place[thread];
            if from == NOWHERE {
                return self.join(thread, to);
            }
            self.put(thread, to);
            to = from as usize;
        }
    }

    fn join(&mut self, thread: usize, to: usize) {
        self.position[thread] = self.residents[to].len() as u32;
        self.residents[to].push(thread as u32);
        self.place[thread] = to as u32;
    }

    fn put(&mut self, thread: usize, to: usize) {
        let (from, at) = (self.place[thread] as usize, self.position[thread]);
        self.residents[from].swap_remove(at as usize);
        if let Some(&moved) = self.residents[from].get(at as usize) {
            self.position[moved as usize] = at;
        }
        self.join(thread, to);
    }

    /// Moves a thread, which changes the cost by `change`.
    pub fn shift(&mut self, thread: usize, to: usize, change: f64) {
        self.put(thread, to);
        self.cost += change;
    }

    /// Two threads at different places change them, which changes the cost by `change`.
    pub fn swap(&mut self, first: usize, second: usize, change: f64) {
        let (a, b) = (self.place[first], self.place[second]);
        let (at, bt) = (self.position[first], self.position[second]);
        self.residents[a as usize][at as usize] = second as u32;
        self.residents[b as usize][bt as usize] = first as u32;
        (self.place[first], self.place[second]) = (b, a);
        (self.position[first], self.position[second]) = (bt, at);
        self.cost += change;
    }

    /// Takes every thread back to `home` for which that costs nothing, alone or in exchange with a resident there.
    pub fn go_home(&mut self, problem: &Problem, home: &[u32]) {
        let free = |change: f64| change <= problem.rounding;
        loop {
            let mut moved = false;
            for thread in 0..home.len() {
                let (here, back) = (self.place[thread] as usize, home[thread] as usize);
                if here == back || !problem.allows(thread, back) {
                    continue;
                }
                if self.has_room(problem, back) {
                    let change = problem.move_change(&self.place, thread, back);
                    if free(change) {
                        self.shift(thread, back, change);
                        moved = true;
                        continue;
                    }
                }
                let away = |other: &&u32| home[**other as usize] as usize != back;
                let fits =
                    |other: usize| problem.allows(other, here) && free(problem.swap_change(&self.place, thread, other));
                let partner = self.residents[back].iter().filter(away).map(|&other| other as usize).find(|&o| fits(o));
                if let Some(other) = partner {
                    self.swap(thread, other, 0.0);
                    moved = true;
                }
            }
            // Every exchange or move brings one more thread home and takes none away, so this ends.
            if !moved {
                break;
            }
        }
        self.cost = problem.cost(&self.place);
    }
}
