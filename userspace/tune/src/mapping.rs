// SPDX-License-Identifier: GPL-2.0-only
//! Pages by a map: one run for each number of threads tells who uses which page, and each configuration that places pages by
//! use gets a map made of that. Where none can be made, pages are moved while the program runs, or are not placed so.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tandem_policies::model::{NodeIndex, Topology};

use crate::launch::Limit;
use crate::page_map::{Nodes, PageMap};
use crate::page_use::PageUse;
use crate::places::Places;
use crate::plan::{Plan, RegionSeats};
use crate::session::{Outcome, Session};
use crate::space::{Configuration, PagePlacement, Space};
use crate::store::Row;

/// What a run gave that was to tell who uses which page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profiled {
    /// That.
    Use(PageUse),
    /// Why nothing.
    Impossible(String),
    /// The user stopped it.
    Stopped,
}

/// Runs the program under this plan, with its threads in their places and pages where they are touched first, and tells who uses
/// which page; to this limit at most.
pub type Profiler<'a> = dyn Fn(&Plan, &Places, Limit) -> Result<Profiled> + 'a;

/// Who uses which page, or why that is not known.
type Seen = Rc<Result<PageUse, String>>;

/// Makes maps.
pub struct Mapping<'a> {
    profiler: &'a Profiler<'a>,
    /// Whether pages can be moved where no map can be made.
    can_move: bool,
    /// By number of threads.
    known: RefCell<BTreeMap<usize, Seen>>,
    /// No map could be made.
    is_off: Cell<bool>,
}

impl<'a> Mapping<'a> {
    /// With profiles by `profiler`; `can_move`: pages can be moved where no map can be made.
    pub fn new(profiler: &'a Profiler<'a>, can_move: bool) -> Self {
        Self { profiler, can_move, known: RefCell::default(), is_off: Cell::new(false) }
    }

    fn remember(&self, threads: usize, found: Result<PageUse, String>) -> Seen {
        let found = Rc::new(found);
        self.known.borrow_mut().insert(threads, found.clone());
        found
    }
}

