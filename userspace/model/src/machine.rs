// SPDX-License-Identifier: GPL-2.0-only
//! The costs of a machine, as the model uses them.
//!
//! Problem: a machine file says what a machine has; the model needs prices. Mechanism: latencies in ns by node of the
//! CPU and node of the memory; service times in ns a line of each node's memory and of each link; transfers between
//! caches in ns; and what a move costs.

use serde::Serialize;
use tandem_machine::{LINE_BYTES, MachineFile};
use tandem_policies::model::{NodeIndex, PAGE_BYTES, Topology, TopologyError};

/// Time in system calls for one page that is moved, its copying left out. Measured with the mover in the timing lab:
/// `cost_ns_per_page` of `./run ab --machine 2node --workload crossed --arms scx_tandem` (and `master-init`) is 28.1 to 28.5 us,
/// of which 64 lines of 180 + 90 ns, each waited for, are 17.3 us.
const PAGE_CALL_NS: f64 = 10_900.0;
/// Time of a minor fault, as hint faults of NUMA balancing are: entry, lookup and return. Chosen.
const FAULT_NS: f64 = 1000.0;
/// Time to take a thread off one run queue and put it on another. Chosen.
const THREAD_CALL_NS: f64 = 10_000.0;
/// Lines of a base page.
const PAGE_LINES: f64 = (PAGE_BYTES / LINE_BYTES) as f64;

/// What moving things costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MoveCosts {
    /// In system calls, for one page; its copying comes on top.
    pub page_call_ns: f64,
    /// All of it for one page, where the machine file says so.
    pub page_ns: Option<f64>,
    /// One hint fault.
    pub hint_fault_ns: f64,
    /// In the scheduler, for one thread; filling its caches again comes on top.
    pub thread_call_ns: f64,
    /// Lines of its second-level cache that a thread fetches again after it went to another node.
    pub refill_lines: f64,
}

impl MoveCosts {
    /// Moves that cost nothing.
    pub const FREE: Self =
        Self { page_call_ns: 0.0, page_ns: None, hint_fault_ns: 0.0, thread_call_ns: 0.0, refill_lines: 0.0 };

    /// Whether moving costs nothing at all.
    pub fn are_free(&self) -> bool {
        *self == Self::FREE
    }
}

/// A machine with its prices. Nodes are counted as in [`Topology::nodes`].
#[derive(Clone, Debug)]
pub struct Machine {
    /// Name of the machine file.
    pub name: String,
    /// As policies see it; free memory is that of an empty machine.
    pub topology: Topology,
    /// Latency of a load in ns, row = node of the CPU.
    pub latency_ns: Vec<Vec<f64>>,
    /// Time for which one line keeps a node's memory busy.
    pub memory_service_ns: f64,
    /// The same for the link from a node (row) to another; 0 is no limit, as within a node.
    pub link_service_ns: Vec<Vec<f64>>,
    /// Misses of one core in flight at most.
    pub outstanding_misses: f64,
    /// Last-level hit.
    pub cache_hit_ns: f64,
    /// One instruction of a program.
    pub instruction_ns: f64,
    /// A line that another core of the same node wrote: the mean over its last-level caches.
    pub transfer_within_ns: f64,
    /// A line that a core of another node wrote.
    pub transfer_across_ns: f64,
    /// Prices of moves.
    pub moves: MoveCosts,
    /// Last-level caches of a node.
    pub llcs_per_node: usize,
    /// Nodes with CPUs, each followed by the nearest one not yet visited, from node 0.
    pub tour: Vec<usize>,
}

