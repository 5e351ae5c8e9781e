// SPDX-License-Identifier: GPL-2.0-only
//! A thread that uses all the CPU it gets, for nothing or for something.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use tandem_bpf::{Scheduler, TaskRecord};

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

    fn start_with(level: i32, mut round: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let (send_tid, tid) = mpsc::channel();
        let thread = std::thread::spawn({
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            move || {
                // SAFETY: gettid cannot fail.
                let tid = unsafe { libc::gettid() } as u32;
                // SAFETY: a plain system call on this thread.
                let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid, level) };
                assert_eq!(result, 0, "setpriority: {}", std::io::Error::last_os_error());
                send_tid.send(tid).expect("the starter waits");
                while !stop.load(Ordering::Relaxed) {
                    round();
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { tid: tid.recv().expect("the thread starts"), stop, rounds, thread: Some(thread) }
    }

    /// Rounds it has made.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
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

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a worker does not panic");
        }
    }
}
