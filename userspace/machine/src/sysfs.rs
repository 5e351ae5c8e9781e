// SPDX-License-Identifier: GPL-2.0-only
//! The running machine, as its kernel shows it below /sys/devices/system.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tandem_policies::model::{CpuId, LatencySource, Node, NodeId, PAGE_BYTES, PerNode, Topology, TopologyError};
use thiserror::Error;

use crate::capacity::slow_cpus;
use crate::cpu_list::{CpuListError, parse_cpu_list};

/// Where the kernel shows the running machine.
const RUNNING: &str = "/sys/devices/system";
/// So often a machine is read that does not settle.
const READS: usize = 20;

/// Why the machine cannot be read.
#[derive(Debug, Error)]
pub enum SysfsError {
    /// A file is missing or cannot be read.
    #[error("{}: cannot be read: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// A file has a bad CPU or node list.
    #[error("{}: {cause}", path.display())]
    List {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        cause: CpuListError,
    },
    /// A file has something else than its numbers.
    #[error("{}: `{text}` is not {expected}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What it has.
        text: String,
        /// What it should have.
        expected: &'static str,
    },
    /// The files contradict each other.
    #[error("{}: {cause}", path.display())]
    Topology {
        /// Root of the tree.
        path: PathBuf,
        /// The contradiction.
        cause: TopologyError,
    },
    /// No two reads agree.
    #[error("{}: CPUs or nodes come and go while they are read: try again when they no longer do", path.display())]
    Unsettled {
        /// Root of the tree.
        path: PathBuf,
    },
}

/// The running machine: its topology, and what policies do not need but schedulers do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunningMachine {
    /// Online nodes with their online CPUs.
    pub topology: Topology,
    /// Node of each online CPU.
    pub node_of_cpu: BTreeMap<CpuId, NodeId>,
    /// Online SMT siblings by core, ascending by first CPU; a core without SMT has one.
    pub cores: Vec<Vec<CpuId>>,
    /// CPUs that are there but offline.
    pub offline_cpus: Vec<CpuId>,
    /// Node of each offline CPU, as far as the kernel shows it.
    pub node_of_offline_cpu: BTreeMap<CpuId, NodeId>,
    /// What the kernel does not show and was assumed, one sentence each.
    pub assumed: Vec<String>,
}

/// The machine this runs on, read until two reads one after the other agree: a CPU that comes or goes meanwhile can be missing in
/// one list after it was in another.
///
/// # Errors
/// See [`read_sysfs`]; and CPUs or nodes that come and go all the time.
pub fn read_running() -> Result<RunningMachine, SysfsError> {
    let root = Path::new(RUNNING);
    let settled = settled(|| read_sysfs(root), same_but_for_memory)?;
    settled.ok_or_else(|| SysfsError::Unsettled { path: root.to_owned() })
}

/// What `read` gives when it gives the same twice; `None` if it does not in [`READS`].
fn settled<T, E>(mut read: impl FnMut() -> Result<T, E>, same: impl Fn(&T, &T) -> bool) -> Result<Option<T>, E> {
    let mut last = read()?;
    for _ in 1..READS {
        let now = read()?;
        if same(&last, &now) {
            return Ok(Some(now));
        }
        last = now;
    }
    Ok(None)
}

/// Free memory changes all the time, and what a guest has of it while its host takes some back.
fn same_but_for_memory(one: &RunningMachine, other: &RunningMachine) -> bool {
    let mut one = one.clone();
    for (node, theirs) in one.topology.nodes.values_mut().zip(other.topology.nodes.values()) {
        (node.memory_pages, node.free_pages) = (theirs.memory_pages, theirs.free_pages);
    }
    one == *other
}

