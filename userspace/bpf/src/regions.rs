// SPDX-License-Identifier: GPL-2.0-only
//! Which regions of a process are bound to nodes (`bpf/regions.bpf.c`). It lives in this process: nothing is pinned.

use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use libbpf_rs::OpenObject;
use libbpf_rs::libbpf_sys::{self, bpf_iter_link_info, bpf_link_create_opts};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::handle::{kernel, read_value};
use crate::regions_skeleton::{RegionsSkel, RegionsSkelBuilder};
use crate::{Error, intf};

/// A region that is bound to nodes or of huge pages of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionPolicy {
    /// Address of its first byte.
    pub start: u64,
    /// It, or the shared memory that it maps, has a memory policy that names nodes.
    pub bound: bool,
    /// Its pages are huge ones of a pool.
    pub hugetlb: bool,
}

/// The loaded program.
pub struct RegionPolicies {
    skeleton: RegionsSkel<'static>,
}

impl RegionPolicies {
    /// Loads the program.
    ///
    /// # Errors
    /// [`Error::Kernel`]: no rights, or a kernel that does not have what it needs.
    pub fn load() -> Result<Self, Error> {
        // The skeleton borrows the place that it lives in: a few words that are never given back.
        let storage = Box::leak(Box::new(MaybeUninit::<OpenObject>::uninit()));
        let open = RegionsSkelBuilder::default().open(storage).map_err(kernel("opening the look at regions"))?;
        Ok(Self { skeleton: open.load().map_err(kernel("loading the look at regions"))? })
    }

    /// Those of a process, ascending; none if it has ended.
    ///
    /// # Errors
    /// [`Error::Kernel`] when its regions cannot be looked at.
    pub fn of(&self, process: u32) -> Result<Vec<RegionPolicy>, Error> {
        let cannot = |source| Error::Kernel { what: "looking at regions", source };
        let program = self.skeleton.progs.tandem_regions.as_fd();
        let link = match link(program, process) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(Vec::new()),
            link => link.map_err(cannot)?,
        };
        // SAFETY: a descriptor that lives, and no memory.
        let iterator = owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) }).map_err(cannot)?;
        read_ascending(File::from(iterator))
            .map_err(cannot)?
            .iter()
            .map(|bytes| Ok(policy(&read_value(bytes)?)))
            .collect()
    }
}

/// Bytes of a region, as the program writes them.
type Written = [u8; size_of::<intf::tandem_region>()];

/// Reads regions until a reading brings no new one: the kernel's iterator over one process begins anew where it should be at its
/// end (seen on 6.18), and names a region again that changed while it was looked at.
fn read_ascending(mut iterator: impl Read) -> io::Result<Vec<Written>> {
    let mut regions: Vec<Written> = Vec::new();
    // As much as the kernel gives at a time.
    let mut buffer = vec![0; 32 << 10];
    loop {
        let read = iterator.read(&mut buffer)?;
        let before = regions.len();
        for &region in buffer[..read].as_chunks::<{ size_of::<intf::tandem_region>() }>().0 {
            if regions.last().is_none_or(|last| start(last) < start(&region)) {
                regions.push(region);
            }
        }
        if regions.len() == before {
            return Ok(regions);
        }
    }
}

/// What stands first.
fn start(region: &Written) -> u64 {
    region.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

fn policy(region: &intf::tandem_region) -> RegionPolicy {
    RegionPolicy { start: region.start, bound: region.bound != 0, hugetlb: region.hugetlb != 0 }
}

/// What runs `program` for the regions of one process. libbpf-rs cannot name a process here.
fn link(program: BorrowedFd<'_>, process: u32) -> io::Result<OwnedFd> {
    let mut target = bpf_iter_link_info::default();
    target.task.tid = process;
    let options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as _,
        iter_info: &raw mut target,
        iter_info_len: size_of::<bpf_iter_link_info>() as u32,
        ..Default::default()
    };
    // SAFETY: the options and what they point to live through the call.
    owned(unsafe {
        libbpf_sys::bpf_link_create(program.as_raw_fd(), 0, libbpf_sys::BPF_TRACE_ITER, &raw const options)
    })
}

/// The descriptor that libbpf returned, or the error that it returned instead, negative.
fn owned(descriptor: RawFd) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::from_raw_os_error(-descriptor));
    }
    // SAFETY: it was just opened, for nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64) -> Written {
        let mut region = Written::default();
        region[..8].copy_from_slice(&start.to_ne_bytes());
        region
    }

    /// Gives so many regions a reading, and begins anew for ever.
    struct NeverAtItsEnd {
        regions: Vec<u64>,
        at: usize,
        a_time: usize,
    }

    impl Read for NeverAtItsEnd {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let left = &self.regions[self.at..];
            let given: Vec<u8> = left.iter().take(self.a_time).flat_map(|&start| region(start)).collect();
            buffer[..given.len()].copy_from_slice(&given);
            self.at = (self.at + left.len().min(self.a_time)) % self.regions.len();
            Ok(given.len())
        }
    }

    #[test]
    fn each_region_is_read_once_though_the_iterator_has_no_end() {
        for a_time in [1, 2, 3, 6, 7] {
            let iterator = NeverAtItsEnd { regions: vec![10, 20, 20, 30, 40, 50], at: 0, a_time };
            let read: Vec<u64> = read_ascending(iterator).unwrap().iter().map(start).collect();
            // A region that is named again by itself is as the end is.
            let all: &[u64] = if a_time == 1 { &[10, 20] } else { &[10, 20, 30, 40, 50] };
            assert_eq!(read, all, "{a_time}");
        }
        assert!(read_ascending(io::empty()).unwrap().is_empty());
    }
}
