// SPDX-License-Identifier: GPL-2.0-only
//! Gives an array its first contents, with its pages where its home says.
//!
//! Bound (oracle and worst): mbind(2) of each piece. Not bound: the pages are first touched from the node's CPUs, and
//! neither affinity nor policy stays behind. If the process was given a memory policy (numactl), that decides, and where pages came
//! to be is not checked.

use crate::affinity::Affinity;
use crate::frame::memory::{HUGE_PAGE_BYTES, LINE_BYTES, Memory};
use crate::frame::plan::Region;
use crate::page_homes::{page_bytes, page_homes};
use crate::topology::{NodeId, Topology};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::io::Error;
use std::ops::Range;

/// Share of an array that may lie elsewhere than it should when it is filled (huge pages cross borders of parts).
const MISPLACED_SHARE: f64 = 0.1;
/// Nodes that a mask for mbind holds; MAX_NUMNODES is at most 1024 on x86-64.
const MAX_NODES: usize = 1024;

/// Fills `memory` as `region` says.
pub fn fill(memory: &Memory, region: &Region, is_bound: bool, topology: &Topology) -> Result<()> {
    let pieces = region.home.pieces(region.bytes);
    if is_bound {
        for (bytes, node) in &pieces {
            bind(memory, bytes, *node)?;
        }
    }
    if pieces.is_empty() || is_bound {
        (region.fill)(memory.lines(), 0..memory.lines().len());
    } else {
        let affinity = Affinity::of_this_thread()?;
        let nodes: std::collections::BTreeSet<NodeId> = pieces.iter().map(|(_, node)| *node).collect();
        for node in nodes {
            Affinity::to(topology.cpus_of(node)).apply()?;
            for (bytes, _) in pieces.iter().filter(|(_, home)| *home == node) {
                (region.fill)(memory.lines(), bytes.start / LINE_BYTES..bytes.end / LINE_BYTES);
            }
        }
        affinity.apply()?;
    }
    if is_bound || !has_policy()? { check_homes(memory, &pieces) } else { Ok(()) }
}

/// Whether this thread's memory policy is another than the default.
fn has_policy() -> Result<bool> {
    let mut mode: libc::c_int = 0;
    let (no_nodes, no_address) = (std::ptr::null::<u64>(), std::ptr::null::<u8>());
    // SAFETY: the kernel writes one int; without an address it tells of the thread, and no nodes are asked for.
    let result = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, no_nodes, 0, no_address, 0) };
    if result != 0 {
        let error = Error::last_os_error();
        // Emulators of programs do not know the call, nor policies.
        if error.raw_os_error() == Some(libc::ENOSYS) {
            return Ok(false);
        }
        return Err(error).context("cannot read the memory policy");
    }
    Ok(mode != libc::MPOL_DEFAULT)
}

/// Fails if pages are elsewhere than they should be, which happens when a node is full.
fn check_homes(memory: &Memory, pieces: &[(Range<usize>, NodeId)]) -> Result<()> {
    for (bytes, node) in pieces {
        let pages = pages_by_node(memory, bytes.clone())?;
        let all: u64 = pages.values().sum();
        let elsewhere = all - pages.get(node).copied().unwrap_or(0);
        let allowed = (all as f64 * MISPLACED_SHARE) as u64 + 2 * HUGE_PAGE_BYTES as u64 / page_bytes();
        if elsewhere > allowed.min(all / 2) {
            bail!(
                "node {} is full: {elsewhere} of {all} pages went elsewhere; use smaller sizes or fewer threads",
                node.0
            );
        }
    }
    Ok(())
}

/// Pages in memory of a part of `memory`, by node.
pub fn pages_by_node(memory: &Memory, bytes: Range<usize>) -> Result<BTreeMap<NodeId, u64>> {
    let (start, end) = (memory.start() + bytes.start as u64, memory.start() + bytes.end as u64);
    let addresses: Vec<u64> = (start..end).step_by(page_bytes() as usize).collect();
    let mut pages = BTreeMap::new();
    for node in page_homes(std::process::id() as i32, &addresses)?.into_iter().flatten() {
        *pages.entry(node).or_default() += 1;
    }
    Ok(pages)
}

/// Binds a part of `memory` to a node.
fn bind(memory: &Memory, bytes: &Range<usize>, NodeId(node): NodeId) -> Result<()> {
    let mut mask = [0u64; MAX_NODES / 64];
    mask[node as usize / 64] |= 1 << (node % 64);
    let (start, length) = (memory.start() + bytes.start as u64, bytes.len());
    // SAFETY: sets the policy of whole pages of our own mapping; the kernel reads one bit less than the mask has.
    let result = unsafe { libc::syscall(libc::SYS_mbind, start, length, libc::MPOL_BIND, mask.as_ptr(), MAX_NODES, 0) };
    if result != 0 {
        return Err(Error::last_os_error()).with_context(|| format!("cannot bind {length} bytes to node {node}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::memory::PageSize;
    use crate::frame::plan::Home;

    fn region(home: Home) -> Region {
        Region {
            bytes: 16 << 12,
            home,
            fill: Box::new(|lines, range| range.for_each(|index| lines[index].set(0, index as u64 + 1))),
        }
    }

    #[test]
    fn every_line_is_filled_once_wherever_its_home_is_and_the_affinity_is_kept() {
        let topology = Topology::read().unwrap();
        let node = topology.nodes_with_cpus_and_memory()[0];
        let before = Affinity::of_this_thread().unwrap();
        for home in [Home::Anywhere, Home::on(node), Home::Parts(vec![node; 3]), Home::Interleaved(vec![node])] {
            for is_bound in [false, true] {
                let memory = Memory::map(16 << 12, PageSize::Base).unwrap();
                fill(&memory, &region(home.clone()), is_bound, &topology).unwrap();
                assert!(memory.lines().iter().enumerate().all(|(index, line)| line.get(0) == index as u64 + 1));
                assert_eq!(pages_by_node(&memory, 0..16 << 12).unwrap().values().sum::<u64>(), 16);
            }
        }
        assert_eq!(Affinity::of_this_thread().unwrap(), before);
    }

    #[test]
    fn pages_that_are_not_where_they_should_be_are_noticed() {
        let memory = Memory::map(16 << 12, PageSize::Base).unwrap();
        memory.lines().iter().for_each(|line| line.set(0, 1));
        let error = check_homes(&memory, &[(0..16 << 12, NodeId(77))]).unwrap_err();
        assert!(error.to_string().contains("node 77 is full: 16 of 16 pages"), "{error}");
    }
}
