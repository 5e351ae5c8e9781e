// SPDX-License-Identifier: GPL-2.0-only
//! Assigns the threads of a program to nodes, through a loaded scx_tandem that places no threads itself.
//!
//! An assignment is a lease: what is not renewed is over soon, so if this process ends nothing stays.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::unistd::Pid;
use tandem_act::{AssignmentSink, Assignments, Generation};
use tandem_bpf::{AssignOutcome, Pins, Scheduler};
use tandem_machine::{monotonic_ns, process_text};
use tandem_policies::model::{NodeIndex, ThreadId, Topology};
use tandem_tune::placer::Assigner;
use tandem_tune::seat::CpuSet;

/// How long an assignment outlives its last renewal. The scheduler's limit is 600 ms at least.
const LEASE: Duration = Duration::from_millis(500);

/// How often assignments are renewed.
const RENEW_EVERY: Duration = Duration::from_millis(150);

/// A scheduler that can be told assignments, and knows which thread has an id.
pub trait Assigned: AssignmentSink<Error = tandem_bpf::Error> {
    /// Starts (on CLOCK_BOOTTIME, in ns) of the threads that it schedules, by id.
    ///
    /// # Errors
    /// It cannot be asked.
    fn starts(&self) -> Result<BTreeMap<u32, u64>, tandem_bpf::Error>;
}

impl Assigned for Scheduler {
    fn starts(&self) -> Result<BTreeMap<u32, u64>, tandem_bpf::Error> {
        Ok(self.tasks()?.into_iter().map(|task| (task.tid, task.start_boottime_ns)).collect())
    }
}

/// Keeps threads assigned.
pub struct Keeper<S> {
    nodes: Vec<(CpuSet, NodeIndex)>,
    kept: Mutex<Kept<S>>,
}

/// What it assigns, and to whom it says so.
struct Kept<S> {
    scheduler: S,
    assignments: Assignments,
    generation: Generation,
}

/// A thread and its seat.
type Seat = (Pid, CpuSet);

impl Keeper<Scheduler> {
    /// One for the scheduler that is loaded on this machine.
    ///
    /// # Errors
    /// None of ours is loaded.
    pub fn of_loaded(topology: &Topology) -> Result<Self> {
        Ok(Self::new(Scheduler::open(&Pins::default(), topology.len())?, topology))
    }
}

impl<S: Assigned> Keeper<S> {
    fn new(scheduler: S, topology: &Topology) -> Self {
        let nodes = topology.nodes_with_cpus().map(|node| (CpuSet::of_node(topology, node), node)).collect();
        let assignments = Assignments::new(LEASE.as_nanos() as u64);
        Self { nodes, kept: Mutex::new(Kept { scheduler, assignments, generation: Generation::default() }) }
    }

    /// Renews all that is assigned until `over` hangs up.
    ///
    /// # Errors
    /// The scheduler cannot be told.
    pub fn renew_until(&self, over: &Receiver<()>) -> Result<()> {
        while over.recv_timeout(RENEW_EVERY) == Err(RecvTimeoutError::Timeout) {
            // Who has ended is refused. So is whom the program itself has bound elsewhere: that is its own affair.
            self.kept().renew()?;
        }
        Ok(())
    }

    fn kept(&self) -> MutexGuard<'_, Kept<S>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node_of(&self, cpus: &CpuSet) -> Result<NodeIndex> {
        let of = self.nodes.iter().find(|(all, _)| all == cpus);
        of.map(|(_, node)| *node).context("a seat is no node, so no thread can be assigned to it")
    }
}

impl<S: Assigned> Kept<S> {
    /// Assigns these threads to the nodes; who was refused, and why if the scheduler knows it at all.
    fn assign(&mut self, seats: &[(u32, NodeIndex)], starts: &BTreeMap<u32, u64>) -> Result<Vec<Refusal>> {
        let generation = self.generation.advance();
        let (mut refusals, mut asked) = (Vec::new(), BTreeMap::new());
        for &(tid, node) in seats {
            let Some(&start_boottime_ns) = starts.get(&tid) else {
                refusals.push(Refusal { tid, node, outcome: None });
                continue;
            };
            self.assignments.set(ThreadId { tid, start_boottime_ns }, node, generation);
            asked.insert(tid, (start_boottime_ns, node));
        }
        let told = if asked.is_empty() { Vec::new() } else { self.renew()? };
        for (thread, outcome) in told {
            if let Some(&(start, node)) = asked.get(&thread.tid)
                && start == thread.start_boottime_ns
            {
                refusals.push(Refusal { tid: thread.tid, node, outcome: Some(outcome) });
            }
        }
        Ok(refusals)
    }

    fn renew(&mut self) -> Result<Vec<(ThreadId, AssignOutcome)>> {
        let refused = self.assignments.renew(&mut self.scheduler, monotonic_ns())?;
        Ok(refused.into_iter().map(|one| (one.thread, one.outcome)).collect())
    }
}

/// An assignment that was refused.
struct Refusal {
    tid: u32,
    node: NodeIndex,
    /// `None` if the scheduler does not know the thread.
    outcome: Option<AssignOutcome>,
}

impl Refusal {
    fn in_words(&self) -> anyhow::Error {
        let why = self.outcome.map_or("does not schedule it".to_owned(), |one| format!("says {}", one.name()));
        anyhow!("thread {} cannot be assigned to its node: scx_tandem {why}", self.tid)
    }
}

