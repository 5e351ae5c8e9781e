// SPDX-License-Identifier: GPL-2.0-only
//! The order in which the fields of an interval are passed, and what each should be.
//!
//! Rows (nodes, threads, groups, users) go on from the row of the same id in the interval before. What a value should be
//! is mostly what it was; where the sensor makes one value from others, the walk does the same sum.

mod decision;
mod groups;
mod processes;
mod threads;
mod topology;

use std::collections::HashMap;

use tandem_policies::model::{AccessRates, NodeIndex, NodeLoad, PerNode, ThreadId};

use crate::blank;
use crate::coder::{Coder, Malformed, Whole};
use crate::columns::Column;
use crate::interval::Interval;

/// In the order of their numbers in the file.
const ACCESS_RATES: [Option<AccessRates>; 3] = [None, Some(AccessRates::Measured), Some(AccessRates::Inferred)];

/// Passes an interval that comes after `before`. Reading, `now` is blank at first.
pub(crate) fn interval(coder: &mut impl Coder, now: &mut Interval, before: &Interval) -> Result<(), Malformed> {
    let (snapshot, old) = (&mut now.snapshot, &before.snapshot);
    coder.number(Column::Time, &mut snapshot.time_ns, old.time_ns.wrapping_add(old.interval_ns))?;
    coder.number(Column::Length, &mut snapshot.interval_ns, old.interval_ns)?;
    topology::topology(coder, &mut snapshot.topology, &old.topology)?;
    per_node(coder, Column::LoadCount, &mut snapshot.nodes, &old.nodes, blank::load, load)?;
    coder.optional(Column::PageMove, &mut snapshot.page_move_ns, old.page_move_ns)?;
    coder.optional(Column::HugePageMove, &mut snapshot.huge_page_move_ns, old.huge_page_move_ns)?;
    coder.optional(Column::Realised, &mut snapshot.realised_share, old.realised_share)?;
    processes::processes(coder, &mut snapshot.process_memory, &old.process_memory)?;
    choice(coder, Column::AccessRates, &mut snapshot.access_rates, old.access_rates, &ACCESS_RATES)?;
    threads::threads(coder, &mut snapshot.threads, &old.threads)?;
    let people = People::new(snapshot.threads.iter().map(|thread| (thread.id, thread.node)));
    let rules = groups::groups(coder, &mut snapshot.groups, &old.groups, &people)?;
    threads::sharing(coder, &mut snapshot.threads, &old.threads, &rules)?;
    threads::accesses(coder, &mut snapshot.threads, &old.threads, &snapshot.groups, &people)?;
    decision::outcomes(coder, &mut now.outcomes, &people)?;
    decision::decision(coder, &mut now.decision, &people)
}

/// Passes an answer alone: two answers are the same if this takes down the same.
pub(crate) fn answer(coder: &mut impl Coder, answer: &mut crate::Answer) -> Result<(), Malformed> {
    decision::answer(coder, answer, &People::new([]))
}

/// The threads of an interval, by id, with their nodes.
pub(super) struct People {
    ids: Vec<ThreadId>,
    nodes: Vec<NodeIndex>,
    places: HashMap<ThreadId, usize>,
}

impl People {
    fn new(threads: impl IntoIterator<Item = (ThreadId, NodeIndex)>) -> Self {
        let (ids, nodes): (Vec<_>, Vec<_>) = threads.into_iter().unzip();
        let places = ids.iter().enumerate().map(|(place, &id)| (id, place)).collect();
        Self { ids, nodes, places }
    }

    /// Position of a thread; `None` for one that the interval does not name.
    fn place(&self, id: ThreadId) -> Option<usize> {
        self.places.get(&id).copied()
    }

    /// Passes a thread, which should be the one at `expected`.
    fn pass(
        &self,
        coder: &mut impl Coder,
        column: Column,
        id: &mut ThreadId,
        expected: usize,
    ) -> Result<(), Malformed> {
        match coder.row(column, self.place(*id), expected, self.ids.len())? {
            Some(place) => *id = self.ids[place],
            None => {
                coder.number(Column::StrangerTid, &mut id.tid, 0)?;
                coder.number(Column::StrangerStart, &mut id.start_boottime_ns, 0)?;
            }
        }
        Ok(())
    }
}

/// Passes one value a node: first how many, then each against the one before of the same node.
fn per_node<C: Coder, T: Clone>(
    coder: &mut C,
    count: Column,
    now: &mut PerNode<T>,
    before: &PerNode<T>,
    blank: impl Fn() -> T,
    pass: impl Fn(&mut C, &mut T, &T) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let nodes = coder.count::<T>(count, now.len(), before.len())?;
    if now.len() != nodes {
        *now = PerNode::from_fn(nodes, |_| blank());
    }
    let nothing = blank();
    for node in (0..nodes).map(NodeIndex) {
        pass(coder, &mut now[node], before.get(node).unwrap_or(&nothing))?;
    }
    Ok(())
}

/// The same for whole numbers, which should be what they were.
fn numbers_per_node<N: Whole + Default>(
    coder: &mut impl Coder,
    count: Column,
    column: Column,
    now: &mut PerNode<N>,
    before: &PerNode<N>,
) -> Result<(), Malformed> {
    per_node(coder, count, now, before, N::default, |coder, value, &before| coder.number(column, value, before))
}

/// The same for floating-point numbers.
fn floats_per_node(
    coder: &mut impl Coder,
    count: Column,
    column: Column,
    now: &mut PerNode<f64>,
    predicted: &PerNode<f64>,
) -> Result<(), Malformed> {
    per_node(coder, count, now, predicted, f64::default, |coder, value, &before| coder.float(column, value, before))
}

fn load(coder: &mut impl Coder, now: &mut NodeLoad, before: &NodeLoad) -> Result<(), Malformed> {
    coder.number(Column::LoadBusy, &mut now.busy_ns, before.busy_ns)?;
    coder.number(Column::LoadUnmanaged, &mut now.unmanaged_ns, before.unmanaged_ns)?;
    coder.optional(Column::LoadLatency, &mut now.served_latency_ns, before.served_latency_ns)?;
    per_node(
        coder,
        Column::LoadPairCount,
        &mut now.latency_ns_from,
        &before.latency_ns_from,
        Option::default,
        |coder, value, &before| coder.optional(Column::LoadPairLatency, value, before),
    )
}

/// Passes one of a few names, which should be `predicted`.
fn choice<T: Copy + PartialEq>(
    coder: &mut impl Coder,
    column: Column,
    value: &mut T,
    predicted: T,
    all: &[T],
) -> Result<(), Malformed> {
    let place = |wanted: T| all.iter().position(|&one| one == wanted).unwrap_or(0);
    let mut chosen = place(*value);
    coder.number(column, &mut chosen, place(predicted))?;
    *value = *all.get(chosen).ok_or(Malformed::Column(column))?;
    Ok(())
}
