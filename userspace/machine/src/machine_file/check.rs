// SPDX-License-Identifier: GPL-2.0-only
//! What a machine file's values must agree on, and what is derived when one is absent.

use std::path::Path;

use super::{
    Caches, DEFAULT_MEMORY_MB, DEFAULT_REMOTE_DISTANCE, LOCAL_DISTANCE, MachineFile, MemoryTiming, OneOrEach, Written,
};

/// More nodes than the kernels we know can number.
const MAX_NODES: usize = 1024;
/// Largest SLIT entry of a reachable node; 255 means unreachable.
const MAX_DISTANCE: u32 = 254;
/// Places that the timing plugin has for the misses of a vCPU (`vm/timing/timing.h`).
const MAX_OUTSTANDING_MISSES: u32 = 64;
/// More CPUs than any kernel takes.
const MAX_CPUS: u64 = 8192;

/// The key that is wrong, and how.
type Wrong = (&'static str, String);

pub(super) fn checked(written: Written, path: &Path) -> Result<MachineFile, Wrong> {
    let nodes = written.nodes;
    if nodes == 0 || nodes > MAX_NODES {
        return Err(("nodes", format!("is {nodes}, must be 1 to {MAX_NODES}")));
    }
    let mut derived = Vec::new();
    let name = name(written.name, path, &mut derived)?;
    let cpus_per_node = cpus(&written.cpus_per_node, nodes)?;
    let memory_mb = memory_sizes(written.memory_mb, nodes, &mut derived)?;
    let distance = match written.distance {
        Some(rows) => distances(rows, nodes)?,
        None => usual_distances(nodes, &mut derived),
    };
    if written.latency_ns.is_none() {
        derived.push("latency_ns is absent: 100 ns locally, elsewhere in proportion to the distance".to_owned());
    }
    let threads_per_core = or_one("threads_per_core", written.threads_per_core, &mut derived)?;
    let llcs_per_node = or_one("llcs_per_node", written.llcs_per_node, &mut derived)?;
    divides("threads_per_core", threads_per_core, &cpus_per_node)?;
    divides("llcs_per_node", llcs_per_node, &cpus_per_node)?;
    let cores = cpus_per_node.iter().map(|cpus| cpus / threads_per_core).collect::<Vec<_>>();
    if cores.iter().any(|cores| cores % llcs_per_node != 0) {
        return Err(("llcs_per_node", "the cores of a node must divide evenly among its LLCs".to_owned()));
    }
    let bandwidth_mb_s = positive("bandwidth_mb_s", written.bandwidth_mb_s, nodes)?;
    let caches = or_default("[caches]", written.caches, &mut derived);
    let memory = memory(written.memory, bandwidth_mb_s.as_deref(), &caches, &mut derived);
    let machine = MachineFile {
        name,
        node_ids: node_ids(written.node_ids, nodes)?,
        cpus_per_node,
        memory_mb,
        distance,
        latency_ns: positive("latency_ns", written.latency_ns, nodes)?,
        bandwidth_mb_s,
        threads_per_core,
        llcs_per_node,
        core: or_default("[core]", written.core, &mut derived),
        caches,
        memory,
        coherence: or_default("[coherence]", written.coherence, &mut derived),
        paging: written.paging.unwrap_or_default(),
        moves: written.moves.unwrap_or_default(),
        derived,
    };
    timings(&machine)?;
    Ok(machine)
}

/// Memory of each node, in MB.
fn memory_sizes(written: Option<OneOrEach>, nodes: usize, derived: &mut Vec<String>) -> Result<Vec<u64>, Wrong> {
    let memory_mb = match written {
        Some(value) => per_node("memory_mb", &value, nodes)?,
        None => {
            derived.push(format!("memory_mb is absent: {DEFAULT_MEMORY_MB} MB per node"));
            vec![DEFAULT_MEMORY_MB; nodes]
        }
    };
    if memory_mb[0] == 0 {
        return Err(("memory_mb", "the first node has none: kernels boot from its memory".to_owned()));
    }
    // Bytes must fit, and so must their sum.
    if memory_mb.iter().any(|&mb| mb > 1 << 34) {
        return Err(("memory_mb", format!("a node has more than {} MB", 1_u64 << 34)));
    }
    Ok(memory_mb)
}

/// Distances where none are written.
fn usual_distances(nodes: usize, derived: &mut Vec<String>) -> Vec<Vec<u32>> {
    if nodes > 1 {
        derived.push(format!("distance is absent: {LOCAL_DISTANCE} locally, {DEFAULT_REMOTE_DISTANCE} elsewhere"));
    }
    let row = |i| (0..nodes).map(|j| if i == j { LOCAL_DISTANCE } else { DEFAULT_REMOTE_DISTANCE }).collect();
    (0..nodes).map(row).collect()
}

fn name(name: Option<String>, path: &Path, derived: &mut Vec<String>) -> Result<String, Wrong> {
    let name = name.unwrap_or_else(|| {
        let stem = path.file_stem().map_or_else(|| "machine".into(), |stem| stem.to_string_lossy()).into_owned();
        derived.push(format!("name is absent: {stem}, after the file"));
        stem
    });
    // It becomes part of file names and of the flat form's lines.
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || !name.chars().all(plain) || name.starts_with('.') {
        return Err(("name", format!("is {name:?}, must be letters, digits, '-', '_' and '.' only")));
    }
    Ok(name)
}

fn per_node(key: &'static str, value: &OneOrEach, nodes: usize) -> Result<Vec<u64>, Wrong> {
    match value {
        OneOrEach::One(one) => Ok(vec![*one; nodes]),
        OneOrEach::Each(each) if each.len() == nodes => Ok(each.clone()),
        OneOrEach::Each(each) => Err((key, format!("has {} entries, must have {nodes}: one per node", each.len()))),
    }
}

fn cpus(value: &OneOrEach, nodes: usize) -> Result<Vec<u32>, Wrong> {
    let key = "cpus_per_node";
    let counts = per_node(key, value, nodes)?;
    let total = counts.iter().try_fold(0_u64, |sum, &count| sum.checked_add(count)).unwrap_or(u64::MAX);
    if total == 0 {
        return Err((key, "no node has a CPU: at least one must".to_owned()));
    }
    if total > MAX_CPUS {
        return Err((key, format!("the machine has {total} CPUs, {MAX_CPUS} is the most a kernel takes")));
    }
    counts.into_iter().map(|count| u32::try_from(count).map_err(|_| (key, format!("{count} is too many")))).collect()
}

fn square<T>(key: &'static str, rows: &[Vec<T>], nodes: usize) -> Result<(), Wrong> {
    if rows.len() != nodes {
        return Err((key, format!("has {} rows, must have {nodes}: one per node", rows.len())));
    }
    match rows.iter().enumerate().find(|(_, row)| row.len() != nodes) {
        Some((index, row)) => {
            Err((key, format!("row {index} has {} entries, must have {nodes}: the matrix is square", row.len())))
        }
        None => Ok(()),
    }
}

fn distances(rows: Vec<Vec<u32>>, nodes: usize) -> Result<Vec<Vec<u32>>, Wrong> {
    let key = "distance";
    square(key, &rows, nodes)?;
    for (from, row) in rows.iter().enumerate() {
        for (to, &value) in row.iter().enumerate() {
            if from == to && value != LOCAL_DISTANCE {
                return Err((key, format!("row {from}: the distance to itself is {value}, must be {LOCAL_DISTANCE}")));
            }
            if from != to && !(LOCAL_DISTANCE + 1..=MAX_DISTANCE).contains(&value) {
                let most = MAX_DISTANCE;
                return Err((
                    key,
                    format!("from node {from} to {to} is {value}, must be {} to {most}", LOCAL_DISTANCE + 1),
                ));
            }
        }
    }
    Ok(rows)
}

fn positive(key: &'static str, rows: Option<Vec<Vec<f64>>>, nodes: usize) -> Result<Option<Vec<Vec<f64>>>, Wrong> {
    let Some(rows) = rows else { return Ok(None) };
    square(key, &rows, nodes)?;
    match rows.iter().flatten().find(|value| !(value.is_finite() && **value > 0.0)) {
        Some(value) => Err((key, format!("has the entry {value}, all must be above 0"))),
        None => Ok(Some(rows)),
    }
}

fn node_ids(ids: Option<Vec<u32>>, nodes: usize) -> Result<Vec<u32>, Wrong> {
    let key = "node_ids";
    // Dense ids are what absence means; nothing to say.
    let Some(ids) = ids else { return Ok((0..).take(nodes).collect()) };
    if ids.len() != nodes {
        return Err((key, format!("has {} entries, must have {nodes}: one per node", ids.len())));
    }
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err((key, format!("{} comes after {}, ids must ascend", pair[1], pair[0])));
    }
    match ids.iter().find(|&&id| id as usize >= MAX_NODES) {
        Some(id) => Err((key, format!("{id} is too large, must be below {MAX_NODES}"))),
        None => Ok(ids),
    }
}

