// SPDX-License-Identifier: GPL-2.0-only
//! `tandem topo --measure`: latency and bandwidth between all nodes of the running machine.
//!
//! From each node that has CPUs to each that has memory: one CPU walks along pointers, then all CPUs of the node read. What is
//! walked is [`TIMES_CACHE`] times the largest cache, so that nearly all of it comes from memory. A busy machine makes
//! latencies longer and bandwidths smaller.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use tandem_ab::say::say_line;
use tandem_machine::RunningMachine;
use tandem_policies::model::{CpuId, Node, PAGE_BYTES, Topology};

use super::memory::Buffer;
use crate::advise::available_mib;

/// The buffer, in sizes of the largest cache, and the least with which most loads still miss.
const TIMES_CACHE: u64 = 8;
const LEAST_TIMES_CACHE: u64 = 2;
/// Bounds of the buffer (powers of two): many times the reach of a TLB, and no more than takes a second to link.
const FEWEST_BYTES: u64 = 64 << 20;
const MOST_BYTES: u64 = 1 << 30;
/// Without word of its caches, a machine may have this.
const ASSUMED_CACHE_BYTES: u64 = 32 << 20;
const CPUS: &str = "/sys/devices/system/cpu";

/// What was measured. Rows: nodes with the CPUs; columns: nodes with the memory; empty where a node has none.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// Memory of each node that was walked and read.
    pub buffer_bytes: u64,
    /// Whether it was in huge pages; if not, table walks are part of the latencies.
    pub huge_pages: bool,
    /// Of one dependent load, with nothing else going on.
    pub latency_ns: Vec<Vec<Option<f64>>>,
    /// All CPUs of the node reading.
    pub bandwidth_mb_s: Vec<Vec<Option<f64>>>,
}

/// Measures; each single measurement takes `each`.
///
/// # Errors
/// A node has too little free memory, or CPUs cannot be used.
pub fn measure(machine: &RunningMachine, each: Duration) -> Result<Measured> {
    let topology = &machine.topology;
    let nodes: Vec<&Node> = topology.nodes.values().collect();
    let cache_bytes = largest_cache(Path::new(CPUS)).unwrap_or(ASSUMED_CACHE_BYTES);
    let buffer_bytes = buffer_bytes(&with_cached_files(topology.clone())?, cache_bytes)?;
    let nothing = || vec![vec![None; nodes.len()]; nodes.len()];
    let mut measured = Measured { buffer_bytes, huge_pages: true, latency_ns: nothing(), bandwidth_mb_s: nothing() };
    for (to, target) in nodes.iter().enumerate().filter(|(_, node)| node.memory_pages > 0) {
        let refused = || format!("{} MiB of node {} cannot be had to measure with", buffer_bytes >> 20, target.id);
        let buffer = Buffer::on(target.id, buffer_bytes).with_context(refused)?;
        measured.huge_pages &= buffer.in_huge_pages()?;
        for (from, node) in nodes.iter().enumerate().filter(|(_, node)| !node.cpus.is_empty()) {
            say_line(format_args!("tandem: from CPUs of node {} to memory of node {}", node.id, target.id));
            measured.latency_ns[from][to] = Some(rounded(buffer.walk_ns(fast_cpu(node), each)?, 10.0));
            measured.bandwidth_mb_s[from][to] = Some(rounded(buffer.read_mb_s(&node.cpus, each)?, 1.0));
        }
    }
    Ok(measured)
}

/// Digits that change from one measurement to the next are none.
fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

/// The first CPU that is not slower than others.
pub fn fast_cpu(node: &Node) -> CpuId {
    *node.cpus.iter().find(|cpu| !node.slow_cpus.contains_key(cpu)).unwrap_or(&node.cpus[0])
}

/// Machines that have run for long have little free memory: what holds files that can be read again counts as free too.
fn with_cached_files(mut topology: Topology) -> Result<Topology> {
    for node in topology.nodes.values_mut() {
        let available = available_mib(node.id.0)?.map(|mib| (mib << 20) / PAGE_BYTES);
        node.free_pages = available.unwrap_or(node.free_pages);
    }
    Ok(topology)
}