impl Session<'_> {
    /// Whether a plan's pages go by a map.
    pub(crate) fn is_mapped(&self, plan: &Plan) -> bool {
        self.mapping.is_some_and(|mapping| !mapping.is_off.get()) && plan.base.needs_moving()
    }

    /// The same space, or the part of it that is left when no map can be made; `None`: the user stopped.
    pub(crate) fn with_maps(&self, space: Space, first: &Row, notes: &mut Vec<String>) -> Result<Option<Space>> {
        let Some(mapping) = self.mapping else { return Ok(Some(space)) };
        let all = space.configurations(self.topology);
        let by_use: Vec<_> = all.into_iter().filter(|one| one.needs_moving()).collect();
        // The one that is most like the program as it is.
        let Some(one) = by_use.iter().min_by_key(|one| one.threads.abs_diff(first.threads)) else {
            return Ok(Some(space));
        };
        let Some(found) = self.page_use(&(*one).into())? else { return Ok(None) };
        let Err(why) = found.as_ref() else { return Ok(Some(space)) };
        mapping.is_off.set(true);
        let (instead, is_left): (_, fn(&PagePlacement) -> bool) = match mapping.can_move {
            true => ("pages are moved while it runs instead", |_| true),
            false => ("pages are not placed by who uses them", |placement| !placement.needs_moving()),
        };
        notes.push(format!("no map of pages can be made: {why}; {instead}"));
        let page_placements = space.page_placements.iter().copied().filter(is_left).collect();
        Ok(Some(Space { page_placements, ..space }))
    }

    /// Where threads and pages of a plan go, or why its pages cannot be placed; `None`: the user stopped.
    pub(crate) fn places_of(&self, plan: &Plan) -> Result<Option<Result<Places, String>>> {
        let places = Places::of(plan, self.topology);
        if !self.is_mapped(plan) {
            return Ok(Some(Ok(places)));
        }
        let Some(found) = self.map_of(plan)? else { return Ok(None) };
        Ok(Some(found.map(|map| Places { page_map: Some(Arc::new(map)), ..places })))
    }

    fn map_of(&self, plan: &Plan) -> Result<Option<Result<PageMap, String>>> {
        Ok(self.page_use(plan)?.map(|found| self.map_by(&found, &plan.base)))
    }

    /// The map of a configuration, if there is one and it is known who uses which page.
    pub(crate) fn known_map(&self, one: &Configuration) -> Result<Option<PageMap>> {
        let Some(mapping) = self.mapping else { return Ok(None) };
        let found = self.known_page_use(mapping, one.threads)?;
        Ok(found.and_then(|found| self.map_by(&found, one).ok()))
    }

    fn map_by(&self, found: &Seen, one: &Configuration) -> Result<PageMap, String> {
        let (rule, page_use) = (one.page_placement, found.as_ref().as_ref().map_err(String::clone)?);
        let map = PageMap::of(page_use, rule, &nodes_of(one, self.topology));
        map.ok_or_else(|| format!("there is no map for {}", rule.name()))
    }

    /// Who uses which page with this plan's number of threads; `None`: the user stopped.
    fn page_use(&self, plan: &Plan) -> Result<Option<Seen>> {
        let Some(mapping) = self.mapping else { return Ok(None) };
        let threads = plan.base.threads;
        if let Some(known) = self.known_page_use(mapping, threads)? {
            return Ok(Some(known));
        }
        if self.stop.wished() {
            return Ok(None);
        }
        let found = match self.profile(mapping, plan)? {
            Profiled::Use(page_use) => {
                self.store.keep_page_use(threads, &page_use)?;
                Ok(page_use)
            }
            Profiled::Impossible(why) => Err(why),
            Profiled::Stopped => return Ok(None),
        };
        Ok(Some(mapping.remember(threads, found)))
    }

    /// The same, if nothing has to be run for that.
    fn known_page_use(&self, mapping: &Mapping, threads: usize) -> Result<Option<Seen>> {
        if let Some(known) = mapping.known.borrow().get(&threads) {
            return Ok(Some(known.clone()));
        }
        Ok(self.store.page_use(threads)?.map(|known| mapping.remember(threads, Ok(known))))
    }

    fn profile(&self, mapping: &Mapping, plan: &Plan) -> Result<Profiled> {
        let of_base = Plan::from(plan.base);
        let places = Places::of(&of_base, self.topology);
        let limit = Limit { time: self.left(), entries: self.first_entries };
        let profiled = (mapping.profiler)(&of_base, &places, limit)?;
        let seats = RegionSeats::from(plan.base);
        match &profiled {
            Profiled::Use(found) => (self.say)(&format!(
                "who uses which page, seen once with {seats}: {} accesses to {} allocations",
                found.accesses(),
                found.allocations.len()
            )),
            Profiled::Impossible(why) => (self.say)(&format!("who uses which page, with {seats}: not seen: {why}")),
            Profiled::Stopped => {}
        }
        Ok(profiled)
    }

    /// The same with the map of what is best.
    pub(crate) fn with_page_map(&self, mut outcome: Outcome) -> Result<Outcome> {
        let plan = outcome.plan().map(|(plan, _)| plan).filter(|plan| self.is_mapped(plan));
        if let Some(Some(Ok(map))) = plan.map(|plan| self.map_of(&plan)).transpose()? {
            outcome.notes.push(map.in_words());
            outcome.page_map = Some(map);
        }
        Ok(outcome)
    }
}

/// The nodes that a map deals pages to.
fn nodes_of(one: &Configuration, topology: &Topology) -> Nodes {
    let ids = |nodes: Vec<NodeIndex>| nodes.into_iter().map(|node| topology.nodes[node].id.0).collect();
    Nodes { of_threads: ids(one.seats(topology)), of_pages: ids(one.nodes_near_threads(topology)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lab_machine, scattered};

    /// Of this machine node 4 is the one next to node 0.
    #[test]
    fn a_map_deals_pages_to_the_nodes_near_the_threads() {
        let topology = lab_machine("thanos-b");
        for (thread_nodes, page_nodes, expected) in [(1, 2, vec![0, 4]), (2, 2, vec![0, 4]), (2, 3, vec![0, 4, 1])] {
            let one = scattered(thread_nodes, (thread_nodes, page_nodes), PagePlacement::Balance);
            assert_eq!(nodes_of(&one, &topology).of_pages, expected, "{one}");
        }
    }
}