impl<S: Assigned + Send> Assigner for Keeper<S> {
    fn assign(&self, seats: &[Seat]) -> Result<()> {
        let seats: Result<Vec<(u32, NodeIndex)>> =
            seats.iter().map(|(thread, cpus)| Ok((thread.as_raw().cast_unsigned(), self.node_of(cpus)?))).collect();
        let mut kept = self.kept();
        // Reading all threads takes long where there are many: most are assigned already.
        let known = kept.assignments.nodes().map(|(thread, _)| (thread.tid, thread.start_boottime_ns)).collect();
        let refused = kept.assign(&seats?, &known)?;
        if refused.is_empty() {
            return Ok(());
        }
        // New ones, be it with the id of one that has ended.
        let again: Vec<_> = refused.iter().map(|one| (one.tid, one.node)).collect();
        let starts = kept.scheduler.starts()?;
        match kept.assign(&again, &starts)?.iter().find(|one| is_alive(one.tid)) {
            Some(refused) => bail!(refused.in_words()),
            None => Ok(()),
        }
    }
}

/// Whether a thread is there and has not ended.
fn is_alive(tid: u32) -> bool {
    let status = process_text(format!("/proc/{tid}/status").as_ref()).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:\t"));
    state.is_some_and(|state| !state.starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    use tandem_bpf::Assignment;
    use tandem_machine::read_running;

    /// Schedules some threads, refuses some, and notes what it is told.
    #[derive(Default)]
    struct Made {
        starts: BTreeMap<u32, u64>,
        refuses: BTreeMap<u32, AssignOutcome>,
        told: Vec<Vec<(u32, u64, Option<u32>)>>,
    }

    impl AssignmentSink for Made {
        type Error = tandem_bpf::Error;

        fn assign(&mut self, assignments: &[Assignment]) -> Result<Vec<AssignOutcome>, Self::Error> {
            self.told.push(assignments.iter().map(|one| (one.tid, one.start_boottime_ns, one.node)).collect());
            let outcome = |one: &Assignment| match self.starts.get(&one.tid) {
                None => AssignOutcome::NoTask,
                Some(&start) if start != one.start_boottime_ns => AssignOutcome::WrongStart,
                Some(_) => *self.refuses.get(&one.tid).unwrap_or(&AssignOutcome::Applied),
            };
            Ok(assignments.iter().map(outcome).collect())
        }
    }

    impl Assigned for Made {
        fn starts(&self) -> Result<BTreeMap<u32, u64>, tandem_bpf::Error> {
            Ok(self.starts.clone())
        }
    }

    /// One on this machine, and the CPUs of its first node; the calling process stands for a thread that lives.
    fn keeper(starts: &[(u32, u64)]) -> (Keeper<Made>, CpuSet) {
        let topology = read_running().unwrap().topology;
        let cpus = CpuSet::of_node(&topology, topology.nodes_with_cpus().next().unwrap());
        let made = Made { starts: starts.iter().copied().collect(), ..Made::default() };
        (Keeper::new(made, &topology), cpus)
    }

    fn seat(tid: u32, cpus: &CpuSet) -> Seat {
        (Pid::from_raw(tid.cast_signed()), cpus.clone())
    }

    #[test]
    fn threads_are_assigned_with_their_starts_and_go_on_being_so() {
        let (keeper, cpus) = keeper(&[(7, 70), (8, 80)]);
        keeper.assign(&[seat(7, &cpus)]).unwrap();
        keeper.assign(&[seat(8, &cpus)]).unwrap();
        let (over, wait) = mpsc::channel();
        std::thread::scope(|scope| {
            let renewing = scope.spawn({
                let keeper = &keeper;
                move || keeper.renew_until(&wait)
            });
            while keeper.kept().scheduler.told.len() < 3 {
                std::thread::yield_now();
            }
            drop(over);
            renewing.join().unwrap().unwrap();
        });
        let told = &keeper.kept().scheduler.told;
        assert_eq!(told[0], [(7, 70, Some(0))]);
        assert!(told.len() > 2 && told[1..].iter().all(|one| *one == [(7, 70, Some(0)), (8, 80, Some(0))]), "{told:?}");
    }

    #[test]
    fn an_id_that_another_thread_has_now_is_that_thread() {
        let (keeper, cpus) = keeper(&[(7, 70)]);
        keeper.assign(&[seat(7, &cpus)]).unwrap();
        keeper.kept().scheduler.starts.insert(7, 71);
        keeper.assign(&[seat(7, &cpus)]).unwrap();
        let mut kept = keeper.kept();
        assert_eq!(kept.scheduler.told.last().unwrap()[..], [(7, 71, Some(0))]);
        kept.renew().unwrap();
        assert_eq!(kept.scheduler.told.last().unwrap()[..], [(7, 71, Some(0))]);
    }

    #[test]
    fn who_lives_and_is_refused_is_an_error_and_who_is_gone_is_left_out() {
        let own = std::process::id();
        let (keeper, cpus) = keeper(&[(own, 1)]);
        keeper.kept().scheduler.refuses.insert(own, AssignOutcome::NodeForbidden);
        let refused = keeper.assign(&[seat(own, &cpus)]).unwrap_err().to_string();
        assert_eq!(refused, format!("thread {own} cannot be assigned to its node: scx_tandem says node_forbidden"));
        keeper.kept().scheduler.starts.clear();
        let refused = keeper.assign(&[seat(own, &cpus)]).unwrap_err().to_string();
        assert!(refused.ends_with("scx_tandem does not schedule it"), "{refused}");
        // No process has an id as high as that.
        keeper.assign(&[seat(1 << 30, &cpus)]).unwrap();
        let refused = keeper.assign(&[seat(own, &CpuSet::of(&[]))]).unwrap_err().to_string();
        assert!(refused.contains("a seat is no node"), "{refused}");
    }
}
