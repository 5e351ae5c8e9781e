// SPDX-License-Identifier: GPL-2.0-only
//! Threads to nodes, so that those that share are near to each other.
//!
//! The price of a mapping is the sum over pairs of threads of what they share times the distance of their nodes,
//! 0 within a node. [`group_sharers`] starts from the present mapping and from groups built greedily from the
//! heaviest pairs, takes steps (a move to a free slot, or an exchange) as long as they lower the price, and keeps the
//! cheapest mapping; the present one if nothing is cheaper.

use crate::model::{NodeIndex, Plan, Snapshot, Thread, Topology};
use crate::relocation;
use crate::score::LOCAL_DISTANCE;
use crate::sharing::SharingMatrix;

/// Groupings tried one after the other, each from the best mapping so far, so that nothing is left to be improved later.
const ROUNDS: usize = 4;
/// Rounds of improvement over all threads.
const PASSES: usize = 12;
/// Nodes that a thread is tried on in one pass, the cheapest for it.
const TRIED_NODES: usize = 4;
/// Partners of a thread that a mapping is made by, those with whom it shares most.
const MOST_PARTNERS: usize = 64;
/// Share of the price that is taken for rounding.
const ROUNDING: f64 = 1e-9;

/// Threads to be put on nodes.
pub(crate) struct Grouping<'a> {
    /// What they share.
    pub sharing: &'a SharingMatrix,
    /// Node by thread now.
    pub present: Vec<usize>,
    /// Threads that a node takes.
    pub capacity: Vec<usize>,
    /// Whether a thread may go to a node; false everywhere if it must stay.
    pub may_go: Vec<Vec<bool>>,
    /// Whether a thread can stay where it is.
    pub can_stay: Vec<bool>,
    /// Price of one event between two nodes: 0 within a node, symmetric.
    pub distance: Vec<Vec<f64>>,
}

/// A mapping that [`group_sharers`] found.
pub(crate) struct Grouped {
    /// Node by thread.
    pub place: Vec<usize>,
    /// Whether threads had to leave their nodes, for want of room or because they may not be there.
    pub forced: bool,
}

/// The node of each thread.
pub(crate) fn group_sharers(problem: &Grouping) -> Grouped {
    let mut best = Mapping::new(problem, problem.present.clone());
    let forced = best.relieve();
    best.settle();
    let mut price = problem.price(&best.place);
    for _ in 0..ROUNDS {
        if price <= 0.0 {
            break;
        }
        let mut other = Mapping::new(problem, problem.greedy(&best.place));
        other.settle();
        let price_of_other = problem.price(&other.place);
        if price_of_other >= price * (1.0 - ROUNDING) || other.too_many() > best.too_many() {
            break;
        }
        (best, price) = (other, price_of_other);
    }
    Grouped { place: best.place, forced }
}

fn price(sharing: &SharingMatrix, distance: &[Vec<f64>], place: &[usize]) -> f64 {
    sharing.pairs().map(|(one, other, events)| events * distance[place[one]][place[other]]).sum()
}

impl Grouping<'_> {
    fn nodes(&self) -> usize {
        self.capacity.len()
    }

    /// Price of a mapping.
    pub fn price(&self, place: &[usize]) -> f64 {
        price(self.sharing, &self.distance, place)
    }

    fn is_movable(&self, thread: usize) -> bool {
        self.may_go[thread].contains(&true)
    }

    /// A mapping of groups that are joined pair by pair, the heaviest first, as long as they fit a node. Groups go to
    /// nodes the largest first, each to the cheapest that has room for it, and if that is a tie to that where most of
    /// its threads are in `place`.
    fn greedy(&self, place: &[usize]) -> Vec<usize> {
        let mut greedy =
            Greedy { problem: self, place: place.to_vec(), free: self.capacity.clone(), prices: Prices::none(self) };
        for thread in (0..place.len()).filter(|&thread| !self.is_movable(thread)) {
            greedy.put(thread, place[thread]);
        }
        for group in self.groups() {
            greedy.put_group(&group, place);
        }
        greedy.place
    }

    /// Groups of movable threads, the largest first.
    fn groups(&self) -> Vec<Vec<usize>> {
        let most = self.capacity.iter().copied().max().unwrap_or(0);
        let mut pairs: Vec<_> =
            self.sharing.pairs().filter(|pair| self.is_movable(pair.0) && self.is_movable(pair.1)).collect();
        pairs.sort_unstable_by(|a, b| b.2.total_cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
        let mut group_of: Vec<usize> = (0..self.sharing.threads()).collect();
        let mut groups: Vec<Vec<usize>> = group_of.iter().map(|&thread| vec![thread]).collect();
        for (one, other, _) in pairs {
            let (mut into, mut from) = (group_of[one], group_of[other]);
            if into == from || groups[into].len() + groups[from].len() > most {
                continue;
            }
            if groups[into].len() < groups[from].len() {
                (into, from) = (from, into);
            }
            let joining = std::mem::take(&mut groups[from]);
            joining.iter().for_each(|&thread| group_of[thread] = into);
            groups[into].extend(joining);
        }
        groups.retain(|group| group.first().is_some_and(|&thread| self.is_movable(thread)));
        groups.iter_mut().for_each(|group| group.sort_unstable());
        groups.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        groups
    }
}

