// SPDX-License-Identifier: GPL-2.0-only
//! What the in-guest tests share: a running scx_tandem, threads that use a CPU, memory, and waiting for conditions.

mod bound;
mod control_group;
mod hog;
mod memory;
mod scheduler;
mod worker;

use std::fs;
use std::time::{Duration, Instant};

use tandem_bpf::{Assignment, Scheduler, TaskRecord};
use tandem_policies::model::NodeIndex;

pub use bound::Bound;
pub use control_group::ControlGroup;
pub use hog::Hog;
pub use memory::{Memory, homes, homes_in_words};
pub use scheduler::{Failed, Scx, enable_seq, program, scx_tandem_fails, state, unload};
pub use worker::Worker;

/// Emulated guests are slow and share the host: conditions get this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `condition` holds.
///
/// # Panics
/// If it does not within two minutes; `what` says what was waited for.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "not within {} s: {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What a thread of this process ran so far, by the kernel's account.
///
/// # Panics
/// If there is no such thread.
pub fn run_ns(tid: u32) -> u64 {
    let counts = fs::read_to_string(format!("/proc/{tid}/schedstat")).expect("the kernel counts run time");
    counts.split(' ').next().and_then(|ns| ns.parse().ok()).expect("the run time comes first")
}

/// What each of these threads runs within the next `window`, in ns, and how long that was.
///
/// # Panics
/// If the scheduler does not know one of them.
pub fn watch_tasks(tids: &[u32], scheduler: &Scheduler, window: Duration) -> (Vec<u64>, Duration) {
    let run_times_ns = || -> Vec<u64> {
        let tasks = scheduler.tasks().expect("tasks can be read");
        let record =
            |tid: u32| tasks.iter().find(|task| task.tid == tid).expect("the scheduler knows a running thread");
        tids.iter().map(|&tid| record(tid).run_ns.iter().sum()).collect()
    };
    let (before, start) = (run_times_ns(), Instant::now());
    std::thread::sleep(window);
    let (after, elapsed) = (run_times_ns(), start.elapsed());
    (after.iter().zip(before).map(|(after, before)| after - before).collect(), elapsed)
}

/// The first assignment of a task, right in every field: to this node, from now on for so long.
pub fn assignment(record: &TaskRecord, node: NodeIndex, lasts: Duration) -> Assignment {
    Assignment {
        tid: record.tid,
        start_boottime_ns: record.start_boottime_ns,
        node: Some(node.0 as u32),
        generation: 1,
        expires_ns: monotonic_ns() + lasts.as_nanos() as u64,
    }
}

/// How often something happened since the scheduler was loaded.
///
/// # Panics
/// If there is no such event.
pub fn event(scheduler: &Scheduler, name: &str) -> u64 {
    let statistics = scheduler.statistics().expect("statistics");
    statistics.events().find(|&(event, _)| event == name).expect("an event of this name").1
}

/// What the kernel has traced.
pub const TRACE: &str = "/sys/kernel/tracing/trace";

/// Lets the kernel trace an event, `GROUP/EVENT`, into an empty [`TRACE`], or stops that.
///
/// # Panics
/// If the kernel does not.
pub fn trace(event: &str, on: bool) {
    let switch = format!("/sys/kernel/tracing/events/{event}/enable");
    if on {
        std::fs::write(TRACE, "").expect("the trace can be emptied");
    }
    std::fs::write(&switch, if on { "1" } else { "0" }).unwrap_or_else(|error| panic!("{switch}: {error}"));
}

/// CLOCK_MONOTONIC.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A file of the kernel's, trimmed.
///
/// # Panics
/// If it cannot be read.
pub fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}

/// Gives a thread a nice level.
///
/// # Panics
/// If the kernel refuses.
pub fn set_nice(tid: u32, level: i32) {
    // SAFETY: a plain system call.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid, level) };
    assert_eq!(result, 0, "setpriority: {}", std::io::Error::last_os_error());
}

/// Restricts a thread to some CPUs.
///
/// # Panics
/// If the kernel refuses.
pub fn set_affinity(tid: u32, cpus: &[u32]) {
    // SAFETY: an all-zero set is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        // SAFETY: the set has room for every CPU of a guest.
        unsafe { libc::CPU_SET(cpu as usize, &mut set) };
    }
    // SAFETY: the set lives through the call.
    let result = unsafe { libc::sched_setaffinity(tid as libc::pid_t, size_of_val(&set), &set) };
    assert_eq!(result, 0, "sched_setaffinity: {}", std::io::Error::last_os_error());
}

/// The CPUs that the calling thread may use; it may use these again when this is dropped.
pub struct OwnAffinity(libc::cpu_set_t);

impl OwnAffinity {
    /// What it is now.
    ///
    /// # Panics
    /// If the kernel does not tell.
    pub fn keep() -> Self {
        // SAFETY: an all-zero set is the empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes the set.
        let result = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
        assert_eq!(result, 0, "sched_getaffinity: {}", std::io::Error::last_os_error());
        Self(set)
    }
}

impl Drop for OwnAffinity {
    fn drop(&mut self) {
        // SAFETY: the set lives through the call.
        let result = unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &self.0) };
        if result != 0 {
            println!("the affinity of before cannot be set: {}", std::io::Error::last_os_error());
        }
    }
}

/// Puts a thread into the class SCHED_EXT.
///
/// # Panics
/// If the kernel refuses.
pub fn set_sched_ext(tid: u32) {
    const SCHED_EXT: i32 = 7;
    set_scheduler(tid, SCHED_EXT, 0);
}

/// Makes a thread one of the kernel's fair class, as threads are by default. 0 is the calling one.
///
/// # Panics
/// If the kernel refuses.
pub fn set_fair(tid: u32) {
    set_scheduler(tid, libc::SCHED_OTHER, 0);
}

/// Makes a thread a real-time one, of the lowest priority: it runs until it sleeps or something more urgent comes.
///
/// # Panics
/// If the kernel refuses.
pub fn set_first_in_first_out(tid: u32) {
    set_scheduler(tid, libc::SCHED_FIFO, 1);
}

fn set_scheduler(tid: u32, policy: i32, sched_priority: i32) {
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: the parameters live through the call.
    let result = unsafe { libc::sched_setscheduler(tid as libc::pid_t, policy, &parameters) };
    assert_eq!(result, 0, "sched_setscheduler: {}", std::io::Error::last_os_error());
}