/// The machine shown by the tree at `root`, which has `node/` and `cpu/` as /sys/devices/system
/// has. Kernels without NUMA have no `node/`: the machine is one node.
///
/// # Errors
/// A file that must be there cannot be read, or has no sense.
pub fn read_sysfs(root: &Path) -> Result<RunningMachine, SysfsError> {
    let online = list(&root.join("cpu/online"))?;
    let present = optional(list(&root.join("cpu/present")))?.unwrap_or_else(|| online.clone());
    let online: BTreeSet<u32> = online.into_iter().collect();
    let mut assumed = Vec::new();
    let slow_cpus = slow_cpus(root, &online, &mut assumed)?;

    let mut nodes = Vec::new();
    match optional(list(&root.join("node/online")))? {
        Some(ids) => {
            for id in ids {
                nodes.push(node(root, id, &online, &slow_cpus, &mut assumed)?);
            }
        }
        None => {
            assumed.push("the kernel has no NUMA support: one node".to_owned());
            nodes.push(only_node(root, &online, &slow_cpus, &mut assumed)?);
        }
    }
    let topology = Topology::new(nodes, LatencySource::Distance)
        .map_err(|cause| SysfsError::Topology { path: root.to_owned(), cause })?;
    let node_of_cpu = topology.nodes.values().flat_map(|node| node.cpus.iter().map(|&cpu| (cpu, node.id))).collect();
    let offline_cpus: Vec<CpuId> = present.into_iter().filter(|cpu| !online.contains(cpu)).map(CpuId).collect();
    let mut node_of_offline_cpu = BTreeMap::new();
    for &cpu in &offline_cpus {
        node_of_offline_cpu.extend(node_of_one(root, cpu)?.map(|node| (cpu, node)));
    }
    Ok(RunningMachine {
        topology,
        node_of_cpu,
        cores: cores(root, &online)?,
        offline_cpus,
        node_of_offline_cpu,
        assumed,
    })
}

/// The CPUs that are online on the running machine: changes with every CPU that comes or goes.
///
/// # Errors
/// The kernel's list cannot be read.
pub fn online_cpus() -> Result<Vec<CpuId>, SysfsError> {
    Ok(list(&Path::new(RUNNING).join("cpu/online"))?.into_iter().map(CpuId).collect())
}

/// The nodes that are online on the running machine, likewise; node 0 where the kernel has no NUMA support.
///
/// # Errors
/// The kernel's list cannot be read.
pub fn online_nodes() -> Result<BTreeSet<NodeId>, SysfsError> {
    let ids = optional(list(&Path::new(RUNNING).join("node/online")))?.unwrap_or_else(|| vec![0]);
    Ok(ids.into_iter().map(NodeId).collect())
}

/// The node that the folder of a CPU links to.
fn node_of_one(root: &Path, cpu: CpuId) -> Result<Option<NodeId>, SysfsError> {
    let path = root.join(format!("cpu/cpu{}", cpu.0));
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(SysfsError::Read { path, cause }),
    };
    for entry in entries {
        let entry = entry.map_err(|cause| SysfsError::Read { path: path.clone(), cause })?;
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix("node")).and_then(|id| id.parse().ok());
        if let Some(id) = id {
            return Ok(Some(NodeId(id)));
        }
    }
    Ok(None)
}

/// Brings `free_pages` of every node of `topology` up to date from the tree at `root`
/// (/sys/devices/system when `None`).
///
/// # Errors
/// A node's meminfo cannot be read: the node went offline, so the topology is to be read again.
pub fn refresh_free_memory(topology: &mut Topology, root: Option<&Path>) -> Result<(), SysfsError> {
    let root = root.unwrap_or(Path::new(RUNNING));
    for index in (0..topology.len()).map(tandem_policies::model::NodeIndex) {
        let node = &mut topology.nodes[index];
        node.free_pages = memory_pages(root, node.id)?.1;
    }
    Ok(())
}

fn node(
    root: &Path,
    id: u32,
    online: &BTreeSet<u32>,
    slow_cpus: &BTreeMap<u32, u32>,
    assumed: &mut Vec<String>,
) -> Result<Node, SysfsError> {
    let dir = root.join(format!("node/node{id}"));
    // The kernel lists offline CPUs of a node in some versions, never in others.
    let cpus: Vec<u32> = list(&dir.join("cpulist"))?.into_iter().filter(|cpu| online.contains(cpu)).collect();
    let distance = numbers(&dir.join("distance"))?;
    let (memory_pages, free_pages) = memory_pages(root, NodeId(id))?;
    let llcs = llcs(root, &cpus, NodeId(id), assumed)?;
    let distance = PerNode::from(distance);
    Ok(Node {
        id: NodeId(id),
        llcs,
        slow_cpus: slow_of(&cpus, slow_cpus),
        cpus: cpus.into_iter().map(CpuId).collect(),
        memory_pages,
        free_pages,
        latency_ns: Topology::latency_from_distance(&distance),
        distance,
    })
}