/// As many times the cache as every node has free twice.
fn buffer_bytes(topology: &Topology, cache_bytes: u64) -> Result<u64> {
    ensure!(topology.nodes.values().any(|node| !node.cpus.is_empty()), "no node has a CPU to measure from");
    let wanted = (TIMES_CACHE * cache_bytes).next_power_of_two().clamp(FEWEST_BYTES, MOST_BYTES);
    let needed = (LEAST_TIMES_CACHE * cache_bytes).next_power_of_two().clamp(FEWEST_BYTES / 4, MOST_BYTES);
    let with_memory = topology.nodes.values().filter(|node| node.memory_pages > 0);
    let Some(scarcest) = with_memory.min_by_key(|node| node.free_pages) else { bail!("no node has memory") };
    let free = scarcest.free_pages * PAGE_BYTES;
    ensure!(
        free / 2 >= needed,
        "node {} has {} MiB of free memory, and {} MiB are needed to measure beyond caches of {} MiB: end what has the rest",
        scarcest.id,
        free >> 20,
        (2 * needed) >> 20,
        cache_bytes >> 20
    );
    Ok(wanted.min(1 << (free / 2).ilog2()))
}

/// Bytes of the largest cache of any CPU; `None` if the kernel does not tell.
fn largest_cache(cpus: &Path) -> Option<u64> {
    let caches =
        std::fs::read_dir(cpus).ok()?.flatten().filter_map(|cpu| std::fs::read_dir(cpu.path().join("cache")).ok());
    let size = |cache: std::fs::DirEntry| -> Option<u64> {
        let text = std::fs::read_to_string(cache.path().join("size")).ok()?;
        Some(text.trim().strip_suffix('K')?.parse::<u64>().ok()? << 10)
    };
    caches.flat_map(Iterator::flatten).filter_map(size).max()
}

#[cfg(test)]
mod tests {
    use tandem_machine::MachineFile;

    use super::*;

    /// Nodes with so much free memory in MiB, or none at all.
    fn nodes(free_mib: &[u64]) -> Topology {
        let text = format!("name = 'n'\nnodes = {}\ncpus_per_node = 2\nmemory_mb = 4096\n", free_mib.len());
        let mut topology = MachineFile::parse(&text, Path::new("n.toml")).unwrap().topology().unwrap();
        for (node, &mib) in topology.nodes.values_mut().zip(free_mib) {
            node.free_pages = (mib << 20) / PAGE_BYTES;
        }
        topology
    }

    #[test]
    fn the_buffer_is_many_times_the_cache_as_far_as_the_scarcest_node_goes() {
        let mib = |free: &[u64], cache: u64| buffer_bytes(&nodes(free), cache << 20).map(|bytes| bytes >> 20);
        assert_eq!(mib(&[4000, 4000], 20).unwrap(), 256);
        assert_eq!(mib(&[4000, 4000], 1).unwrap(), 64);
        assert_eq!(mib(&[40_000, 40_000], 500).unwrap(), 1024);
        assert_eq!(mib(&[4000, 300], 20).unwrap(), 128);
    }

    #[test]
    fn too_little_memory_is_refused_with_the_node_and_what_is_needed() {
        let error = buffer_bytes(&nodes(&[4000, 100]), 40 << 20).unwrap_err().to_string();
        assert!(error.contains("node 1 has 100 MiB of free memory, and 256 MiB are needed"), "{error}");
        let mut no_cpu = nodes(&[4000]);
        no_cpu.nodes.values_mut().for_each(|node| node.cpus.clear());
        assert!(buffer_bytes(&no_cpu, 1 << 20).unwrap_err().to_string().contains("no node has a CPU"));
    }

    #[test]
    fn the_largest_cache_is_found() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(largest_cache(folder.path()), None);
        for (index, size) in
            [("cpu0/cache/index0", "32K"), ("cpu0/cache/index3", "16384K"), ("cpu1/cache/index0", "48K")]
        {
            let cache = folder.path().join(index);
            std::fs::create_dir_all(&cache).unwrap();
            std::fs::write(cache.join("size"), format!("{size}\n")).unwrap();
        }
        assert_eq!(largest_cache(folder.path()), Some(16 << 20));
    }
}
