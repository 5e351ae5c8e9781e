// SPDX-License-Identifier: GPL-2.0-only
//! Fresh memory of our own, to see what its first touch does and costs.

use std::io;

use tandem_policies::model::PAGE_BYTES;

/// Untouched pages of 4 KiB.
pub(super) struct FreshPages {
    start: *mut libc::c_void,
    pages: usize,
}

impl FreshPages {
    pub(super) fn new(pages: usize) -> io::Result<Self> {
        let (protection, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let bytes = pages * PAGE_BYTES as usize;
        // SAFETY: a new mapping, nowhere in particular.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the advice covers the new mapping. Without large pages each page has its own fault; a kernel that has
        // none refuses the advice, and does the same.
        unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
        Ok(Self { start, pages })
    }

    /// Address of the first byte.
    pub(super) fn start(&self) -> u64 {
        self.start as u64
    }

    /// Writes to each page.
    pub(super) fn touch(&self) {
        for page in 0..self.pages {
            // SAFETY: inside the mapping, which lives as long as we do.
            unsafe { self.start.cast::<u8>().add(page * PAGE_BYTES as usize).write_volatile(1) };
        }
    }
}

impl Drop for FreshPages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing refers to it any more.
        unsafe { libc::munmap(self.start, self.pages * PAGE_BYTES as usize) };
    }
}

/// What a first touch costs, in ns of CPU time.
pub(super) fn cost_ns() -> io::Result<u64> {
    const PAGES: usize = 256;
    let pages = FreshPages::new(PAGES)?;
    let before_ns = crate::thread_cpu_ns();
    pages.touch();
    Ok((crate::thread_cpu_ns() - before_ns) / PAGES as u64)
}
