// SPDX-License-Identifier: GPL-2.0-only
//! The move_pages system call: where pages are, moving them, and what became of each.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tandem_machine::ProgramId;
use tandem_policies::model::{CpuId, NodeId, ProcessId, Topology};
use thiserror::Error;

/// What a status holds for a page that the kernel did not get to.
pub const UNWRITTEN: i32 = i32::MIN;

/// From linux/mempolicy.h; libc lacks it.
const MPOL_MF_MOVE: i32 = 1 << 1;

/// What the kernel says of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageStatus {
    /// Resident on this node.
    On(NodeId),
    /// Cannot be isolated at present (EBUSY), or the call ended before the page's turn.
    Busy,
    /// Not resident (ENOENT).
    Absent,
    /// Mapped by other processes too (EACCES).
    Shared,
    /// No free memory on the target node (ENOMEM).
    NoMemory,
    /// The zero page, or no such mapping (EFAULT, EINVAL).
    Invalid,
    /// Any other errno.
    Other(i32),
}

impl PageStatus {
    /// The status behind the kernel's number: a node, or a negative errno.
    pub fn from_raw(raw: i32) -> Self {
        if let Ok(node) = u32::try_from(raw) {
            return Self::On(NodeId(node));
        }
        match raw.saturating_neg() {
            libc::EBUSY | i32::MAX => Self::Busy,
            libc::ENOENT => Self::Absent,
            libc::EACCES => Self::Shared,
            libc::ENOMEM => Self::NoMemory,
            libc::EFAULT | libc::EINVAL => Self::Invalid,
            errno => Self::Other(errno),
        }
    }
}

/// Why a whole call failed. Pages may have moved all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// ESRCH; EINVAL where its main thread has ended, and with it what the kernel finds the memory by. Or it runs another program
    /// than the one that is meant.
    #[error("the process has ended, or runs another program")]
    ProcessGone,
    /// EPERM.
    #[error("no permission to move the pages of this process: run as its user or with CAP_SYS_PTRACE")]
    NotPermitted,
    /// ENODEV.
    #[error("the target node does not exist, is offline or has no memory")]
    NoSuchNode,
    /// EACCES.
    #[error("the target node is outside the process's cpuset")]
    NodeNotAllowed,
    /// ENOMEM.
    #[error("no free memory on the target node")]
    NoMemory,
    /// Any other errno.
    #[error("move_pages failed: {}", std::io::Error::from_raw_os_error(*.0))]
    Other(i32),
}

impl CallError {
    /// The error behind an errno of the call. Its flags are always the same, so EINVAL is not about them.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ESRCH | libc::EINVAL => Self::ProcessGone,
            libc::EPERM => Self::NotPermitted,
            libc::ENODEV => Self::NoSuchNode,
            libc::EACCES => Self::NodeNotAllowed,
            libc::ENOMEM => Self::NoMemory,
            errno => Self::Other(errno),
        }
    }
}

/// One call: its result and what it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Pages that were not moved (0: all were dealt with), or why the call failed.
    pub result: Result<u64, CallError>,
    /// CPU time inside the call: what it took from others, not how long this thread had to wait for a CPU.
    pub time_ns: u64,
}

/// The system call, apart so that statuses which one machine cannot provoke can be played in tests.
pub trait MovePages: Sync {
    /// Takes the calling thread, which is there for this alone, to CPUs from which `node` is near.
    fn go_near(&self, _node: NodeId) {}

    /// Takes in that CPUs or nodes came or went.
    fn see_machine(&mut self, _topology: &Topology) {}

    /// Which program the process runs; `None` if it has ended.
    fn program(&self, process: ProcessId) -> Option<ProgramId>;

