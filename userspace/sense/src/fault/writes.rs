// SPDX-License-Identifier: GPL-2.0-only
//! Extra faults at writes: soft-dirty tracking.
//!
//! Writing 4 to /proc/PID/clear_refs clears the soft-dirty bits of an address space and makes its pages read-only until each is
//! written again, which takes one minor fault a page (Documentation/admin-guide/mm/soft-dirty.rst). Works in any
//! scheduling class. Whoever else tracks soft-dirty bits of the process (checkpoints by CRIU) is misled meanwhile.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use tandem_policies::model::{PAGE_BYTES, ProcessId};

use crate::fresh_pages::FreshPages;

/// Bit of a pagemap entry: written since the bits were cleared, or new.
const SOFT_DIRTY: u64 = 1 << 55;

/// Makes `process` fault at its next write to each page.
pub(super) fn rearm(process: ProcessId) -> io::Result<()> {
    OpenOptions::new().write(true).open(format!("/proc/{}/clear_refs", process.0))?.write_all(b"4")
}

/// Whether this kernel tracks writes: memory that was just mapped and written is marked if it does.
pub(super) fn tracked() -> io::Result<bool> {
    let page = FreshPages::small(1)?;
    page.touch();
    let mut entry = [0; 8];
    File::open("/proc/self/pagemap")?.read_exact_at(&mut entry, page.start() / PAGE_BYTES * 8)?;
    Ok(u64::from_ne_bytes(entry) & SOFT_DIRTY != 0)
}
