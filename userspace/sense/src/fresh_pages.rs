// SPDX-License-Identifier: GPL-2.0-only
//! Fresh memory of our own, to see what the kernel does with it.

use std::io;

use tandem_policies::model::PAGE_BYTES;

/// Untouched base pages.
pub(crate) struct FreshPages {
    start: *mut libc::c_void,
    pages: usize,
}

impl FreshPages {
    /// Pages of 4 KiB, each with a fault of its own.
    pub(crate) fn small(pages: usize) -> io::Result<Self> {
        let fresh = Self::map(pages)?;
        // SAFETY: the advice covers the new mapping. A kernel without large pages refuses the advice, and does the same.
        unsafe { libc::madvise(fresh.start, pages * PAGE_BYTES as usize, libc::MADV_NOHUGEPAGE) };
        Ok(fresh)
    }

    /// Pages of 2 MiB where the kernel has them.
    #[cfg(test)]
    pub(crate) fn large(pages: usize) -> io::Result<Self> {
        let fresh = Self::map(pages)?;
        // SAFETY: the advice covers the new mapping.
        match unsafe { libc::madvise(fresh.start, pages * PAGE_BYTES as usize, libc::MADV_HUGEPAGE) } {
            0 => Ok(fresh),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn map(pages: usize) -> io::Result<Self> {
        let (protection, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let bytes = pages * PAGE_BYTES as usize;
        // SAFETY: a new mapping, nowhere in particular.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start, pages })
    }

    /// Address of the first byte.
    pub(crate) fn start(&self) -> u64 {
        self.start as u64
    }

    /// Writes to each page.
    pub(crate) fn touch(&self) {
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
