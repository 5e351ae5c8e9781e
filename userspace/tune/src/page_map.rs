// SPDX-License-Identifier: GPL-2.0-only
//! Where each page of a program goes, by allocation and page in it: made of who uses it, bound as it is allocated.
//!
//! Rules (Popov et al., ICS 2019), the most used pages first where the order matters:
//!
//! - *locality*: a page goes to the node of the thread that accesses it most.
//! - *balance*: it goes to the node that serves least so far, of those of all threads that access it; of all page nodes where
//!   these are others than the threads'.
//! - *mix*: as with locality, unless that node would serve more than [`OVERLOAD`] of what a page node serves on average; then
//!   as with balance.
//!
//! Samples are fewer than pages, so neighbouring pages are placed as one *block*: of as many pages as have four accesses
//! on average. Blocks that were not seen at all go with the one before them. Allocations that were not seen stay where they are touched first.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::births::Run;
use crate::page_use::{Name, PageUse, Used};
use crate::space::PagePlacement;

/// Accesses that a block has on average.
const ENOUGH: u64 = 4;

/// Blocks of an allocation at most: each may become a mapping of its own.
const MOST_BLOCKS: u64 = 1024;

/// A node with more than so many times the mean load is overloaded: as the policy `mix` has it by default.
pub const OVERLOAD: f64 = 1.25;

/// Where the pages of an allocation go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapped {
    /// Where it is asked for.
    pub site: String,
    /// How many were asked for there before it.
    pub order: u32,
    /// Its pages of 4 KiB.
    pub pages: u64,
    /// Its pages by node, as `0-511 on 0, 512-1023 on 1`.
    pub runs: String,
}

/// Where the pages of a program go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageMap {
    /// What saw who uses which page.
    pub sampler: String,
    /// Accesses that it rests on.
    pub accesses: u64,
    /// By allocation, in the order of births.
    #[serde(rename = "allocation", default)]
    pub allocations: Vec<Mapped>,
}

/// Neighbouring pages that are placed as one.
struct Block {
    /// Of which allocation.
    allocation: usize,
    /// Where it is there.
    first_page: u64,
    /// Accesses by thread.
    threads: BTreeMap<usize, u64>,
    /// All of them.
    accesses: u64,
}

/// Nodes (the kernel's ids) that a map is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// By thread.
    pub of_threads: Vec<u32>,
    /// That hold pages.
    pub of_pages: Vec<u32>,
}

impl Nodes {
    fn of_thread(&self, thread: usize) -> u32 {
        // Threads beyond take seats from the first again.
        self.of_threads[thread % self.of_threads.len()]
    }

    /// Nodes that may serve a block: those of its threads that hold pages, or all that do if none does or if there are others.
    fn serving(&self, block: &Block) -> Vec<u32> {
        let others = self.of_pages.iter().any(|node| !self.of_threads.contains(node));
        let of_users = |node: &&u32| block.threads.keys().any(|&thread| self.of_thread(thread) == **node);
        let users: Vec<u32> = self.of_pages.iter().filter(of_users).copied().collect();
        if others || users.is_empty() { self.of_pages.clone() } else { users }
    }
}

impl PageMap {
    /// By this rule. `None` if the rule needs no map.
    pub fn of(page_use: &PageUse, rule: PagePlacement, nodes: &Nodes) -> Option<Self> {
        if !matches!(rule, PagePlacement::Locality | PagePlacement::Balance | PagePlacement::Mix)
            || nodes.of_threads.is_empty()
            || nodes.of_pages.is_empty()
        {
            return None;
        }
        let sizes: Vec<u64> = page_use.allocations.iter().map(block_pages).collect();
        let mut blocks = Vec::new();
        for (at, (one, &size)) in page_use.allocations.iter().zip(&sizes).enumerate() {
            blocks.extend(blocks_of(at, one, size));
        }
        let homes = place(&blocks, rule, nodes);
        let mut by_allocation: Vec<BTreeMap<u64, u32>> = vec![BTreeMap::new(); sizes.len()];
        for (block, home) in blocks.iter().zip(homes) {
            by_allocation[block.allocation].insert(block.first_page, home);
        }
        let mapped = |(one, homes): (&Used, BTreeMap<u64, u32>)| Mapped {
            site: one.name.site.clone(),
            order: one.name.order,
            pages: one.pages,
            runs: written(&runs(one.pages, &homes)),
        };
        let allocations = page_use.allocations.iter().zip(by_allocation).map(mapped).collect();
        Some(Self { sampler: page_use.sampler.clone(), accesses: page_use.accesses(), allocations })
    }