fn only_node(
    root: &Path,
    online: &BTreeSet<u32>,
    slow_cpus: &BTreeMap<u32, u32>,
    assumed: &mut Vec<String>,
) -> Result<Node, SysfsError> {
    let path = Path::new("/proc/meminfo");
    let (memory_pages, free_pages) = meminfo(path)?;
    let cpus: Vec<u32> = online.iter().copied().collect();
    let distance = PerNode::filled(1, 10);
    Ok(Node {
        id: NodeId(0),
        llcs: llcs(root, &cpus, NodeId(0), assumed)?,
        slow_cpus: slow_of(&cpus, slow_cpus),
        cpus: cpus.into_iter().map(CpuId).collect(),
        memory_pages,
        free_pages,
        latency_ns: Topology::latency_from_distance(&distance),
        distance,
    })
}

/// Those of `cpus` that are slow.
fn slow_of(cpus: &[u32], slow_cpus: &BTreeMap<u32, u32>) -> BTreeMap<CpuId, u32> {
    cpus.iter().filter_map(|cpu| Some((CpuId(*cpu), *slow_cpus.get(cpu)?))).collect()
}

/// The CPUs of one node by last-level cache. A CPU without cache description shares one LLC with
/// all others of its node that have none (simulated machines show none).
fn llcs(root: &Path, cpus: &[u32], node: NodeId, assumed: &mut Vec<String>) -> Result<Vec<Vec<CpuId>>, SysfsError> {
    let mut groups: BTreeSet<Vec<u32>> = BTreeSet::new();
    let mut without = Vec::new();
    for &cpu in cpus {
        match last_level_sharers(root, cpu)? {
            Some(sharers) => {
                groups.insert(cpus.iter().copied().filter(|other| sharers.contains(other)).collect());
            }
            None => without.push(cpu),
        }
    }
    if !without.is_empty() {
        assumed.push(format!("node {node}: the kernel shows no shared cache of its CPUs: one LLC"));
        groups.insert(without);
    }
    Ok(groups.into_iter().map(|group| group.into_iter().map(CpuId).collect()).collect())
}

/// CPUs below the last-level cache of `cpu`; `None` when no cache of level 3 or, failing that, of
/// the highest level is described. A private highest level (L2 at most) is no last-level cache.
fn last_level_sharers(root: &Path, cpu: u32) -> Result<Option<BTreeSet<u32>>, SysfsError> {
    let dir = root.join(format!("cpu/cpu{cpu}/cache"));
    let mut best: Option<(u32, BTreeSet<u32>)> = None;
    for index in 0.. {
        let cache = dir.join(format!("index{index}"));
        let Some(level) = optional(number(&cache.join("level")))? else { break };
        // A cache that is there but not described (offline siblings, some hypervisors) is skipped.
        let Some(sharers) = optional(list(&cache.join("shared_cpu_list")))? else { continue };
        let sharers: BTreeSet<u32> = sharers.into_iter().collect();
        if sharers.contains(&cpu) && best.as_ref().is_none_or(|(most, _)| level > *most) {
            best = Some((level, sharers));
        }
    }
    let siblings = siblings(root, cpu)?;
    Ok(best.filter(|(level, sharers)| *level >= 3 || !sharers.is_subset(&siblings)).map(|(_, sharers)| sharers))
}

fn siblings(root: &Path, cpu: u32) -> Result<BTreeSet<u32>, SysfsError> {
    let dir = root.join(format!("cpu/cpu{cpu}/topology"));
    // The older name is what kernels before 5.0 have.
    for name in ["core_cpus_list", "thread_siblings_list"] {
        if let Some(siblings) = optional(list(&dir.join(name)))? {
            return Ok(siblings.into_iter().chain([cpu]).collect());
        }
    }
    Ok(BTreeSet::from([cpu]))
}