impl Machine {
    /// The machine of a checked machine file.
    ///
    /// # Errors
    /// As [`MachineFile::topology`]; none for a checked file.
    pub fn new(file: &MachineFile) -> Result<Self, TopologyError> {
        let topology = file.topology()?;
        let nodes = topology.len();
        let latency_ns = topology.nodes.values().map(|node| node.latency_ns.values().copied().collect()).collect();
        // MB/s are bytes per microsecond.
        let service = |from: usize, to: usize| match &file.bandwidth_mb_s {
            Some(rows) if from != to => LINE_BYTES as f64 * 1000.0 / rows[from][to],
            _ => 0.0,
        };
        let coherence = &file.coherence;
        let same_llc = 1.0 / f64::from(file.llcs_per_node);
        Ok(Self {
            name: file.name.clone(),
            latency_ns,
            memory_service_ns: file.memory.service_ns_per_line,
            link_service_ns: (0..nodes).map(|from| (0..nodes).map(|to| service(from, to)).collect()).collect(),
            outstanding_misses: f64::from(file.memory.outstanding_misses),
            cache_hit_ns: file.caches.l3_ns,
            instruction_ns: file.core.instruction_ns,
            transfer_within_ns: same_llc * coherence.same_llc_ns + (1.0 - same_llc) * coherence.same_node_ns,
            transfer_across_ns: coherence.cross_node_ns,
            moves: MoveCosts {
                page_call_ns: PAGE_CALL_NS,
                page_ns: file.moves.page_ns,
                hint_fault_ns: FAULT_NS,
                thread_call_ns: THREAD_CALL_NS,
                refill_lines: (file.caches.l2_kb * 1024 / LINE_BYTES) as f64,
            },
            llcs_per_node: file.llcs_per_node as usize,
            tour: tour(&topology),
            topology,
        })
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.latency_ns.len()
    }

    /// CPUs of a node.
    pub fn cpus(&self, node: usize) -> usize {
        self.topology.nodes[NodeIndex(node)].cpus.len()
    }

    /// CPUs of all nodes.
    pub fn all_cpus(&self) -> usize {
        self.topology.nodes.values().map(|node| node.cpus.len()).sum()
    }

    /// Memory of a node in base pages.
    pub fn memory_pages(&self, node: usize) -> u64 {
        self.topology.nodes[NodeIndex(node)].memory_pages
    }

    /// A line that a core of `from` wrote and one of `to` takes, in ns.
    pub fn transfer_ns(&self, from: usize, to: usize) -> f64 {
        if from == to { self.transfer_within_ns } else { self.transfer_across_ns }
    }

    /// Time to move one page from node `from` to node `to`: what the machine file says, else the call, and its lines read
    /// there and written here one after the other; all of it by a CPU of `to`.
    pub fn page_move_ns(&self, from: usize, to: usize) -> f64 {
        if self.moves.are_free() {
            return 0.0;
        }
        let copying = (self.latency_ns[to][from] + self.latency_ns[to][to]) * PAGE_LINES;
        self.moves.page_ns.unwrap_or(self.moves.page_call_ns + copying)
    }

    /// Time to fill one new page on node `memory` by a thread on `node`: a minor fault, which takes as long as a hint fault,
    /// and its lines, one after the other.
    pub fn page_fill_ns(&self, node: usize, memory: usize) -> f64 {
        FAULT_NS + self.latency_ns[node][memory] * PAGE_LINES
    }

    /// Load-to-use time of the fastest local memory.
    pub fn best_latency_ns(&self) -> f64 {
        let local = |node: &usize| self.latency_ns[*node].iter().copied().fold(f64::INFINITY, f64::min);
        self.tour.iter().map(local).fold(f64::INFINITY, f64::min)
    }

    /// The node with memory that is nearest to `node`: itself if it has any.
    pub fn memory_at(&self, node: usize) -> usize {
        let with_memory = (0..self.nodes()).filter(|&other| self.memory_pages(other) > 0);
        let away = |&other: &usize| (other != node, self.topology.distance(NodeIndex(node), NodeIndex(other)));
        with_memory.min_by_key(away).unwrap_or(node)
    }

    /// The node with memory that is farthest from `node` by latency; of several, the first one half a round on.
    pub fn far_from(&self, node: usize) -> usize {
        self.farthest(node, self.memory_at(node), |to| self.memory_pages(to) > 0)
    }

    /// The node with CPUs that is farthest from `node` by latency; of several, the first one half a round on.
    pub fn far_seat(&self, node: usize) -> usize {
        self.farthest(node, node, |to| self.cpus(to) > 0)
    }