/// By thread and node, the price of what the thread shares with threads that have a place.
struct Prices {
    of: Vec<Vec<f64>>,
}

impl Prices {
    fn none(problem: &Grouping) -> Self {
        Self { of: vec![vec![0.0; problem.nodes()]; problem.sharing.threads()] }
    }

    /// `thread` goes from `from`, if it had a place, to `to`.
    fn shift(&mut self, problem: &Grouping, thread: usize, from: Option<usize>, to: usize) {
        for &(partner, events) in problem.sharing.row(thread) {
            for (node, price) in self.of[partner].iter_mut().enumerate() {
                let before = from.map_or(0.0, |from| problem.distance[node][from]);
                *price += events * (problem.distance[node][to] - before);
            }
        }
    }
}

struct Greedy<'a> {
    problem: &'a Grouping<'a>,
    place: Vec<usize>,
    free: Vec<usize>,
    prices: Prices,
}

impl Greedy<'_> {
    fn put(&mut self, thread: usize, node: usize) {
        self.place[thread] = node;
        self.free[node] = self.free[node].saturating_sub(1);
        self.prices.shift(self.problem, thread, None, node);
    }

    fn put_group(&mut self, group: &[usize], present: &[usize]) {
        if let Some(node) = self.best(group, present) {
            group.iter().for_each(|&thread| self.put(thread, node));
        } else if group.len() > 1 {
            group.iter().for_each(|thread| self.put_group(std::slice::from_ref(thread), present));
        } else {
            self.put(group[0], present[group[0]]);
        }
    }

    fn best(&self, group: &[usize], present: &[usize]) -> Option<usize> {
        let fits = |node: &usize| {
            self.free[*node] >= group.len() && group.iter().all(|&thread| self.problem.may_go[thread][*node])
        };
        let price = |node: usize| group.iter().map(|&thread| self.prices.of[thread][node]).sum::<f64>();
        let there = |node: usize| group.iter().filter(|&&thread| present[thread] == node).count();
        let rank =
            |a: &usize, b: &usize| price(*a).total_cmp(&price(*b)).then(there(*b).cmp(&there(*a))).then(a.cmp(b));
        (0..self.free.len()).filter(fits).min_by(rank)
    }
}

struct Mapping<'a> {
    problem: &'a Grouping<'a>,
    place: Vec<usize>,
    residents: Vec<Vec<usize>>,
    prices: Prices,
    /// Differences below this are rounding.
    least: f64,
}

enum Step {
    Move,
    Exchange(usize),
}

impl<'a> Mapping<'a> {
    fn new(problem: &'a Grouping<'a>, place: Vec<usize>) -> Self {
        let mut residents = vec![Vec::new(); problem.nodes()];
        let mut prices = Prices::none(problem);
        for (thread, &node) in place.iter().enumerate() {
            residents[node].push(thread);
            prices.shift(problem, thread, None, node);
        }
        let events: f64 = problem.sharing.pairs().map(|pair| pair.2).sum();
        let farthest = problem.distance.iter().flatten().copied().fold(0.0, f64::max);
        Self { problem, place, residents, prices, least: events * farthest * ROUNDING }
    }

    fn put(&mut self, thread: usize, to: usize) {
        let from = self.place[thread];
        self.residents[from].retain(|&resident| resident != thread);
        self.residents[to].push(thread);
        self.place[thread] = to;
        self.prices.shift(self.problem, thread, Some(from), to);
    }

