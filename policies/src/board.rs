// SPDX-License-Identifier: GPL-2.0-only
//! The places of a machine, the threads on them, and what could be moved (Thanos thesis, section 3.6.1).
//!
//! A place is a CPU for the policies that place threads on cores and a node for the others. A candidate sends a thread to
//! a free place of another node, or exchanges it with one resident of a full one; it has points, the "tickets" of the
//! thesis. Candidates are taken one after the other: no thread moves twice, and no place is overfilled.
//!
//! Terms: a place is free while it has room ([`crate::capacity`]) or hosts nobody. A thread seen last on a CPU of a node that is not its own counts as being on the least
//! used CPU of its own node (ours). A thread that may no longer run on its node is on no place: the scheduler
//! has to take it elsewhere anyway (ours).

use std::collections::BTreeMap;

use rand_pcg::Pcg64;

use crate::anneal::{ROUNDING, below, uniform};
use crate::capacity::{self, Room};
use crate::cost::thread_gain_ns_per_s;
use crate::model::{Action, CpuId, Move, NodeIndex, Snapshot, Thread, ThreadId, Topology};
use crate::registry::{MissingSignal, Signal};
use crate::relocation::{self, may_run};
use crate::score::LAGGING;
use crate::standing::Standing;

/// Where a thread can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node.
    pub node: NodeIndex,
    /// Its CPU; `None` if the place is the whole node.
    pub cpu: Option<CpuId>,
}

/// Points of a thread at a node but for q1 and q4, as seen from the node it is on (the first one).
pub type Worth = fn(&Topology, &Thread, NodeIndex, NodeIndex) -> f64;

/// One possible move or exchange. Numbers are positions in [`Board::threads`] and of places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The thread.
    pub thread: usize,
    /// The place it goes to.
    pub to: usize,
    /// The resident that comes in exchange.
    pub partner: Option<usize>,
    /// Points: q1 to q3 there, of both threads if there is a partner, and q4.
    pub points: f64,
}

/// One thread that went from one place to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// The thread.
    pub thread: ThreadId,
    /// Where it was.
    pub from: Place,
    /// Where it is then.
    pub to: Place,
}

/// The threads on their places.
pub struct Board<'a> {
    snapshot: &'a Snapshot,
    /// Busy threads that may run on their nodes, in the snapshot's order.
    pub threads: Vec<&'a Thread>,
    places: Vec<Place>,
    rooms: Vec<Room>,
    /// What the residents of each place take together, and each thread of it.
    loads: Vec<u64>,
    demands: Vec<u64>,
    at: Vec<usize>,
    residents: Vec<Vec<usize>>,
    /// By thread: may be moved, and has not been.
    movable: Vec<bool>,
    /// By thread: is worth q4 as a partner.
    lagging: Vec<bool>,
    worth: Worth,
}

/// Busy threads that may run on their nodes.
pub fn settled(snapshot: &Snapshot, min_cpu_percent: f64) -> Vec<&Thread> {
    let settled = |thread: &&Thread| may_run(snapshot, thread, thread.node);
    relocation::busy(snapshot, min_cpu_percent).into_iter().filter(settled).collect()
}

impl<'a> Board<'a> {
    /// A board whose places are the CPUs. Only threads that are `movable` and not on cooldown can move.
    pub fn of_cpus(
        snapshot: &'a Snapshot,
        threads: Vec<&'a Thread>,
        movable: impl Fn(&Thread) -> bool,
        worth: Worth,
    ) -> Self {
        let cpus = |(node, known): (NodeIndex, &'a crate::model::Node)| {
            known.cpus.iter().map(move |&cpu| Place { node, cpu: Some(cpu) })
        };
        let places: Vec<Place> = snapshot.topology.nodes.iter().flat_map(cpus).collect();
        Self::new(snapshot, threads, places, movable, worth)
    }

    /// A board whose places are the nodes.
    pub fn of_nodes(
        snapshot: &'a Snapshot,
        threads: Vec<&'a Thread>,
        movable: impl Fn(&Thread) -> bool,
        worth: Worth,
    ) -> Self {
        let places = snapshot.topology.nodes_with_cpus().map(|node| Place { node, cpu: None }).collect();
        Self::new(snapshot, threads, places, movable, worth)
    }

