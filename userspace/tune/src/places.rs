// SPDX-License-Identifier: GPL-2.0-only
//! Where threads and pages of a run are put.

use std::collections::BTreeMap;
use std::sync::Arc;

use tandem_policies::model::{NodeIndex, Topology};

use crate::page_map::PageMap;
use crate::placer::Placer;
use crate::plan::{Plan, RegionSeats, Turn};
use crate::process::Seating;
use crate::seat::CpuSet;
use crate::space::PagePlacement;

/// Where threads and pages are put.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Places {
    /// For the OpenMP runtimes; they decide if none.
    pub threads: Option<usize>,
    /// CPUs by seat; no thread is placed if empty. Threads beyond take them from the first again.
    pub seats: Vec<CpuSet>,
    /// Who keeps threads on their seats.
    pub placer: Placer,
    /// Nodes (the kernel's ids) over which pages are dealt in turn; by first touch if empty.
    pub page_nodes: Vec<u32>,
    /// Nodes of the equal chunks into which each allocation is cut; not cut if empty ([`crate::births`]).
    pub chunks: Vec<u32>,
    /// Where allocations go one by one, in place of `chunks`.
    pub page_map: Option<Arc<PageMap>>,
    /// Whether allocations and threads are [told](crate::launch::Seen::allocations).
    pub tells_allocations: bool,
    /// Where the main thread alone is put, from before `main` until its first thread is born; without seats only.
    pub main: Option<CpuSet>,
    /// Where threads are put while they are in parallel regions, if that is not all the same.
    pub by_region: Option<ByRegion>,
}

/// Where threads are put region by region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ByRegion {
    /// In regions without seats of their own.
    pub home: Seating,
    /// By the region's function.
    pub regions: BTreeMap<String, Seating>,
    /// A region that takes seats in turns, which the run is there to measure: it ends when each was measured often enough.
    pub turns: Option<InTurns>,
}

/// A region that takes seats in turns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InTurns {
    /// Its function.
    pub region: String,
    /// The seats.
    pub choices: Vec<Seating>,
    /// The turn to begin with.
    pub first: usize,
}

impl Places {
    /// Where threads and pages of a plan go.
    pub fn of(plan: &Plan, topology: &Topology) -> Self {
        let one = &plan.base;
        let ids = |nodes: Vec<NodeIndex>| nodes.into_iter().map(|node| topology.nodes[node].id.0).collect();
        let in_chunks = one.page_placement == PagePlacement::Dataset && one.page_nodes > 1 && !one.needs_moving();
        let chunks = if in_chunks { ids(one.chunks(topology)) } else { Vec::new() };
        // What is moved while the program runs is first where it is touched.
        let by_touch = one.page_placement.follows_threads() || one.needs_moving() || in_chunks;
        let page_nodes = if by_touch { Vec::new() } else { ids(one.nodes_of_pages(topology)) };
        let seating = |seats: &RegionSeats| Seating {
            threads: seats.threads,
            seats: seats.nodes(topology).into_iter().map(|node| CpuSet::of_node(topology, node)).collect(),
        };
        let home = seating(&plan.base.into());
        let seats = home.seats.clone();
        let by_region = plan.is_by_region().then(|| ByRegion {
            home,
            regions: plan.regions.iter().map(|(region, seats)| (region.clone(), seating(seats))).collect(),
            turns: plan.turns.as_ref().map(|turns| InTurns {
                region: turns.region.clone(),
                choices: turns.choices.iter().map(seating).collect(),
                first: turns.first,
            }),
        });
        Self { threads: Some(plan.most_threads()), seats, page_nodes, chunks, by_region, ..Self::default() }
    }

    /// Whether regions have seats of their own.
    pub fn is_by_region(&self) -> bool {
        self.by_region.is_some()
    }

    /// What an entry (from 0) of this region gets, and what for if it takes seats in turns. Nothing for all of them unless
    /// [regions have seats](Self::is_by_region).
    pub fn seating(&self, region: &str, entry: usize) -> (&Seating, Option<Turn>) {
        static NONE: Seating = Seating { threads: 0, seats: Vec::new() };
        let Some(all) = &self.by_region else { return (&NONE, None) };
        if let Some(turns) = all.turns.as_ref().filter(|turns| turns.region == region) {
            let turn = Turn::of(entry, turns.first, turns.choices.len());
            return (&turns.choices[turn.choice], Some(turn));
        }
        (all.regions.get(region).unwrap_or(&all.home), None)
    }

    /// All CPUs that any thread may be bound to; `None` if none is bound.
    pub(crate) fn all_cpus(&self) -> Option<CpuSet> {
        let regions = self.by_region.iter().flat_map(|all| {
            let turns = all.turns.iter().flat_map(|turns| &turns.choices);
            all.regions.values().chain(turns).flat_map(|seating| &seating.seats)
        });
        let seats = self.seats.iter().chain(regions).filter(|_| self.placer.is_affinity());
        seats.fold(None, |all: Option<CpuSet>, seat| Some(all.map_or_else(|| seat.clone(), |all| all.with(seat))))
    }
}