    fn has_room(&self, node: usize) -> bool {
        self.residents[node].len() < self.problem.capacity[node]
    }

    /// Threads beyond what the nodes take.
    fn too_many(&self) -> usize {
        let beyond = |(residents, &most): (&Vec<usize>, &usize)| residents.len().saturating_sub(most);
        self.residents.iter().zip(&self.problem.capacity).map(beyond).sum()
    }

    /// Improves, and again where an exchange made it possible to relieve a node.
    fn settle(&mut self) {
        for _ in 0..ROUNDS {
            self.improve();
            if !self.relieve() {
                break;
            }
        }
    }

    /// Sends threads that cannot stay to where they can, and threads off nodes that have too many, the cheapest first;
    /// whether there were any.
    fn relieve(&mut self) -> bool {
        let mut any = false;
        for thread in 0..self.place.len() {
            if !self.problem.can_stay[thread] && self.place[thread] == self.problem.present[thread] {
                let (may_go, prices) = (&self.problem.may_go[thread], &self.prices.of[thread]);
                let rank = |&node: &usize| (!self.has_room(node), prices[node]);
                let nodes = (0..self.residents.len()).filter(|&node| may_go[node]);
                let best = nodes.min_by(|a, b| rank(a).0.cmp(&rank(b).0).then(rank(a).1.total_cmp(&rank(b).1)));
                if let Some(node) = best {
                    self.put(thread, node);
                    any = true;
                }
            }
        }
        for node in 0..self.residents.len() {
            while self.residents[node].len() > self.problem.capacity[node] {
                let Some((thread, to)) = self.cheapest_leaver(node) else { break };
                self.put(thread, to);
                any = true;
            }
        }
        any
    }

    fn cheapest_leaver(&self, node: usize) -> Option<(usize, usize)> {
        let open: Vec<usize> = (0..self.residents.len()).filter(|&to| self.has_room(to)).collect();
        let mut best: Option<(usize, usize, f64)> = None;
        for &thread in &self.residents[node] {
            for &to in open.iter().filter(|&&to| self.problem.may_go[thread][to]) {
                let price = self.prices.of[thread][to] - self.prices.of[thread][node];
                if best.is_none_or(|(.., least)| price < least) {
                    best = Some((thread, to, price));
                }
            }
        }
        best.map(|(thread, to, _)| (thread, to))
    }

    /// Takes steps as long as they lower the price.
    fn improve(&mut self) {
        let sharers: Vec<usize> = (0..self.place.len())
            .filter(|&thread| self.problem.is_movable(thread) && !self.problem.sharing.row(thread).is_empty())
            .collect();
        for _ in 0..PASSES {
            let mut improved = false;
            for &thread in &sharers {
                let Some((to, step)) = self.best_step(thread) else { continue };
                let from = self.place[thread];
                self.put(thread, to);
                if let Step::Exchange(other) = step {
                    self.put(other, from);
                }
                improved = true;
            }
            if !improved {
                break;
            }
        }
    }

    /// The step that lowers the price most, among those that bring `thread` to one of its cheapest nodes.
    fn best_step(&self, thread: usize) -> Option<(usize, Step)> {
        let (from, prices) = (self.place[thread], &self.prices.of[thread]);
        let better = |&node: &usize| self.problem.may_go[thread][node] && prices[node] < prices[from] - self.least;
        let mut nodes: Vec<usize> = (0..prices.len()).filter(better).collect();
        nodes.sort_by(|&a, &b| prices[a].total_cmp(&prices[b]));
        let mut best: Option<(usize, Step, f64)> = None;
        let mut consider = |to: usize, step: Step, change: f64| {
            if change < best.as_ref().map_or(-self.least, |(.., least)| *least) {
                best = Some((to, step, change));
            }
        };
        for &to in nodes.iter().take(TRIED_NODES) {
            let own = prices[to] - prices[from];
            if self.has_room(to) {
                consider(to, Step::Move, own);
                continue;
            }
            for &other in self.residents[to].iter().filter(|&&other| self.problem.may_go[other][from]) {
                let of_other = &self.prices.of[other];
                // They stay as far from each other as they are, which both prices count as gone.
                let between = 2.0 * self.problem.sharing.cell(thread, other) * self.problem.distance[from][to];
                consider(to, Step::Exchange(other), own + of_other[from] - of_other[to] + between);
            }
        }
        best.map(|(to, step, _)| (to, step))
    }
}

