// SPDX-License-Identifier: GPL-2.0-only
//! One perf event, its ring, and its buffer for traces: the system calls and nothing else.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::{bindings, ioctls, perf_event_open};
use tandem_policies::model::CpuId;

use super::record::Fields;
use super::ring::{self, RingBytes, Walked};
use super::spe::TickClock;
use super::sysfs::Encoding;
use crate::mapping::{Access, Mapping};

/// Bytes of a ring: room for about 2500 samples. Of a trace buffer: for about 16000 operations.
const RING_BYTES: usize = 256 << 10;
const TRACE_BYTES: usize = 1 << 20;

/// How often an event samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// It only counts.
    Never,
    /// About so often a second; the kernel adapts the period.
    Frequency(u64),
    /// Every so many events.
    Period(u64),
}

/// What to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The event.
    pub encoding: Encoding,
    /// Fields of a sample.
    pub fields: Fields,
    /// How often.
    pub sampling: Sampling,
    /// How exact the instruction must be, 0 to 3.
    pub precise: u8,
    /// Leave the kernel and the hypervisor out.
    pub user_only: bool,
    /// Dates by CLOCK_MONOTONIC; else by perf's own clock, which a trace's ticks convert to.
    pub monotonic: bool,
    /// Tell context switches of the CPU too.
    pub switches: bool,
    /// Wait for [`Event::enable`].
    pub disabled: bool,
}

impl Attributes {
    fn for_the_kernel(&self) -> bindings::perf_event_attr {
        let config = self.encoding.config;
        let mut attributes = bindings::perf_event_attr {
            size: size_of::<bindings::perf_event_attr>() as u32,
            type_: self.encoding.kind,
            config: config[0],
            sample_type: self.fields.bits(),
            read_format: u64::from(bindings::PERF_FORMAT_TOTAL_TIME_ENABLED | bindings::PERF_FORMAT_TOTAL_TIME_RUNNING),
            config3: config[3],
            config4: config[4],
            ..Default::default()
        };
        attributes.__bindgen_anon_3.config1 = config[1];
        attributes.__bindgen_anon_4.config2 = config[2];
        match self.sampling {
            Sampling::Never => attributes.sample_type = 0,
            Sampling::Frequency(hz) => {
                attributes.__bindgen_anon_1.sample_freq = hz;
                attributes.set_freq(1);
            }
            Sampling::Period(events) => attributes.__bindgen_anon_1.sample_period = events,
        }
        attributes.set_precise_ip(u64::from(self.precise));
        attributes.set_exclude_kernel(u64::from(self.user_only));
        attributes.set_exclude_hv(u64::from(self.user_only));
        attributes.set_disabled(u64::from(self.disabled));
        attributes.sample_regs_user = self.fields.user_registers();
        if self.monotonic {
            attributes.set_use_clockid(1);
            attributes.clockid = libc::CLOCK_MONOTONIC;
        }
        if self.switches {
            attributes.set_context_switch(1);
            attributes.set_sample_id_all(1);
        }
        attributes
    }
}

/// An open event.
pub struct Event(OwnedFd);