fn cores(root: &Path, online: &BTreeSet<u32>) -> Result<Vec<Vec<CpuId>>, SysfsError> {
    let mut cores = BTreeSet::new();
    for &cpu in online {
        let core: Vec<CpuId> = siblings(root, cpu)?.intersection(online).copied().map(CpuId).collect();
        cores.insert(core);
    }
    Ok(cores.into_iter().collect())
}

/// Installed and free pages of one node.
fn memory_pages(root: &Path, id: NodeId) -> Result<(u64, u64), SysfsError> {
    meminfo(&root.join(format!("node/node{id}/meminfo")))
}

/// `MemTotal` and `MemFree` of a meminfo file in pages; a node's lines start with `Node N`.
fn meminfo(path: &Path) -> Result<(u64, u64), SysfsError> {
    let text = read(path)?;
    let pages = |key: &str| {
        let after = text.lines().find_map(|line| line.split_once(key)).map(|(_, rest)| rest.trim());
        let kib: Option<u64> = after.and_then(|rest| rest.strip_suffix("kB")).and_then(|kib| kib.trim().parse().ok());
        kib.map(|kib| kib * 1024 / PAGE_BYTES)
    };
    match (pages("MemTotal:"), pages("MemFree:")) {
        (Some(total), Some(free)) => Ok((total, free)),
        _ => Err(SysfsError::Content {
            path: path.to_owned(),
            text: text.lines().next().unwrap_or("").to_owned(),
            expected: "a meminfo with MemTotal and MemFree in kB",
        }),
    }
}

fn read(path: &Path) -> Result<String, SysfsError> {
    std::fs::read_to_string(path).map_err(|cause| SysfsError::Read { path: path.to_owned(), cause })
}

fn list(path: &Path) -> Result<Vec<u32>, SysfsError> {
    parse_cpu_list(&read(path)?).map_err(|cause| SysfsError::List { path: path.to_owned(), cause })
}

fn numbers(path: &Path) -> Result<Vec<u32>, SysfsError> {
    let text = read(path)?;
    text.split_whitespace().map(str::parse).collect::<Result<_, _>>().map_err(|_| SysfsError::Content {
        path: path.to_owned(),
        text: text.trim().to_owned(),
        expected: "a row of numbers",
    })
}

pub(crate) fn number(path: &Path) -> Result<u32, SysfsError> {
    let text = read(path)?;
    text.trim().parse().map_err(|_| SysfsError::Content {
        path: path.to_owned(),
        text: text.trim().to_owned(),
        expected: "a number",
    })
}

/// `None` for a file that is not there; other errors stay.
fn optional<T>(result: Result<T, SysfsError>) -> Result<Option<T>, SysfsError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(SysfsError::Read { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_what_two_reads_in_a_row_tell() {
        let read_in_turn = |reads: &[u32]| {
            let mut reads = reads.iter();
            settled(|| reads.next().copied().ok_or("read once more"), u32::eq)
        };
        assert_eq!(read_in_turn(&[7, 7]), Ok(Some(7)));
        assert_eq!(read_in_turn(&[8, 7, 8, 8]), Ok(Some(8)));
        assert_eq!(read_in_turn(&[8]), Err("read once more"));
        let changing: Vec<u32> = (0..=READS as u32).collect();
        assert_eq!(read_in_turn(&changing), Ok(None));
    }

    #[test]
    fn a_cpu_that_one_list_lacks_makes_another_machine_and_free_memory_does_not() {
        let machine = read_running().unwrap();
        let mut other = machine.clone();
        let node = other.topology.nodes.values_mut().next().unwrap();
        (node.memory_pages, node.free_pages) = (node.memory_pages + 1, node.free_pages + 1);
        assert!(same_but_for_memory(&machine, &other));
        other.topology.nodes.values_mut().next().unwrap().cpus.pop();
        assert!(!same_but_for_memory(&machine, &other));
        let mut other = machine.clone();
        other.node_of_offline_cpu.insert(CpuId(4095), NodeId(0));
        assert!(!same_but_for_memory(&machine, &other));
    }
}
