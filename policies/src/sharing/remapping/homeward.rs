// SPDX-License-Identifier: GPL-2.0-only
//! Of mappings that cost the same, one that moves fewer threads.
//!
//! A mapper that divides threads into groups does not care which of two like nodes a group gets. Here the residents of
//! two nodes change nodes as a whole if that costs nothing and more of them are then where they are now; after that,
//! threads go back one by one, alone or in exchange for one that does not belong there.

use crate::mapping::Request;
use crate::sharing::SharingMatrix;

/// Share of the greatest price that is taken for rounding.
const ROUNDING: f64 = 1e-9;

/// `places` (node by thread), changed where that costs nothing and brings threads back to their present nodes.
pub(super) fn fewest_moves(request: &Request, places: Vec<usize>) -> Vec<usize> {
    let Some(present) = &request.present else { return places };
    if places == *present {
        return places;
    }
    let weights = || request.weights.iter().copied();
    let farthest = request.distances.iter().flatten().copied().fold(0.0, f64::max);
    let mut residents = vec![Vec::new(); request.capacities.len()];
    places.iter().enumerate().for_each(|(thread, &node)| residents[node].push(thread));
    let mut homeward = Homeward {
        request,
        present,
        sharing: SharingMatrix::new(request.threads, weights()),
        rounding: ROUNDING * farthest * weights().map(|pair| pair.2).sum::<f64>(),
        places,
        residents,
    };
    // Each exchange leaves fewer threads away from their nodes, so that this ends.
    while homeward.exchange_nodes() {
        while homeward.exchange_threads() {}
    }
    homeward.places
}

struct Homeward<'a> {
    request: &'a Request,
    present: &'a [usize],
    sharing: SharingMatrix,
    /// Differences of price up to this are none.
    rounding: f64,
    places: Vec<usize>,
    residents: Vec<Vec<usize>>,
}

impl Homeward<'_> {
    /// Lets the residents of two nodes change nodes wherever that is for free; whether any did.
    fn exchange_nodes(&mut self) -> bool {
        let nodes = self.residents.len();
        let mut any = false;
        for one in 0..nodes {
            for other in one + 1..nodes {
                if self.is_worth_exchanging(one, other) {
                    for &thread in &self.residents[one] {
                        self.places[thread] = other;
                    }
                    for &thread in &self.residents[other] {
                        self.places[thread] = one;
                    }
                    self.residents.swap(one, other);
                    any = true;
                }
            }
        }
        any
    }

    fn is_worth_exchanging(&self, one: usize, other: usize) -> bool {
        let (here, there) = (&self.residents[one], &self.residents[other]);
        let at_home = |threads: &[usize], node: usize| threads.iter().filter(|&&t| self.present[t] == node).count();
        let now = at_home(here, one) + at_home(there, other);
        let then = at_home(here, other) + at_home(there, one);
        let fit = |threads: &[usize], node: usize| {
            threads.len() <= self.request.capacities[node] && threads.iter().all(|&thread| self.may_go(thread, node))
        };
        // Pairs within and between the two nodes stay as far from each other as they are.
        let outside = |node: usize| node != one && node != other;
        let change = |threads: &[usize], to: usize| threads.iter().map(|&t| self.change(t, to, outside)).sum::<f64>();
        then > now && fit(here, other) && fit(there, one) && change(here, other) + change(there, one) <= self.rounding
    }

    /// Takes threads back to their nodes where that is for free; whether any went.
    fn exchange_threads(&mut self) -> bool {
        let mut any = false;
        for thread in 0..self.places.len() {
            let (here, home) = (self.places[thread], self.present[thread]);
            if here == home || !self.may_go(thread, home) {
                continue;
            }
            let own = self.change(thread, home, |_| true);
            if self.residents[home].len() < self.request.capacities[home] && own <= self.rounding {
                self.put(thread, home);
                any = true;
                continue;
            }
            let is_for_free = |&other: &usize| {
                // They stay as far from each other as they are, which both changes count as gone.
                let between = 2.0 * self.sharing.cell(thread, other) * self.request.distances[here][home];
                self.present[other] != home
                    && self.may_go(other, here)
                    && own + self.change(other, here, |_| true) + between <= self.rounding
            };
            if let Some(other) = self.residents[home].iter().copied().find(is_for_free) {
                self.put(thread, home);
                self.put(other, here);
                any = true;
            }
        }
        any
    }

    /// Change of price when `thread` alone goes to `to`, of its partners on nodes that `counts` says.
    fn change(&self, thread: usize, to: usize, counts: impl Fn(usize) -> bool) -> f64 {
        let (far, near) = (&self.request.distances[self.places[thread]], &self.request.distances[to]);
        let at = |partner: usize| self.places[partner];
        let partners = self.sharing.row(thread).iter().filter(|cell| counts(at(cell.0)));
        partners.map(|&(partner, events)| events * (near[at(partner)] - far[at(partner)])).sum()
    }

    fn may_go(&self, thread: usize, node: usize) -> bool {
        self.request.allowed.as_ref().is_none_or(|allowed| allowed[thread][node])
    }

    fn put(&mut self, thread: usize, to: usize) {
        self.residents[self.places[thread]].retain(|&resident| resident != thread);
        self.residents[to].push(thread);
        self.places[thread] = to;
    }
}
