// SPDX-License-Identifier: GPL-2.0-only
//! A handle on a loaded scheduler, opened through its pins.

use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use libbpf_rs::{Iter, Link, MapCore, MapFlags, MapHandle, Program, libbpf_sys};
use thiserror::Error;

use crate::records::{AssignOutcome, Assignment, Statistics, TaskRecord};
use crate::skeleton::types;
use crate::{MAX_BATCH, Pins, intf};

/// What can go wrong with a loaded scheduler.
#[derive(Debug, Error)]
pub enum Error {
    /// A pin cannot be opened.
    #[error("{what} of the loaded scheduler cannot be opened: {source}")]
    Open {
        /// Which pin.
        what: &'static str,
        /// Why.
        source: libbpf_rs::Error,
    },
    /// A map has another shape than this binary knows.
    #[error("the loaded scheduler was made by another version: unload it with `scx_tandem --unload`")]
    OtherVersion,
    /// The kernel refused an operation on it.
    #[error("{what}: {source}")]
    Kernel {
        /// The operation.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// What was loaded, so that a later agent knows whether it would load the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// [`crate::object_hash`] of the binary that loaded it.
    pub object_hash: u64,
    /// Hash of the tables that were written before loading.
    pub tables_hash: u64,
}

/// A loaded scheduler.
pub struct Scheduler {
    nodes: usize,
    assign: OwnedFd,
    tasks: Link,
    batches: MapHandle,
    statistics: MapHandle,
    identity: MapHandle,
    data: MapHandle,
    dump: MapHandle,
}

const KEY: [u8; 4] = [0; 4];

/// What an error of libbpf's at `what` is.
pub(crate) fn kernel(what: &'static str) -> impl Fn(libbpf_rs::Error) -> Error {
    move |error| Error::Kernel { what, source: io::Error::other(error) }
}

impl Scheduler {
    /// Opens the scheduler pinned at `pins`, loaded for a machine of `nodes` nodes.
    pub fn open(pins: &Pins, nodes: usize) -> Result<Self, Error> {
        let map = |what: &'static str| {
            MapHandle::from_pinned_path(pins.map(what)).map_err(|source| Error::Open { what, source })
        };
        Ok(Self {
            nodes,
            assign: Program::fd_from_pinned_path(pins.assign())
                .map_err(|source| Error::Open { what: "the assignment program", source })?,
            tasks: Link::open(pins.tasks()).map_err(|source| Error::Open { what: "the task iterator", source })?,
            batches: map("batches")?,
            statistics: map("statistics")?,
            identity: map("identity")?,
            data: map("data")?,
            dump: map("dump")?,
        })
    }

    /// What was loaded.
    pub fn identity(&self) -> Result<Identity, Error> {
        let value = lookup(&self.identity, "reading the scheduler's identity")?;
        let identity: intf::tandem_identity = read_value(&value)?;
        Ok(Identity { object_hash: identity.object_hash, tables_hash: identity.tables_hash })
    }

    /// Notes what was loaded.
    pub fn set_identity(&self, identity: Identity) -> Result<(), Error> {
        let value = [identity.object_hash.to_ne_bytes(), identity.tables_hash.to_ne_bytes()].concat();
        self.identity.update(&KEY, &value, MapFlags::ANY).map_err(kernel("writing the scheduler's identity"))
    }

    /// Sends assignments; one outcome each, in order. An error means that the outcomes of the last batch are unknown,
    /// and that the batches after it were not sent.
    pub fn assign(&mut self, assignments: &[Assignment]) -> Result<Vec<AssignOutcome>, Error> {
        let mut outcomes = Vec::with_capacity(assignments.len());
        for part in assignments.chunks(MAX_BATCH) {
            self.write_batch(part)?;
            self.run_assign()?;
            let value = lookup(&self.batches, "reading outcomes")?;
            let batch: intf::tandem_batch = read_value(&value)?;
            for item in &batch.items[..part.len()] {
                outcomes.push(AssignOutcome::from_intf(item.outcome).ok_or(Error::OtherVersion)?);
            }
        }
        Ok(outcomes)
    }

    fn write_batch(&self, part: &[Assignment]) -> Result<(), Error> {
        // SAFETY: the batch is plain numbers, for which all zeroes is a value.
        let mut batch: Box<intf::tandem_batch> = unsafe { Box::new(mem::zeroed()) };
        batch.count = part.len() as u32;
        for (item, assignment) in batch.items.iter_mut().zip(part) {
            *item = assignment.into();
        }
        // SAFETY: the structure has no padding (u32 pairs and u64 only) and lives through the call.
        let value = unsafe {
            std::slice::from_raw_parts(ptr::from_ref(&*batch).cast::<u8>(), mem::size_of::<intf::tandem_batch>())
        };
        self.batches.update(&KEY, value, MapFlags::ANY).map_err(kernel("writing assignments"))
    }