    /// Asks where the pages are (`to` is `None`) or moves those that only this process maps to `to`.
    /// Writes one raw status a page (see [`PageStatus::from_raw`]) and leaves pages the kernel did not get to as
    /// they are. `addresses` and `status` have the same length.
    fn call(&self, process: ProcessId, addresses: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call;
}

/// The running kernel. Moves with MPOL_MF_MOVE only: pages that others map stay.
#[derive(Clone, Debug, Default)]
pub struct LinuxMovePages {
    /// CPUs by node.
    cpus: BTreeMap<NodeId, Vec<CpuId>>,
}

impl LinuxMovePages {
    /// The kernel of a machine with these nodes.
    pub fn new(topology: &Topology) -> Self {
        Self { cpus: topology.nodes.values().map(|node| (node.id, node.cpus.clone())).collect() }
    }
}

impl MovePages for LinuxMovePages {
    fn see_machine(&mut self, topology: &Topology) {
        *self = Self::new(topology);
    }

    fn go_near(&self, node: NodeId) {
        // SAFETY: an all-zero set is an empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        let fits = |cpu: &&CpuId| (cpu.0 as usize) < libc::CPU_SETSIZE as usize;
        let cpus: Vec<&CpuId> = self.cpus.get(&node).into_iter().flatten().filter(fits).collect();
        for cpu in &cpus {
            // SAFETY: the CPU is within the set.
            unsafe { libc::CPU_SET(cpu.0 as usize, &mut set) };
        }
        if cpus.is_empty() {
            return;
        }
        // SAFETY: the kernel reads the set, for this thread.
        let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
        if result != 0 {
            // The pages come all the same, only the way is longer.
            tracing::debug!("not near node {}: {}", node.0, std::io::Error::last_os_error());
        }
    }

    fn program(&self, process: ProcessId) -> Option<ProgramId> {
        ProgramId::read(Path::new("/proc"), process.0)
    }

    fn call(&self, process: ProcessId, addresses: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call {
        assert_eq!(addresses.len(), status.len(), "one status a page");
        // To the kernel pid 0 is the caller, and negative numbers are no process.
        let pid = match libc::pid_t::try_from(process.0) {
            Ok(pid) if pid > 0 => pid,
            _ => return Call { result: Err(CallError::ProcessGone), time_ns: 0 },
        };
        let nodes = match to.map(|node| i32::try_from(node.0)) {
            None => None,
            Some(Ok(node)) => Some(vec![node; addresses.len()]),
            Some(Err(_)) => return Call { result: Err(CallError::NoSuchNode), time_ns: 0 },
        };
        let nodes = nodes.as_ref().map_or(std::ptr::null(), |nodes| nodes.as_ptr());
        let begin_ns = thread_cpu_ns();
        // SAFETY: all three arrays have `addresses.len()` elements (or `nodes` is null, which asks only) and live
        // through the call; the kernel writes to `status` alone and never dereferences the addresses for us.
        let returned = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                pid,
                addresses.len(),
                addresses.as_ptr(),
                nodes,
                status.as_mut_ptr(),
                MPOL_MF_MOVE,
            )
        };
        let result = u64::try_from(returned)
            .map_err(|_| CallError::from_errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)));
        Call { result, time_ns: thread_cpu_ns() - begin_ns }
    }
}

