// SPDX-License-Identifier: GPL-2.0-only
//! Placements of a program's threads on a machine: two that systems choose without knowing the program, and the one that
//! fits what its threads share.
//!
//! Busy threads are those with at least [`BUSY`] of the instructions of the busiest; the others hardly run, and stay on
//! the first node. Where threads outnumber CPUs, every node holds its CPUs' share of them.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tandem_metrics::communication::across_nodes;
use tandem_metrics::pages::{PageSize, PageUse, Pages, balance};
use tandem_policies::mapping::{Budget, Request, map};
use tandem_policies::model::{NodeIndex, Topology};
use tandem_policies::sharing::SharingMatrix;

/// Part of the busiest thread's instructions from which a thread counts as busy.
pub const BUSY: f64 = 0.05;
/// Steps of the mapper: a fraction of a second, and the same answer everywhere.
const STEPS: u64 = 300_000;
const SEED: u64 = 1;

/// One placement, and what it costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// What it is called.
    pub name: String,
    /// Index of the node by thread.
    pub nodes: Vec<usize>,
    /// Extra latency of lines that travel between nodes, in ms per second of the program.
    pub transfer_ms_per_s: f64,
    /// Part of the sharing across nodes (equation 6).
    pub across_nodes: Option<f64>,
    /// E_app at 4 KiB, 2 MiB and 64 MiB (equation 9).
    pub exclusivity: [Option<f64>; 3],
    /// What its pages are like where first touches put them; of a program that runs, where they are, as far as that is known.
    pub first_touch: Homes,
    /// The same with every page on its best node.
    pub best_homes: Homes,
}

/// Pages of 4 KiB under one placement of threads, with homes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Homes {
    /// Acc_app (equation 11).
    pub accuracy: Option<f64>,
    /// Part of the accesses that is local (equation 12).
    pub local_share: Option<f64>,
    /// Parts of the pages and of the accesses that belong to pages on the wrong node.
    pub misplaced: Option<(f64, f64)>,
    /// Accesses that each node's memory serves.
    pub served: Vec<u64>,
    /// Their balance (equation 13).
    pub balance: Option<f64>,
}

/// What is placed.
pub struct Program<'a> {
    /// Instructions by thread.
    pub instructions: &'a [u64],
    /// Meetings of all threads over the run.
    pub sharing: &'a SharingMatrix,
    /// Use of its pages.
    pub pages: &'a [PageUse],
    /// Length of the run.
    pub seconds: f64,
    /// Where it is, if that is known.
    pub present: Option<Present<'a>>,
}

/// Where a program that runs is.
#[derive(Clone, Copy, Debug)]
pub struct Present<'a> {
    /// Index of the node by thread.
    pub nodes: &'a [usize],
    /// Index of the node by page of the program that was accessed; `None` where nobody knows.
    pub homes: &'a [Option<usize>],
}

impl Present<'_> {
    /// Those of `pages` whose homes are known, and these.
    fn known(&self, pages: &[PageUse]) -> (Vec<PageUse>, Vec<usize>) {
        let with_home = accessed(pages).zip(self.homes).filter_map(|(page, home)| Some((page.clone(), (*home)?)));
        with_home.unzip()
    }
}

