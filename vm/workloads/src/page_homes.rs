// SPDX-License-Identifier: GPL-2.0-only
//! On which node pages are, asked of the kernel without touching them; and moving one.

use crate::frame::memory::Line;
use crate::topology::{NodeId, Topology};
use anyhow::{Context, Result};
use std::io::Error;

/// Pages asked for in one system call.
const BATCH_PAGES: usize = 1024;

/// Move pages that only this process maps (linux/mempolicy.h).
const MPOL_MF_MOVE: i32 = 2;

/// The node of each page of process `pid` at `addresses`; `None` for pages not in memory.
/// Source: move_pages(2) with no nodes.
pub fn page_homes(pid: i32, addresses: &[u64]) -> Result<Vec<Option<NodeId>>> {
    let mut homes = Vec::with_capacity(addresses.len());
    for batch in addresses.chunks(BATCH_PAGES) {
        let mut status = vec![0i32; batch.len()];
        let no_nodes = std::ptr::null::<i32>();
        // SAFETY: the kernel reads `batch.len()` addresses, which it does not follow in our address space, and writes as many statuses.
        let result = unsafe {
            libc::syscall(libc::SYS_move_pages, pid, batch.len(), batch.as_ptr(), no_nodes, status.as_mut_ptr(), 0)
        };
        if result < 0 {
            let error = Error::last_os_error();
            // Emulators of programs do not know the call. With one node there is nothing to ask.
            if error.raw_os_error() == Some(libc::ENOSYS)
                && let [node] = Topology::read()?.nodes()[..]
            {
                homes.extend(batch.iter().map(|_| Some(node)));
                continue;
            }
            return Err(error).with_context(|| format!("cannot ask where pages of process {pid} are"));
        }
        homes.extend(status.into_iter().map(|node| u32::try_from(node).ok().map(NodeId)));
    }
    Ok(homes)
}

/// Moves the calling process's page that holds `line` to `node`. That the page was busy is no error.
/// Source: move_pages(2).
pub fn move_page(line: &Line, NodeId(node): NodeId) -> Result<()> {
    let address = std::ptr::from_ref(line) as u64 & !(page_bytes() - 1);
    let mut status = 0i32;
    // SAFETY: the kernel reads one address and one node and writes one status; moving a page changes no contents.
    let result = unsafe {
        libc::syscall(libc::SYS_move_pages, 0, 1, &raw const address, &raw const node, &raw mut status, MPOL_MF_MOVE)
    };
    if result < 0 {
        return Err(Error::last_os_error()).with_context(|| format!("cannot move a page to node {node}"));
    }
    Ok(())
}

/// Bytes of a base page.
pub fn page_bytes() -> u64 {
    // SAFETY: asks for a constant of the system.
    (unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::memory::{Memory, PageSize};

    #[test]
    fn touched_pages_have_a_home_and_untouched_pages_have_none() {
        let memory = Memory::map(1 << 20, PageSize::Base).unwrap();
        let addresses = [memory.start(), memory.start() + page_bytes()];
        let own = std::process::id() as i32;
        assert_eq!(page_homes(own, &addresses).unwrap(), [None, None]);
        memory.lines()[0].set(0, 1);
        let homes = page_homes(own, &addresses).unwrap();
        assert!(homes[0].is_some() && homes[1].is_none());
    }

    #[test]
    fn a_page_moved_to_its_own_node_keeps_its_contents() {
        let memory = Memory::map(1 << 14, PageSize::Base).unwrap();
        memory.lines()[70].set(3, 7);
        let home = page_homes(0, &[memory.start() + page_bytes()]).unwrap()[0].unwrap();
        move_page(&memory.lines()[70], home).unwrap();
        assert_eq!(memory.lines()[70].get(3), 7);
        assert!(move_page(&memory.lines()[70], NodeId(1000)).unwrap_err().to_string().contains("node 1000"));
    }
}
