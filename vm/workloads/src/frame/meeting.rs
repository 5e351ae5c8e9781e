// SPDX-License-Identifier: GPL-2.0-only
//! Where the threads of a program wait for each other.
//!
//! Straight on futex(2): who comes early sleeps at once. The standard library's barrier spins first, and what spinning
//! costs is the least certain part of an emulated machine. A thread that fails breaks the meeting up, so that nobody
//! waits for it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A place to meet, any number of times.
pub struct Meeting {
    expected: u32,
    arrived: AtomicU32,
    /// Counts the meetings that are over; what sleepers wait on.
    over: AtomicU32,
    is_broken: AtomicBool,
}

impl Meeting {
    /// A meeting of so many threads.
    pub fn of(threads: usize) -> Self {
        let expected = u32::try_from(threads).expect("fewer threads than 2^32");
        Self { expected, arrived: AtomicU32::new(0), over: AtomicU32::new(0), is_broken: AtomicBool::new(false) }
    }

    /// Returns when all threads have come, or when the meeting is broken up.
    pub fn wait(&self) {
        let over = self.over.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.expected {
            self.arrived.store(0, Ordering::Relaxed);
            self.end();
        }
        while self.over.load(Ordering::Acquire) == over && !self.is_broken.load(Ordering::Acquire) {
            let (address, no_timeout) = (self.over.as_ptr(), std::ptr::null::<libc::timespec>());
            // SAFETY: the kernel compares the word, which lives as long as `self`, and sleeps while it is `over`.
            unsafe {
                libc::syscall(libc::SYS_futex, address, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, over, no_timeout)
            };
        }
    }

    /// Lets everybody go, now and in future.
    pub fn break_up(&self) {
        self.is_broken.store(true, Ordering::Release);
        self.end();
    }

    fn end(&self) {
        self.over.fetch_add(1, Ordering::AcqRel);
        // SAFETY: wakes sleepers on a word of ours; the kernel only uses its address.
        unsafe {
            libc::syscall(libc::SYS_futex, self.over.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn nobody_is_a_meeting_ahead_of_anybody() {
        let (meeting, come) = (Meeting::of(4), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 1..=2000 {
                        come.fetch_add(1, Ordering::SeqCst);
                        meeting.wait();
                        let now = come.load(Ordering::SeqCst);
                        assert!((4 * round..=4 * round + 3).contains(&now), "{now} arrivals in round {round}");
                        meeting.wait();
                    }
                });
            }
        });
    }

    #[test]
    fn a_broken_meeting_lets_everybody_go() {
        let meeting = Meeting::of(3);
        std::thread::scope(|scope| {
            scope.spawn(|| meeting.wait());
            scope.spawn(|| meeting.wait());
            meeting.break_up();
        });
        meeting.wait();
    }
}