    /// By allocation: its pages, and where they go.
    ///
    /// # Errors
    /// Runs that are none are named.
    pub fn by_name(&self) -> Result<BTreeMap<Name, (u64, Vec<Run>)>> {
        let read = |one: &Mapped| {
            let name = Name { site: one.site.clone(), order: one.order };
            let runs = parsed(&one.runs).filter(|runs| fit(runs, one.pages));
            let runs = runs.with_context(|| format!("`{}` are no runs of {} pages ({name})", one.runs, one.pages))?;
            Ok((name, (one.pages, runs)))
        };
        self.allocations.iter().map(read).collect()
    }

    /// It in a sentence.
    pub fn in_words(&self) -> String {
        let (many, accesses, sampler) = (self.allocations.len(), self.accesses, &self.sampler);
        let allocations = if many == 1 { "1 allocation".to_owned() } else { format!("{many} allocations") };
        format!(
            "pages are bound as they are allocated, by a map of {allocations} from {accesses} accesses that the sampler {sampler} saw"
        )
    }
}

/// Pages that are placed as one.
fn block_pages(one: &Used) -> u64 {
    let accesses: u64 = one.uses.iter().map(|use_of| use_of.2).sum();
    let enough = (one.pages * ENOUGH).div_ceil(accesses.max(1));
    enough.max(one.pages.div_ceil(MOST_BLOCKS)).max(1).next_power_of_two()
}

/// Blocks that were seen.
fn blocks_of(allocation: usize, one: &Used, size: u64) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for &(page, thread, accesses) in &one.uses {
        let first_page = page / size * size;
        if blocks.last().is_none_or(|last| last.first_page != first_page) {
            blocks.push(Block { allocation, first_page, threads: BTreeMap::new(), accesses: 0 });
        }
        let block = blocks.last_mut().expect("one was put there");
        *block.threads.entry(thread).or_default() += accesses;
        block.accesses += accesses;
    }
    blocks
}

/// The node of each block.
fn place(blocks: &[Block], rule: PagePlacement, nodes: &Nodes) -> Vec<u32> {
    let mut loads: BTreeMap<u32, u64> = nodes.of_pages.iter().map(|&node| (node, 0)).collect();
    let all: u64 = blocks.iter().map(|block| block.accesses).sum();
    let most = OVERLOAD * all as f64 / nodes.of_pages.len() as f64;
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(blocks[at].accesses));
    let mut homes = vec![0; blocks.len()];
    for at in order {
        let block = &blocks[at];
        // Of threads with equally many the first.
        let top = block.threads.iter().max_by_key(|(thread, accesses)| (**accesses, std::cmp::Reverse(**thread)));
        let local = top.map(|top| nodes.of_thread(*top.0)).filter(|node| loads.contains_key(node));
        let fits = |node: u32| loads[&node] == 0 || (loads[&node] + block.accesses) as f64 <= most;
        let kept = match rule {
            PagePlacement::Locality => local,
            PagePlacement::Mix => local.filter(|&node| fits(node)),
            _ => None,
        };
        let of_node = |node: u32| -> u64 {
            block.threads.iter().filter(|(thread, _)| nodes.of_thread(**thread) == node).map(|(_, count)| count).sum()
        };
        // Of nodes that serve equally little the one that uses it most.
        let least = || nodes.serving(block).into_iter().min_by_key(|&node| (loads[&node], u64::MAX - of_node(node)));
        let home = kept.or_else(least).expect("there is a node for pages");
        *loads.entry(home).or_default() += block.accesses;
        homes[at] = home;
    }
    homes
}

