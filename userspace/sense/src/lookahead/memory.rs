// SPDX-License-Identifier: GPL-2.0-only
//! The emulator's view of other processes' memory: copied where it is needed, never written back.
//!
//! Data is copied page by page and serves one run only: it changes all the time. What a run stores is kept beside, by
//! words, and is gone with the run. Code changes rarely, and running a stale instruction costs at worst one wrong sample, so
//! code pages are kept longer; after their time to live they are read again and compared.

use hashbrown::HashMap;
use tandem_policies::model::{PAGE_BYTES, ProcessId};

use super::values::{Cause, Value};

/// What is copied at once: a system call costs as much as copying some KiB, and who needs a word often needs others beside.
const PAGE: usize = PAGE_BYTES as usize;
const WORD_BYTES: u64 = 8;

/// Limits of what is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyLimits {
    /// Pieces of data that one run may copy.
    pub pieces_per_run: usize,
    /// Code pages kept, over all processes.
    pub code_pages: usize,
    /// Time after which a code page is read again and compared.
    pub code_ttl_ns: u64,
}

impl Default for CopyLimits {
    /// 12 pieces; 1 MiB of code, for 1 s.
    fn default() -> Self {
        Self { pieces_per_run: 12, code_pages: 256, code_ttl_ns: 1_000_000_000 }
    }
}

/// Why data is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoData {
    Unreadable,
    /// The run has copied what it may.
    TooMuch,
}

struct CodePage {
    bytes: Box<[u8; PAGE]>,
    read_ns: u64,
}

/// A word that was stored to. Only bytes that were written count.
#[derive(Clone, Copy)]
struct Word {
    value: u64,
    /// By byte, in the lowest eight bits.
    written: u8,
    known: u8,
    cause: Cause,
}

/// Memory of the process whose thread is run ahead.
pub(super) struct Memory {
    limits: CopyLimits,
    process: ProcessId,
    now_ns: u64,
    code: HashMap<(u32, u64), CodePage>,
    pieces: Vec<(u64, Box<[u8; PAGE]>)>,
    /// Room of pieces that are of no use any more.
    spare: Vec<Box<[u8; PAGE]>>,
    stored: HashMap<u64, Word>,
    /// Pieces of data and pages of code copied so far.
    pub(super) copies: u64,
}

impl Memory {
    pub(super) fn new(limits: CopyLimits) -> Self {
        Self {
            limits,
            process: ProcessId(0),
            now_ns: 0,
            code: HashMap::new(),
            pieces: Vec::with_capacity(limits.pieces_per_run),
            spare: Vec::new(),
            stored: HashMap::new(),
            copies: 0,
        }
    }

    /// Makes ready for a run at `now_ns`. Whether code that was kept has changed or went.
    pub(super) fn begin(&mut self, process: ProcessId, now_ns: u64) -> bool {
        (self.process, self.now_ns) = (process, now_ns);
        self.spare.extend(self.pieces.drain(..).map(|(_, piece)| piece));
        self.forget_stores();
        let before = self.code.len();
        if before > self.limits.code_pages {
            self.code.clear();
        }
        let ttl_ns = self.limits.code_ttl_ns;
        self.code.retain(|&(process, address), page| {
            if now_ns.saturating_sub(page.read_ns) <= ttl_ns {
                return true;
            }
            let mut current = [0; PAGE];
            page.read_ns = now_ns;
            read_memory(ProcessId(process), address, &mut current) && *page.bytes == current
        });
        self.code.len() < before
    }

    /// What the run stored is forgotten, what it copied is not.
    pub(super) fn forget_stores(&mut self) {
        self.stored.clear();
    }

    /// Copies code at `address` into `code`, up to the first page that cannot be read; returns the bytes copied.
    pub(super) fn code(&mut self, address: u64, code: &mut [u8]) -> usize {
        let mut copied = 0;
        while copied < code.len() {
            let at = address.wrapping_add(copied as u64);
            let Some(page) = self.code_page(at & !(PAGE_BYTES - 1)) else { break };
            let from = &page[(at % PAGE_BYTES) as usize..];
            let length = from.len().min(code.len() - copied);
            code[copied..copied + length].copy_from_slice(&from[..length]);
            copied += length;
        }
        copied
    }

    fn code_page(&mut self, address: u64) -> Option<&[u8; PAGE]> {
        let key = (self.process.0, address);
        if !self.code.contains_key(&key) {
            let mut bytes = Box::new([0; PAGE]);
            if !read_memory(self.process, address, &mut *bytes) {
                return None;
            }
            self.copies += 1;
            self.code.insert(key, CodePage { bytes, read_ns: self.now_ns });
        }
        self.code.get(&key).map(|page| &*page.bytes)
    }

