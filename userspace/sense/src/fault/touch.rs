// SPDX-License-Identifier: GPL-2.0-only
//! What a first touch of memory costs.

use std::io;

use crate::fresh_pages::FreshPages;

/// What a first touch costs, in ns of CPU time.
pub(super) fn cost_ns() -> io::Result<u64> {
    const PAGES: usize = 256;
    let pages = FreshPages::small(PAGES)?;
    let before_ns = crate::thread_cpu_ns();
    pages.touch();
    Ok((crate::thread_cpu_ns() - before_ns) / PAGES as u64)
}