    fn new(
        snapshot: &'a Snapshot,
        threads: Vec<&'a Thread>,
        places: Vec<Place>,
        movable: impl Fn(&Thread) -> bool,
        worth: Worth,
    ) -> Self {
        let movable = threads.iter().map(|thread| !thread.on_cooldown && movable(thread)).collect();
        let (at, residents) = settle(&threads, &places);
        let lagging = vec![false; threads.len()];
        let demands = capacity::demands(snapshot, &threads);
        let (all, demand) = (capacity::capacity(&snapshot.topology), demands.iter().sum());
        let of = |place: &Place| {
            let node = &snapshot.topology.nodes[place.node];
            Room::of(place.cpu.map_or(node.capacity(), |cpu| node.cpu_capacity(cpu)), all, demand)
        };
        let rooms = places.iter().map(of).collect();
        let load = |residents: &Vec<usize>| residents.iter().map(|&thread| demands[thread]).sum();
        let loads = residents.iter().map(load).collect();
        Self { snapshot, threads, places, rooms, loads, demands, at, residents, movable, lagging, worth }
    }

    /// Gives q4 to exchanges with threads that lag.
    pub fn with_lagging(mut self, lags: impl Fn(usize) -> bool) -> Self {
        self.lagging = (0..self.threads.len()).map(lags).collect();
        self
    }

    /// Whether `thread` can be moved and has not been.
    pub fn is_movable(&self, thread: usize) -> bool {
        self.movable[thread]
    }

    /// Up to `count` different threads that can be moved, drawn at random.
    pub fn draw_threads(&self, count: usize, rng: &mut Pcg64) -> Vec<usize> {
        let mut left: Vec<usize> = (0..self.threads.len()).filter(|&thread| self.movable[thread]).collect();
        let mut drawn = Vec::new();
        while drawn.len() < count && !left.is_empty() {
            drawn.push(left.swap_remove(below(rng, left.len())));
        }
        drawn
    }

    /// Places other than its own to which `thread` may go.
    pub fn other_places(&self, thread: usize) -> Vec<usize> {
        (0..self.places.len()).filter(|&to| to != self.at[thread] && self.may_go(thread, to)).collect()
    }

    /// Residents of `place` that may come to where `thread` is.
    pub fn partners(&self, thread: usize, place: usize) -> Vec<usize> {
        self.residents[place].iter().copied().filter(|&partner| self.may_go(partner, self.at[thread])).collect()
    }

    /// Whether nobody is on `place`.
    pub fn is_empty(&self, place: usize) -> bool {
        self.residents[place].is_empty()
    }

    fn may_go(&self, thread: usize, to: usize) -> bool {
        self.movable[thread] && self.threads[thread].allowed[self.places[to].node]
    }

    fn is_free(&self, place: usize) -> bool {
        self.is_empty(place) || self.rooms[place].is_free(self.loads[place])
    }

    fn node(&self, place: usize) -> NodeIndex {
        self.places[place].node
    }

    /// Points of `thread` at `to` but for q1 and q4, as it sees them from `from`.
    fn seen(&self, thread: usize, from: usize, to: usize) -> f64 {
        (self.worth)(&self.snapshot.topology, self.threads[thread], self.node(from), self.node(to))
    }

    /// Adds all moves of `thread` to places of other nodes, and its exchanges with residents of full ones.
    pub fn candidates(&self, thread: usize, found: &mut Vec<Candidate>) {
        let here = self.at[thread];
        let elsewhere = |&to: &usize| self.node(to) != self.node(here) && self.may_go(thread, to);
        for to in (0..self.places.len()).filter(elsewhere) {
            let own = self.seen(thread, here, to);
            if self.is_free(to) {
                let points = self.rooms[to].joining(self.loads[to], self.demands[thread]) + own;
                found.push(Candidate { thread, to, partner: None, points });
                continue;
            }
            for partner in self.partners(thread, to) {
                let lagging = if self.lagging[partner] { LAGGING } else { 0.0 };
                let points = own + self.seen(partner, to, here) + lagging;
                found.push(Candidate { thread, to, partner: Some(partner), points });
            }
        }
    }