    /// Copies data at `address`.
    pub(super) fn data(&mut self, address: u64, into: &mut [u8]) -> Result<(), NoData> {
        let mut copied = 0;
        while copied < into.len() {
            let at = address.wrapping_add(copied as u64);
            let start = at & !(PAGE as u64 - 1);
            let piece = match self.pieces.iter().position(|(known, _)| *known == start) {
                Some(piece) => piece,
                None => self.copy_piece(start)?,
            };
            let from = &self.pieces[piece].1[(at - start) as usize..];
            let length = from.len().min(into.len() - copied);
            into[copied..copied + length].copy_from_slice(&from[..length]);
            copied += length;
        }
        Ok(())
    }

    fn copy_piece(&mut self, start: u64) -> Result<usize, NoData> {
        if self.pieces.len() >= self.limits.pieces_per_run {
            return Err(NoData::TooMuch);
        }
        let mut piece = self.spare.pop().unwrap_or_else(|| Box::new([0; PAGE]));
        if !read_memory(self.process, start, &mut *piece) {
            return Err(NoData::Unreadable);
        }
        self.copies += 1;
        self.pieces.push((start, piece));
        Ok(self.pieces.len() - 1)
    }

    /// The value of `bytes` (8 at most) at `address` as far as the run stored it: `None` if some of it is as it was before.
    pub(super) fn stored(&self, address: u64, bytes: usize) -> Option<Value> {
        if self.stored.is_empty() {
            return None;
        }
        let mut value = Value::Known(0);
        for at in 0..bytes {
            let byte = self.stored_byte(address.wrapping_add(at as u64))?;
            value = match value.and(byte) {
                Ok((value, byte)) => Value::Known(value | byte << (at * 8)),
                Err(cause) => cause.into(),
            };
        }
        Some(value)
    }

    /// The same, with what the run did not store as it was before.
    pub(super) fn load(&mut self, address: u64, bytes: usize) -> Result<Value, NoData> {
        let mut before = [0; 8];
        self.data(address, &mut before[..bytes])?;
        let mut value = Value::Known(u64::from_le_bytes(before));
        let any_stored = !self.stored.is_empty();
        for at in (0..bytes).filter(|_| any_stored) {
            let Some(byte) = self.stored_byte(address.wrapping_add(at as u64)) else { continue };
            value = match value.and(byte) {
                Ok((value, byte)) => Value::Known(value & !(0xff << (at * 8)) | byte << (at * 8)),
                Err(cause) => cause.into(),
            };
        }
        Ok(value)
    }

    fn stored_byte(&self, address: u64) -> Option<Value> {
        let word = self.stored.get(&(address / WORD_BYTES))?;
        let at = address % WORD_BYTES;
        let bit = 1_u8 << at;
        (word.written & bit != 0).then(|| {
            if word.known & bit != 0 { Value::Known(word.value >> (at * 8) & 0xff) } else { word.cause.into() }
        })
    }

    /// Stores `bytes` (8 at most) at `address`.
    pub(super) fn store(&mut self, address: u64, bytes: usize, value: Value) {
        let in_first = bytes.min((WORD_BYTES - address % WORD_BYTES) as usize);
        self.store_in_word(address, in_first, value);
        if in_first < bytes {
            let rest = if let Value::Known(value) = value { Value::Known(value >> (in_first * 8)) } else { value };
            self.store_in_word(address.wrapping_add(in_first as u64), bytes - in_first, rest);
        }
    }

    /// The same of bytes that are all in one word.
    fn store_in_word(&mut self, address: u64, bytes: usize, value: Value) {
        let new = Word { value: 0, written: 0, known: 0, cause: Cause::Never };
        let word = self.stored.entry(address / WORD_BYTES).or_insert(new);
        let shift = address % WORD_BYTES;
        let which = (0xff_u8 >> (8 - bytes)) << shift;
        word.written |= which;
        match value {
            Value::Known(value) => {
                let bits = (u64::MAX >> (64 - 8 * bytes)) << (shift * 8);
                word.known |= which;
                word.value = word.value & !bits | value << (shift * 8) & bits;
            }
            Value::Unknown(cause) => {
                word.known &= !which;
                word.cause = cause;
            }
        }
    }
}

/// Copies memory of `process` at `address`, all of it or nothing useful (`false`); the process does not notice.
pub(super) fn read_memory(process: ProcessId, address: u64, into: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: the local range is `into`, which is writable for its length; the kernel checks the remote one.
    let read = unsafe { libc::process_vm_readv(process.0 as libc::pid_t, &local, 1, &remote, 1, 0) };
    read == into.len() as isize
}
