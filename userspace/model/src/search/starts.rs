// SPDX-License-Identifier: GPL-2.0-only
//! Placements from which a search begins.

use tandem_policies::mapping::{Request, Search as Mapper};
use tandem_policies::model::NodeIndex;

use super::{Choice, Goal, Home, Problem};

/// Steps of the mapper.
const MAPPER_STEPS: u64 = 20_000;
/// Users of a region up to which it counts as what they share.
const MOST_SHARERS: usize = 16;

impl Problem<'_, '_> {
    /// Threads as they are, in blocks, scattered, and mapped by what they share; each with every region at the node that
    /// is best (or worst) for its users, with regions of several nodes spread, and with all spread or on one node.
    pub(super) fn starts(&self) -> Vec<Choice> {
        let mut placings: Vec<Vec<usize>> = vec![self.as_is(), self.blocks(), self.scattered()];
        placings.extend(self.mapped());
        placings.retain(|nodes| self.has_room(nodes));
        let mut starts = Vec::new();
        for nodes in placings {
            let near: Vec<Home> = (0..self.regions.len()).map(|at| Home::Node(self.by_latency(&nodes, at))).collect();
            let crossed = |at: usize| self.users[at].iter().any(|user| nodes[user.0] != nodes[self.users[at][0].0]);
            for other in [Home::Everywhere, Home::Users] {
                let homes = (0..near.len()).map(|at| if crossed(at) { other } else { near[at] }).collect();
                starts.push(Choice { nodes: nodes.clone(), homes });
            }
            starts.push(Choice { nodes: nodes.clone(), homes: near });
            starts.push(Choice { nodes: nodes.clone(), homes: vec![Home::Everywhere; self.regions.len()] });
            if self.goal == Goal::Worst {
                let on_one = |&memory: &usize| Choice {
                    nodes: nodes.clone(),
                    homes: vec![Home::Node(memory); self.regions.len()],
                };
                starts.extend(self.memory.iter().map(on_one));
            }
        }
        // What there is; all that is left where none of these has room.
        let nodes = self.as_is();
        if starts.is_empty() || self.has_room(&nodes) {
            starts.push(Choice { nodes, homes: vec![Home::AsItIs; self.regions.len()] });
        }
        starts
    }

    fn as_is(&self) -> Vec<usize> {
        self.sim.active.iter().map(|&thread| self.sim.threads[thread].node).collect()
    }

    /// Seats along the tour, as many a node as it has room.
    fn seats(&self) -> Vec<usize> {
        let tour = self.sim.world.tour.iter();
        tour.flat_map(|&node| std::iter::repeat_n(node, self.room[node])).collect()
    }

    fn blocks(&self) -> Vec<usize> {
        let (seats, threads) = (self.seats(), self.runners.len());
        (0..threads).map(|at| seats[at * seats.len() / threads]).collect()
    }

    fn scattered(&self) -> Vec<usize> {
        let (tour, mut left) = (&self.sim.world.tour, self.room.clone());
        let seat = |at: usize| {
            let node = (0..tour.len()).map(|step| tour[(at + step) % tour.len()]).find(|&node| left[node] > 0)?;
            left[node] -= 1;
            Some(node)
        };
        (0..self.runners.len()).map_while(seat).collect()
    }

    /// Threads mapped so that those which share are near each other.
    fn mapped(&self) -> Option<Vec<usize>> {
        let topology = &self.sim.machine.topology;
        let mut weights = Vec::new();
        for users in self.users.iter().filter(|users| (2..=MOST_SHARERS).contains(&users.len())) {
            for (at, &(first, a)) in users.iter().enumerate() {
                weights.extend(users[at + 1..].iter().map(|&(second, b)| (first, second, a.min(b))));
            }
        }
        if weights.is_empty() {
            return None;
        }
        let distance = |from: usize, to: usize| f64::from(topology.distance(NodeIndex(from), NodeIndex(to))) - 10.0;
        let nodes = 0..self.room.len();
        let request = Request {
            threads: self.runners.len(),
            weights,
            capacities: self.room.clone(),
            distances: nodes.clone().map(|from| nodes.clone().map(|to| distance(from, to)).collect()).collect(),
            ..Request::default()
        };
        let mut mapper = Mapper::new(&request, 1).ok()?;
        mapper.run(MAPPER_STEPS);
        Some(mapper.best().places.clone())
    }

    /// The node from which a region is reached fastest by its users; slowest for the worst placement.
    fn by_latency(&self, nodes: &[usize], at: usize) -> usize {
        let latency = |memory: usize| -> f64 {
            self.users[at].iter().map(|&(user, weight)| weight * self.sim.machine.latency_ns[nodes[user]][memory]).sum()
        };
        let better = |a: f64, b: f64| if self.goal == Goal::Best { a < b } else { a > b };
        let all = self.memory.iter().copied();
        all.reduce(|best, next| if better(latency(next), latency(best)) { next } else { best }).unwrap_or(0)
    }
}
