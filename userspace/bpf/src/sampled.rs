// SPDX-License-Identifier: GPL-2.0-only
//! Timer samples of managed processes only (`bpf/sampled.bpf.c`). It lives in this process: nothing is pinned.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, IntoRawFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject};

use crate::Error;
use crate::handle::kernel;
use crate::sampled_skeleton::{SampledSkel, SampledSkelBuilder};

/// The loaded program, and the events that it runs for.
pub struct SampleFilter {
    skeleton: SampledSkel<'static>,
    events: Vec<Link>,
    processes: BTreeSet<u32>,
}

impl SampleFilter {
    /// Loads the program; no process is sampled yet.
    ///
    /// # Errors
    /// [`Error::Kernel`]: no rights, or a kernel that does not have what it needs.
    pub fn load() -> Result<Self, Error> {
        // The skeleton borrows the place that it lives in: a few words that are never given back.
        let storage = Box::leak(Box::new(MaybeUninit::<OpenObject>::uninit()));
        let open = SampledSkelBuilder::default().open(storage).map_err(kernel("opening the filter of samples"))?;
        let skeleton = open.load().map_err(kernel("loading the filter of samples"))?;
        Ok(Self { skeleton, events: Vec::new(), processes: BTreeSet::new() })
    }

    /// Lets only samples of the given processes through of the perf event `event`. When this is dropped the event stops.
    ///
    /// # Errors
    /// [`Error::Kernel`]: not an event that samples, or one with a filter.
    pub fn attach(&mut self, event: BorrowedFd<'_>) -> Result<(), Error> {
        let cannot = |source| Error::Kernel { what: "filtering samples", source };
        // The link closes the descriptor that it is given.
        let own = event.try_clone_to_owned().map_err(cannot)?.into_raw_fd();
        let link = self.skeleton.progs.tandem_sampled.attach_perf_event(own);
        self.events.push(link.map_err(kernel("filtering samples"))?);
        Ok(())
    }

    /// Samples of these processes, by their numbers in the initial namespace, are let through from now on, of no others.
    ///
    /// # Errors
    /// [`Error::Kernel`] when there is no room for one more; what was done until then stays.
    pub fn set_processes(&mut self, wanted: &BTreeSet<u32>) -> Result<(), Error> {
        let map = &self.skeleton.maps.sampled_processes;
        for gone in self.processes.difference(wanted).copied().collect::<Vec<_>>() {
            map.delete(&gone.to_ne_bytes()).map_err(kernel("sampling a process no longer"))?;
            self.processes.remove(&gone);
        }
        for new in wanted.difference(&self.processes).copied().collect::<Vec<_>>() {
            let known = 1_u32.to_ne_bytes();
            map.update(&new.to_ne_bytes(), &known, MapFlags::ANY).map_err(kernel("sampling a process"))?;
            self.processes.insert(new);
        }
        Ok(())
    }

    /// Samples of other processes that were not let through so far.
    pub fn declined(&self) -> u64 {
        self.skeleton.maps.bss_data.as_ref().map_or(0, |data| data.declined)
    }
}
