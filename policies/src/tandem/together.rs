// SPDX-License-Identifier: GPL-2.0-only
//! Changes of many threads at once: all of a process, or of a control group of several processes, go to one node.
//!
//! What a process has in common comes to its threads only if most of them are on one node, so the first threads that go there
//! gain nothing: changes of one or two of them never get that far. Those that are in the way change places with them.

use std::collections::{BTreeMap, BTreeSet};

use super::problem::Problem;
use super::search::{FEW_NODES, MOST_CHANGES, State};

/// On machines of many nodes, a set is tried on so many of those where most of it is.
const MOST_PRESENT: usize = 2;

impl State<'_> {
    /// Brings sets of threads to one node each where that costs less by more than `slack`, in so many steps; whether any went.
    pub fn gather(&mut self, steps: u64, slack: f64) -> bool {
        let problem = self.problem();
        let mut gathered = false;
        for set in &problem.sets {
            let nodes = self.nodes_for(set);
            for to in nodes {
                if self.steps >= steps {
                    return gathered;
                }
                gathered |= self.bring(set, to, slack);
            }
        }
        gathered
    }

    /// Nodes that have CPUs for all of a set, on which it is tried.
    fn nodes_for(&self, set: &[usize]) -> Vec<usize> {
        let problem: &Problem = self.problem();
        let wanted: f64 = set.iter().map(|&thread| problem.threads[thread].demand).sum();
        let fits = |node: &usize| wanted + problem.taken[*node] <= problem.capacity[*node];
        let mut nodes: Vec<usize> = (0..problem.nodes).filter(fits).collect();
        if nodes.len() > FEW_NODES {
            let mut present = vec![0usize; problem.nodes];
            set.iter().for_each(|&thread| present[self.place[thread]] += 1);
            let cost = |node: usize| set.iter().map(|&thread| problem.row(thread)[node]).sum::<f64>();
            let cheapest = nodes.iter().map(|&node| (cost(node), node)).reduce(|a, b| if b.0 < a.0 { b } else { a });
            nodes.sort_by_key(|&node| (std::cmp::Reverse(present[node]), node));
            nodes.truncate(MOST_PRESENT);
            nodes.extend(cheapest.map(|(_, node)| node).filter(|node| !nodes.contains(node)));
        }
        nodes
    }

    /// Brings a set to a node if that costs less by more than `slack`; whether it did.
    fn bring(&mut self, set: &[usize], to: usize, slack: f64) -> bool {
        let (mut cost, mut back) = (0.0, Vec::new());
        // Asked for before any goes: who has come from elsewhere would lose least by going back.
        let mut losers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let homes: BTreeSet<usize> = set.iter().map(|&thread| self.place[thread]).collect();
        for from in homes.into_iter().filter(|&from| from != to) {
            losers.insert(from, self.losers(to, from).filter(|other| !set.contains(other)).collect());
        }
        for &thread in set {
            let from = self.place[thread];
            if from == to || !self.problem().threads[thread].choices.contains(&to) {
                continue;
            }
            let mut in_the_way = losers.get(&from).into_iter().flatten().filter(|&&other| self.place[other] == to);
            let other = in_the_way.next().copied().filter(|_| self.would_crowd(thread, to));
            let both = [(thread, to), (other.unwrap_or(thread), from)];
            let changes = if other.is_some() { &both[..] } else { &both[..1] };
            cost += self.change(changes);
            back.push((thread, from, other));
            self.apply(changes);
        }
        let is_cheaper = cost < -slack;
        if !is_cheaper {
            for (thread, from, other) in back.into_iter().rev() {
                let both = [(thread, from), (other.unwrap_or(thread), to)];
                self.apply(if other.is_some() { &both[..] } else { &both[..1] });
            }
        }
        is_cheaper
    }
}

/// Threads that may move, by process and by control group: those that a change of one or two does not cover. `of` tells the
/// process and the control group of a thread.
pub fn sets(movable: &[usize], of: impl Fn(usize) -> (u32, Option<u64>)) -> Vec<Vec<usize>> {
    let mut processes: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    let mut groups: BTreeMap<u64, (Vec<usize>, Option<u32>, bool)> = BTreeMap::new();
    for &thread in movable {
        let (process, group) = of(thread);
        processes.entry(process).or_default().push(thread);
        if let Some(group) = group {
            let (members, first, is_of_several) = groups.entry(group).or_default();
            members.push(thread);
            *is_of_several |= *first.get_or_insert(process) != process;
        }
    }
    let groups = groups.into_values().filter(|group| group.2).map(|group| group.0);
    processes.into_values().chain(groups).filter(|set| set.len() > MOST_CHANGES).collect()
}
