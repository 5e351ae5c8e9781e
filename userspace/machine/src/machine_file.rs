// SPDX-License-Identifier: GPL-2.0-only
//! Machine files: a NUMA machine in TOML, shared by the lab, the machine model and `tandem map`.

mod check;
mod find;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tandem_policies::model::{CpuId, LatencySource, Node, NodeId, PAGE_BYTES, PerNode, Topology, TopologyError};
use thiserror::Error;

/// Memory of a node that does not say.
const DEFAULT_MEMORY_MB: u64 = 512;
/// SLIT distance of another node when there is no matrix.
const DEFAULT_REMOTE_DISTANCE: u32 = 20;
/// SLIT distance of a node to itself, by definition.
const LOCAL_DISTANCE: u32 = 10;

/// Why a machine file cannot be used.
#[derive(Debug, Error)]
pub enum MachineFileError {
    /// It cannot be read.
    #[error("{}: cannot be read: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// It is no TOML, or has an unknown key or a value of the wrong type.
    #[error("{}: line {line}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line of the mistake, from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// A value contradicts another.
    #[error("{}: {key}: {message}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Key with the wrong value.
        key: String,
        /// What is wrong, and what would be right.
        message: String,
    },
    /// It is neither a file nor the name of one.
    #[error("the machine {asked} is neither a file nor one of those that have a name: {names}")]
    Unknown {
        /// What was given.
        asked: String,
        /// The names there are.
        names: String,
    },
    /// It is no file, and the folder of those with names is not there.
    #[error("the machine {asked} is no file, and there are none with names here: {}: {cause}", folder.display())]
    NoNames {
        /// What was given.
        asked: String,
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
}

/// Sizes and times of the caches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Caches {
    /// First level (data), per core, in KiB.
    pub l1_kb: u64,
    /// Second level, per core, in KiB.
    pub l2_kb: u64,
    /// Last level, per LLC, in KiB.
    pub l3_kb_per_llc: u64,
    /// Bytes of a cache line.
    pub line_b: u64,
    /// Load-to-use time of a second-level hit, in ns.
    pub l2_ns: f64,
    /// Load-to-use time of a last-level hit, in ns.
    pub l3_ns: f64,
}

/// Sizes of a Xeon Gold of the Cascade Lake family, its L3 rounded down; 14 and about 70 cycles at 3.5 GHz.
impl Default for Caches {
    fn default() -> Self {
        Self { l1_kb: 32, l2_kb: 1024, l3_kb_per_llc: 16384, line_b: 64, l2_ns: 4.0, l3_ns: 20.0 }
    }
}

/// How fast a core runs what stays in its first-level cache, in the timing lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Core {
    /// Time of one of a program's instructions, in ns.
    pub instruction_ns: f64,
    /// Time of one of the kernel's instructions, in ns.
    pub kernel_instruction_ns: f64,
    /// Time of one PAUSE, in ns.
    pub pause_ns: f64,
}

/// The kernel runs one instruction a cycle at 3.2 GHz, so that system calls, wake-ups and page moves are in proportion to
/// memory. A program's instructions, whose number is the workload's own choice, cost 1 ns: what they compute takes as
/// much of the lab's time, for a third of the host's. PAUSE as since Skylake: 140 cycles at 3.5 GHz.
impl Default for Core {
    fn default() -> Self {
        Self { instruction_ns: 1.0, kernel_instruction_ns: 0.3125, pause_ns: 40.0 }
    }
}

/// How memory answers under load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryTiming {
    /// Time one node's memory is busy with one line, in ns.
    pub service_ns_per_line: f64,
    /// Misses one core has in flight.
    pub outstanding_misses: u32,
}

/// The first-level fill buffers of Intel cores from Nehalem to Cascade Lake; 20 GB/s, about one channel of DDR4.
impl Default for MemoryTiming {
    fn default() -> Self {
        Self { service_ns_per_line: 3.2, outstanding_misses: 10 }
    }
}

/// Translation of addresses, in the timing lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Paging {
    /// Pages, base or huge, whose translation a CPU keeps.
    pub tlb_pages: u32,
    /// Time of the translation of any other page, in ns; 0: free.
    pub walk_ns: f64,
}

/// The second-level TLB of Intel cores from Skylake to Cascade Lake. Walks are free unless the file says otherwise.
impl Default for Paging {
    fn default() -> Self {
        Self { tlb_pages: 1536, walk_ns: 0.0 }
    }
}

/// What moving memory costs, for the machine model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Moves {
    /// Time of a CPU for one base page that goes to another node, in ns: `cost_ns_per_page` that the mover reports on the
    /// machine. `None`: what it took in the timing lab, from the latencies.
    pub page_ns: Option<f64>,
}

/// Cost of fetching a line that another core wrote, in ns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Coherence {
    /// Between cores below one last-level cache.
    pub same_llc_ns: f64,
    /// Between last-level caches of one node.
    pub same_node_ns: f64,
    /// Between nodes.
    pub cross_node_ns: f64,
}

