// SPDX-License-Identifier: GPL-2.0-only
//! A workload built for one machine: its programs, their memory and threads, and where all of it begins.
//!
//! A workload file only makes a [`Plan`]; the frame does the rest. Under `--placement none` seats and homes are where
//! threads start and pages are first touched, and nothing is bound afterwards. Under `oracle` and `worst` every thread
//! is pinned to its seat's CPU and every part of memory bound to its home.

use crate::frame::memory::{HUGE_PAGE_BYTES, LINE_BYTES, Line, Memory};
use crate::frame::walk::{Pace, Walk, link};
use crate::frame::worker::Worker;
use crate::topology::{CpuId, NodeId, Topology};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::time::Duration;

/// Who decides where threads and pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// The system, from the workload's start on.
    None,
    /// The workload: the best placement it knows.
    Oracle,
    /// The workload: the worst placement it knows.
    Worst,
}

/// What a workload is built for.
pub struct Request<'a> {
    /// The machine, with the CPUs that this process may use.
    pub topology: &'a Topology,
    /// Values of the workload's sizes.
    pub sizes: &'a crate::frame::spec::Values,
    /// Who decides.
    pub placement: Placement,
    /// Varies where things start and every random sequence.
    pub seed: u64,
}

/// Where each part of an array is placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Home {
    /// Wherever the program's main thread happens to be when it fills the array.
    Anywhere,
    /// Equal contiguous parts, one for each node named (a node may be named several times).
    Parts(Vec<NodeId>),
    /// 2 MiB after 2 MiB round the nodes named.
    Interleaved(Vec<NodeId>),
}

impl Home {
    /// All of it on one node.
    pub fn on(node: NodeId) -> Self {
        Self::Parts(vec![node])
    }

    /// The node of each piece of an array of so many bytes: (bytes from, to, node). None for [`Home::Anywhere`].
    pub fn pieces(&self, bytes: usize) -> Vec<(Range<usize>, NodeId)> {
        match self {
            Self::Anywhere => Vec::new(),
            Self::Parts(nodes) => {
                let border = |part: usize| match part {
                    _ if part == nodes.len() => bytes,
                    _ => (bytes * part / nodes.len()) / 4096 * 4096,
                };
                let parts = nodes.iter().enumerate();
                parts.map(|(part, node)| (border(part)..border(part + 1), *node)).collect()
            }
            Self::Interleaved(nodes) => {
                let pieces = (0..bytes).step_by(HUGE_PAGE_BYTES).enumerate();
                pieces
                    .map(|(piece, start)| (start..(start + HUGE_PAGE_BYTES).min(bytes), nodes[piece % nodes.len()]))
                    .collect()
            }
        }
    }
}

/// Writes the first contents of the lines in a range.
pub type Fill = Box<dyn Fn(&[Line], Range<usize>)>;

/// An array of the program's.
pub struct Region {
    /// Length; a multiple of 64.
    pub bytes: usize,
    /// Where it is first touched or bound.
    pub home: Home,
    /// Its first contents.
    pub fill: Fill,
}

impl Region {
    /// An array that is one cycle to walk along.
    pub fn cycle(bytes: usize, home: Home) -> Self {
        Self::paced(bytes, home, Pace::Pages)
    }

    /// An array that is one cycle at this pace.
    pub fn paced(bytes: usize, home: Home, pace: Pace) -> Self {
        let length = bytes / LINE_BYTES;
        Self { bytes, home, fill: Box::new(move |lines, range| link(lines, range, length, pace)) }
    }

    /// An array of `count` equal cycles, one behind the other.
    pub fn cycles(bytes: usize, count: usize, home: Home) -> Self {
        let length = bytes / LINE_BYTES / count;
        Self { bytes, home, fill: Box::new(move |lines, range| link(lines, range, length, Pace::Pages)) }
    }
}

/// A part of a region that a thread uses, and the share of its accesses that go there.
#[derive(Clone, Debug)]
pub struct Use {
    /// Index of the region.
    pub region: usize,
    /// Share, 0 to 1.
    pub weight: f64,
}