    fn farthest(&self, node: usize, nearest: usize, is_meant: impl Fn(usize) -> bool) -> usize {
        let nodes = self.nodes();
        let half = nodes.div_ceil(2);
        let in_order = (0..nodes).map(|step| (node + half + step) % nodes).filter(|&to| is_meant(to));
        in_order
            .fold(nearest, |best, to| if self.latency_ns[node][to] > self.latency_ns[node][best] { to } else { best })
    }
}

fn tour(topology: &Topology) -> Vec<usize> {
    let mut left: Vec<NodeIndex> = topology.nodes_with_cpus().collect();
    let mut tour = Vec::new();
    let mut at = left.first().copied().unwrap_or(NodeIndex(0));
    while let Some(next) = left.iter().copied().min_by_key(|&node| (node != at, topology.distance(at, node), node)) {
        left.retain(|&node| node != next);
        tour.push(next.0);
        at = next;
    }
    tour
}

#[cfg(test)]
mod tests {
    use super::{Machine, MoveCosts};
    use crate::testing::{machine, two_nodes};

    #[test]
    fn prices_are_those_of_the_file() {
        let machine = two_nodes();
        assert_eq!(machine.latency_ns, [[90.0, 180.0], [180.0, 90.0]]);
        assert_eq!(machine.link_service_ns, [[0.0, 6.4], [6.4, 0.0]]);
        assert_eq!((machine.transfer_ns(0, 0), machine.transfer_ns(0, 1)), (40.0, 150.0));
        assert_eq!(Machine { moves: MoveCosts::FREE, ..machine }.page_move_ns(0, 1), 0.0);
    }

    #[test]
    fn a_page_costs_what_the_mover_measured_in_the_lab_or_what_the_file_says() {
        // docs/results/tandem-2node-*.json: 28,079 to 28,483 ns.
        assert!((28_000.0..28_500.0).contains(&two_nodes().page_move_ns(0, 1)));
        let measured = machine("nodes = 2\ncpus_per_node = 2\n[moves]\npage_ns = 2100");
        assert_eq!(measured.page_move_ns(0, 1), 2100.0);
        assert_eq!(Machine { moves: MoveCosts::FREE, ..measured }.page_move_ns(0, 1), 0.0);
    }

    #[test]
    fn filling_a_page_takes_a_fault_and_a_miss_for_each_line() {
        assert_eq!(two_nodes().page_fill_ns(0, 0), 1000.0 + 64.0 * 90.0);
        assert_eq!(two_nodes().page_fill_ns(0, 1), 1000.0 + 64.0 * 180.0);
    }

    #[test]
    fn two_last_level_caches_make_half_of_a_nodes_transfers_cross_them() {
        let machine = machine(
            "nodes = 1\ncpus_per_node = 4\nllcs_per_node = 2\n\
             [coherence]\nsame_llc_ns = 40\nsame_node_ns = 80\ncross_node_ns = 150",
        );
        assert_eq!(machine.transfer_ns(0, 0), 60.0);
    }

    #[test]
    fn the_tour_goes_from_neighbour_to_neighbour_and_far_is_across() {
        let ring = machine(
            "nodes = 4\ncpus_per_node = 1\n\
             distance = [[10, 14, 20, 14], [14, 10, 14, 20], [20, 14, 10, 14], [14, 20, 14, 10]]",
        );
        assert_eq!(ring.tour, [0, 1, 2, 3]);
        assert_eq!((0..4).map(|node| ring.far_from(node)).collect::<Vec<_>>(), [2, 3, 0, 1]);
    }

    #[test]
    fn nodes_without_memory_have_theirs_at_the_nearest_and_those_without_cpus_are_not_toured() {
        let machine = machine(
            "nodes = 3\ncpus_per_node = [2, 2, 0]\nmemory_mb = [512, 0, 512]\n\
             distance = [[10, 20, 30], [20, 10, 15], [30, 15, 10]]",
        );
        assert_eq!(machine.tour, [0, 1]);
        assert_eq!((machine.memory_at(0), machine.memory_at(1)), (0, 2));
        assert_eq!((machine.far_from(0), machine.far_seat(0)), (2, 1));
    }
}
