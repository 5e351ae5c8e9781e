// SPDX-License-Identifier: GPL-2.0-only
//! The loop.

mod acting;
mod contesting;
mod handover;
mod moving;
mod observing;
mod sampling;
mod telling;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::Result;
use tandem_act::{Assignments, Contested, Cooldowns, Generation, MemoryWatch, Migrations, PageMover, Stuck};
use tandem_bpf::Scheduler;
use tandem_policies::decider::{Decider, PolicyChoice};
use tandem_policies::model::{Snapshot, ThreadId, Topology, Unmovable};
use tandem_sense::{Sensor, monotonic_ns, thread_cpu_ns};
use tandem_trace::{Answer, Decision};
use tracing::debug;

use crate::config::AgentConfig;
use crate::contests::ContestTalk;
use crate::cost::Work;
use crate::leases::{self, busy, just_began, wander};
use crate::managed::{ControlGroups, ProcessMemories, ProgramWatch};
use crate::pace::{Pace, Step};
use crate::parts::Turned;
use crate::patience::Patience;
use crate::reasons::Reasons;
use crate::record::{self, Notes};
use crate::report::Report;
use crate::rest::Rest;
use crate::steps::Steps;
use crate::talk::Talk;
use crate::trials::{Actuators, Trials};

pub use handover::Handover;

/// Threads and groups whose cooldowns are remembered.
const COOLDOWNS: usize = 65_536;
/// A plan that was undone, or groups that the kernel did not move, are not tried again for this many cooldowns.
const HOLD_COOLDOWNS: u64 = 6;
/// Bound of the policies' search: they search as long as they would.
const STEPS: u64 = u64::MAX;

/// What a running agent may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Withdraw everything and end.
    Stop,
    /// End, so that an agent with another configuration may take over. Assignments stay until their leases end.
    Reload,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to stop.
    Stopped,
    /// It was told to make room for another one. It may be run again.
    Reload,
    /// CPUs or nodes came or went: what it knows of the machine is not true any more.
    MachineChanged,
    /// The kernel ejected the scheduler.
    SchedulerLeft,
}

/// An agent of a loaded scheduler.
pub struct Agent {
    config: AgentConfig,
    topology: Topology,
    scheduler: Scheduler,
    sensor: Sensor,
    mover: Box<dyn PageMover>,
    memory: MemoryWatch,
    stuck: Stuck,
    contested: Contested,
    migrations: Migrations,
    contest_talk: ContestTalk,
    assignments: Assignments,
    cooldowns: Cooldowns,
    generation: Generation,
    /// Run time of each thread when it was last read, of those too that are not managed yet: what they ran before is not
    /// of the interval in which they come to be.
    ran_ns: BTreeMap<ThreadId, Vec<u64>>,
    /// Partner of each thread, and how often that one had woken it, when they were last read.
    partners: BTreeMap<ThreadId, (u32, u64)>,
    /// When that was, and how many tasks the scheduler had been told of.
    observed_ns: u64,
    tasks_made: u64,
    control_groups: ControlGroups,
    process_memories: ProcessMemories,
    programs: ProgramWatch,
    trials: Trials,
    talk: Talk,
    pace: Pace,
    rest: Rest,
    steps: Steps,
    /// Reasons of the moves under way.
    reasons: Reasons,
    /// When all leases were last renewed.
    renewed_ns: u64,
    last_stats_ns: u64,
    /// The policies in the order in which they are asked, threads first, with what they remember.
    decider: Decider,
    /// What they said last of what they are doing.
    statements: Vec<Option<String>>,
    /// What the decider said last of nodes that are faster or slower than is stated of them.
    speeds: Option<String>,
    /// What became of plans, for the recording.
    notes: Notes,
    /// Plans made so far.
    plans: u64,
    patience: Patience,
    /// Time to the next look at the samples.
    tick: Duration,
    /// Samples are fewer.
    spares_samples: bool,
    /// When it was made.
    started_ns: u64,
    /// When it last gave a sign of life.
    alive_ns: u64,
}