fn or_one(key: &'static str, value: Option<u32>, derived: &mut Vec<String>) -> Result<u32, Wrong> {
    match value {
        Some(0) => Err((key, "is 0, must be at least 1".to_owned())),
        Some(value) => Ok(value),
        None => {
            derived.push(format!("{key} is absent: 1"));
            Ok(1)
        }
    }
}

fn divides(key: &'static str, by: u32, cpus_per_node: &[u32]) -> Result<(), Wrong> {
    match cpus_per_node.iter().find(|&&cpus| cpus % by != 0) {
        Some(cpus) => Err((key, format!("is {by}, must divide the {cpus} CPUs of every node evenly"))),
        None => Ok(()),
    }
}

fn or_default<T: Default>(table: &str, value: Option<T>, derived: &mut Vec<String>) -> T {
    value.unwrap_or_else(|| {
        derived.push(format!("{table} is absent: the values of a common server"));
        T::default()
    })
}

/// The memory's timing: a bandwidth matrix says how fast memory is when nothing else does.
fn memory(
    written: Option<MemoryTiming>,
    bandwidth_mb_s: Option<&[Vec<f64>]>,
    caches: &Caches,
    derived: &mut Vec<String>,
) -> MemoryTiming {
    let local = |rows: &[Vec<f64>]| rows.iter().enumerate().map(|(i, row)| row[i]).fold(0.0, f64::max);
    match (written, bandwidth_mb_s) {
        (None, Some(rows)) => {
            derived.push("[memory] is absent: the service time is that of the highest local bandwidth".to_owned());
            // MB/s are bytes per microsecond.
            let service_ns_per_line = caches.line_b as f64 * 1000.0 / local(rows);
            MemoryTiming { service_ns_per_line, ..MemoryTiming::default() }
        }
        (written, _) => or_default("[memory]", written, derived),
    }
}