    /// Runs the assignment program on the batch that the map holds.
    pub fn run_assign(&self) -> Result<(), Error> {
        // SAFETY: all zeroes is the options' "nothing given"; the program takes no context.
        let mut options: libbpf_sys::bpf_test_run_opts = unsafe { mem::zeroed() };
        options.sz = mem::size_of_val(&options) as _;
        // SAFETY: the descriptor is a program's, and the options outlive the call.
        let failed = unsafe { libbpf_sys::bpf_prog_test_run_opts(self.assign.as_raw_fd(), &mut options) };
        if failed != 0 {
            return Err(Error::Kernel { what: "running the assignment program", source: io::Error::last_os_error() });
        }
        if options.retval != 0 {
            let source = io::Error::from_raw_os_error(-(options.retval as i32));
            return Err(Error::Kernel { what: "the assignment program refused the batch", source });
        }
        Ok(())
    }

    /// All tasks that the scheduler knows, as they are now.
    pub fn tasks(&self) -> Result<Vec<TaskRecord>, Error> {
        let failed = |source| Error::Kernel { what: "reading tasks", source };
        let mut bytes = Vec::new();
        Iter::new(&self.tasks).map_err(kernel("reading tasks"))?.read_to_end(&mut bytes).map_err(failed)?;
        bytes
            .chunks(mem::size_of::<intf::tandem_task_record>())
            .map(|chunk| read_value(chunk).map(|record| TaskRecord::from_intf(&record, self.nodes)))
            .collect()
    }

    /// One task as it is now, `None` if the scheduler does not know it: reading all takes long where there are many.
    pub fn task(&self, tid: u32) -> Result<Option<TaskRecord>, Error> {
        let last = || Error::Kernel { what: "reading a task", source: io::Error::last_os_error() };
        let program = self.tasks.info().map_err(kernel("reading a task"))?.prog_id;
        let opened = |fd: i32| {
            // SAFETY: a descriptor that the kernel has just made belongs to nobody else.
            if fd < 0 { Err(last()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
        };
        // SAFETY: takes a plain number.
        let program = opened(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(program) })?;
        // SAFETY: plain numbers and pointers, of which all zeroes mean "nothing given".
        let (mut only, mut options): (libbpf_sys::bpf_iter_link_info, libbpf_sys::bpf_link_create_opts) =
            unsafe { (mem::zeroed(), mem::zeroed()) };
        only.task.tid = tid;
        (options.sz, options.iter_info) = (mem::size_of_val(&options) as _, &raw mut only);
        options.iter_info_len = mem::size_of_val(&only) as u32;
        // SAFETY: the descriptor is a program's, and what the options name outlives the call.
        let link = unsafe {
            libbpf_sys::bpf_link_create(program.as_raw_fd(), 0, libbpf_sys::BPF_TRACE_ITER, &raw const options)
        };
        let link = opened(link)?;
        // SAFETY: takes a descriptor, which is open.
        let records = opened(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) })?;
        let mut bytes = Vec::new();
        let failed = |source| Error::Kernel { what: "reading a task", source };
        File::from(records).read_to_end(&mut bytes).map_err(failed)?;
        let record = (!bytes.is_empty()).then(|| read_value(&bytes)).transpose()?;
        Ok(record.map(|record| TaskRecord::from_intf(&record, self.nodes)))
    }

    /// The scheduler's counters.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        let per_cpu = self
            .statistics
            .lookup_percpu(&KEY, MapFlags::ANY)
            .map_err(kernel("reading statistics"))?
            .ok_or(Error::OtherVersion)?;
        let per_cpu: Vec<intf::tandem_stats> = per_cpu.iter().map(|cpu| read_value(cpu)).collect::<Result<_, _>>()?;
        Ok(Statistics::sum(per_cpu.iter(), self.nodes))
    }

    /// Why the scheduler left, `None` while it is loaded: passes the record and the kernel's dump to `read`.
    pub fn exit<T>(&self, read: impl FnOnce(&types::user_exit_info, &[u8]) -> T) -> Result<Option<T>, Error> {
        let data = lookup(&self.data, "reading the exit record")?;
        let data: types::data = read_value(&data)?;
        if data.uei.kind == 0 {
            return Ok(None);
        }
        let dump = lookup(&self.dump, "reading the exit dump")?;
        Ok(Some(read(&data.uei, &dump)))
    }
}

fn lookup(map: &MapHandle, what: &'static str) -> Result<Vec<u8>, Error> {
    map.lookup(&KEY, MapFlags::ANY).map_err(kernel(what))?.ok_or(Error::OtherVersion)
}

/// Reads a value of the interface out of bytes that the kernel delivered.
pub(crate) fn read_value<T: Copy>(bytes: &[u8]) -> Result<T, Error> {
    if bytes.len() < mem::size_of::<T>() {
        return Err(Error::OtherVersion);
    }
    // SAFETY: long enough, and the types of the interface are plain numbers.
    Ok(unsafe { ptr::read_unaligned(bytes.as_ptr().cast::<c_void>().cast::<T>()) })
}