/// The runs of an allocation of `pages`, of which these first pages of blocks go there; what is before the first one goes with it.
fn runs(pages: u64, homes: &BTreeMap<u64, u32>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (&first_page, &node) in homes {
        match runs.last() {
            Some(last) if last.node == node => {}
            None => runs.push(Run { first_page: 0, pages: 0, node }),
            Some(_) => runs.push(Run { first_page, pages: 0, node }),
        }
    }
    let ends: Vec<u64> = runs.iter().skip(1).map(|run| run.first_page).chain([pages]).collect();
    runs.iter_mut().zip(ends).for_each(|(run, end)| run.pages = end - run.first_page);
    runs
}

fn written(runs: &[Run]) -> String {
    let mut text = String::new();
    for run in runs {
        let separator = if text.is_empty() { "" } else { ", " };
        let last = run.first_page + run.pages - 1;
        write!(text, "{separator}{}-{last} on {}", run.first_page, run.node).expect("a string takes everything");
    }
    text
}

fn parsed(text: &str) -> Option<Vec<Run>> {
    let run = |word: &str| {
        let (pages, node) = word.split_once(" on ")?;
        let (first, last) = pages.split_once('-')?;
        let (first_page, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        Some(Run { first_page, pages: last.checked_sub(first_page)?.checked_add(1)?, node: node.parse().ok()? })
    };
    text.split(", ").map(run).collect()
}

/// Whether these are parts of an allocation of so many pages, one after the other.
fn fit(runs: &[Run], pages: u64) -> bool {
    let in_order = runs.windows(2).all(|two| two[0].first_page + two[0].pages <= two[1].first_page);
    in_order && runs.last().is_some_and(|last| last.first_page.saturating_add(last.pages) <= pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads on node 0, two on node 1; pages on these two.
    fn nodes() -> Nodes {
        Nodes { of_threads: vec![0, 0, 1, 1], of_pages: vec![0, 1] }
    }

    /// An allocation in which each page is used by these threads so often, all of it seen.
    fn used(order: u32, pages: &[&[(usize, u64)]]) -> Used {
        let of_page = |(page, threads): (u64, &&[(usize, u64)])| {
            threads.iter().map(move |&(thread, accesses)| (page, thread, accesses)).collect::<Vec<_>>()
        };
        let name = Name { site: "p+0x10".into(), order };
        Used { name, pages: pages.len() as u64, uses: (0..).zip(pages).flat_map(of_page).collect() }
    }

    fn map(allocations: Vec<Used>, rule: PagePlacement, nodes: &Nodes) -> Vec<String> {
        let page_use = PageUse { sampler: "made up".into(), allocations };
        PageMap::of(&page_use, rule, nodes).unwrap().allocations.into_iter().map(|one| one.runs).collect()
    }

    #[test]
    fn locality_follows_the_thread_that_accesses_a_page_most_and_not_the_node() {
        // On the second page 40 % are of one thread of node 0, 30 % each of both of node 1.
        let pages = used(0, &[&[(2, 9)], &[(0, 4), (2, 3), (3, 3)], &[(1, 5), (3, 5)], &[(3, 8)]]);
        assert_eq!(map(vec![pages], PagePlacement::Locality, &nodes()), ["0-0 on 1, 1-2 on 0, 3-3 on 1"]);
    }

    #[test]
    fn balance_evens_the_nodes_of_those_who_access_a_page() {
        // All but the last are shared by both nodes; that is of one thread of node 0, so it stays there.
        let shared: &[(usize, u64)] = &[(0, 5), (2, 5)];
        let pages = used(0, &[shared, shared, shared, shared, &[(0, 8)]]);
        let Nodes { of_threads, .. } = nodes();
        assert_eq!(
            map(vec![pages.clone()], PagePlacement::Balance, &nodes()),
            ["0-0 on 0, 1-1 on 1, 2-2 on 0, 3-3 on 1, 4-4 on 0"]
        );
        // Threads on two nodes and pages on four: all four serve.
        let four = Nodes { of_threads, of_pages: vec![0, 1, 2, 3] };
        assert_eq!(
            map(vec![pages], PagePlacement::Balance, &four),
            ["0-0 on 0, 1-1 on 1, 2-2 on 2, 3-3 on 3, 4-4 on 0"]
        );
    }

    #[test]
    fn mix_is_locality_until_a_node_overloads() {
        let own: Vec<&[(usize, u64)]> = vec![&[(0, 5)], &[(1, 5)], &[(2, 5)], &[(3, 5)]];
        assert_eq!(map(vec![used(0, &own)], PagePlacement::Mix, &nodes()), ["0-1 on 0, 2-3 on 1"]);
        // Node 0 is on top of all pages: it serves 6 of 8 pages by locality, 5 (1.25 of the mean) by mix.
        let shared: &[(usize, u64)] = &[(0, 6), (2, 4)];
        let pages = used(0, &[shared; 8]);
        assert_eq!(map(vec![pages.clone()], PagePlacement::Locality, &nodes()), ["0-7 on 0"]);
        assert_eq!(map(vec![pages], PagePlacement::Mix, &nodes()), ["0-4 on 0, 5-7 on 1"]);
    }

    #[test]
    fn few_samples_place_neighbours_together_and_what_was_not_seen_goes_with_the_one_before() {
        let name = Name { site: "p+0x10".into(), order: 3 };
        // 16 accesses to 64 pages: blocks of 16.
        let uses = vec![(20, 0, 4), (30, 0, 2), (33, 2, 2), (63, 2, 8)];
        let one = Used { name, pages: 64, uses };
        assert_eq!(map(vec![one], PagePlacement::Locality, &nodes()), ["0-31 on 0, 32-63 on 1"]);
        let wide = Used {
            name: Name { site: "q".into(), order: 0 },
            pages: 1 << 20,
            uses: (0..1 << 20).map(|page| (page, (page % 4) as usize, 9)).collect(),
        };
        let runs = map(vec![wide], PagePlacement::Balance, &nodes());
        assert!(runs[0].split(", ").count() <= MOST_BLOCKS as usize, "a process has 65,530 mappings at most");
    }

    #[test]
    fn runs_are_read_back_as_they_were_written_and_nonsense_is_named() {
        let page_use = PageUse { sampler: "pmu".into(), allocations: vec![used(1, &[&[(0, 9)], &[(2, 9)]])] };
        let map = PageMap::of(&page_use, PagePlacement::Locality, &nodes()).unwrap();
        assert_eq!(toml::from_str::<PageMap>(&toml::to_string(&map).unwrap()).unwrap(), map);
        let runs = |first_page, node| Run { first_page, pages: 1, node };
        let expected = (Name { site: "p+0x10".into(), order: 1 }, (2, vec![runs(0, 0), runs(1, 1)]));
        assert_eq!(map.by_name().unwrap(), BTreeMap::from([expected]));
        assert!(map.in_words().contains("a map of 1 allocation from 18 accesses that the sampler pmu saw"));
        for wrong in ["", "0-1", "1-0 on 0", "0-2 on 0", "0-1 on 0, 1-1 on 1", "0-18446744073709551615 on 0"] {
            let mut map = map.clone();
            map.allocations[0].runs = wrong.into();
            let said = map.by_name().unwrap_err().to_string();
            assert!(said.contains("are no runs of 2 pages (number 1 at p+0x10)"), "{said}");
        }
    }

    #[test]
    fn rules_that_need_no_profile_have_no_map() {
        let page_use = PageUse { sampler: String::new(), allocations: vec![] };
        assert_eq!(PageMap::of(&page_use, PagePlacement::Dataset, &nodes()), None);
    }
}
