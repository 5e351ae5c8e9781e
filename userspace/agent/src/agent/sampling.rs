// SPDX-License-Identifier: GPL-2.0-only
//! What happens while an interval passes: samples, page moves, signs of life, and looks at what ends it early.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::Result;
use tandem_bpf::TaskRecord;
use tandem_policies::model::{ProcessId, ThreadId};
use tandem_sense::{monotonic_ns, thread_cpu_ns};

use super::observing::id_of;
use super::{Agent, Ended, Order};
use crate::cost::Work;
use crate::report::Report;

/// Time between two looks at the samples: what is behind a sample must be read while it is fresh.
pub(super) const TICK: Duration = Duration::from_millis(20);
/// The same while more is waited for: threads came or turned to other memory, and too little is known of them to decide. Of each
/// the newest sample counts alone, so that looks are no more than the times that samples are looked at.
const LEARNING_TICK: Duration = Duration::from_millis(10);
/// Share of its budget that sampling takes, and time between two looks at the samples, while it is calm and threads are known well.
const CALM_SHARE: f64 = 0.5;
const CALM_TICK: Duration = Duration::from_millis(40);
/// How many times as much must be known of each thread as decisions take until samples may be fewer, and as long as they are: at half
/// the budget half as much is known after a while.
const KNOWN_WELL: f64 = 2.0;
const KNOWN_STILL: f64 = 1.25;
/// CPU time after which a thread that was not there before counts as one that works.
const WORKS_NS: u64 = 5_000_000;
/// Time between two signs of life.
const SIGN_OF_LIFE_NS: u64 = 1_000_000_000;

impl Agent {
    /// Lets an interval pass, looking at samples and moving pages meanwhile, unless the run ends in it.
    pub(super) fn pass_interval(
        &mut self,
        orders: &Receiver<Order>,
        start_ns: u64,
        report: &mut Report,
    ) -> Result<Option<Ended>> {
        let end_ns = start_ns + self.pace.interval().as_nanos() as u64;
        let mut next_look_ns = self.pace.early_look().map(|after| start_ns + after.as_nanos() as u64);
        let mut next_turn_ns = self.pace.turn_look().map(|after| start_ns + after.as_nanos() as u64);
        loop {
            let now_ns = monotonic_ns();
            if now_ns >= end_ns {
                return Ok(None);
            }
            if let (Some(look_ns), Some(after)) = (next_look_ns, self.pace.early_look())
                && now_ns >= look_ns
            {
                let work = self.new_threads_work()?;
                report.cost.charge(Work::Look);
                if work {
                    return Ok(None);
                }
                next_look_ns = Some(now_ns + after.as_nanos() as u64);
            }
            if next_turn_ns.is_some_and(|turn_ns| now_ns >= turn_ns) {
                let turned = self.sees_turn();
                report.cost.charge(Work::Look);
                if turned {
                    return Ok(None);
                }
                next_turn_ns = self.pace.turn_look().map(|after| now_ns + after.as_nanos() as u64);
            }
            if now_ns >= self.alive_ns + SIGN_OF_LIFE_NS {
                self.alive_ns = now_ns;
                (self.config.alive)();
            }
            // Samples are looked at between two runs of the mover, however much there is to move.
            let pause = if self.mover.is_ready(now_ns) { Duration::ZERO } else { self.tick };
            let next_ns = [next_look_ns, next_turn_ns].into_iter().flatten().fold(end_ns, u64::min);
            match orders.recv_timeout(pause.min(Duration::from_nanos(next_ns.saturating_sub(now_ns)))) {
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(Some(Ended::Stopped)),
                Ok(Order::Reload) => return Ok(Some(Ended::Reload)),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.scheduler.exit(|_, _| ())?.is_some() {
                return Ok(Some(Ended::SchedulerLeft));
            }
            self.keep_leases(report)?;
            report.cost.charge(Work::Tick);
            self.sensor.sample(monotonic_ns())?;
            report.cost.charge(Work::Sample);
            self.keep_leases(report)?;
            self.move_pages(report);
            report.cost.charge(Work::Move);
        }
    }

    /// Whether there are managed threads that work and did not before. Their processes are sampled from now on.
    fn new_threads_work(&mut self) -> Result<bool> {
        let made = self.scheduler.statistics()?.tasks_made();
        if made == self.tasks_made {
            return Ok(false);
        }
        let tasks = self.scheduler.tasks()?;
        let managed = self.config.managed.select(&tasks, std::process::id());
        self.sensor.set_managed(managed.iter().copied().map(ProcessId).collect());
        let works = |task: &TaskRecord| {
            let id = id_of(task);
            let before_ns: u64 = self.ran_ns.get(&id).map_or(0, |nodes| nodes.iter().sum());
            !self.pace.knows(id) && task.run_ns.iter().sum::<u64>() >= before_ns + WORKS_NS
        };
        Ok(tasks.iter().any(|task| managed.contains(&task.process) && works(task)))
    }

    /// Whether samples show that a thread turned to other memory.
    fn sees_turn(&mut self) -> bool {
        let before_ns = thread_cpu_ns();
        let turned = self.sensor.sees_turn(monotonic_ns());
        self.pace.note_turn_look(thread_cpu_ns() - before_ns, turned);
        turned
    }

    /// Looks at samples often while it `learns`, and takes fewer where nothing stirs and the threads that work are known well.
    pub(super) fn sample_as_often_as_needed(&mut self, learns: bool, works: BTreeSet<ThreadId>) {
        let times = if self.spares_samples { KNOWN_STILL } else { KNOWN_WELL };
        self.spares_samples = self.pace.is_calm() && !learns && self.sensor.knows_well(works, times);
        self.tick = match learns {
            true => LEARNING_TICK,
            false if self.spares_samples => CALM_TICK,
            false => TICK,
        };
        self.sensor.take_share(if self.spares_samples { CALM_SHARE } else { 1.0 });
    }
}
