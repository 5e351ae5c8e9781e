// SPDX-License-Identifier: GPL-2.0-only
//! Takes out of a mapping what does not pay: threads go back where they are now as long as that costs
//! no score, so that moves without a gain do not ride along with those that have one.

use super::{Mapping, Problem, ROUNDING, Step};

/// One unit of a return: a thread that goes back, or (`None`) a slot that is taken or given up.
struct Arc {
    from: usize,
    to: usize,
    cost: f64,
    thread: Option<usize>,
}

impl Problem {
    /// Each round has fewer threads away from their present node, and costs no score but rounding.
    pub fn prune(&self, mapping: &mut Mapping) {
        loop {
            let returning = self.free_return(mapping);
            let mut then = mapping.clone();
            for &thread in &returning {
                then.put(&self.demands, thread, self.present[thread]);
            }
            if !returning.is_empty() && self.score(&then) >= self.score(mapping) - ROUNDING {
                *mapping = then;
                continue;
            }
            let Some((step, change)) = self.free_exchange(mapping) else { break };
            mapping.take(&self.demands, &step, change);
        }
        mapping.score = self.score(mapping);
    }

    /// Threads that may all go back at once for nothing: along a cycle of nodes, where no node hosts more
    /// or fewer than before, or along a path, where the first node loses one and the last gains one.
    ///
    /// Nodes are looked at as if all threads took the same; whether it is for nothing with what they really take is for
    /// the caller to see. A path is a cycle through one more vertex, the hub. Of all cycles, one of negative cost is
    /// looked for (Bellman-Ford), each return being cheaper by `ROUNDING` so that equal scores count.
    fn free_return(&self, mapping: &Mapping) -> Vec<usize> {
        let hub = self.rooms.len();
        let arcs = self.arcs(mapping, hub);
        let mut cost = vec![0.0; hub + 1];
        let mut arrived_by: Vec<Option<usize>> = vec![None; hub + 1];
        let mut last_changed = None;
        for _ in 0..=hub {
            last_changed = None;
            for (at, arc) in arcs.iter().enumerate() {
                if cost[arc.from] + arc.cost < cost[arc.to] - ROUNDING / 1000.0 {
                    cost[arc.to] = cost[arc.from] + arc.cost;
                    arrived_by[arc.to] = Some(at);
                    last_changed = Some(arc.to);
                }
            }
        }
        let Some(mut vertex) = last_changed else { return Vec::new() };
        let back = |vertex: usize| arrived_by[vertex].map(|at| &arcs[at]);
        for _ in 0..=hub {
            vertex = back(vertex).map_or(vertex, |arc| arc.from);
        }
        let (end, mut threads) = (vertex, Vec::new());
        while let Some(arc) = back(vertex) {
            threads.extend(arc.thread);
            vertex = arc.from;
            if vertex == end {
                break;
            }
        }
        threads
    }

    fn arcs(&self, mapping: &Mapping, hub: usize) -> Vec<Arc> {
        let mut arcs = Vec::new();
        for (thread, (&from, &to)) in mapping.place.iter().zip(&self.present).enumerate() {
            if from != to {
                let cost = self.value[thread][from] - self.value[thread][to] - ROUNDING;
                arcs.push(Arc { from, to, cost, thread: Some(thread) });
            }
        }
        let mean = self.demands.iter().sum::<u64>() / (self.demands.len() as u64).max(1);
        for node in 0..hub {
            if self.is_free(mapping, node) {
                arcs.push(Arc { from: node, to: hub, cost: -self.joining(mapping, node, mean), thread: None });
            }
            if !mapping.residents[node].is_empty() {
                let cost = self.leaving(mapping, node, mean.min(mapping.loads[node]));
                arcs.push(Arc { from: hub, to: node, cost, thread: None });
            }
        }
        arcs
    }

    /// A thread that goes back in exchange with one that came to its old node and goes elsewhere.
    fn free_exchange(&self, mapping: &Mapping) -> Option<(Step, f64)> {
        let away = |thread: &usize| mapping.place[*thread] != self.present[*thread];
        for thread in (0..self.place_count()).filter(away) {
            let goes = mapping.place[thread];
            for &second in mapping.residents[self.present[thread]].iter().filter(|second| away(second)) {
                let change = self.exchange_change(mapping, thread, second);
                let may = goes == self.present[second] || self.allowed[second][goes];
                if may && change >= -ROUNDING {
                    return Some((Step::Exchange { first: thread, second }, change));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Room;
    use crate::model::FULL_CAPACITY;

    fn one_thread_each(nodes: usize) -> Vec<Room> {
        vec![Room::of(FULL_CAPACITY, nodes as u64 * FULL_CAPACITY, 0); nodes]
    }

    /// One thread and one CPU on each of five nodes. Threads 3 and 4 sit on each other's memory. The
    /// rotation of 0, 1, 2 to the next node changes nothing in sum, though each step of it does: taking
    /// one of them back by an exchange would cost.
    fn five_nodes() -> Problem {
        let mut value = vec![vec![0.0; 5]; 5];
        for (thread, here, next) in [(0, 3.0, 4.0), (1, 3.0, 4.0), (2, 5.0, 3.0)] {
            value[thread][thread] = here;
            value[thread][(thread + 1) % 3] = next;
        }
        (value[3][4], value[4][3]) = (4.0, 4.0);
        let rooms = one_thread_each(5);
        let allowed = std::iter::repeat_n(vec![true; 5], 5).collect();
        Problem {
            rooms,
            demands: vec![FULL_CAPACITY; 5],
            present: vec![0, 1, 2, 3, 4],
            value: value.into_iter().collect(),
            allowed,
        }
    }

    #[test]
    fn three_threads_rotated_for_nothing_among_gainful_moves_stay() {
        let problem = five_nodes();
        let mut mapping = problem.mapping(&[1, 2, 0, 4, 3]);
        let before = mapping.score;
        problem.prune(&mut mapping);
        assert_eq!(mapping.place, [0, 1, 2, 4, 3]);
        assert!((mapping.score - before).abs() < 1e-6);
    }

    #[test]
    fn a_rotation_that_gains_is_kept() {
        let mut problem = five_nodes();
        problem.value[2][2] = 4.9;
        let mut mapping = problem.mapping(&[1, 2, 0, 4, 3]);
        problem.prune(&mut mapping);
        assert_eq!(mapping.place, [1, 2, 0, 4, 3]);
    }

    /// Thread 0 goes to node 1 and thread 1 from there to node 2, which has a CPU to spare: no gain in sum.
    #[test]
    fn a_chain_to_a_free_node_for_nothing_is_taken_back() {
        let value = vec![vec![3.0, 4.0, 0.0], vec![0.0, 4.0, 3.0]];
        let rooms = one_thread_each(3);
        let allowed = std::iter::repeat_n(vec![true; 3], 2).collect();
        let problem = Problem {
            rooms,
            demands: vec![FULL_CAPACITY; 2],
            present: vec![0, 1],
            value: value.into_iter().collect(),
            allowed,
        };
        let mut mapping = problem.mapping(&[1, 2]);
        problem.prune(&mut mapping);
        assert_eq!(mapping.place, [0, 1]);
    }
}
