// SPDX-License-Identifier: GPL-2.0-only
//! The tables that the BPF side reads: the machine in dense indices.
//!
//! A task with an assignment is taken away from home only after it has waited longer than the
//! price of running elsewhere. Whoever waits makes no progress at all, so the price stands for what
//! the trip costs, not for the slower memory: half a slice where memory is twice as far as at home
//! (SLIT 20), in proportion elsewhere, at least a quarter.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use tandem_bpf::skeleton::types;
use tandem_bpf::{MAX_CPUS, MAX_NODES, MAX_QUEUES, NO_NODE, NO_QUEUE};
use tandem_config::QueueSharing;
use tandem_machine::RunningMachine;
use tandem_policies::model::{CpuId, NodeIndex, Topology};
use thiserror::Error;

/// Distance that the kernel gives a node to itself.
const LOCAL_DISTANCE: u32 = 10;

/// Why a machine cannot be scheduled.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum TablesError {
    /// More nodes than the BPF side has room for.
    #[error("this machine has {0} nodes; scx_tandem handles up to {MAX_NODES}")]
    TooManyNodes(usize),
    /// More queues than the BPF side has room for.
    #[error("this machine has {0} last-level caches; scx_tandem handles up to {MAX_QUEUES}: use --queue node")]
    TooManyQueues(usize),
    /// A CPU number that the BPF side has no room for.
    #[error("this machine has a CPU {0}; scx_tandem handles CPU numbers below {MAX_CPUS}")]
    TooManyCpus(u32),
    /// All CPUs are on one node.
    #[error(
        "this machine has CPUs on one NUMA node only: there is nothing for scx_tandem to place, keep the stock scheduler"
    )]
    OneNode,
}

/// What is written into the object before it is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    sharing: QueueSharing,
    node_ids: Vec<u32>,
    /// By CPU number, online or not.
    cpu_nodes: Vec<u8>,
    cpu_queues: Vec<u8>,
    /// By queue; those of a node follow one another.
    queue_nodes: Vec<u8>,
    /// For each node the others with CPUs, nearest first.
    near_nodes: Vec<Vec<u8>>,
    price_ns: Vec<Vec<u64>>,
    slice_ns: u64,
    max_lease_ns: u64,
}

impl Tables {
    /// The tables for a machine. CPUs that are offline are in them, so that they may come online.
    pub fn new(
        machine: &RunningMachine,
        sharing: QueueSharing,
        slice_ns: u64,
        max_lease_ns: u64,
    ) -> Result<Self, TablesError> {
        let topology = &machine.topology;
        let nodes = topology.len();
        if nodes > MAX_NODES {
            return Err(TablesError::TooManyNodes(nodes));
        }
        let queues = queues(machine, sharing);
        if queues.len() > MAX_QUEUES {
            return Err(TablesError::TooManyQueues(queues.len()));
        }
        let has_cpus = |node: NodeIndex| queues.iter().any(|queue| queue.node == node);
        let indices = || (0..nodes).map(NodeIndex);
        if indices().filter(|&node| has_cpus(node)).count() < 2 {
            return Err(TablesError::OneNode);
        }
        let mut cpu_nodes = Vec::new();
        let mut cpu_queues = Vec::new();
        for (number, queue) in queues.iter().enumerate() {
            for cpu in &queue.cpus {
                let at = cpu.0 as usize;
                if at >= MAX_CPUS {
                    return Err(TablesError::TooManyCpus(cpu.0));
                }
                if cpu_nodes.len() <= at {
                    cpu_nodes.resize(at + 1, NO_NODE);
                    cpu_queues.resize(at + 1, NO_QUEUE);
                }
                cpu_nodes[at] = queue.node.0 as u8;
                cpu_queues[at] = number as u8;
            }
        }
        let with_cpus: Vec<NodeIndex> = indices().filter(|&node| has_cpus(node)).collect();
        Ok(Self {
            sharing,
            node_ids: topology.nodes.values().map(|node| node.id.0).collect(),
            cpu_nodes,
            cpu_queues,
            queue_nodes: queues.iter().map(|queue| queue.node.0 as u8).collect(),
            near_nodes: indices().map(|node| near_nodes(topology, &with_cpus, node)).collect(),
            price_ns: indices()
                .map(|from| indices().map(|to| price_ns(topology.distance(from, to), slice_ns)).collect())
                .collect(),
            slice_ns,
            max_lease_ns,
        })
    }