impl Agent {
    /// An agent of the machine that `sensor` was opened for, which has decided nothing yet. Assignments of an agent before
    /// it go on until their leases end; it goes on with what that one handed over.
    pub fn new(
        mut config: AgentConfig,
        topology: Topology,
        scheduler: Scheduler,
        sensor: Sensor,
        before: Option<Handover>,
    ) -> Self {
        let mover_config = config.mover_config();
        if let Some(before) = &before {
            config.managed = config.managed.after(&before.managed);
        }
        let Handover { mover, cooldowns, programs, trials, .. } =
            Handover::adapted(before, config.mover, &topology, mover_config);
        // Later than anything an agent before this one decided: its generations count from the clock too.
        let generation = Generation(monotonic_ns());
        let decider = Decider::new(config.policies.clone());
        let is_quick = config.policies.iter().all(PolicyChoice::is_quick);
        let cpus = topology.nodes.values().map(|node| node.cpus.len()).sum();
        if let Some(recorder) = &config.recorder {
            recorder.settings(record::settings(&config, &decider, sensor.name(), STEPS));
        }
        Self {
            assignments: Assignments::new(config.lease.as_nanos() as u64),
            mover,
            memory: MemoryWatch::new(Path::new("/proc"), mover_config),
            cooldowns,
            stuck: Stuck::new(COOLDOWNS, config.cooldown.as_nanos() as u64 * HOLD_COOLDOWNS),
            contested: Contested::new(COOLDOWNS, config.cooldown.as_nanos() as u64 * HOLD_COOLDOWNS),
            migrations: Migrations::new(Path::new("/proc")),
            contest_talk: ContestTalk::default(),
            ran_ns: BTreeMap::new(),
            partners: BTreeMap::new(),
            observed_ns: monotonic_ns(),
            tasks_made: 0,
            control_groups: ControlGroups::default(),
            process_memories: ProcessMemories::new(Path::new("/proc")),
            programs,
            trials,
            talk: Talk::new(monotonic_ns()),
            pace: Pace::new(config.interval, is_quick, cpus),
            rest: Rest::new(config.cooldown, is_quick, COOLDOWNS),
            steps: Steps::default(),
            reasons: Reasons::default(),
            renewed_ns: monotonic_ns(),
            last_stats_ns: monotonic_ns(),
            decider,
            statements: Vec::new(),
            speeds: None,
            notes: Notes::new(config.recorder.clone()),
            plans: 0,
            patience: Patience::new(config.interval),
            tick: sampling::TICK,
            spares_samples: false,
            started_ns: monotonic_ns(),
            alive_ns: 0,
            config,
            topology,
            scheduler,
            sensor,
            generation,
        }
    }

    /// The scheduler it works with.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Works until it gets an order or the scheduler leaves.
    pub fn run(&mut self, orders: &Receiver<Order>, report: &mut Report) -> Result<Ended> {
        if report.loaded_at_ns == 0 {
            report.loaded_at_ns = monotonic_ns();
        }
        report.cost.begin();
        self.observe_tasks(report)?;
        self.adopt_leases()?;
        // What an agent before this one assigned may end before the first interval does.
        self.renew_leases(report)?;
        let ended = loop {
            if let Some(ended) = self.work_interval(orders, report)? {
                break ended;
            }
        };
        match ended {
            Ended::Stopped => self.finish(report)?,
            Ended::Reload | Ended::MachineChanged | Ended::SchedulerLeft => {}
        }
        Ok(ended)
    }

    /// One interval, and what follows from it: sense, verify, decide, act, tell; unless the run ends in it.
    fn work_interval(&mut self, orders: &Receiver<Order>, report: &mut Report) -> Result<Option<Ended>> {
        if let Some(ended) = self.pass_interval(orders, monotonic_ns(), report)? {
            return Ok(Some(ended));
        }
        if self.machine_changed()? {
            return Ok(Some(Ended::MachineChanged));
        }
        let before_ns = thread_cpu_ns();
        let is_pressed = self.is_pressed(report);
        let snapshot = match self.sense(is_pressed, report) {
            Ok(snapshot) => snapshot,
            // Since it was looked at above.
            Err(_) if self.machine_changed()? => return Ok(Some(Ended::MachineChanged)),
            Err(error) => return Err(error),
        };
        report.cost.charge(Work::Sense);
        report.intervals += 1;
        let undone = self.verify(&snapshot, report);
        report.cost.charge(Work::Verify);
        let waits = self.waits_for_more(&snapshot);
        let is_enough = self.patience.is_enough(&snapshot);
        let learns = waits || self.patience.is_new(snapshot.time_ns);
        // What was undone is where it was only once it has gone back: a plan made before would bring it back again.
        let may_decide = !undone && self.is_settled() && is_enough && !waits;
        let decision = if may_decide { Some(self.decide_and_act(&snapshot, report)?) } else { None };
        self.renew_leases(report)?;
        let step = if may_decide && !self.trials.is_any_on_trial() { Step::Quiet } else { Step::Moving };
        let works: BTreeSet<ThreadId> = busy(&snapshot).map(|thread| thread.id).collect();
        let threads = snapshot.threads.iter().map(|thread| (thread.id, works.contains(&thread.id)));
        self.pace.note(monotonic_ns(), threads, step, thread_cpu_ns() - before_ns);
        self.sample_as_often_as_needed(learns, works);
        report.cost.charge(Work::Act);
        self.update_report(&snapshot, report)?;
        report.cost.charge(Work::Tell);
        self.notes.record(snapshot, decision);
        Ok(None)
    }

    /// Whether a decision waits for what is not known yet: of threads that turned to other memory, or that do not stay where they are.
    fn waits_for_more(&mut self, snapshot: &Snapshot) -> bool {
        let hardly_seen = busy(snapshot).any(|thread| self.sensor.is_hardly_seen_since_turn(thread.id));
        let waits = self.pace.waits_for_more(hardly_seen, just_began(snapshot));
        // Asked in any case: it counts the intervals in which they do.
        self.pace.waits_for_wanderers(wander(snapshot)) || waits
    }

