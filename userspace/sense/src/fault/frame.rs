// SPDX-License-Identifier: GPL-2.0-only
//! Which frames hold nobody's memory: reads of untouched memory all see the kernel's one page of zeros.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use tandem_policies::model::PAGE_BYTES;

/// Bit of a word of /proc/kpageflags (include/uapi/linux/kernel-page-flags.h).
const KPF_ZERO_PAGE: u64 = 1 << 24;

/// The kernel's flags of all frames.
pub(super) struct FrameFlags(File);

impl FrameFlags {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self(File::open("/proc/kpageflags")?))
    }

    /// Whether the frame at this physical address can be somebody's; one that nobody can tell anything of cannot.
    pub(super) fn is_memory(&self, physical: u64) -> bool {
        let mut flags = [0; 8];
        let read = self.0.read_exact_at(&mut flags, physical / PAGE_BYTES * 8);
        read.is_ok() && u64::from_ne_bytes(flags) & KPF_ZERO_PAGE == 0
    }
}
