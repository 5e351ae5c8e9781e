// SPDX-License-Identifier: GPL-2.0-only
//! On which node pages are, asked of the kernel without touching or moving them.

use crate::topology::NodeId;
use anyhow::{Context, Result};
use std::io::Error;

/// Pages asked for in one system call.
const BATCH_PAGES: usize = 1024;

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
            return Err(Error::last_os_error()).with_context(|| format!("cannot ask where pages of process {pid} are"));
        }
        homes.extend(status.into_iter().map(|node| u32::try_from(node).ok().map(NodeId)));
    }
    Ok(homes)
}

/// Bytes of a base page.
pub fn page_bytes() -> u64 {
    // SAFETY: asks for a constant of the system.
    (unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{Buffer, PageSize};

    #[test]
    fn touched_pages_have_a_home_and_untouched_pages_have_none() {
        let buffer = Buffer::map(1 << 20, PageSize::Base).unwrap();
        let addresses = [buffer.start(), buffer.start() + page_bytes()];
        let own = std::process::id() as i32;
        assert_eq!(page_homes(own, &addresses).unwrap(), [None, None]);
        buffer.lines()[0].write(0, 0);
        let homes = page_homes(own, &addresses).unwrap();
        assert!(homes[0].is_some() && homes[1].is_none());
    }
}