    /// Same hash, same machine and settings. Below which cache an offline CPU is cannot be known, so CPUs count by node.
    pub fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let machine = (&self.node_ids, &self.cpu_nodes, &self.near_nodes, &self.price_ns);
        (machine, self.sharing, self.slice_ns, self.max_lease_ns).hash(&mut hasher);
        hasher.finish()
    }

    /// Writes the tables into an object that is not loaded yet.
    pub fn write(&self, rodata: &mut types::rodata) {
        rodata.nr_nodes = self.node_ids.len() as u32;
        rodata.nr_cpus = self.cpu_nodes.len() as u32;
        rodata.nr_queues = self.queue_nodes.len() as u32;
        rodata.slice_ns = self.slice_ns;
        rodata.max_lease_ns = self.max_lease_ns;
        rodata.cpu_nodes = [NO_NODE; MAX_CPUS];
        rodata.cpu_nodes[..self.cpu_nodes.len()].copy_from_slice(&self.cpu_nodes);
        rodata.cpu_queues = [NO_QUEUE; MAX_CPUS];
        rodata.cpu_queues[..self.cpu_queues.len()].copy_from_slice(&self.cpu_queues);
        rodata.node_ids[..self.node_ids.len()].copy_from_slice(&self.node_ids);
        rodata.queue_nodes[..self.queue_nodes.len()].copy_from_slice(&self.queue_nodes);
        for (queue, &node) in self.queue_nodes.iter().enumerate() {
            let node = usize::from(node);
            if rodata.node_nr_queues[node] == 0 {
                rodata.node_first_queue[node] = queue as u8;
            }
            rodata.node_nr_queues[node] += 1;
        }
        for (node, near) in self.near_nodes.iter().enumerate() {
            rodata.node_order[node * MAX_NODES..][..near.len()].copy_from_slice(near);
            rodata.node_order_len[node] = near.len() as u8;
        }
        for (node, prices) in self.price_ns.iter().enumerate() {
            rodata.migration_price_ns[node * MAX_NODES..][..prices.len()].copy_from_slice(prices);
        }
    }
}

/// CPUs that share a queue.
struct Queue {
    node: NodeIndex,
    cpus: Vec<CpuId>,
}

/// The queues, node by node. The kernel does not show below which cache an offline CPU is: it goes to the first of its node.
fn queues(machine: &RunningMachine, sharing: QueueSharing) -> Vec<Queue> {
    let mut queues = Vec::new();
    for (index, node) in machine.topology.nodes.iter() {
        let offline = machine.node_of_offline_cpu.iter().filter(|&(_, of)| *of == node.id).map(|(&cpu, _)| cpu);
        let mut of_node: Vec<Vec<CpuId>> = match sharing {
            QueueSharing::Auto | QueueSharing::Llc => node.llcs.clone(),
            QueueSharing::Node if node.cpus.is_empty() => Vec::new(),
            QueueSharing::Node => vec![node.cpus.clone()],
        };
        for cpu in offline {
            match of_node.first_mut() {
                Some(first) => first.push(cpu),
                None => of_node.push(vec![cpu]),
            }
        }
        for mut cpus in of_node {
            cpus.sort();
            queues.push(Queue { node: index, cpus });
        }
    }
    queues
}

fn near_nodes(topology: &Topology, with_cpus: &[NodeIndex], node: NodeIndex) -> Vec<u8> {
    let mut others: Vec<NodeIndex> = with_cpus.iter().copied().filter(|&other| other != node).collect();
    others.sort_by_key(|&other| (topology.distance(node, other), other));
    others.into_iter().map(|other| other.0 as u8).collect()
}

