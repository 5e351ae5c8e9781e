// SPDX-License-Identifier: GPL-2.0-only
//! The thread-local base (FS base) of a running thread, without stopping it.
//!
//! A perf sample does not carry it. The kernel tells where a thread's robust-futex list is, and glibc keeps
//! that list inside the thread's descriptor, which starts at the FS base and begins with two pointers to
//! itself (at 0 and 16, part of the x86-64 ABI of TLS and of glibc). Other libraries: not known.

use std::collections::HashMap;

use tandem_policies::model::ProcessId;

use super::memory::read_memory;

/// The list head lies this far into the descriptor at most.
const SEARCH_BYTES: u64 = 2048;
/// Bytes of a descriptor that tell whether it is one.
pub(super) const DESCRIPTOR_BYTES: usize = 24;
/// Descriptors are aligned to this.
const ALIGN: u64 = 64;
const MAX_THREADS: usize = 1 << 16;

/// FS bases found so far.
#[derive(Default)]
pub(super) struct ThreadLocalBases {
    known: HashMap<u32, Option<u64>>,
}

impl ThreadLocalBases {
    /// The base of thread `tid` of `process`, `None` if it cannot be found. Whether it still is one shows when it is used:
    /// a thread that called execve has another.
    pub(super) fn get(&mut self, process: ProcessId, tid: u32) -> Option<u64> {
        if self.known.len() >= MAX_THREADS {
            self.known.clear();
        }
        *self.known.entry(tid).or_insert_with(|| find(process, tid))
    }

    /// The base of thread `tid` turned out to be none: it is looked for again.
    pub(super) fn forget(&mut self, tid: u32) {
        self.known.remove(&tid);
    }

    /// Forgets all threads: ids are used again.
    pub(super) fn clear(&mut self) {
        self.known.clear();
    }
}

fn find(process: ProcessId, tid: u32) -> Option<u64> {
    let (mut head, mut length) = (0_u64, 0_usize);
    // SAFETY: the kernel writes one pointer and one size to the two addresses.
    let told = unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut length) };
    if told != 0 || head <= SEARCH_BYTES {
        return None;
    }
    let mut below = head & !(ALIGN - 1);
    for _ in 0..SEARCH_BYTES / ALIGN {
        if starts_descriptor(process, below) {
            return Some(below);
        }
        below -= ALIGN;
    }
    None
}

fn starts_descriptor(process: ProcessId, address: u64) -> bool {
    let mut start = [0; DESCRIPTOR_BYTES];
    read_memory(process, address, &mut start) && is_descriptor(&start, address)
}

/// Whether memory at `address` that begins with `start` is a thread's descriptor.
pub(super) fn is_descriptor(start: &[u8; DESCRIPTOR_BYTES], address: u64) -> bool {
    let points_here = |at: usize| start[at..].first_chunk() == Some(&address.to_ne_bytes());
    points_here(0) && points_here(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base_of_this_thread() -> u64 {
        let base: u64;
        // SAFETY: reads the first word of the thread's own descriptor.
        unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) base) };
        base
    }

    #[test]
    fn base_of_threads_is_found() {
        let check = || {
            // SAFETY: no arguments.
            let tid = unsafe { libc::gettid() } as u32;
            assert_eq!(find(ProcessId(std::process::id()), tid), Some(base_of_this_thread()));
        };
        check();
        std::thread::spawn(check).join().unwrap();
    }
}