/// What Intel's Memory Latency Checker measures on two Cascade Lake Xeons with modified lines: 49.3 ns within a socket,
/// 114 ns between sockets (vm/machines/cascadelake.toml). Between LLCs of one socket: chosen, between the two.
impl Default for Coherence {
    fn default() -> Self {
        Self { same_llc_ns: 49.3, same_node_ns: 80.0, cross_node_ns: 114.0 }
    }
}

/// One number for all nodes, or one per node.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "must be a whole number (for all nodes) or a list of them (one per node)")]
enum OneOrEach {
    One(u64),
    Each(Vec<u64>),
}

/// The file as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Option<String>,
    nodes: usize,
    cpus_per_node: OneOrEach,
    memory_mb: Option<OneOrEach>,
    distance: Option<Vec<Vec<u32>>>,
    latency_ns: Option<Vec<Vec<f64>>>,
    bandwidth_mb_s: Option<Vec<Vec<f64>>>,
    node_ids: Option<Vec<u32>>,
    threads_per_core: Option<u32>,
    llcs_per_node: Option<u32>,
    core: Option<Core>,
    caches: Option<Caches>,
    memory: Option<MemoryTiming>,
    coherence: Option<Coherence>,
    paging: Option<Paging>,
    moves: Option<Moves>,
}

/// A checked machine file. Matrices and lists have one entry per node, ascending by node id.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineFile {
    /// Name of the machine.
    pub name: String,
    /// The kernel's ids, ascending.
    pub node_ids: Vec<u32>,
    /// CPUs of each node; 0 for a memory-only node.
    pub cpus_per_node: Vec<u32>,
    /// Memory of each node in MiB.
    pub memory_mb: Vec<u64>,
    /// SLIT distances, row = from.
    pub distance: Vec<Vec<u32>>,
    /// Load latencies in ns, row = node of the CPU; `None` when not given.
    pub latency_ns: Option<Vec<Vec<f64>>>,
    /// Bandwidth in MB/s, row = node of the CPU; `None` when not given.
    pub bandwidth_mb_s: Option<Vec<Vec<f64>>>,
    /// SMT threads of a core.
    pub threads_per_core: u32,
    /// Last-level caches of a node that has CPUs.
    pub llcs_per_node: u32,
    /// Speed of a core.
    pub core: Core,
    /// Cache sizes and times.
    pub caches: Caches,
    /// Memory timing.
    pub memory: MemoryTiming,
    /// Coherence costs.
    pub coherence: Coherence,
    /// Page walks; free when absent.
    pub paging: Paging,
    /// Costs of moves.
    pub moves: Moves,
    /// What the file left open and was derived, one sentence each.
    pub derived: Vec<String>,
}

impl MachineFile {
    /// Reads and checks the machine file at `path`.
    ///
    /// # Errors
    /// It cannot be read, is no TOML, has an unknown key, or a value that contradicts another.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, MachineFileError> {
        let path = path.as_ref();
        let text =
            std::fs::read_to_string(path).map_err(|cause| MachineFileError::Read { path: path.to_owned(), cause })?;
        Self::parse(&text, path)
    }

    /// Checks the text of a machine file; `path` names it in errors.
    ///
    /// # Errors
    /// As [`MachineFile::load`], but for reading.
    pub fn parse(text: &str, path: &Path) -> Result<Self, MachineFileError> {
        let written: Written = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start.min(text.len()));
            MachineFileError::Syntax {
                path: path.to_owned(),
                line: text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count() + 1,
                message: error.message().replace('\n', " "),
            }
        })?;
        check::checked(written, path).map_err(|(key, message)| MachineFileError::Value {
            path: path.to_owned(),
            key: key.to_owned(),
            message,
        })
    }

    /// The ids of each node's CPUs: dense, node by node, as the lab's guests number them.
    pub fn cpus(&self) -> Vec<Vec<CpuId>> {
        let mut next = 0;
        let mut take = |count: u32| {
            let cpus = (next..next + count).map(CpuId).collect();
            next += count;
            cpus
        };
        self.cpus_per_node.iter().map(|&count| take(count)).collect()
    }

    /// The machine as policies see it, all its memory free. Latencies are in proportion to the
    /// distances when the file has none.
    ///
    /// # Errors
    /// None for a checked file; the type is that of [`Topology::new`].
    pub fn topology(&self) -> Result<Topology, TopologyError> {
        let nodes = self.cpus().into_iter().enumerate().map(|(index, cpus)| {
            let distance = PerNode::from(self.distance[index].clone());
            let pages = self.memory_mb[index] * (1 << 20) / PAGE_BYTES;
            let per_llc = (cpus.len() / self.llcs_per_node as usize).max(1);
            Node {
                id: NodeId(self.node_ids[index]),
                llcs: cpus.chunks(per_llc).map(<[CpuId]>::to_vec).collect(),
                cpus,
                slow_cpus: BTreeMap::new(),
                memory_pages: pages,
                free_pages: pages,
                latency_ns: match &self.latency_ns {
                    Some(rows) => PerNode::from(rows[index].clone()),
                    None => Topology::latency_from_distance(&distance),
                },
                distance,
            }
        });
        let source = if self.latency_ns.is_some() { LatencySource::MachineFile } else { LatencySource::Distance };
        Topology::new(nodes.collect(), source)
    }
}