fn price_ns(distance: u32, slice_ns: u64) -> u64 {
    if distance <= LOCAL_DISTANCE {
        return 0;
    }
    let farther = u64::from(distance - LOCAL_DISTANCE);
    (slice_ns * farther / u64::from(2 * LOCAL_DISTANCE)).max(slice_ns / 4)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tandem_policies::model::{LatencySource, Node, NodeId, PerNode};

    use super::*;

    const SLICE_NS: u64 = 5_000_000;

    /// Nodes with the given ids and CPUs by cache; distances from a matrix.
    fn machine(nodes: &[(u32, &[&[u32]])], distance: &[&[u32]]) -> RunningMachine {
        let ids = |cpus: &[u32]| cpus.iter().copied().map(CpuId).collect::<Vec<_>>();
        let nodes: Vec<Node> = nodes
            .iter()
            .zip(distance)
            .map(|(&(id, llcs), &row)| {
                let distance = PerNode::from(row.to_vec());
                Node {
                    id: NodeId(id),
                    cpus: llcs.iter().flat_map(|cpus| ids(cpus)).collect(),
                    llcs: llcs.iter().map(|cpus| ids(cpus)).collect(),
                    slow_cpus: BTreeMap::new(),
                    memory_pages: 1,
                    free_pages: 1,
                    latency_ns: Topology::latency_from_distance(&distance),
                    distance,
                }
            })
            .collect();
        let node_of_cpu = nodes.iter().flat_map(|node| node.cpus.iter().map(|&cpu| (cpu, node.id))).collect();
        RunningMachine {
            topology: Topology::new(nodes, LatencySource::Distance).unwrap(),
            node_of_cpu,
            cores: Vec::new(),
            offline_cpus: Vec::new(),
            node_of_offline_cpu: BTreeMap::new(),
            assumed: Vec::new(),
        }
    }

    fn tables_of(machine: &RunningMachine, sharing: QueueSharing) -> Tables {
        Tables::new(machine, sharing, SLICE_NS, 1).unwrap()
    }

    fn tables(machine: &RunningMachine) -> Tables {
        tables_of(machine, QueueSharing::Auto)
    }

    /// Two nodes with two caches each, of two CPUs.
    fn four_caches() -> RunningMachine {
        machine(&[(0, &[&[0, 1], &[2, 3]]), (1, &[&[4, 5], &[6, 7]])], &[&[10, 20], &[20, 10]])
    }

    #[test]
    fn near_nodes_come_by_distance_and_leave_out_nodes_without_cpus() {
        let ring = machine(
            &[(0, &[&[0]]), (1, &[&[1]]), (2, &[]), (3, &[&[3]])],
            &[&[10, 20, 12, 12], &[20, 10, 12, 20], &[12, 12, 10, 20], &[12, 20, 20, 10]],
        );
        let tables = tables(&ring);
        assert_eq!(tables.near_nodes[0], [3, 1]);
        assert_eq!(tables.near_nodes[2], [0, 1, 3]);
        assert_eq!(tables.queue_nodes, [0, 1, 3]);
    }

    #[test]
    fn sparse_node_ids_become_dense_indices() {
        let sparse =
            machine(&[(0, &[&[0, 1]]), (2, &[&[4]]), (5, &[&[2]])], &[&[10, 20, 20], &[20, 10, 20], &[20, 20, 10]]);
        let tables = tables(&sparse);
        assert_eq!(tables.node_ids, [0, 2, 5]);
        assert_eq!(tables.cpu_nodes, [0, 0, 2, NO_NODE, 1]);
        assert_eq!(tables.cpu_queues, [0, 0, 2, NO_QUEUE, 1]);
    }

    #[test]
    fn caches_have_queues_unless_nodes_are_asked_for() {
        let machine = four_caches();
        for sharing in [QueueSharing::Auto, QueueSharing::Llc] {
            let tables = tables_of(&machine, sharing);
            assert_eq!(tables.queue_nodes, [0, 0, 1, 1]);
            assert_eq!(tables.cpu_queues, [0, 0, 1, 1, 2, 2, 3, 3]);
        }
        let tables = tables_of(&machine, QueueSharing::Node);
        assert_eq!(tables.queue_nodes, [0, 1]);
        assert_eq!(tables.cpu_queues, [0, 0, 0, 0, 1, 1, 1, 1]);
    }

    #[test]
    fn offline_cpus_belong_to_their_node_even_when_it_has_no_other() {
        let mut machine =
            machine(&[(0, &[&[0, 1]]), (1, &[&[2]]), (2, &[])], &[&[10, 20, 20], &[20, 10, 20], &[20, 20, 10]]);
        machine.offline_cpus = vec![CpuId(3), CpuId(4)];
        machine.node_of_offline_cpu = [(CpuId(3), NodeId(1)), (CpuId(4), NodeId(2))].into();
        let tables = tables(&machine);
        assert_eq!(tables.cpu_nodes, [0, 0, 1, 1, 2]);
        assert_eq!(tables.queue_nodes, [0, 1, 2]);
        assert_eq!(tables.near_nodes[0], [1, 2]);
    }

    #[test]
    fn a_cpu_that_goes_offline_does_not_make_it_another_machine() {
        let all = four_caches();
        let mut fewer = machine(&[(0, &[&[0, 1], &[2, 3]]), (1, &[&[4, 5], &[6]])], &[&[10, 20], &[20, 10]]);
        assert_ne!(tables(&fewer).hash(), tables(&all).hash(), "a machine without that CPU is another one");
        fewer.offline_cpus = vec![CpuId(7)];
        fewer.node_of_offline_cpu = [(CpuId(7), NodeId(1))].into();
        assert_eq!(tables(&fewer).hash(), tables(&all).hash());
        assert_ne!(tables_of(&all, QueueSharing::Node).hash(), tables(&all).hash());
    }

    #[test]
    fn the_price_grows_with_distance_from_a_quarter_of_a_slice() {
        assert_eq!(price_ns(10, SLICE_NS), 0);
        assert_eq!(price_ns(12, SLICE_NS), SLICE_NS / 4);
        assert_eq!(price_ns(20, SLICE_NS), SLICE_NS / 2);
        assert_eq!(price_ns(40, SLICE_NS), SLICE_NS * 3 / 2);
    }

    #[test]
    fn one_node_with_cpus_is_refused() {
        let single = machine(&[(0, &[&[0, 1]]), (1, &[])], &[&[10, 20], &[20, 10]]);
        assert_eq!(Tables::new(&single, QueueSharing::Auto, SLICE_NS, 1), Err(TablesError::OneNode));
    }

    #[test]
    fn other_tables_have_another_hash() {
        let two = |far| machine(&[(0, &[&[0]]), (1, &[&[1]])], &[&[10, far], &[far, 10]]);
        assert_eq!(tables(&two(20)).hash(), tables(&two(20)).hash());
        assert_ne!(tables(&two(20)).hash(), tables(&two(21)).hash());
    }
}
