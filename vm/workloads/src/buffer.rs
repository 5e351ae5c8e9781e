// SPDX-License-Identifier: GPL-2.0-only
//! The memory the workload works on: cache lines with counters that check themselves.

use anyhow::{Context, Result};
use std::io::Error;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a huge page; buffers are aligned to it so that base and huge pages cover the same bytes.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Writers a line has room for.
pub const WRITERS: usize = 4;

/// One cache line: a counter per writer, and each counter combined with the line's key.
///
/// A counter has one writer only, so relaxed loads and stores (plain moves) lose no count.
#[repr(C, align(64))]
pub struct Line {
    counts: [AtomicU64; WRITERS],
    checks: [AtomicU64; WRITERS],
}

impl Line {
    /// Counts one write by `writer`; `key` is the line's.
    #[inline(always)]
    pub fn write(&self, writer: usize, key: u64) {
        let count = self.counts[writer].load(Relaxed).wrapping_add(1);
        self.counts[writer].store(count, Relaxed);
        self.checks[writer].store(count ^ key, Relaxed);
    }

    /// Reads `writer`'s counter back; true if it is whole.
    #[inline(always)]
    pub fn read(&self, writer: usize, key: u64) -> bool {
        self.counts[writer].load(Relaxed) ^ self.checks[writer].load(Relaxed) == key
    }
}

/// The key of line `index`: differs for every line, so that a misplaced page is noticed.
#[inline(always)]
pub fn key(index: usize) -> u64 {
    (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Pages used by the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// 4 KiB pages only.
    Base,
    /// 2 MiB pages where the kernel has them.
    Huge,
}

/// Anonymous private memory, untouched until [`Buffer::first_touch`].
pub struct Buffer {
    mapping: *mut libc::c_void,
    mapped_bytes: usize,
    lines: *const Line,
    line_count: usize,
}

// SAFETY: the lines hold only atomics, and the mapping lives until the only owner drops it.
unsafe impl Send for Buffer {}
// SAFETY: as above; shared references reach nothing but atomics.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Maps `bytes` bytes (a multiple of 64) without touching them.
    pub fn map(bytes: usize, pages: PageSize) -> Result<Self> {
        let mapped_bytes = bytes + HUGE_PAGE_BYTES;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing of ours.
        let mapping = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), mapped_bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if mapping == libc::MAP_FAILED {
            return Err(Error::last_os_error()).with_context(|| format!("cannot map {mapped_bytes} bytes"));
        }
        let offset = mapping.align_offset(HUGE_PAGE_BYTES);
        let lines = mapping.wrapping_byte_add(offset).cast::<Line>();
        let buffer = Self { mapping, mapped_bytes, lines, line_count: bytes / size_of::<Line>() };
        let advice = match pages {
            PageSize::Base => libc::MADV_NOHUGEPAGE,
            PageSize::Huge => libc::MADV_HUGEPAGE,
        };
        // SAFETY: advice on the mapping just made; it changes no contents.
        if unsafe { libc::madvise(mapping, mapped_bytes, advice) } != 0 {
            return Err(Error::last_os_error())
                .context("cannot choose the page size (does the kernel have huge pages?)");
        }
        Ok(buffer)
    }

    /// Writes every line once, from the calling thread: pages are placed on its node.
    pub fn first_touch(&self) {
        for (index, line) in self.lines().iter().enumerate() {
            for check in &line.checks {
                check.store(key(index), Relaxed);
            }
        }
    }

    /// All lines.
    pub fn lines(&self) -> &[Line] {
        // SAFETY: `lines` is aligned and `line_count` lines lie within the mapping; all bit patterns are valid atomics.
        unsafe { std::slice::from_raw_parts(self.lines, self.line_count) }
    }

    /// First byte's address.
    pub fn start(&self) -> u64 {
        self.lines as u64
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        (self.line_count * size_of::<Line>()) as u64
    }

    /// `writer`'s writes as the lines count them, or the first line that is not whole.
    pub fn count_writes(&self, writer: usize) -> Result<u64, usize> {
        let mut writes = 0u64;
        for (index, line) in self.lines().iter().enumerate() {
            if !line.read(writer, key(index)) {
                return Err(index);
            }
            writes = writes.wrapping_add(line.counts[writer].load(Relaxed));
        }
        Ok(writes)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `map` mapped, once, when no reference is left.
        unsafe { libc::munmap(self.mapping, self.mapped_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_write_is_counted_for_its_writer() {
        let buffer = Buffer::map(4096, PageSize::Base).unwrap();
        buffer.first_touch();
        buffer.lines()[0].write(0, key(0));
        buffer.lines()[63].write(0, key(63));
        buffer.lines()[63].write(1, key(63));
        assert_eq!((buffer.count_writes(0), buffer.count_writes(1), buffer.count_writes(2)), (Ok(2), Ok(1), Ok(0)));
    }

    #[test]
    fn a_changed_counter_is_noticed_with_its_line() {
        let buffer = Buffer::map(4096, PageSize::Base).unwrap();
        buffer.first_touch();
        buffer.lines()[5].counts[0].store(9, Relaxed);
        assert_eq!(buffer.count_writes(0), Err(5));
        assert!(!buffer.lines()[5].read(0, key(5)));
    }

    #[test]
    fn lines_fill_whole_aligned_cache_lines() {
        assert_eq!((size_of::<Line>(), align_of::<Line>()), (64, 64));
        assert_eq!(Buffer::map(1 << 20, PageSize::Base).unwrap().start() % HUGE_PAGE_BYTES as u64, 0);
    }
}