/// Visits that a thread says it counted in the lines of a region: checked against memory when all is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Index of the region.
    pub region: usize,
    /// The lines walked.
    pub lines: Range<usize>,
    /// The counter used.
    pub counter: usize,
    /// Lines visited.
    pub visits: u64,
}

impl Claim {
    /// What `walk`, a walk over `lines` of region `region`, counted in `counter`.
    pub fn of(walk: &Walk, region: usize, lines: Range<usize>, counter: usize) -> Self {
        Self { region, lines, counter, visits: walk.visits() }
    }
}

/// What a thread does in the timed part.
pub type Body = Box<dyn Fn(&mut Worker) -> Result<Vec<Claim>> + Sync>;

/// Where a thread starts, or is pinned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Wherever it happens to start; never pinned.
    Anywhere,
    /// One CPU.
    Cpu(CpuId),
    /// Any CPU of a node.
    Node(NodeId),
}

/// A thread of a program.
pub struct Thread {
    /// Where it starts or is pinned to.
    pub place: Place,
    /// What it uses, for the truth document; may be empty.
    pub uses: Vec<Use>,
    /// What it does.
    pub body: Body,
}

/// When a program starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Filled before the timed part, released when it begins, checked after it.
    Together,
    /// All of it inside the timed part, so long after its beginning. It checks itself as its last work.
    At(Duration),
    /// Likewise, when the program of this index has ended.
    After(usize),
}

/// Fails unless the memory holds what the work must have left in it.
pub type Check = Box<dyn Fn(&[Memory]) -> Result<()>>;

/// A process.
pub struct Program {
    /// When it starts.
    pub start: Start,
    /// Its arrays.
    pub regions: Vec<Region>,
    /// Its threads.
    pub threads: Vec<Thread>,
    /// Its check, besides the threads' claims.
    pub check: Option<Check>,
}

/// A workload, ready to be run.
pub struct Plan {
    /// Its programs; [`Start::After`] names an earlier one.
    pub programs: Vec<Program>,
    /// Threads that share memory two by two, counted through all programs.
    pub pairs: Vec<[usize; 2]>,
}

impl Thread {
    /// A thread that starts on or is pinned to a CPU.
    pub fn at(cpu: CpuId, body: impl Fn(&mut Worker) -> Result<Vec<Claim>> + Sync + 'static) -> Self {
        Self { place: Place::Cpu(cpu), uses: Vec::new(), body: Box::new(body) }
    }
}

impl Plan {
    /// One program of these arrays and threads, checked by the threads' claims.
    pub fn of_one(regions: Vec<Region>, threads: Vec<Thread>) -> Self {
        Self { programs: vec![Program { start: Start::Together, regions, threads, check: None }], pairs: Vec::new() }
    }

    /// Threads in all programs together.
    pub fn thread_count(&self) -> usize {
        self.programs.iter().map(|program| program.threads.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_array_in_order_and_begin_at_pages() {
        let nodes = [NodeId(0), NodeId(5), NodeId(0)];
        let pieces = Home::Parts(nodes.to_vec()).pieces(10 * 4096);
        assert_eq!(
            pieces,
            [(0..3 * 4096, NodeId(0)), (3 * 4096..6 * 4096, NodeId(5)), (6 * 4096..10 * 4096, NodeId(0))]
        );
        assert_eq!(Home::on(NodeId(2)).pieces(100), [(0..100, NodeId(2))]);
        assert!(Home::Anywhere.pieces(4096).is_empty());
    }

    #[test]
    fn interleaved_memory_goes_round_the_nodes() {
        let pieces = Home::Interleaved(vec![NodeId(0), NodeId(1)]).pieces(3 * HUGE_PAGE_BYTES + 4096);
        let nodes: Vec<u32> = pieces.iter().map(|(_, node)| node.0).collect();
        assert_eq!(nodes, [0, 1, 0, 1]);
        assert_eq!(pieces[3].0, 3 * HUGE_PAGE_BYTES..3 * HUGE_PAGE_BYTES + 4096);
    }
}