    /// Whether `candidate` scores more than the present state (eq. 3.15, 3.16), and the way back would not (ours).
    /// q4 does not count: it would let two lagging threads change places for ever.
    pub fn gains(&self, candidate: &Candidate) -> bool {
        if !self.is_open(candidate) {
            return false;
        }
        let here = self.at[candidate.thread];
        let (to, demand) = (candidate.to, self.demands[candidate.thread]);
        let mut there_and_back = self.steps(candidate.thread, here, to);
        let comes = candidate.partner.map_or(0, |partner| self.demands[partner]);
        let free = self.points_after(here, demand, comes) + self.points_after(to, comes, demand);
        there_and_back = [there_and_back[0] + free, there_and_back[1] - free];
        if let Some(partner) = candidate.partner {
            let steps = self.steps(partner, to, here);
            there_and_back = [there_and_back[0] + steps[0], there_and_back[1] + steps[1]];
        }
        there_and_back[0] > ROUNDING && there_and_back[1] <= ROUNDING
    }

    /// Change of q1 of all residents of `place` when what takes `leaves` goes and what takes `joins` comes.
    fn points_after(&self, place: usize, leaves: u64, joins: u64) -> f64 {
        let (room, load) = (self.rooms[place], self.loads[place]);
        room.points(load - leaves + joins) - room.points(load)
    }

    /// Whether nothing taken before is in the way of `candidate`.
    fn is_open(&self, candidate: &Candidate) -> bool {
        let way = candidate.partner.map_or(self.is_free(candidate.to), |partner| self.movable[partner]);
        self.movable[candidate.thread] && way
    }

    /// Points that `thread` wins from `from` to `to`, and those that it would win back as seen from there.
    fn steps(&self, thread: usize, from: usize, to: usize) -> [f64; 2] {
        let step = |a: usize, b: usize| self.seen(thread, a, b) - self.seen(thread, a, a);
        [step(from, to), step(to, from)]
    }

    /// Carries `candidate` out if it still can be, and says what that takes; `why` is put before the facts.
    pub fn take(&mut self, candidate: &Candidate, why: &str) -> Option<(Vec<Move>, Vec<Relocation>)> {
        if !self.is_open(candidate) {
            return None;
        }
        let Candidate { thread, to, partner, .. } = *candidate;
        let from = self.at[thread];
        let mut relocated = vec![self.relocation(thread, to)];
        relocated.extend(partner.map(|partner| self.relocation(partner, from)));
        let moves = planned(self.snapshot, &relocated, why);
        self.put(thread, to);
        if let Some(partner) = partner {
            self.put(partner, from);
        }
        Some((moves, relocated))
    }

    fn relocation(&self, thread: usize, to: usize) -> Relocation {
        Relocation { thread: self.threads[thread].id, from: self.places[self.at[thread]], to: self.places[to] }
    }

    fn put(&mut self, thread: usize, to: usize) {
        self.residents[self.at[thread]].retain(|&resident| resident != thread);
        self.loads[self.at[thread]] -= self.demands[thread];
        self.loads[to] += self.demands[thread];
        self.residents[to].push(thread);
        self.at[thread] = to;
        self.movable[thread] = false;
    }
}

/// Place by thread and threads by place.
fn settle(threads: &[&Thread], places: &[Place]) -> (Vec<usize>, Vec<Vec<usize>>) {
    let mut of_node: BTreeMap<NodeIndex, Vec<usize>> = BTreeMap::new();
    let mut of_cpu = BTreeMap::new();
    for (at, place) in places.iter().enumerate() {
        of_node.entry(place.node).or_default().push(at);
        of_cpu.extend(place.cpu.map(|cpu| ((place.node, cpu), at)));
    }
    let seen: Vec<Option<usize>> =
        threads.iter().map(|thread| of_cpu.get(&(thread.node, thread.cpu)).copied()).collect();
    let mut residents = vec![Vec::new(); places.len()];
    for (thread, place) in seen.iter().enumerate().filter_map(|(thread, place)| Some((thread, (*place)?))) {
        residents[place].push(thread);
    }
    let mut at = Vec::with_capacity(threads.len());
    for (thread, place) in seen.into_iter().enumerate() {
        at.push(place.unwrap_or_else(|| {
            let own = of_node[&threads[thread].node].iter().copied();
            let least = own.min_by_key(|&place| residents[place].len()).expect("a settled thread's node has a place");
            residents[least].push(thread);
            least
        }));
    }
    (at, residents)
}

