// SPDX-License-Identifier: GPL-2.0-only
//! Extra faults by the kernel's own NUMA balancing, in partial mode.
//!
//! Under sched_ext nothing marks pages for hint faults: that is done from the tick of the fair class only. One fair tick of
//! any thread of a process marks pages of its whole address space again, and the faults are seen whichever thread takes
//! them. So one thread of class SCHED_EXT of a process is lent to SCHED_OTHER for [`LENT_NS`] once a second. The kernel may
//! also move pages then. Only in partial mode: in full mode SCHED_OTHER is sched_ext's, too.

use std::io;

use tandem_policies::model::ProcessId;

/// Several ticks at any tick rate; less than a tenth of the time.
const LENT_NS: u64 = 50_000_000;
const SCHED_EXT: libc::c_int = 7;

/// A thread that is in the fair class for a moment.
struct Lent {
    tid: libc::pid_t,
    until_ns: u64,
}

/// Lends threads and takes them back.
#[derive(Default)]
pub(super) struct Hints {
    lent: Vec<Lent>,
}

impl Hints {
    /// Whether the kernel marks pages at all.
    pub(super) fn balancing() -> bool {
        std::fs::read_to_string("/proc/sys/kernel/numa_balancing").is_ok_and(|text| text.trim() != "0")
    }

    /// Lends a thread of `process`; `false`: none is of class SCHED_EXT.
    pub(super) fn lend(&mut self, process: ProcessId, now_ns: u64) -> io::Result<bool> {
        for task in std::fs::read_dir(format!("/proc/{}/task", process.0))? {
            let name = task?.file_name();
            let Some(tid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            if class(tid)? == SCHED_EXT {
                set_class(tid, libc::SCHED_OTHER)?;
                self.lent.push(Lent { tid, until_ns: now_ns + LENT_NS });
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes back those whose time is over.
    pub(super) fn take_back(&mut self, now_ns: u64) {
        self.lent.retain(|lent| {
            if lent.until_ns > now_ns {
                return true;
            }
            // It may have ended, or have chosen a class itself meanwhile: then that is not ours to change.
            if class(lent.tid).is_ok_and(|class| class == libc::SCHED_OTHER)
                && let Err(error) = set_class(lent.tid, SCHED_EXT)
            {
                tracing::warn!(%error, tid = lent.tid, "a thread that was lent to SCHED_OTHER could not be taken back");
            }
            false
        });
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        self.take_back(u64::MAX);
    }
}

fn class(tid: libc::pid_t) -> io::Result<libc::c_int> {
    // SAFETY: takes no pointers.
    let class = unsafe { libc::sched_getscheduler(tid) };
    if class < 0 { Err(io::Error::last_os_error()) } else { Ok(class & !libc::SCHED_RESET_ON_FORK) }
}

fn set_class(tid: libc::pid_t, class: libc::c_int) -> io::Result<()> {
    // SAFETY: all zeros is a valid value.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads the parameters. The nice level stays as it is.
    let set = unsafe { libc::sched_setscheduler(tid, class, &raw const parameters) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