impl Event {
    /// Opens it for everything that runs on `cpu`, as a member of the group of `leader`.
    pub fn open(attributes: &Attributes, cpu: CpuId, leader: Option<&Event>) -> io::Result<Self> {
        let mut attributes = attributes.for_the_kernel();
        let group = leader.map_or(-1, |leader| leader.0.as_raw_fd());
        let flags = libc::c_ulong::from(bindings::PERF_FLAG_FD_CLOEXEC);
        // SAFETY: the attributes are initialized, their size is set, and they ask for nothing but the event.
        let fd = unsafe { perf_event_open(&mut attributes, -1, cpu.0 as libc::c_int, group, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and owned by nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Its descriptor.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Lets an event that was opened disabled, or was stopped, go on.
    pub fn enable(&self) -> io::Result<()> {
        // SAFETY: the argument is flags: none.
        let enabled = unsafe { ioctls::ENABLE(self.0.as_raw_fd(), 0) };
        if enabled < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Sets the frequency or the period, whichever the event was opened with.
    pub fn set_rate(&self, rate: u64) -> io::Result<()> {
        // The kernel reads the rate through a pointer; the binding's argument is a plain word.
        let address = (&raw const rate) as u64;
        // SAFETY: the kernel reads one u64 at the address.
        let set = unsafe { ioctls::PERIOD(self.0.as_raw_fd(), address) };
        if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Nanoseconds that the event was enabled, and that it was on the hardware.
    pub fn times_ns(&self) -> io::Result<(u64, u64)> {
        let mut words = [0_u64; 3];
        let bytes = size_of_val(&words);
        // SAFETY: the kernel writes at most `bytes` bytes into the words.
        let read = unsafe { libc::read(self.0.as_raw_fd(), words.as_mut_ptr().cast(), bytes) };
        match usize::try_from(read) {
            Ok(read) if read == bytes => Ok((words[1], words[2])),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

/// A sampling event with its ring, and a trace buffer if it has one.
pub struct Sampled {
    event: Event,
    mapping: Mapping,
    page_bytes: usize,
    trace: Option<Mapping>,
}

struct Data<'a>(&'a Sampled);

impl RingBytes for Data<'_> {
    fn size(&self) -> usize {
        RING_BYTES
    }

    fn copy_piece(&self, at: usize, into: &mut [u8]) {
        self.0.mapping.copy(self.0.page_bytes + at, into);
    }
}

struct Trace<'a>(&'a Mapping);

impl RingBytes for Trace<'_> {
    fn size(&self) -> usize {
        self.0.bytes()
    }

    fn copy_piece(&self, at: usize, into: &mut [u8]) {
        self.0.copy(at, into);
    }
}

impl Sampled {
    /// Gives `event` a ring, and a trace buffer if `with_trace`.
    pub fn new(event: Event, with_trace: bool) -> io::Result<Self> {
        // SAFETY: no pointers.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page_bytes = usize::try_from(page_bytes).map_err(|_| io::Error::last_os_error())?;
        let mapping = Mapping::new(event.0.as_fd(), page_bytes + RING_BYTES, 0, Access::ReadWrite)?;
        let mut sampled = Self { event, mapping, page_bytes, trace: None };
        if with_trace {
            let offset = page_bytes + RING_BYTES;
            // SAFETY: the first page of the mapping is the control page; before the buffer is mapped the kernel only
            // reads these two words.
            unsafe {
                (*sampled.control()).aux_offset = offset as u64;
                (*sampled.control()).aux_size = TRACE_BYTES as u64;
            }
            sampled.trace = Some(Mapping::new(sampled.event.0.as_fd(), TRACE_BYTES, offset, Access::ReadWrite)?);
        }
        Ok(sampled)
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    fn control(&self) -> *mut bindings::perf_event_mmap_page {
        self.mapping.start().cast()
    }

    /// Takes every record out of the ring, oldest first; returns whether the ring made no sense.
    pub fn drain(&mut self, scratch: &mut Vec<u8>, each: impl FnMut(&[u8])) -> bool {
        // SAFETY: the first page of the mapping is the control page; head and tail are shared with the kernel as
        // aligned 64-bit words.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*self.control()).data_head),
                AtomicU64::from_ptr(&raw mut (*self.control()).data_tail),
            )
        };
        let end = head.load(Ordering::Acquire);
        let Walked { tail: at, broken } = ring::walk(&Data(self), tail.load(Ordering::Relaxed), end, scratch, each);
        tail.store(at, Ordering::Release);
        broken
    }

    /// Copies `size` bytes of trace from `offset` on; `false` if there is no such trace.
    pub fn copy_trace(&self, offset: u64, size: u64, into: &mut Vec<u8>) -> bool {
        let Some(trace) = self.trace.as_ref().filter(|trace| size <= trace.bytes() as u64) else { return false };
        into.resize(size as usize, 0);
        Trace(trace).copy(offset, into);
        true
    }

    /// Gives the kernel back the trace before `offset`.
    pub fn release_trace(&mut self, offset: u64) {
        // SAFETY: the control page; the tail of the trace is shared with the kernel as an aligned 64-bit word.
        let tail = unsafe { AtomicU64::from_ptr(&raw mut (*self.control()).aux_tail) };
        tail.store(offset, Ordering::Release);
    }

    /// How the timer's ticks convert to perf's clock; `None` if the kernel does not say.
    pub fn tick_clock(&self) -> Option<TickClock> {
        let (known, clock) = steady(|| {
            // SAFETY: the control page; the kernel writes these words under a sequence count, so they are read volatile.
            unsafe {
                let control = self.control();
                let lock = &raw const (*control).lock;
                let before = lock.read_volatile();
                let bits = (&raw const (*control).__bindgen_anon_1.capabilities).read_volatile();
                let clock = TickClock {
                    zero_ns: (&raw const (*control).time_zero).read_volatile(),
                    multiplier: (&raw const (*control).time_mult).read_volatile(),
                    shift: (&raw const (*control).time_shift).read_volatile(),
                };
                (before, (bits & CAP_USER_TIME_ZERO != 0, clock), lock.read_volatile())
            }
        })?;
        known.then_some(clock)
    }
}

/// How often words are read again while the kernel writes them. That takes less than a microsecond, unless the CPU that writes is a
/// guest's and does not run: so many tries take some milliseconds.
const TRIES: usize = 1 << 16;

/// What `read` finds between two equal, even sequence counts; `None` if it is being written each time.
fn steady<T>(mut read: impl FnMut() -> (u32, T, u32)) -> Option<T> {
    let unwritten = |(before, found, after)| (before == after && before & 1 == 0).then_some(found);
    (0..TRIES).find_map(|_| {
        std::hint::spin_loop();
        unwritten(read())
    })
}

/// Bit of the control page's capabilities: `time_zero` is valid.
const CAP_USER_TIME_ZERO: u64 = 1 << 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_being_written_is_read_again_but_not_for_ever() {
        let mut reads = [(3, 'a', 3), (3, 'b', 4), (4, 'c', 6), (6, 'd', 6)].into_iter();
        assert_eq!(steady(|| reads.next().expect("one was good")), Some('d'));
        let mut count = 0;
        let never = steady(|| {
            count += 1;
            (1, (), 1)
        });
        assert_eq!((never, count), (None, TRIES));
    }
}
