// SPDX-License-Identifier: GPL-2.0-only
//! What snapshots and plans took is given back to the kernel.

/// Blocks from this size on are mapped each by itself, and unmapped when they are freed.
const MAPPED_BYTES: libc::c_int = 1 << 20;

/// Lets large blocks go back to the kernel when they are freed; to be called before the first of them.
///
/// By default glibc raises the size from which on blocks are mapped by themselves to that of the largest that was freed, up
/// to 32 MiB: after a while snapshots are made in a heap that never shrinks and has gaps that nothing fits into.
pub fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: sets a number of the allocator, which locks itself.
        let set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES) };
        if set == 0 {
            tracing::debug!("the allocator does not take a threshold: freed memory may stay with this process");
        }
    }
}
