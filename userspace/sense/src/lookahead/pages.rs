// SPDX-License-Identifier: GPL-2.0-only
//! The emulator's view of other processes' memory: pages copied on first touch, never written back.
//!
//! All pages live in one arena that the emulator sees as physical memory, so that mapping a page
//! is one table entry and translated code stays valid between samples.
//!
//! A data page serves a sample only if it was read after the sample was taken, and no longer than its
//! time to live. Code changes rarely, and running a stale instruction costs at worst one wrong sample, so
//! code pages are kept longer; after their time to live they are read again and compared.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use hashbrown::HashMap;
use tandem_policies::model::{PAGE_BYTES, ProcessId};

const PAGE: usize = PAGE_BYTES as usize;

/// Pages that a sample may need at least: below that the cache is emptied first.
const FREE_BEFORE_SAMPLE: usize = 96;

/// Limits of the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLimits {
    /// Pages kept at most, over all processes.
    pub pages: usize,
    /// Longest time a data page is used.
    pub data_ttl_ns: u64,
    /// Time after which a code page is read again and compared.
    pub code_ttl_ns: u64,
}

impl Default for PageLimits {
    /// 4 MiB; data for 10 ms, code for 1 s.
    fn default() -> Self {
        Self { pages: 1024, data_ttl_ns: 10_000_000, code_ttl_ns: 1_000_000_000 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PageKey {
    process: u32,
    /// Virtual address of the first byte.
    address: u64,
}

#[derive(Clone, Copy)]
struct Frame {
    key: PageKey,
    read_ns: u64,
    written: bool,
    code: bool,
}

/// Copies of pages, by process and address.
pub(super) struct PageCache {
    arena: NonNull<u8>,
    layout: Layout,
    limits: PageLimits,
    frames: Vec<Option<Frame>>,
    free: Vec<usize>,
    /// The frames that are not free.
    used: Vec<usize>,
    index: HashMap<PageKey, usize>,
    process: u32,
    now_ns: u64,
    sample_ns: u64,
    /// Pages read from processes so far.
    pub(super) pages_read: u64,
}

/// What the emulator must forget before the next sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stale {
    /// Address translations only.
    Translations,
    /// Translated code too: a code page changed or went.
    Code,
}

impl PageCache {
    pub(super) fn new(limits: PageLimits) -> Self {
        let pages = limits.pages.max(2 * FREE_BEFORE_SAMPLE);
        let layout = Layout::from_size_align(pages * PAGE, PAGE).expect("a page cache smaller than the address space");
        // SAFETY: the layout is not of size zero.
        let Some(arena) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        Self {
            arena,
            layout,
            limits: PageLimits { pages, ..limits },
            frames: vec![None; pages],
            free: (0..pages).rev().collect(),
            used: Vec::with_capacity(pages),
            index: HashMap::with_capacity(pages),
            process: 0,
            now_ns: 0,
            sample_ns: 0,
            pages_read: 0,
        }
    }

    pub(super) fn arena(&self) -> *mut u8 {
        self.arena.as_ptr()
    }

    pub(super) fn arena_bytes(&self) -> u64 {
        self.layout.size() as u64
    }

    fn frame_mut(&mut self, frame: usize) -> &mut [u8] {
        // SAFETY: the arena has `limits.pages` pages and `frame` is below that; the emulator that
        // also sees the arena does not run while this borrow lives (hooks run on its thread).
        unsafe { std::slice::from_raw_parts_mut(self.arena.as_ptr().add(frame * PAGE), PAGE) }
    }

    /// Returns whether the page was code. The frame stays among the used ones.
    fn release(&mut self, frame: usize) -> bool {
        let Some(gone) = self.frames[frame].take() else { return false };
        self.index.remove(&gone.key);
        self.free.push(frame);
        gone.code
    }

    /// Makes the cache ready for a sample taken at `sample_ns`, read at `now_ns`: drops written, old and
    /// surplus pages and compares old code with what the process has now.
    pub(super) fn begin(&mut self, process: ProcessId, sample_ns: u64, now_ns: u64) -> Stale {
        (self.process, self.sample_ns, self.now_ns) = (process.0, sample_ns, now_ns);
        let mut used = std::mem::take(&mut self.used);
        let (mut code_gone, room) = (false, self.frames.len() - FREE_BEFORE_SAMPLE);
        let too_many = used.len() > room;
        used.retain(|&number| {
            let kept = !too_many && self.keeps(number);
            code_gone |= !kept && self.release(number);
            kept
        });
        self.used = used;
        if code_gone { Stale::Code } else { Stale::Translations }
    }

    /// Whether the page in this frame serves the sample.
    fn keeps(&mut self, number: usize) -> bool {
        let Some(frame) = self.frames[number] else { return false };
        let age_ns = self.now_ns.saturating_sub(frame.read_ns);
        if frame.written {
            return false;
        }
        if !frame.code {
            return frame.read_ns >= self.sample_ns && age_ns <= self.limits.data_ttl_ns;
        }
        let mut current = [0; PAGE];
        age_ns <= self.limits.code_ttl_ns || {
            let same = read_page(frame.key, &mut current) && *self.frame_mut(number) == current;
            self.frames[number] = Some(Frame { read_ns: self.now_ns, ..frame });
            same
        }
    }

    /// The arena offset of the page at `address` of the current process, read if needed; `None` if it cannot be.
    pub(super) fn translate(&mut self, address: u64, fetch: bool) -> Option<u64> {
        let key = PageKey { process: self.process, address: address & !(PAGE_BYTES - 1) };
        let number = match self.index.get(&key) {
            Some(&number) => number,
            None => {
                let number = *self.free.last()?;
                // SAFETY: as in `frame_mut`.
                let bytes = unsafe { &mut *self.arena.as_ptr().add(number * PAGE).cast::<[u8; PAGE]>() };
                if !read_page(key, bytes) {
                    return None;
                }
                self.pages_read += 1;
                self.free.pop();
                self.used.push(number);
                self.index.insert(key, number);
                self.frames[number] = Some(Frame { key, read_ns: self.now_ns, written: false, code: false });
                number
            }
        };
        if let Some(frame) = &mut self.frames[number] {
            frame.code |= fetch;
        }
        Some((number * PAGE) as u64)
    }

    /// The virtual address behind an arena offset.
    pub(super) fn virtual_address(&self, offset: u64) -> Option<u64> {
        let frame = self.frames.get(offset as usize / PAGE)?.as_ref()?;
        Some(frame.key.address + offset % PAGE_BYTES)
    }

    /// Notes a store of `bytes` at an arena offset: that page, and the next one of the process if it is
    /// reached, are not used for another sample.
    pub(super) fn note_write(&mut self, offset: u64, bytes: u64) {
        let Some(Some(frame)) = self.frames.get_mut(offset as usize / PAGE) else { return };
        frame.written = true;
        if offset % PAGE_BYTES + bytes > PAGE_BYTES {
            let next = PageKey { address: frame.key.address.wrapping_add(PAGE_BYTES), ..frame.key };
            if let Some(&number) = self.index.get(&next)
                && let Some(frame) = &mut self.frames[number]
            {
                frame.written = true;
            }
        }
    }

    /// Copies code at `address` into `code`, up to the first page that cannot be read; returns the bytes copied.
    pub(super) fn code(&mut self, address: u64, code: &mut [u8]) -> usize {
        let first = (PAGE_BYTES - address % PAGE_BYTES).min(code.len() as u64) as usize;
        let (head, tail) = code.split_at_mut(first);
        if !self.copy(address, head, true) {
            return 0;
        }
        if !tail.is_empty() && self.copy(address.wrapping_add(first as u64), tail, true) { code.len() } else { first }
    }

    /// Copies data at `address`, which lies in one page; `false` if that cannot be read.
    pub(super) fn data(&mut self, address: u64, into: &mut [u8]) -> bool {
        address % PAGE_BYTES + into.len() as u64 <= PAGE_BYTES && self.copy(address, into, false)
    }

    fn copy(&mut self, address: u64, into: &mut [u8], code: bool) -> bool {
        let Some(offset) = self.translate(address, code) else { return false };
        let within = (address % PAGE_BYTES) as usize;
        let length = into.len();
        into.copy_from_slice(&self.frame_mut(offset as usize / PAGE)[within..within + length]);
        true
    }
}

impl Drop for PageCache {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`; the emulator that maps it is closed first.
        unsafe { dealloc(self.arena.as_ptr(), self.layout) }
    }
}

fn read_page(key: PageKey, into: &mut [u8; PAGE]) -> bool {
    read_memory(ProcessId(key.process), key.address, into)
}

/// Copies memory of `process` at `address`, all of it or nothing useful (`false`); the process does not notice.
pub(super) fn read_memory(process: ProcessId, address: u64, into: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: the local range is `into`, which is writable for its length; the kernel checks the remote one.
    let read = unsafe { libc::process_vm_readv(process.0 as libc::pid_t, &local, 1, &remote, 1, 0) };
    read == into.len() as isize
}
