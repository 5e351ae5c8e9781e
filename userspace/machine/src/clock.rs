// SPDX-License-Identifier: GPL-2.0-only
//! Clocks that every Linux system has.

/// The present time on CLOCK_MONOTONIC, which samples, snapshots and births of memory are dated by.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// CPU time of all threads of this process.
pub fn process_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of this thread.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    let read = unsafe { libc::clock_gettime(clock, &raw mut time) };
    assert_eq!(read, 0, "clock {clock} is readable");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