/// The moves that carry out the relocation of one thread, or of two that change places; `why` is put before the facts.
pub fn planned(snapshot: &Snapshot, relocated: &[Relocation], why: &str) -> Vec<Move> {
    if let [first, second] = relocated
        && first.from.node != second.from.node
    {
        let action = Action::Interchange {
            first: first.thread,
            second: second.thread,
            first_node: first.from.node,
            second_node: second.from.node,
        };
        let sum = [first, second].into_iter().filter_map(|one| gain(snapshot, one)).reduce(|a, b| a + b);
        let gain_ns_per_s = sum.filter(|gain| gain.is_finite());
        let reason = format!("{why}; {}; {}", facts(snapshot, first), facts(snapshot, second));
        return vec![Move { action, gain_ns_per_s, reason }];
    }
    let single = |one: &Relocation| Move {
        action: Action::MoveThread { thread: one.thread, from: one.from.node, to: one.to.node, cpu: one.to.cpu },
        gain_ns_per_s: gain(snapshot, one),
        reason: format!("{why}; {}", facts(snapshot, one)),
    };
    relocated.iter().map(single).collect()
}

fn gain(snapshot: &Snapshot, relocated: &Relocation) -> Option<f64> {
    let thread = snapshot.thread(relocated.thread)?;
    thread_gain_ns_per_s(&snapshot.topology, thread, relocated.to.node).filter(|gain| gain.is_finite())
}

/// Where a thread is and where its memory is, in words.
fn facts(snapshot: &Snapshot, relocated: &Relocation) -> String {
    let id = |node: NodeIndex| snapshot.topology.nodes[node].id;
    let on = format!("thread {} is on node {}", relocated.thread, id(relocated.from.node));
    let thread = snapshot.thread(relocated.thread);
    let known = thread.and_then(|thread| Some((thread.accesses_per_s.as_ref()?, thread.preferred_node()?)));
    known.map_or(on.clone(), |(accesses, memory)| {
        let percent = 100.0 * accesses[memory] / accesses.total();
        format!("{on}, {percent:.0} % of its accesses go to node {}", id(memory))
    })
}

/// The lottery: every candidate draws a number between 0 and its points, and the highest number comes first. Candidates
/// without points draw nothing.
pub fn lottery(candidates: Vec<Candidate>, rng: &mut Pcg64) -> Vec<(f64, Candidate)> {
    let with_points = candidates.into_iter().filter(|candidate| candidate.points > 0.0);
    let mut draws: Vec<(f64, Candidate)> =
        with_points.map(|candidate| (candidate.points * uniform(rng), candidate)).collect();
    draws.sort_by(|a, b| b.0.total_cmp(&a.0));
    draws
}

/// Busy threads that may run on their nodes, with their standing; `None` if there are none.
///
/// # Errors
/// [`MissingSignal`] in the name of `policy` if none of them has accesses, or none a performance.
pub fn judged<'a>(
    policy: &'static str,
    snapshot: &'a Snapshot,
    min_cpu_percent: f64,
) -> Result<Option<(Vec<&'a Thread>, Standing)>, MissingSignal> {
    let threads = settled(snapshot, min_cpu_percent);
    if threads.is_empty() {
        return Ok(None);
    }
    if threads.iter().all(|thread| thread.accesses_per_s.is_none()) {
        return Err(MissingSignal { policy, signal: Signal::ThreadAccesses });
    }
    let standing = Standing::of(&snapshot.topology, &threads)
        .ok_or(MissingSignal { policy, signal: Signal::ThreadPerformance })?;
    Ok(Some((threads, standing)))
}

#[cfg(test)]
mod tests;
