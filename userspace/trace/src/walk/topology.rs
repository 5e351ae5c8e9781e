// SPDX-License-Identifier: GPL-2.0-only
//! The machine. It hardly ever changes, but for its free memory.

use std::collections::BTreeMap;

use tandem_policies::model::{CpuId, LatencySource, Node, Topology};

use super::{choice, floats_per_node, numbers_per_node, per_node};
use crate::blank;
use crate::coder::{Coder, Malformed};
use crate::columns::Column;

/// In the order of their numbers in the file.
const SOURCES: [LatencySource; 3] = [LatencySource::Distance, LatencySource::MachineFile, LatencySource::Measured];

pub(super) fn topology(coder: &mut impl Coder, now: &mut Topology, before: &Topology) -> Result<(), Malformed> {
    choice(coder, Column::LatencySource, &mut now.latency_source, before.latency_source, &SOURCES)?;
    per_node(coder, Column::NodeCount, &mut now.nodes, &before.nodes, blank::node, node)
}

fn node(coder: &mut impl Coder, now: &mut Node, before: &Node) -> Result<(), Malformed> {
    coder.number(Column::NodeId, &mut now.id, before.id)?;
    cpus(coder, Column::CpuCount, Column::Cpu, &mut now.cpus, &before.cpus)?;
    let caches = coder.count::<Vec<CpuId>>(Column::LlcCount, now.llcs.len(), before.llcs.len())?;
    now.llcs.resize_with(caches, Vec::new);
    for (at, llc) in now.llcs.iter_mut().enumerate() {
        let old = before.llcs.get(at).map_or(&[][..], Vec::as_slice);
        cpus(coder, Column::LlcCpuCount, Column::LlcCpu, llc, old)?;
    }
    slow_cpus(coder, &mut now.slow_cpus, &before.slow_cpus)?;
    coder.number(Column::NodeMemory, &mut now.memory_pages, before.memory_pages)?;
    coder.number(Column::NodeFree, &mut now.free_pages, before.free_pages)?;
    numbers_per_node(coder, Column::DistanceCount, Column::Distance, &mut now.distance, &before.distance)?;
    floats_per_node(coder, Column::LatencyCount, Column::Latency, &mut now.latency_ns, &before.latency_ns)
}

/// Slow CPUs: each should be the one before at its place, or else the next after its neighbour and as slow.
fn slow_cpus(
    coder: &mut impl Coder,
    now: &mut BTreeMap<CpuId, u32>,
    before: &BTreeMap<CpuId, u32>,
) -> Result<(), Malformed> {
    let count = coder.count::<(CpuId, u32)>(Column::SlowCpuCount, now.len(), before.len())?;
    let list =
        |cpus: &BTreeMap<CpuId, u32>| -> Vec<(CpuId, u32)> { cpus.iter().map(|(&cpu, &of)| (cpu, of)).collect() };
    let (mut rows, old) = (list(now), list(before));
    rows.resize(count, (CpuId(0), 0));
    let mut next = (CpuId(0), 0);
    for (at, (cpu, capacity)) in rows.iter_mut().enumerate() {
        let expected = old.get(at).copied().unwrap_or(next);
        coder.number(Column::SlowCpu, cpu, expected.0)?;
        coder.number(Column::SlowCpuCapacity, capacity, expected.1)?;
        next = (CpuId(cpu.0.wrapping_add(1)), *capacity);
    }
    *now = rows.into_iter().collect();
    if now.len() == count { Ok(()) } else { Err(Malformed::Column(Column::SlowCpu)) }
}

/// A list of CPUs: each should be the one before at its place, or else the next after its neighbour.
fn cpus(
    coder: &mut impl Coder,
    count: Column,
    column: Column,
    now: &mut Vec<CpuId>,
    before: &[CpuId],
) -> Result<(), Malformed> {
    let cpus = coder.count::<CpuId>(count, now.len(), before.len())?;
    now.resize(cpus, CpuId(0));
    let mut next = CpuId(0);
    for (at, cpu) in now.iter_mut().enumerate() {
        coder.number(column, cpu, before.get(at).copied().unwrap_or(next))?;
        next = CpuId(cpu.0.wrapping_add(1));
    }
    Ok(())
}
