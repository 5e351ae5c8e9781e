// SPDX-License-Identifier: GPL-2.0-only
//! Threads to nodes, so that those that share are near to each other.
//!
//! The price of a mapping is the sum over pairs of threads of what they share times the distance of their nodes,
//! 0 within a node. [`crate::mapping`] looks for a cheap one twice, by the heaviest partners of each thread: near the
//! present mapping, where few moves may be enough, and anew. Of mappings that cost the same the one that moves fewer
//! threads is taken ([`homeward`]). It is judged by all partners.
//!
//! The search starts where everybody has room: threads beyond what their nodes take, and threads that may not run where
//! they are, have moved then. Where more threads are bound to nodes than these take, they take more.

mod homeward;

use crate::capacity;
use crate::mapping::{Mapping, Method, Request, RequestError, Search};
use crate::model::{NodeIndex, Plan, Snapshot, Thread, Topology};
use crate::relocation;
use crate::score::LOCAL_DISTANCE;
use crate::sharing::SharingMatrix;

/// Partners of a thread that a mapping is made by, those with whom it shares most.
const MOST_PARTNERS: usize = 64;
/// Steps a thread of a search near a mapping.
const NEAR_STEPS: u64 = 64;
/// With few threads it is more, to look through most mappings: this by threads and nodes, within these bounds.
const STEPS_OF_FEW: u64 = 1 << 18;
const LEAST_STEPS: u64 = 512;
const MOST_STEPS_OF_FEW: u64 = 8192;
/// Most threads for which it is made again from what it found, until nothing is left to be found later.
const MOST_THREADS_AGAIN: usize = 256;
const MOST_TIMES: usize = 4;
/// Steps a thread of the search anew: at most until it has something, and from then on.
const ANEW_STEPS: u64 = 4096;
const HEALING_STEPS: u64 = 96;
/// Steps a thread after which it is asked whether it has something.
const CHUNK_STEPS: u64 = 32;
/// Share of a cost that is taken for rounding.
const ROUNDING: f64 = 1e-9;

/// What bounds and seeds the search of a mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Most steps.
    pub steps: u64,
    /// Of random choices.
    pub seed: u64,
}

/// Mappings of threads to nodes. Both give a node by thread.
pub(crate) struct Mapped {
    /// The present one, but for threads that cannot stay.
    pub start: Vec<usize>,
    /// The cheapest that was found.
    pub best: Vec<usize>,
}

/// The threads of a snapshot mapped by what they share.
pub(crate) struct Remapping<'a> {
    snapshot: &'a Snapshot,
    threads: &'a [&'a Thread],
    sharing: &'a SharingMatrix,
    mapped: Mapped,
    /// Prices of both mappings, in events times distance beyond the local one.
    prices: [f64; 2],
}