/// CPU time of this thread.
pub(crate) fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    let read = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(read, 0, "every thread has a CPU clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::PAGE_BYTES;

    use super::*;

    /// A mapping of its own; `touched` writes to every page.
    struct Pages(*mut libc::c_void, usize);

    impl Pages {
        fn new(count: usize, touched: bool) -> Self {
            let bytes = count * PAGE_BYTES as usize;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new private mapping; the kernel chooses where.
            let start = unsafe {
                libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
            };
            assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
            if touched {
                // SAFETY: `start` has `bytes` writable bytes.
                unsafe { start.cast::<u8>().write_bytes(1, bytes) };
            }
            Self(start, bytes)
        }

        fn addresses(&self, count: usize) -> Vec<u64> {
            (0..count as u64).map(|page| self.0 as u64 + page * PAGE_BYTES).collect()
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: mapped in `new` with this length, and nobody else has it.
            let result = unsafe { libc::munmap(self.0, self.1) };
            assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        }
    }

    fn call(process: u32, addresses: &[u64], to: Option<u32>) -> (Result<u64, CallError>, Vec<PageStatus>) {
        let mut raw = vec![UNWRITTEN; addresses.len()];
        let call = LinuxMovePages::default().call(ProcessId(process), addresses, to.map(NodeId), &mut raw);
        (call.result, raw.into_iter().map(PageStatus::from_raw).collect())
    }

    #[test]
    fn own_touched_pages_are_on_a_node_and_stay_when_moved_there() {
        let pages = Pages::new(4, true);
        let addresses = pages.addresses(4);
        let me = std::process::id();
        let (result, statuses) = call(me, &addresses, None);
        assert_eq!(result, Ok(0));
        let PageStatus::On(node) = statuses[0] else { panic!("{statuses:?}") };
        if !std::path::Path::new("/sys/devices/system/node/node1").exists() {
            assert_eq!(node, NodeId(0), "a machine with one node has node 0");
        }
        let (result, moved) = call(me, &addresses[..1], Some(node.0));
        assert_eq!((result, moved), (Ok(0), vec![PageStatus::On(node)]));
    }

    #[test]
    fn an_untouched_page_is_absent_and_no_mapping_is_invalid() {
        let pages = Pages::new(4, false);
        let (result, statuses) = call(std::process::id(), &pages.addresses(1), None);
        assert_eq!((result, statuses), (Ok(0), vec![PageStatus::Absent]));
        let (result, statuses) = call(std::process::id(), &[PAGE_BYTES], None);
        assert_eq!((result, statuses), (Ok(0), vec![PageStatus::Invalid]));
    }

    #[test]
    fn a_missing_process_is_gone_and_pid_0_is_not_the_caller() {
        for process in [0, 0x3fff_ffff, u32::MAX] {
            assert_eq!(call(process, &[PAGE_BYTES], None).0, Err(CallError::ProcessGone));
            assert_eq!(LinuxMovePages::default().program(ProcessId(process)), None);
        }
    }

    #[test]
    fn a_process_that_has_ended_and_is_not_reaped_yet_is_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let zombie = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") Z ");
        while !zombie() {
            std::thread::yield_now();
        }
        assert_eq!(call(child.id(), &[PAGE_BYTES], None).0, Err(CallError::ProcessGone));
        let program = |process| LinuxMovePages::default().program(ProcessId(process)).expect("it has its number still");
        let (its, own) = (program(child.id()), program(std::process::id()));
        assert_eq!((its.code_start, its.stack_start), (0, 0), "it runs none");
        assert!(own.code_start > 0 && own.stack_start > 0);
        child.wait().unwrap();
    }

    #[test]
    fn a_node_that_does_not_exist_is_refused() {
        let pages = Pages::new(1, true);
        for node in [999, u32::MAX] {
            assert_eq!(call(std::process::id(), &pages.addresses(1), Some(node)).0, Err(CallError::NoSuchNode));
        }
    }

    #[test]
    fn every_status_keeps_its_meaning() {
        let expected = [
            (3, PageStatus::On(NodeId(3))),
            (-libc::EBUSY, PageStatus::Busy),
            (UNWRITTEN, PageStatus::Busy),
            (-libc::ENOENT, PageStatus::Absent),
            (-libc::EACCES, PageStatus::Shared),
            (-libc::ENOMEM, PageStatus::NoMemory),
            (-libc::EFAULT, PageStatus::Invalid),
            (-libc::EINVAL, PageStatus::Invalid),
            (-libc::EIO, PageStatus::Other(libc::EIO)),
        ];
        for (raw, status) in expected {
            assert_eq!(PageStatus::from_raw(raw), status, "raw {raw}");
        }
    }
}
