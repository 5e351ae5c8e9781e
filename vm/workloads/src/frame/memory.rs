// SPDX-License-Identifier: GPL-2.0-only
//! The memory that workloads work on: arrays of cache lines, mapped but untouched until they are filled.

use anyhow::{Context, Result};
use std::io::Error;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a huge page. Arrays are aligned to it, and no part smaller than it is placed by itself, so that base and
/// huge pages can be placed alike.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes of a cache line.
pub const LINE_BYTES: usize = size_of::<Line>();
/// Words in a line.
pub const LINE_WORDS: usize = 8;

/// One cache line of 64-bit words.
///
/// A word has one writer at a time, so relaxed loads and stores (plain moves) lose nothing.
#[repr(C, align(64))]
pub struct Line([AtomicU64; LINE_WORDS]);

impl Line {
    /// The value of a word.
    #[inline(always)]
    pub fn get(&self, word: usize) -> u64 {
        self.0[word].load(Relaxed)
    }

    /// Stores a word.
    #[inline(always)]
    pub fn set(&self, word: usize, value: u64) {
        self.0[word].store(value, Relaxed);
    }

    /// Adds 1 to a word that no other thread writes.
    #[inline(always)]
    pub fn count(&self, word: usize) {
        self.set(word, self.get(word).wrapping_add(1));
    }

    /// Adds `value` to a word that other threads write too; gives its value before.
    #[inline(always)]
    pub fn add(&self, word: usize, value: u64) -> u64 {
        self.0[word].fetch_add(value, Relaxed)
    }

    /// The value of a word as a floating point number.
    #[inline(always)]
    pub fn real(&self, word: usize) -> f64 {
        f64::from_bits(self.get(word))
    }

    /// Stores a floating point number.
    #[inline(always)]
    pub fn set_real(&self, word: usize, value: f64) {
        self.set(word, value.to_bits());
    }
}

/// Pages that the memory asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PageSize {
    /// What the system gives without advice.
    System,
    /// 4 KiB pages only.
    Base,
    /// 2 MiB pages where the kernel has them.
    Huge,
}

/// Anonymous private memory of whole lines.
pub struct Memory {
    mapping: *mut libc::c_void,
    mapped_bytes: usize,
    lines: *const Line,
    line_count: usize,
}

// SAFETY: the lines hold only atomics, and the mapping lives until the only owner drops it.
unsafe impl Send for Memory {}
// SAFETY: as above; shared references reach nothing but atomics.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `bytes` bytes (whole lines of it) without touching them.
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
        let lines = mapping.wrapping_byte_add(mapping.align_offset(HUGE_PAGE_BYTES)).cast::<Line>();
        let memory = Self { mapping, mapped_bytes, lines, line_count: bytes / LINE_BYTES };
        let advice = match pages {
            PageSize::System => return Ok(memory),
            PageSize::Base => libc::MADV_NOHUGEPAGE,
            PageSize::Huge => libc::MADV_HUGEPAGE,
        };
        // SAFETY: advice on the mapping just made; it changes no contents.
        if unsafe { libc::madvise(mapping, mapped_bytes, advice) } != 0 {
            return Err(Error::last_os_error())
                .context("cannot choose the page size (does the kernel have huge pages?)");
        }
        Ok(memory)
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
        (self.line_count * LINE_BYTES) as u64
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `map` mapped, once, when no reference is left.
        unsafe { libc::munmap(self.mapping, self.mapped_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fill_whole_cache_lines_and_arrays_begin_at_a_huge_page() {
        assert_eq!((size_of::<Line>(), align_of::<Line>()), (64, 64));
        let memory = Memory::map(1 << 20, PageSize::Base).unwrap();
        assert_eq!(memory.start() % HUGE_PAGE_BYTES as u64, 0);
        assert_eq!((memory.lines().len(), memory.bytes()), (1 << 14, 1 << 20));
    }

    #[test]
    fn every_word_of_every_line_keeps_its_own_value() {
        let memory = Memory::map(4096, PageSize::System).unwrap();
        for (index, line) in memory.lines().iter().enumerate() {
            (0..LINE_WORDS).for_each(|word| line.set(word, (index * LINE_WORDS + word) as u64));
        }
        memory.lines()[3].count(2);
        memory.lines()[3].add(2, 10);
        memory.lines()[4].set_real(0, -0.5);
        assert_eq!(memory.lines()[3].get(2), 3 * 8 + 2 + 11);
        assert_eq!(memory.lines()[4].real(0), -0.5);
        assert_eq!((memory.lines()[3].get(1), memory.lines()[3].get(3)), (25, 27));
    }
}
