// SPDX-License-Identifier: GPL-2.0-only
//! Memory whose use and whose home are known.

use std::ops::Range;
use std::ptr;

const PAGE_BYTES: usize = 4096;
const LINE_BYTES: usize = 64;

/// Base pages of this process, unmapped when dropped.
pub struct Memory {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to nobody else, and it is only ever accessed by volatile reads and writes of whole bytes.
unsafe impl Send for Memory {}
// SAFETY: as above; what several threads write there is read by nobody.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `pages` base pages, which have no home yet.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn map(pages: usize) -> Self {
        let bytes = pages * PAGE_BYTES;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
        // SAFETY: advice on the mapping just made.
        let advised = unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
        assert_eq!(advised, 0, "madvise: {}", std::io::Error::last_os_error());
        Self { start: start.cast(), bytes }
    }

    /// Maps and fills `bytes` bytes of the node with the kernel's id `node`.
    ///
    /// # Panics
    /// If the kernel refuses, or there is not as much on that node.
    pub fn on_node(node: u32, bytes: usize) -> Self {
        let memory = Self::map(bytes / PAGE_BYTES);
        let nodes = 1_u64 << node;
        // SAFETY: a policy for the mapping just made; the set of nodes lives through the call.
        let bound = unsafe {
            libc::syscall(libc::SYS_mbind, memory.start, memory.bytes, libc::MPOL_BIND, &nodes, u64::BITS as usize, 0)
        };
        assert_eq!(bound, 0, "mbind: {}", std::io::Error::last_os_error());
        // SAFETY: advice on the mapping just made.
        let filled = unsafe { libc::madvise(memory.start.cast(), memory.bytes, libc::MADV_POPULATE_WRITE) };
        assert_eq!(filled, 0, "node {node}: {}", std::io::Error::last_os_error());
        memory
    }

    /// Writes every line once. The first time, its pages get their home: the node of the calling thread.
    pub fn walk(&self) {
        for offset in (0..self.bytes).step_by(LINE_BYTES) {
            // SAFETY: the offset lies within the mapping.
            unsafe { self.start.add(offset).write_volatile(1) };
        }
    }

    /// Reads every line once.
    pub fn read(&self) {
        for offset in (0..self.bytes).step_by(LINE_BYTES) {
            // SAFETY: the offset lies within the mapping.
            unsafe { self.start.add(offset).read_volatile() };
        }
    }

    /// Gives its pages back: they have no home until they are touched anew.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn free(&self) {
        // SAFETY: advice on our own mapping, whose contents mean nothing.
        let freed = unsafe { libc::madvise(self.start.cast(), self.bytes, libc::MADV_DONTNEED) };
        assert_eq!(freed, 0, "madvise: {}", std::io::Error::last_os_error());
    }

    /// Moves its pages to the node with the kernel's id `node`, as far as none is busy.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn move_to(&self, node: u32) {
        let pages = self.pages();
        let (nodes, mut status) = (vec![node as i32; pages.len()], vec![0; pages.len()]);
        let (to, status) = (nodes.as_ptr(), status.as_mut_ptr());
        const MPOL_MF_MOVE: i32 = 2;
        // SAFETY: the three lists have one entry a page and live through the call, which writes the last one only.
        let result =
            unsafe { libc::syscall(libc::SYS_move_pages, 0, pages.len(), pages.as_ptr(), to, status, MPOL_MF_MOVE) };
        assert!(result >= 0, "move_pages: {}", std::io::Error::last_os_error());
    }

    /// Addresses of its pages.
    pub fn pages(&self) -> Vec<*mut u8> {
        (0..self.bytes).step_by(PAGE_BYTES).map(|offset| self.start.wrapping_add(offset)).collect()
    }

    /// Its addresses.
    pub fn range(&self) -> Range<u64> {
        self.start as u64..self.start as u64 + self.bytes as u64
    }

    /// Pages, of those that have a home, that are on the node with the kernel's id `node`.
    ///
    /// # Panics
    /// If the kernel does not say.
    pub fn pages_on(&self, node: u32) -> usize {
        homes(&self.pages()).into_iter().filter(|&home| home == node as i32).count()
    }
}

/// The node of each of these pages of this process, by the kernel's id; negative for one that has none.
///
/// # Panics
/// If the kernel does not say.
pub fn homes(pages: &[*mut u8]) -> Vec<i32> {
    let mut homes = vec![-1; pages.len()];
    let nowhere = ptr::null::<i32>();
    // SAFETY: without target nodes the call only reads; both lists have one entry a page and live through it.
    let result =
        unsafe { libc::syscall(libc::SYS_move_pages, 0, pages.len(), pages.as_ptr(), nowhere, homes.as_mut_ptr(), 0) };
    assert_eq!(result, 0, "move_pages: {}", std::io::Error::last_os_error());
    homes
}

/// The same as text: how many pages follow each other on which node.
///
/// # Panics
/// If the kernel does not say.
pub fn homes_in_words(pages: &[*mut u8]) -> String {
    let mut runs: Vec<(i32, usize)> = Vec::new();
    for home in homes(pages) {
        match runs.last_mut() {
            Some(last) if last.0 == home => last.1 += 1,
            _ => runs.push((home, 1)),
        }
    }
    let runs: Vec<String> = runs.iter().map(|(node, pages)| format!("{pages} on {node}")).collect();
    runs.join(", ")
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody can use it any more.
        let result = unsafe { libc::munmap(self.start.cast(), self.bytes) };
        assert_eq!(result, 0, "munmap: {}", std::io::Error::last_os_error());
    }
}
