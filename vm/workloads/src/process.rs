// SPDX-License-Identifier: GPL-2.0-only
//! One process of the workload `crossed`: its threads from first touch to self-check.

use crate::affinity::Affinity;
use crate::buffer::{Buffer, PageSize};
use crate::placement::StartPlacement;
use crate::topology::Topology;
use crate::truth::{RangeTruth, ThreadTruth};
use crate::worker::{PRIVATE_WEIGHT, SHARED_WEIGHT, Work, Worker};
use anyhow::{Context, Result, anyhow};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// One process's part: its threads, their buffers and where they start.
pub struct Process<'a> {
    /// Bytes of each thread's private buffer.
    pub private_bytes: usize,
    /// Bytes of each pair's shared buffer.
    pub shared_bytes: usize,
    /// Pages of all buffers.
    pub pages: PageSize,
    /// The nodes' usable CPUs.
    pub topology: &'a Topology,
    /// What every thread's affinity is during the measured phase.
    pub affinity: &'a Affinity,
    /// Where this process's threads start.
    pub placements: &'a [StartPlacement],
    /// This process's first thread's number in the workload.
    pub first_thread: usize,
    /// Length of the measured phase.
    pub measured: Duration,
    /// Ends the measured phase early.
    pub stop: &'a AtomicBool,
}

impl Process<'_> {
    /// Initialises all threads, calls `when_ready` with what they touch, then lets them work to the end.
    pub fn run(&self, when_ready: impl FnOnce(Vec<ThreadTruth>) -> Result<()>) -> Result<Vec<Work>> {
        let map = |bytes: usize, count: usize| -> Result<Vec<Buffer>> {
            (0..count).map(|_| Buffer::map(bytes, self.pages)).collect()
        };
        let private = map(self.private_bytes, self.placements.len())?;
        let shared = map(self.shared_bytes, self.placements.len() / 2)?;
        std::thread::scope(|scope| {
            let (mut ready, mut go, mut threads) = (Vec::new(), Vec::new(), Vec::new());
            for (number, placement) in self.placements.iter().enumerate() {
                let (to_main, from_thread) = channel();
                let (to_thread, from_main) = channel();
                let seed = ((self.first_thread + number + 1) as u64).wrapping_mul(0x2545_f491_4f6c_dd1d);
                let worker = Worker { private: &private[number], shared: &shared[number / 2], slot: number % 2, seed };
                threads.push(scope.spawn(move || self.work(&worker, placement, &to_main, &from_main)));
                ready.push(from_thread);
                go.push(to_thread);
            }
            // A thread that fails drops its sender; its own error, from join, says why.
            let initialised: Option<Vec<ThreadTruth>> = ready.iter().map(|thread| thread.recv().ok()).collect();
            let released = match initialised {
                Some(truth) => when_ready(truth),
                None => Err(anyhow!("a thread could not be initialised")),
            };
            if released.is_ok() {
                let deadline = Instant::now() + self.measured;
                for thread in &go {
                    let _already_failed = thread.send(deadline);
                }
            }
            drop(go);
            let results = threads.into_iter().map(|thread| thread.join().expect("a worker never panics"));
            let work = results.collect::<Result<Vec<Option<Work>>>>()?;
            released?;
            Ok(work.into_iter().flatten().collect())
        })
    }

    /// A thread's life; `None` if it was never let go.
    fn work(
        &self,
        worker: &Worker,
        placement: &StartPlacement,
        ready: &Sender<ThreadTruth>,
        go: &Receiver<Instant>,
    ) -> Result<Option<Work>> {
        Affinity::to(self.topology.cpus_of(placement.private)).apply()?;
        worker.private.first_touch();
        if worker.slot == 0 {
            Affinity::to(self.topology.cpus_of(placement.shared)).apply()?;
            worker.shared.first_touch();
        }
        Affinity::to(self.topology.cpus_of(placement.start)).apply()?;
        let range = |buffer: &Buffer, weight| RangeTruth { start: buffer.start(), bytes: buffer.bytes(), weight };
        let truth = ThreadTruth {
            pid: std::process::id() as i32,
            // SAFETY: gettid takes nothing and cannot fail.
            tid: unsafe { libc::gettid() },
            ranges: vec![range(worker.private, PRIVATE_WEIGHT), range(worker.shared, SHARED_WEIGHT)],
        };
        ready.send(truth).context("the process is ending")?;
        // Woken while still bound, so that the measured phase starts on the start node.
        let Ok(deadline) = go.recv() else { return Ok(None) };
        self.affinity.apply()?;
        worker.run(self.stop, deadline).map(Some)
    }
}