    /// Looks at the plan on trial, and undoes what of it made things worse; returns whether anything did.
    fn verify(&mut self, snapshot: &Snapshot, report: &mut Report) -> bool {
        let turned = if self.pace.is_quick() { Turned::of(snapshot) } else { Turned::default() };
        let undone = self.with_trials(report, |trials, by, report| trials.verify(snapshot, &turned, by, report));
        self.decider.note_undone_if(undone);
        undone
    }

    /// Whether no plan is on trial, and nothing is on its way back.
    fn is_settled(&self) -> bool {
        !self.trials.is_any_on_trial() && !self.trials.is_going_back(self.mover.as_ref(), monotonic_ns())
    }

    /// Does something about the plans that are watched, and notes what became of their page moves by that.
    fn with_trials<T>(
        &mut self,
        report: &mut Report,
        act: impl FnOnce(&mut Trials, &mut Actuators, &mut Report) -> T,
    ) -> T {
        let mut by = Actuators {
            now_ns: monotonic_ns(),
            topology: &self.topology,
            mover: self.mover.as_mut(),
            assignments: &mut self.assignments,
            cooldowns: &mut self.cooldowns,
            generation: &mut self.generation,
            notes: &mut self.notes,
            hold_ns: self.config.cooldown.as_nanos() as u64 * HOLD_COOLDOWNS,
            ended: Vec::new(),
        };
        let done = act(&mut self.trials, &mut by, report);
        let ended = by.ended;
        self.note_outcomes(ended, report);
        done
    }

    /// Decides and carries out what was decided.
    fn decide_and_act(&mut self, snapshot: &Snapshot, report: &mut Report) -> Result<Decision> {
        let mut decision = self.decide(snapshot);
        report.cost.charge(Work::Decide);
        // What is queued from now on is not what was given up.
        self.keep_leases(report)?;
        self.note_statements(report);
        decision.generation = self.carry_out(snapshot, &decision, report);
        Ok(decision)
    }

    /// What is known now; under memory pressure no pages can be moved.
    fn sense(&mut self, is_pressed: bool, report: &mut Report) -> Result<Snapshot> {
        // CPU times are since the last look, which was before the last decision and all that came of it.
        let start_ns = self.observed_ns;
        let accounts = self.observe_tasks(report)?;
        tandem_machine::refresh_free_memory(&mut self.topology, None)?;
        let now_ns = monotonic_ns();
        let (cooldowns, mover, stuck, contested) = (&self.cooldowns, &self.mover, &self.stuck, &self.contested);
        let mut snapshot = self.sensor.snapshot(&self.topology, accounts, start_ns, now_ns, |group, bytes| {
            if contested.is_resting(group, bytes, now_ns) {
                return Some(Unmovable::Contested);
            }
            let cooling = mover.is_held(group, bytes, now_ns) || cooldowns.is_group_cooling(group, bytes, now_ns);
            let resting = cooling.then_some(Unmovable::Cooldown).or_else(|| stuck.why(group, bytes, now_ns));
            resting.or(is_pressed.then_some(Unmovable::MemoryPressure))
        });
        snapshot.page_move_ns = mover.cost_ns_per_page();
        snapshot.huge_page_move_ns = mover.cost_ns_per_huge_page();
        snapshot.realised_share = report.expectable_share();
        snapshot.process_memory = self.process_memories.told();
        self.find_contested(&mut snapshot, report.mover.moved_pages);
        self.steps.note(&mut snapshot);
        Ok(snapshot)
    }

    /// Asks the policies.
    fn decide(&mut self, snapshot: &Snapshot) -> Decision {
        // A new seed for each plan, the same in each run.
        let seed = self.config.seed.wrapping_add(self.plans);
        let decision = Decision::new(seed, self.decider.decide(snapshot, seed, STEPS));
        for answer in &decision.answers {
            if let Answer::Missing(missing) = answer {
                debug!("{missing}");
            }
        }
        decision
    }

    /// Renews leases if it is time: moves and samples may take longer than they should.
    fn keep_leases(&mut self, report: &mut Report) -> Result<()> {
        if monotonic_ns() >= self.renewed_ns + self.config.interval.as_nanos() as u64 {
            self.renew_leases(report)?;
        }
        Ok(())
    }

    /// Renews all leases. Where they ran out meanwhile, nothing goes on that counts on them.
    fn renew_leases(&mut self, report: &mut Report) -> Result<()> {
        let before_ns = std::mem::replace(&mut self.renewed_ns, monotonic_ns());
        if leases::ran_out(before_ns, self.config.lease, self.renewed_ns) {
            self.give_up_moves(report);
        }
        for refused in self.assignments.renew(&mut self.scheduler, monotonic_ns())? {
            debug!("thread {}: assignment refused: {}", refused.thread, refused.outcome.name());
            self.notes.refused(refused.thread, refused.outcome.name());
        }
        Ok(())
    }

    /// Withdraws everything, so that the scheduler is as it was before this agent.
    fn finish(&mut self, report: &mut Report) -> Result<()> {
        self.give_up(report);
        let generation = self.generation.advance();
        self.assignments.withdraw_all(generation);
        self.renew_leases(report)
    }
}

#[cfg(test)]
mod growth_tests;
#[cfg(test)]
mod many_groups;
#[cfg(test)]
mod memory_tests;