impl Program<'_> {
    /// The threads that count, ascending.
    pub fn busy(&self) -> Vec<usize> {
        let most = self.instructions.iter().max().copied().unwrap_or(0) as f64;
        let enough = |&thread: &usize| most > 0.0 && self.instructions[thread] as f64 >= BUSY * most;
        (0..self.instructions.len()).filter(enough).collect()
    }

    /// Scattered (or present, where that is known), compact and recommended, in this order.
    ///
    /// # Errors
    /// The machine has no CPU.
    pub fn placements(&self, topology: &Topology) -> Result<Vec<Placement>> {
        let busy = self.busy();
        let rooms = rooms(topology, busy.len()).context("the machine has no CPU")?;
        let scattered = scatter(&rooms, busy.len());
        let compact: Vec<usize> = rooms.iter().enumerate().flat_map(|(node, &room)| vec![node; room]).collect();
        let recommended = self.map(topology, &busy, &rooms, &scattered)?;
        let first = rooms.iter().position(|&room| room > 0).unwrap_or(0);
        let of = |name: &str, of_busy: &[usize]| {
            let mut nodes = vec![first; self.instructions.len()];
            for (&thread, &node) in busy.iter().zip(of_busy) {
                nodes[thread] = node;
            }
            self.judge(name, nodes, topology)
        };
        let first = match self.present {
            Some(present) => self.judge("present", present.nodes.to_vec(), topology),
            None => of("scattered", &scattered),
        };
        Ok(vec![first, of("compact", &compact), of("recommended", &recommended)])
    }

    /// The nodes of the busy threads that cost least.
    fn map(&self, topology: &Topology, busy: &[usize], rooms: &[usize], start: &[usize]) -> Result<Vec<usize>> {
        let at = |thread: usize| busy.binary_search(&thread).ok();
        let weights = self.sharing.pairs().filter_map(|(one, other, events)| Some((at(one)?, at(other)?, events)));
        let nodes = topology.len();
        let request = Request {
            threads: busy.len(),
            weights: weights.collect(),
            capacities: rooms.to_vec(),
            distances: (0..nodes).map(|from| (0..nodes).map(|to| extra_ns(topology, from, to)).collect()).collect(),
            present: Some(start.to_vec()),
            ..Request::default()
        };
        Ok(map(&request, Budget { steps: STEPS }, SEED)?.places)
    }

    fn judge(&self, name: &str, nodes: Vec<usize>, topology: &Topology) -> Placement {
        let count = topology.len();
        let pair_ns = |(one, other, events): (usize, usize, f64)| events * extra_ns(topology, nodes[one], nodes[other]);
        let transfer_ns: f64 = self.sharing.pairs().map(pair_ns).sum();
        let pages = Pages::by_node(self.pages, PageSize::Base, &nodes, count);
        let homes = |pages: &Pages, home: Vec<usize>| {
            let served = pages.served(&home);
            Homes {
                accuracy: pages.accuracy(&home),
                local_share: pages.local_share(&home),
                misplaced: pages.misplaced(&home),
                balance: balance(&served),
                served,
            }
        };
        Placement {
            name: name.to_owned(),
            transfer_ms_per_s: transfer_ns / 1e6 / self.seconds.max(1e-9),
            across_nodes: across_nodes(self.sharing, &nodes),
            exclusivity: PageSize::ALL.map(|size| Pages::by_node(self.pages, size, &nodes, count).exclusivity()),
            first_touch: match self.present {
                Some(present) => {
                    let (known, home) = present.known(self.pages);
                    homes(&Pages::by_node(&known, PageSize::Base, &nodes, count), home)
                }
                None => homes(&pages, first_touch(self.pages, &nodes)),
            },
            best_homes: homes(&pages, pages.best_homes()),
            nodes,
        }
    }
}

/// Node of each page that was accessed, when it lies where the thread ran that touched it first.
pub fn first_touch(pages: &[PageUse], nodes: &[usize]) -> Vec<usize> {
    accessed(pages).map(|page| nodes[page.first.unwrap_or(page.accesses[0].0)]).collect()
}

/// Those that anybody accessed.
pub(crate) fn accessed(pages: &[PageUse]) -> impl Iterator<Item = &PageUse> {
    pages.iter().filter(|page| page.accesses.iter().any(|user| user.1 > 0))
}

/// Latency between two nodes above that within one, both ways' mean.
fn extra_ns(topology: &Topology, from: usize, to: usize) -> f64 {
    let latency = |from: usize, to: usize| topology.latency_ns(NodeIndex(from), NodeIndex(to));
    (latency(from, to) + latency(to, from)) / 2.0 - (latency(from, from) + latency(to, to)) / 2.0
}

/// Room for threads by node; `None` if no node has a CPU.
fn rooms(topology: &Topology, threads: usize) -> Option<Vec<usize>> {
    let cpus: Vec<usize> = topology.nodes.values().map(|node| node.cpus.len()).collect();
    let all = Some(cpus.iter().sum::<usize>()).filter(|&all| all > 0)?;
    Some(cpus.iter().map(|&cpus| cpus.max((threads * cpus).div_ceil(all))).collect())
}

