// SPDX-License-Identifier: GPL-2.0-only
//! Memory that is shared with the kernel or a device.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// What may be done with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

/// A shared mapping of a file.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Maps `bytes` of `file` from `offset` on.
    pub(crate) fn new(file: BorrowedFd<'_>, bytes: usize, offset: usize, access: Access) -> io::Result<Self> {
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        let (fd, offset) = (file.as_raw_fd(), offset as libc::off_t);
        // SAFETY: a new mapping of the file's memory, nowhere in particular.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: NonNull::new(start.cast()).expect("a mapping is not at address zero"), bytes })
    }

    /// Its length.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Copies what nobody writes meanwhile.
    pub(crate) fn copy(&self, at: usize, into: &mut [u8]) {
        assert!(at.checked_add(into.len()).is_some_and(|end| end <= self.bytes), "inside the mapping");
        // SAFETY: inside the mapping, as just checked; the kernel does not write what it has handed over.
        unsafe { std::ptr::copy_nonoverlapping(self.start().add(at), into.as_mut_ptr(), into.len()) };
    }

    /// The aligned 64-bit word at `at`, which somebody may be writing.
    pub(crate) fn word(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8) && at.checked_add(8).is_some_and(|end| end <= self.bytes), "inside the mapping");
        // SAFETY: inside the mapping and aligned, as just checked, since mappings begin at pages.
        u64::from_le(unsafe { self.start().add(at).cast::<u64>().read_volatile() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing refers to it any more.
        unsafe { libc::munmap(self.start().cast(), self.bytes) };
    }
}