impl<'a> Remapping<'a> {
    /// A mapping of `threads`, which share as `sharing` says in the same order.
    pub fn new(snapshot: &'a Snapshot, threads: &'a [&'a Thread], sharing: &'a SharingMatrix, effort: Effort) -> Self {
        let request = request(snapshot, threads, sharing);
        let distances = request.distances.clone();
        let mapped = map_sharers(request, effort);
        let prices = [&mapped.start, &mapped.best].map(|place| price(sharing, &distances, place));
        Self { snapshot, threads, sharing, mapped, prices }
    }

    /// The moves to the mapping that was found, if sharing across nodes falls by more than `min_gain_percent` by it; else
    /// those of threads that cannot stay.
    pub fn plan(&self, min_gain_percent: f64) -> Plan {
        let [now, then] = self.prices;
        let pays = then < now && 100.0 * (now - then) >= min_gain_percent * now;
        let place = if pays { &self.mapped.best } else { &self.mapped.start };
        relocation::plan(self.snapshot, self.threads, place, |thread, to| self.reason(place, thread, to))
    }

    /// Why `thread` goes to node `to` when all are mapped to `place`, in words.
    fn reason(&self, place: &[usize], thread: &Thread, to: NodeIndex) -> String {
        let id = |node: NodeIndex| self.snapshot.topology.nodes[node].id;
        if let Some(why) = relocation::pulled_out(self.snapshot, thread) {
            return why;
        }
        let at = self.threads.partition_point(|known| known.id < thread.id);
        let row = self.sharing.row(at);
        let all: f64 = row.iter().map(|cell| cell.1).sum();
        let (now_at, then_at) = (|other: usize| self.threads[other].node.0, |other: usize| place[other]);
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

/// What the mapper is asked for.
fn request(snapshot: &Snapshot, threads: &[&Thread], sharing: &SharingMatrix) -> Request {
    let topology = &snapshot.topology;
    let nodes = || (0..topology.len()).map(NodeIndex);
    let may_be = |thread: &Thread, node: NodeIndex| {
        let stays = node == thread.node && relocation::may_run(snapshot, thread, node);
        stays || relocation::may_go(snapshot, thread, node)
    };
    Request {
        threads: threads.len(),
        // Scaled, as the mapper takes no weights whose sum could be infinite.
        weights: sharing.heaviest(MOST_PARTNERS).normalised().pairs().collect(),
        capacities: capacity::places(topology, &capacity::demands(snapshot, threads)),
        distances: nodes().map(|a| nodes().map(|b| distance(topology, a, b)).collect()).collect(),
        allowed: Some(threads.iter().map(|thread| nodes().map(|node| may_be(thread, node)).collect()).collect()),
        present: Some(threads.iter().map(|thread| thread.node.0).collect()),
    }
}

/// Maps threads that are somewhere now. Distances must be symmetric.
pub(crate) fn map_sharers(mut request: Request, effort: Effort) -> Mapped {
    let present = request.present.clone().unwrap_or_default();
    let start = fitted(&mut request, effort.seed);
    // There is none with more threads or nodes than the mapper numbers: nobody moves.
    let start = start.unwrap_or_else(|| present.clone());
    let best = cheapest(&request, present, effort).unwrap_or_else(|| start.clone());
    Mapped { start, best }
}

/// A mapping of everybody near the present one, for which nodes are widened where they must be: by how much does not depend
/// on where threads are now, or every plan would be followed by another one.
fn fitted(request: &mut Request, seed: u64) -> Option<Vec<usize>> {
    loop {
        match Search::new(&Request { present: None, ..request.clone() }, seed) {
            Ok(_) => return Some(Search::new(request, seed).ok()?.best().places),
            Err(RequestError::NoPlace { thread }) => widen(request, thread),
            Err(_) => return None,
        }
    }
}

/// The cheapest mapping found near the present one or anew, and near that again.
fn cheapest(request: &Request, present: Vec<usize>, mut effort: Effort) -> Option<Vec<usize>> {
    let mut best = map_near(request, present, &mut effort)?;
    if !best.optimal {
        let anew = map_anew(request, &mut effort)?;
        best = if is_cheaper(&anew, &best) { anew } else { best };
    }
    let mut places = homeward::fewest_moves(request, best.places.clone());
    for _ in 0..MOST_TIMES {
        if best.optimal || request.threads > MOST_THREADS_AGAIN {
            break;
        }
        let next = map_near(request, places.clone(), &mut effort)?;
        if !is_cheaper(&next, &best) {
            break;
        }
        places = homeward::fewest_moves(request, next.places.clone());
        best = next;
    }
    Some(places)
}

fn is_cheaper(one: &Mapping, other: &Mapping) -> bool {
    one.cost < other.cost * (1.0 - ROUNDING)
}

/// A mapping near `places`.
fn map_near(request: &Request, places: Vec<usize>, effort: &mut Effort) -> Option<Mapping> {
    let (threads, nodes) = (request.threads as u64, request.capacities.len() as u64);
    let mut search = Search::new(&Request { present: Some(places), ..request.clone() }, effort.seed).ok()?;
    let least = (STEPS_OF_FEW / (threads * nodes).max(1)).clamp(LEAST_STEPS, MOST_STEPS_OF_FEW);
    search.run(effort.steps.min(least.max(NEAR_STEPS * threads)));
    effort.steps = effort.steps.saturating_sub(search.steps());
    Some(search.best())
}

/// A mapping that has nothing to do with the present one.
fn map_anew(request: &Request, effort: &mut Effort) -> Option<Mapping> {
    let threads = request.threads as u64;
    let mut search = Search::new(&Request { present: None, ..request.clone() }, effort.seed).ok()?;
    let most = effort.steps.min(ANEW_STEPS * threads);
    while search.best().method == Method::Greedy && search.steps() < most && !search.is_over() {
        search.run((CHUNK_STEPS * threads).min(most - search.steps()));
    }
    search.run((HEALING_STEPS * threads).min(effort.steps.saturating_sub(search.steps())));
    effort.steps = effort.steps.saturating_sub(search.steps());
    Some(search.best())
}

/// Makes room on the nodes that `thread` may use: each takes its share of the threads that may go nowhere else.
fn widen(request: &mut Request, thread: usize) {
    let Some(allowed) = &request.allowed else { return };
    let open = &allowed[thread];
    let is_bound = |row: &&Vec<bool>| row.iter().zip(open).all(|(&own, &open)| open || !own);
    let bound = allowed.iter().filter(is_bound).count();
    let nodes: Vec<usize> = (0..open.len()).filter(|&node| open[node]).collect();
    let room: usize = nodes.iter().map(|&node| request.capacities[node]).sum();
    for node in nodes {
        let capacity = &mut request.capacities[node];
        // If these have room for their own, others that may also go elsewhere are in the way: a little more helps.
        *capacity = if 0 < room && room < bound { (bound * *capacity).div_ceil(room) } else { *capacity + 1 };
    }
}

fn price(sharing: &SharingMatrix, distances: &[Vec<f64>], place: &[usize]) -> f64 {
    sharing.pairs().map(|(one, other, events)| events * distances[place[one]][place[other]]).sum()
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
