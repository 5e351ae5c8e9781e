// SPDX-License-Identifier: GPL-2.0-only
//! Which configurations have their pages in the same places, whatever these are called.
//!
//! Problem: regions share their pages, so those of two can be tuned together only where both want them alike. Names do not tell: all
//! pages are on one node by whatever rule, and chunks of one name are elsewhere with other threads. Mechanism: what is compared
//! is what the rule comes to on this machine, and the map where there is one.

use std::collections::BTreeSet;

use anyhow::Result;
use tandem_policies::model::{NodeIndex, Topology};

use crate::page_map::{Mapped, PageMap};
use crate::search::Runs;
use crate::session::Session;
use crate::space::{Configuration, PagePlacement};

/// Where the pages of a program are.
#[derive(Clone, Debug, PartialEq)]
enum Pages {
    /// All on one node.
    OnOne(NodeIndex),
    /// On these, page by page in turn.
    InTurn(BTreeSet<NodeIndex>),
    /// Each allocation in equal chunks, as few as there can be, on these.
    InChunks(Vec<NodeIndex>),
    /// With the thread that touches them first; the node of each.
    ByTouch(Vec<NodeIndex>),
    /// By a map.
    ByMap(Vec<Mapped>),
    /// By who uses them, by this rule: the node of each thread, and those of pages.
    ByUse(PagePlacement, Vec<NodeIndex>, Vec<NodeIndex>),
}

impl Pages {
    /// Those of a configuration, which has this map if it has one.
    fn of(one: &Configuration, topology: &Topology, map: Option<PageMap>) -> Self {
        let (seats, nodes) = (one.seats(topology), one.nodes_of_pages(topology));
        if let [node] = nodes[..] {
            return Self::OnOne(node);
        }
        match (one.page_placement, map) {
            (_, Some(map)) => Self::ByMap(map.allocations),
            (PagePlacement::FirstTouch, _) => Self::ByTouch(seats),
            (PagePlacement::Interleave, _) => Self::InTurn(nodes.into_iter().collect()),
            (PagePlacement::Dataset, _) if !one.needs_moving() => Self::InChunks(fewest(&one.chunks(topology))),
            (rule, _) => Self::ByUse(rule, seats, nodes),
        }
    }
}

/// The same chunks, as few as there can be: four on nodes 0, 0, 1 and 1 are two.
fn fewest(chunks: &[NodeIndex]) -> Vec<NodeIndex> {
    let are_alike = |chunks: &[NodeIndex]| chunks.iter().all(|node| *node == chunks[0]);
    let divides = |size: &usize| chunks.len().is_multiple_of(*size) && chunks.chunks(*size).all(are_alike);
    let size = (1..=chunks.len()).rev().find(divides).unwrap_or(1);
    chunks.iter().step_by(size).copied().collect()
}

/// By candidate, the first one whose pages are where its are; of the program as it is nobody knows where they are.
fn first_alike(all: &[Option<Pages>]) -> Vec<usize> {
    let first = |(at, pages): (usize, &Option<Pages>)| match pages {
        None => at,
        some => all.iter().position(|other| other == some).unwrap_or(at),
    };
    all.iter().enumerate().map(first).collect()
}

impl Session<'_> {
    /// By candidate, the first one whose pages are where its are.
    pub(crate) fn pages_alike(&self, candidates: &[Option<Configuration>], runs: &[Runs]) -> Result<Vec<usize>> {
        let pages = |(one, runs): (&Option<Configuration>, &Runs)| {
            let Some(one) = one else { return Ok(None) };
            // Of those that never ran nothing is asked.
            let has_map = *runs != Runs::default() && self.is_mapped(&(*one).into());
            let map = if has_map { self.known_map(one)? } else { None };
            Ok(Some(Pages::of(one, self.topology, map)))
        };
        let all: Result<Vec<Option<Pages>>> = candidates.iter().zip(runs).map(pages).collect();
        Ok(first_alike(&all?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lab_machine, scattered as one};

    fn of(one: &Configuration, map: Option<&str>) -> Pages {
        let mapped = |runs: &str| Mapped { site: "p+0x10".into(), order: 0, pages: 8, runs: runs.to_owned() };
        let map = map.map(|runs| PageMap { allocations: vec![mapped(runs)], ..PageMap::default() });
        Pages::of(one, &lab_machine("thanos-b"), map)
    }

    #[test]
    fn maps_are_compared_and_not_the_rules_that_made_them() {
        let [balance, mix] = [PagePlacement::Balance, PagePlacement::Mix].map(|rule| one(4, (2, 2), rule));
        assert_eq!(of(&balance, Some("0-3 on 0, 4-7 on 1")), of(&mix, Some("0-3 on 0, 4-7 on 1")));
        assert_ne!(of(&balance, Some("0-3 on 0, 4-7 on 1")), of(&balance, Some("0-7 on 0")));
        assert_ne!(of(&balance, None), of(&mix, None), "nobody knows what will be moved");
    }

    #[test]
    fn pages_of_one_node_or_in_turn_are_alike_whatever_the_threads() {
        use PagePlacement::{FirstTouch, Interleave};
        assert_eq!(of(&one(4, (2, 2), Interleave), None), of(&one(3, (3, 2), Interleave), None));
        assert_ne!(of(&one(4, (2, 2), Interleave), None), of(&one(4, (2, 3), Interleave), None));
        assert_eq!(of(&one(2, (1, 1), FirstTouch), None), of(&one(4, (2, 1), Interleave), None));
        assert_ne!(of(&one(2, (2, 2), FirstTouch), None), of(&one(4, (2, 2), FirstTouch), None));
    }

    #[test]
    fn chunks_are_as_few_as_there_can_be() {
        let nodes = |all: &[usize]| all.iter().map(|&node| NodeIndex(node)).collect::<Vec<_>>();
        let cases: [(&[usize], &[usize]); 5] = [
            (&[0, 0, 1, 1], &[0, 1]),
            (&[0, 1, 0, 1], &[0, 1, 0, 1]),
            (&[0, 0, 0, 0, 1, 1], &[0, 0, 1]),
            (&[2, 2, 2], &[2]),
            (&[0, 0, 1], &[0, 0, 1]),
        ];
        for (chunks, expected) in cases {
            assert_eq!(fewest(&nodes(chunks)), nodes(expected));
        }
    }

    #[test]
    fn the_first_one_stands_for_all_that_are_like_it_and_the_program_as_it_is_for_itself() {
        let [zero, other] = [0, 1].map(|node| Some(Pages::OnOne(NodeIndex(node))));
        assert_eq!(first_alike(&[None, zero.clone(), other.clone(), zero, None, other]), [0, 1, 2, 1, 4, 2]);
    }
}
