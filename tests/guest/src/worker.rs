// SPDX-License-Identifier: GPL-2.0-only
//! A thread that uses all the CPU it gets, for nothing or for something.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use tandem_bpf::{Scheduler, TaskRecord};

use crate::set_nice;

/// A worker that may not run yet.
struct Starting {
    tid: mpsc::Receiver<u32>,
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

/// Ends when it is dropped.
pub struct Worker {
    /// Its thread id.
    pub tid: u32,
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts one that does nothing.
    pub fn start() -> Self {
        Self::nice(0)
    }

    /// Starts one that does nothing, at a nice level.
    ///
    /// # Panics
    /// If the level is refused.
    pub fn nice(level: i32) -> Self {
        Self::start_with(level, || {})
    }

    /// Starts one that does `round` again and again.
    pub fn doing(round: impl FnMut() + Send + 'static) -> Self {
        Self::start_with(0, round)
    }

    /// Starts as many at once, without a rest between them.
    pub fn crowd(threads: usize) -> Vec<Self> {
        let starting: Vec<Starting> = (0..threads).map(|_| Starting::new(0, || {})).collect();
        starting.into_iter().map(Starting::wait).collect()
    }

    fn start_with(level: i32, round: impl FnMut() + Send + 'static) -> Self {
        Starting::new(level, round).wait()
    }

    /// Rounds it has made.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// CPU time it has had so far, to the moment: what the scheduler accounts is as old as the last tick.
    ///
    /// # Panics
    /// If the kernel does not say.
    pub fn cpu_time_ns(&self) -> u64 {
        /// The kernel's clock ids of threads: the id's complement, and that it is a thread's time by the scheduler's account.
        const THREAD_SCHED: i32 = 0b110;
        let clock = (!(self.tid as i32) << 3) | THREAD_SCHED;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes one timespec, and refuses clocks that do not exist.
        let result = unsafe { libc::clock_gettime(clock, &mut time) };
        assert_eq!(result, 0, "clock_gettime: {}", std::io::Error::last_os_error());
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    /// What the scheduler knows of it.
    ///
    /// # Panics
    /// If the scheduler does not know it.
    pub fn record(&self, scheduler: &Scheduler) -> TaskRecord {
        let tasks = scheduler.tasks().expect("tasks can be read");
        tasks.into_iter().find(|task| task.tid == self.tid).expect("the scheduler knows a running thread")
    }
}

impl Starting {
    fn new(level: i32, mut round: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let (send_tid, tid) = mpsc::channel();
        let thread = std::thread::spawn({
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            move || {
                // SAFETY: gettid cannot fail.
                let tid = unsafe { libc::gettid() } as u32;
                set_nice(tid, level);
                send_tid.send(tid).expect("the starter waits");
                while !stop.load(Ordering::Relaxed) {
                    round();
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { tid, stop, rounds, thread }
    }

    fn wait(self) -> Worker {
        let tid = self.tid.recv().expect("the thread starts");
        Worker { tid, stop: self.stop, rounds: self.rounds, thread: Some(self.thread) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a worker does not panic");
        }
    }
}
