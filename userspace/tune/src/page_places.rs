// SPDX-License-Identifier: GPL-2.0-only
//! On which node each page of a process is, and how that is brought about again in a process with the same memory.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::ptr::{null, null_mut};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::unistd::Pid;
use tandem_policies::model::PAGE_BYTES;

use crate::launch::pidfd;
use crate::mapped::Part;

/// From linux/mempolicy.h: pages of this process alone.
const MPOL_MF_MOVE: i32 = 1 << 1;

/// What a huge page has, and is aligned to.
const HUGE_BYTES: u64 = 2 << 20;

/// Pages that the kernel is asked about at once.
const BATCH: usize = 1 << 14;

/// Pages that follow each other and are on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    begin: u64,
    pages: u64,
    /// The kernel's id.
    node: i32,
}

/// The node of each page that a process may write and has alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PagePlaces(Vec<Run>);

impl PagePlaces {
    /// Those of the process now.
    ///
    /// # Errors
    /// It is gone, or who asks has no right to know.
    pub fn of(process: Pid) -> Result<Self> {
        let mut runs: Vec<Run> = Vec::new();
        for part in Part::all_of(process).into_iter().filter(Part::is_private_and_writable) {
            // What a program reserves may be more than there is memory to list its pages.
            for begin in (part.begin..part.end).step_by(BATCH * PAGE_BYTES as usize) {
                let end = part.end.min(begin + BATCH as u64 * PAGE_BYTES);
                let batch: Vec<u64> = (begin..end).step_by(PAGE_BYTES as usize).collect();
                for (&address, node) in batch.iter().zip(nodes(process, &batch)?) {
                    add(&mut runs, address, node);
                }
            }
        }
        Ok(Self(runs))
    }

    /// Moves each page of the process to where it is in this. Huge pages of which parts are wanted on
    /// several nodes are split; what is no page of its own, as parts of zeros are after that, becomes one.
    ///
    /// # Errors
    /// The process is gone, who asks has no right to its memory, or more than one page of a hundred cannot be moved.
    pub fn bring_about(&self, process: Pid) -> Result<()> {
        let memory = File::options().read(true).write(true).open(format!("/proc/{process}/mem"));
        let memory = memory.context("the program's memory cannot be opened")?;
        self.split(process)?;
        let page = |run: &Run, at: u64| (run.begin + at * PAGE_BYTES, run.node);
        let all: Vec<(u64, i32)> = self.0.iter().flat_map(|run| (0..run.pages).map(move |at| page(run, at))).collect();
        let mut elsewhere = 0;
        for batch in all.chunks(BATCH) {
            let (addresses, wanted): (Vec<u64>, Vec<i32>) = batch.iter().copied().unzip();
            let are = nodes(process, &addresses)?;
            for (&address, _) in addresses.iter().zip(&are).filter(|(_, node)| **node < 0) {
                let mut byte = [0];
                let written =
                    memory.read_exact_at(&mut byte, address).and_then(|()| memory.write_all_at(&byte, address));
                written.context("the program's memory cannot be written")?;
            }
            if are != wanted {
                move_pages(process, &addresses, Some(&wanted))?;
                let are = nodes(process, &addresses)?;
                elsewhere += are.iter().zip(&wanted).filter(|(is, wanted)| is != wanted).count();
            }
        }
        let all = all.len();
        ensure!(
            elsewhere * 100 <= all,
            "{elsewhere} of {all} pages cannot be moved to where they were: there may be no room"
        );
        Ok(())
    }
}

impl PagePlaces {
    /// Splits huge pages of which not all is wanted on one node.
    fn split(&self, process: Pid) -> Result<()> {
        let mut node_of: BTreeMap<u64, i32> = BTreeMap::new();
        let mut mixed: BTreeMap<u64, u64> = BTreeMap::new();
        for run in &self.0 {
            let last = run.begin + (run.pages - 1) * PAGE_BYTES;
            for block in run.begin / HUGE_BYTES..=last / HUGE_BYTES {
                if *node_of.entry(block).or_insert(run.node) != run.node {
                    mixed.insert(block, run.begin.max(block * HUGE_BYTES));
                }
            }
        }
        let handle = pidfd(process)?;
        for address in mixed.into_values() {
            let page = libc::iovec { iov_base: address as *mut c_void, iov_len: PAGE_BYTES as usize };
            // Of a part of a huge page that is advice to split it. Where that fails the whole of it goes where its last part is wanted.
            // SAFETY: the vector lives through the call; its address is another process's, whose contents are not changed.
            unsafe {
                libc::syscall(libc::SYS_process_madvise, handle.as_raw_fd(), &raw const page, 1, libc::MADV_COLD, 0)
            };
        }
        Ok(())
    }
}

/// Takes a page that is on a node (less than 0: on none) up into runs.
fn add(runs: &mut Vec<Run>, address: u64, node: i32) {
    match runs.last_mut() {
        _ if node < 0 => {}
        Some(last) if last.node == node && last.begin + last.pages * PAGE_BYTES == address => last.pages += 1,
        _ => runs.push(Run { begin: address, pages: 1, node }),
    }
}

/// The node of each page; less than 0 for one that is nowhere.
fn nodes(process: Pid, addresses: &[u64]) -> Result<Vec<i32>> {
    move_pages(process, addresses, None)
}

/// Moves pages to nodes, or asks where they are; what became of each.
fn move_pages(process: Pid, addresses: &[u64], wanted: Option<&[i32]>) -> Result<Vec<i32>> {
    let pages: Vec<*const c_void> = addresses.iter().map(|&address| address as *const c_void).collect();
    let mut became = vec![-libc::ENOENT; pages.len()];
    let (nodes, flags) = wanted.map_or((null(), 0), |wanted| (wanted.as_ptr(), MPOL_MF_MOVE));
    // SAFETY: the arrays live through the call, and all have as many entries as it is told.
    let done = unsafe {
        let became = if became.is_empty() { null_mut() } else { became.as_mut_ptr() };
        libc::syscall(libc::SYS_move_pages, process.as_raw(), pages.len(), pages.as_ptr(), nodes, became, flags)
    };
    // More than 0: so many were not moved.
    if done < 0 {
        return Err(Errno::last()).context("where the program's memory is cannot be told or changed");
    }
    Ok(became)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_follow_each_other_on_one_node_are_one_run() {
        let mut runs = Vec::new();
        for (page, node) in [(0, 0), (1, 0), (2, 1), (3, -libc::ENOENT), (4, 1), (6, 1)] {
            add(&mut runs, page * PAGE_BYTES, node);
        }
        let expected = [(0, 2, 0), (2, 1, 1), (4, 1, 1), (6, 1, 1)];
        let run = |(begin, pages, node)| Run { begin: begin * PAGE_BYTES, pages, node };
        assert_eq!(runs, expected.map(run));
    }

    #[test]
    fn all_that_this_process_has_touched_is_somewhere() {
        let touched = vec![1_u8; 1 << 20];
        let places = PagePlaces::of(Pid::this()).unwrap();
        let page = touched.as_ptr() as u64 / PAGE_BYTES * PAGE_BYTES + PAGE_BYTES;
        let has =
            |page: u64| places.0.iter().any(|run| (run.begin..run.begin + run.pages * PAGE_BYTES).contains(&page));
        assert!((0..255).all(|at| has(page + at * PAGE_BYTES)));
        places.bring_about(Pid::this()).unwrap();
    }
}
