// SPDX-License-Identifier: GPL-2.0-only
//! Pages of regions: where they come from, where they are, and how they move.

use super::{Sim, add};
use crate::placement::Spread;

/// A region's pages.
#[derive(Clone, Debug, Default)]
pub struct RegionState {
    /// Pages by node, of each group; fractions come from baselines that work with expectations.
    pub groups: Vec<Vec<(usize, f64)>>,
    pages: Vec<f64>,
}

impl Sim<'_> {
    /// Gives a region its pages: whole groups go round the nodes in proportion to their shares, as far as there is room;
    /// the rest goes to the nearest nodes that have any.
    pub fn fill(&mut self, region: usize, home: &Spread) {
        let groups = self.world.regions[region].groups();
        let mut due: Vec<(usize, f64, f64)> = home.iter().map(|(node, share)| (node, share, 0.0)).collect();
        if groups < due.len() {
            return self.fill_evenly(region, home);
        }
        self.fill_by(region, |pages| {
            due.iter_mut().for_each(|(_, share, due)| *due += *share * pages);
            let most = (0..due.len()).fold(0, |best, at| if due[at].2 > due[best].2 { at } else { best });
            due[most].2 -= pages;
            vec![(due[most].0, pages)]
        });
    }

    /// Gives a region its pages, each group spread in just these shares, as far as there is room.
    pub fn fill_evenly(&mut self, region: usize, home: &Spread) {
        self.fill_by(region, |pages| home.iter().map(|(node, share)| (node, share * pages)).collect());
    }

    /// Gives each group of a region its pages where `parts` wants so many.
    fn fill_by(&mut self, region: usize, mut parts: impl FnMut(f64) -> Vec<(usize, f64)>) {
        let spec = &self.world.regions[region];
        let mut state = RegionState { pages: vec![0.0; self.machine.nodes()], ..RegionState::default() };
        for group in 0..spec.groups() {
            let mut on = Vec::new();
            for (node, pages) in parts(spec.pages_of_group(group) as f64) {
                self.take_pages(node, pages, &mut on);
            }
            on.iter().for_each(|&(node, pages)| state.pages[node] += pages);
            state.groups.push(on);
        }
        self.spreads[region] = Spread::of_pages(state.pages.iter().copied());
        self.regions[region] = state;
        self.dirty = true;
    }

    /// Takes free pages of a node, or of the nearest ones with any.
    fn take_pages(&mut self, node: usize, mut pages: f64, on: &mut Vec<(usize, f64)>) {
        while pages > 0.0 {
            let with_room = (0..self.free_pages.len()).filter(|&at| self.free_pages[at] > 0.0);
            let nearest = with_room.min_by(|&a, &b| {
                let away = |at: usize| (at != node, self.machine.latency_ns[node][at]);
                away(a).0.cmp(&away(b).0).then(away(a).1.total_cmp(&away(b).1))
            });
            // Scenarios larger than the machine are refused (`World::too_large`); what rounding leaves over stays where it was
            // wanted.
            let (at, taken) = nearest.map_or((node, pages), |at| (at, pages.min(self.free_pages[at])));
            self.free_pages[at] -= taken;
            pages -= taken;
            add(on, at, taken);
        }
    }

    /// Frees a region's pages; it has none until it is filled again.
    pub fn lift_region(&mut self, region: usize) {
        for (node, pages) in self.regions[region].pages.iter().enumerate() {
            self.free_pages[node] += pages;
        }
        self.regions[region] = RegionState::default();
        self.spreads[region] = Spread::default();
    }

    /// Moves so many pages of a group from one node to another, as far as there is room; returns how many.
    pub fn move_pages(&mut self, region: usize, group: usize, from: usize, to: usize, pages: f64) -> f64 {
        let state = &mut self.regions[region];
        let here = state.groups[group].iter().find(|on| on.0 == from).map_or(0.0, |on| on.1);
        let moved = pages.min(here).min(self.free_pages[to].max(0.0));
        if moved <= 0.0 || from == to {
            return 0.0;
        }
        add(&mut state.groups[group], from, -moved);
        // What rounding left is no page.
        state.groups[group].retain(|on| on.1 > 1e-9);
        add(&mut state.groups[group], to, moved);
        (state.pages[from], state.pages[to]) = ((state.pages[from] - moved).max(0.0), state.pages[to] + moved);
        self.spreads[region] =
            Spread::of_pages(state.pages.iter().map(|&pages| if pages > 1e-6 { pages } else { 0.0 }));
        self.free_pages[from] += moved;
        self.free_pages[to] -= moved;
        self.counts.page_moves += moved;
        self.counts.last_page_move_ns = self.now_ns;
        self.dirty = true;
        moved
    }

    /// Pages of a region on each node.
    pub fn pages_of(&self, region: usize) -> &[f64] {
        &self.regions[region].pages
    }
}