/// Thread after thread to the next node that has room.
fn scatter(rooms: &[usize], threads: usize) -> Vec<usize> {
    let mut left = rooms.to_vec();
    let mut nodes = Vec::with_capacity(threads);
    while nodes.len() < threads {
        for (node, room) in left.iter_mut().enumerate().filter(|(_, room)| **room > 0) {
            if nodes.len() < threads {
                nodes.push(node);
                *room -= 1;
            }
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ring;

    /// Eight threads of which i and i + 4 share, each with a page of its own that thread 0 touched first.
    fn program() -> (Vec<u64>, SharingMatrix, Vec<PageUse>) {
        let page =
            |thread: usize| PageUse { process: 0, page: thread as u64, first: Some(0), accesses: vec![(thread, 100)] };
        let sharing = SharingMatrix::new(9, (0..4).map(|one| (one, one + 4, 1e6)));
        // Thread 8 hardly runs.
        ([vec![1000; 8], vec![10]].concat(), sharing, (0..8).map(page).collect())
    }

    fn placements() -> Vec<Placement> {
        let (instructions, sharing, pages) = program();
        let program =
            Program { instructions: &instructions, sharing: &sharing, pages: &pages, seconds: 2.0, present: None };
        assert_eq!(program.busy(), (0..8).collect::<Vec<_>>());
        program.placements(&ring()).unwrap()
    }

    #[test]
    fn partners_come_together_and_the_idle_thread_stays() {
        let [scattered, compact, recommended] = &placements()[..] else { panic!("three placements") };
        assert_eq!(scattered.nodes, [0, 1, 2, 3, 0, 1, 2, 3, 0]);
        assert_eq!(compact.nodes, [0, 0, 1, 1, 2, 2, 3, 3, 0]);
        assert!((0..4).all(|one| recommended.nodes[one] == recommended.nodes[one + 4]), "{:?}", recommended.nodes);
        assert_eq!((recommended.across_nodes, recommended.transfer_ms_per_s), (Some(0.0), 0.0));
        // All four pairs are 2 nodes apart: 4e6 events, 200 - 100 ns each, in 2 s.
        assert_eq!((compact.across_nodes, compact.transfer_ms_per_s), (Some(1.0), 200.0));
    }

    #[test]
    fn pages_are_judged_where_first_touch_put_them_and_at_their_best() {
        let recommended = &placements()[2];
        assert_eq!((recommended.first_touch.accuracy, recommended.best_homes.accuracy), (Some(0.25), Some(1.0)));
        assert_eq!((recommended.first_touch.balance, recommended.best_homes.balance), (Some(0.25), Some(1.0)));
        assert_eq!(recommended.exclusivity[0], Some(1.0));
        assert_eq!(recommended.exclusivity[2], Some(0.25));
    }

    #[test]
    fn a_program_that_runs_is_judged_where_it_is() {
        let (instructions, sharing, pages) = program();
        let (nodes, homes) = ([vec![3; 8], vec![0]].concat(), vec![Some(3); 8]);
        let present = Some(Present { nodes: &nodes, homes: &homes });
        let program = Program { instructions: &instructions, sharing: &sharing, pages: &pages, seconds: 2.0, present };
        let [present, _, recommended] = &program.placements(&ring()).unwrap()[..] else { panic!("three placements") };
        assert_eq!((present.name.as_str(), &present.nodes), ("present", &nodes));
        assert_eq!((present.across_nodes, present.first_touch.local_share), (Some(0.0), Some(1.0)));
        // A quarter of the threads is on node 3 then, where all pages still are.
        assert_eq!(recommended.first_touch.local_share, Some(0.25));
    }

    #[test]
    fn pages_whose_place_is_not_known_count_neither_as_local_nor_as_remote() {
        let (instructions, sharing, pages) = program();
        let judged = |homes: &[Option<usize>]| {
            let present = Some(Present { nodes: &[3; 9], homes });
            let program =
                Program { instructions: &instructions, sharing: &sharing, pages: &pages, seconds: 2.0, present };
            program.placements(&ring()).unwrap().remove(0).first_touch
        };
        let homes = judged(&[Some(1), None, Some(3), None, None, None, None, Some(1)]);
        assert_eq!((homes.local_share, homes.served), (Some(1.0 / 3.0), vec![0, 200, 0, 100]));
        assert_eq!(homes.misplaced, Some((1.0 - 1.0 / 3.0, 1.0 - 1.0 / 3.0)));
        let nothing = judged(&[None; 8]);
        assert_eq!(
            (nothing.local_share, nothing.accuracy, nothing.balance, nothing.misplaced),
            (None, None, None, None)
        );
    }

    #[test]
    fn more_threads_than_cpus_fit_evenly() {
        assert_eq!(
            (rooms(&ring(), 8), rooms(&ring(), 9), rooms(&ring(), 17)),
            (Some(vec![2; 4]), Some(vec![3; 4]), Some(vec![5; 4]))
        );
        assert_eq!(scatter(&[1, 0, 3], 4), [0, 2, 2, 2]);
    }
}