fn timings(machine: &MachineFile) -> Result<(), Wrong> {
    let (caches, memory, coherence) = (&machine.caches, &machine.memory, &machine.coherence);
    if [caches.l1_kb, caches.l2_kb, caches.l3_kb_per_llc].contains(&0) {
        return Err(("caches", "sizes must be above 0".to_owned()));
    }
    if !caches.line_b.is_power_of_two() {
        return Err(("caches.line_b", format!("is {}, must be a power of two", caches.line_b)));
    }
    if !(1..=MAX_OUTSTANDING_MISSES).contains(&memory.outstanding_misses) {
        let found = memory.outstanding_misses;
        return Err(("memory.outstanding_misses", format!("is {found}, must be 1 to {MAX_OUTSTANDING_MISSES}")));
    }
    let paging = &machine.paging;
    if paging.tlb_pages == 0 {
        return Err(("paging.tlb_pages", "is 0, must be at least 1".to_owned()));
    }
    if !(paging.walk_ns.is_finite() && paging.walk_ns >= 0.0) {
        return Err(("paging.walk_ns", format!("is {} ns, must be 0 (free) or above", paging.walk_ns)));
    }
    if let Some(ns) = machine.moves.page_ns.filter(|ns| !(ns.is_finite() && *ns > 0.0)) {
        return Err(("moves.page_ns", format!("is {ns} ns, must be above 0")));
    }
    let core = &machine.core;
    let times = [
        ("core.instruction_ns", core.instruction_ns),
        ("core.kernel_instruction_ns", core.kernel_instruction_ns),
        ("core.pause_ns", core.pause_ns),
        ("caches.l2_ns", caches.l2_ns),
        ("caches.l3_ns", caches.l3_ns),
        ("memory.service_ns_per_line", memory.service_ns_per_line),
        ("coherence.same_llc_ns", coherence.same_llc_ns),
        ("coherence.same_node_ns", coherence.same_node_ns),
        ("coherence.cross_node_ns", coherence.cross_node_ns),
    ];
    match times.iter().find(|(_, ns)| !(ns.is_finite() && *ns > 0.0)) {
        Some((key, ns)) => Err((key, format!("is {ns} ns, must be above 0"))),
        None => Ok(()),
    }
}