/// What [`group_sharers`] makes of the threads of a snapshot.
pub(crate) struct Remapping<'a> {
    snapshot: &'a Snapshot,
    threads: &'a [&'a Thread],
    sharing: &'a SharingMatrix,
    grouped: Grouped,
    /// Price of the mapping now and then, in events times distance beyond the local one.
    prices: [f64; 2],
}

impl<'a> Remapping<'a> {
    /// A mapping of `threads`, which share as `sharing` says in the same order.
    pub fn new(snapshot: &'a Snapshot, threads: &'a [&'a Thread], sharing: &'a SharingMatrix) -> Self {
        let topology = &snapshot.topology;
        let nodes = || (0..topology.len()).map(NodeIndex);
        let may_go = |thread: &&Thread| nodes().map(|node| relocation::may_go(snapshot, thread, node)).collect();
        let heaviest = sharing.heaviest(MOST_PARTNERS);
        let problem = Grouping {
            sharing: &heaviest,
            present: threads.iter().map(|thread| thread.node.0).collect(),
            capacity: relocation::slots(topology, threads.len()).into_iter().map(|slots| slots.count()).collect(),
            may_go: threads.iter().map(may_go).collect(),
            can_stay: threads.iter().map(|t| relocation::may_run(snapshot, t, t.node)).collect(),
            distance: nodes().map(|a| nodes().map(|b| distance(topology, a, b)).collect()).collect(),
        };
        let grouped = group_sharers(&problem);
        let prices = [&problem.present, &grouped.place].map(|place| price(sharing, &problem.distance, place));
        Self { snapshot, threads, sharing, grouped, prices }
    }

    /// The moves, if sharing across nodes falls by more than `min_gain_percent` or threads have to leave their nodes
    /// anyway.
    pub fn plan(&self, min_gain_percent: f64) -> Plan {
        let [now, then] = self.prices;
        let pays = then < now && 100.0 * (now - then) >= min_gain_percent * now;
        if !pays && !self.grouped.forced {
            return Plan::default();
        }
        let slots = relocation::slots(&self.snapshot.topology, self.threads.len());
        relocation::plan(self.snapshot, self.threads, &slots, &self.grouped.place, |thread, to| self.reason(thread, to))
    }

    fn reason(&self, thread: &Thread, to: NodeIndex) -> String {
        let id = |node: NodeIndex| self.snapshot.topology.nodes[node].id;
        if let Some(why) = relocation::pulled_out(self.snapshot, thread) {
            return why;
        }
        let at = self.threads.partition_point(|known| known.id < thread.id);
        let row = self.sharing.row(at);
        let all: f64 = row.iter().map(|cell| cell.1).sum();
        let (now_at, then_at) = (|other: usize| self.threads[other].node.0, |other: usize| self.grouped.place[other]);
        let percent = |node: NodeIndex, at: &dyn Fn(usize) -> usize| {
            let within = row.iter().filter(|cell| at(cell.0) == node.0).map(|cell| cell.1);
            100.0 * within.fold(0.0, |sum, events| sum + events) / all
        };
        let away = |node: NodeIndex, at: &dyn Fn(usize) -> usize| {
            let to = |cell: &(usize, f64)| cell.1 * distance(&self.snapshot.topology, node, NodeIndex(at(cell.0)));
            row.iter().map(to).sum::<f64>() / all
        };
        let (now, then) = (percent(thread.node, &now_at), percent(to, &then_at));
        let (here, there) = (id(thread.node), id(to));
        if then > now {
            format!("{then:.0} % of what it shares will be within node {there}, {now:.0} % is within node {here}")
        } else if away(to, &then_at) < away(thread.node, &now_at) {
            format!("what it shares is nearer to node {there} than to node {here}")
        } else {
            format!("makes room on node {here}")
        }
    }
}

/// Distance between two nodes beyond the local one: both ways, on average. Different nodes are at least 1 apart.
fn distance(topology: &Topology, one: NodeIndex, other: NodeIndex) -> f64 {
    if one == other {
        return 0.0;
    }
    let to = |from, to| {
        f64::from(match topology.distance(from, to) {
            0 => LOCAL_DISTANCE,
            known => known,
        })
    };
    let both = to(one, other) + to(other, one) - to(one, one) - to(other, other);
    (both / 2.0).max(1.0)
}
