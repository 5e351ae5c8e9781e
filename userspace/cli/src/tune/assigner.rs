// SPDX-License-Identifier: GPL-2.0-only
//! Assigns the threads of a program to nodes, through a loaded scx_tandem that places no threads itself.
//!
//! An assignment is a lease: what is not renewed is over soon, so if this process ends nothing stays.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use nix::unistd::Pid;
use tandem_act::{AssignmentSink, Assignments, Generation};
use tandem_bpf::{AssignOutcome, Pins, Scheduler};
use tandem_machine::{monotonic_ns, process_text};
use tandem_policies::model::{NodeIndex, ThreadId, Topology};
use tandem_tune::placer::Assigner;
use tandem_tune::seat::CpuSet;

/// How long an assignment outlives its last renewal: half of what a scx_tandem takes that decides once a second.
const LEASE: Duration = Duration::from_secs(3);

/// How often assignments are renewed.
const RENEW_EVERY: Duration = Duration::from_millis(500);

/// A scheduler that can be told assignments, and knows which thread has an id.
pub trait Assigned: AssignmentSink<Error = tandem_bpf::Error> {
    /// Start (on CLOCK_BOOTTIME, in ns) of the thread of this id, if it schedules it.
    ///
    /// # Errors
    /// It cannot be asked.
    fn start(&self, tid: u32) -> Result<Option<u64>, tandem_bpf::Error>;

    /// Whether it is loaded no more, though it can still be told things.
    ///
    /// # Errors
    /// It cannot be asked.
    fn has_left(&self) -> Result<bool, tandem_bpf::Error>;
}

impl Assigned for Scheduler {
    fn start(&self, tid: u32) -> Result<Option<u64>, tandem_bpf::Error> {
        Ok(self.task(tid)?.map(|task| task.start_boottime_ns))
    }

    fn has_left(&self) -> Result<bool, tandem_bpf::Error> {
        Ok(self.exit(|_, _| ())?.is_some())
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
    /// For some time nothing was assigned: the first reason.
    pub fn renew_until(&self, over: &Receiver<()>) -> Result<()> {
        let mut kept_all = Ok(());
        while over.recv_timeout(RENEW_EVERY) == Err(RecvTimeoutError::Timeout) {
            kept_all = kept_all.and(self.kept().renew().map(|_| ()));
        }
        kept_all.and(self.kept().renew().map(|_| ()))
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
    /// Sends all that is assigned. Who has ended is refused, and so is whom the program itself keeps elsewhere.
    fn renew(&mut self) -> Result<Vec<(ThreadId, AssignOutcome)>> {
        ensure!(!self.scheduler.has_left()?, "scx_tandem's scheduler has left, so that nothing is assigned");
        let refused = self.assignments.renew(&mut self.scheduler, monotonic_ns())?;
        Ok(refused.into_iter().map(|one| (one.thread, one.outcome)).collect())
    }
}

impl<S: Assigned + Send> Assigner for Keeper<S> {
    fn assign(&self, seats: &[Seat]) -> Result<()> {
        let mut kept = self.kept();
        let generation = kept.generation.advance();
        let mut asked = Vec::new();
        for (thread, cpus) in seats {
            let (tid, node) = (thread.as_raw().cast_unsigned(), self.node_of(cpus)?);
            let Some(start_boottime_ns) = kept.scheduler.start(tid)? else {
                ensure!(!is_alive(tid), cannot(tid, "does not schedule it"));
                continue;
            };
            let thread = ThreadId { tid, start_boottime_ns };
            kept.assignments.set(thread, node, generation);
            asked.push(thread);
        }
        for (thread, outcome) in kept.renew()? {
            let is_meant = asked.contains(&thread) && is_alive(thread.tid);
            // Where the program has bound it is the program's affair, as it is where threads are bound by us.
            if is_meant && (outcome != AssignOutcome::NodeForbidden || is_real_time(thread.tid)) {
                return Err(cannot(thread.tid, &format!("says {}", outcome.name())));
            }
        }
        Ok(())
    }
}

fn cannot(tid: u32, why: &str) -> anyhow::Error {
    let class = if is_real_time(tid) { " (it is a real-time thread)" } else { "" };
    anyhow!("thread {tid} cannot be assigned to its node: scx_tandem {why}{class}")
}

/// Whether a thread is there and has not ended.
fn is_alive(tid: u32) -> bool {
    let status = process_text(format!("/proc/{tid}/status").as_ref()).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:\t"));
    state.is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// Whether no sched_ext scheduler has it.
fn is_real_time(tid: u32) -> bool {
    // SAFETY: takes a plain number.
    let policy = unsafe { libc::sched_getscheduler(tid.cast_signed()) } & !libc::SCHED_RESET_ON_FORK;
    [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE].contains(&policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::mpsc;

    use tandem_bpf::Assignment;
    use tandem_machine::read_running;

    /// Schedules some threads, refuses some, and notes what it is told.
    #[derive(Default)]
    struct Made {
        has_left: bool,
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
        fn start(&self, tid: u32) -> Result<Option<u64>, tandem_bpf::Error> {
            Ok(self.starts.get(&tid).copied())
        }

        fn has_left(&self) -> Result<bool, tandem_bpf::Error> {
            Ok(self.has_left)
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
        kept.renew().unwrap();
        assert_eq!(kept.scheduler.told.last().unwrap()[..], [(7, 71, Some(0))]);
    }

    #[test]
    fn who_lives_and_is_refused_is_an_error_and_who_is_gone_or_bound_elsewhere_is_left_out() {
        let own = std::process::id();
        let (keeper, cpus) = keeper(&[(own, 1)]);
        let refused = |outcome| {
            keeper.kept().scheduler.refuses.insert(own, outcome);
            keeper.assign(&[seat(own, &cpus)]).map_err(|error| error.to_string())
        };
        let cannot = format!("thread {own} cannot be assigned to its node: scx_tandem ");
        assert_eq!(refused(AssignOutcome::NodeForbidden), Ok(()), "the program's own affinity");
        assert_eq!(refused(AssignOutcome::Stale), Err(format!("{cannot}says stale")));
        keeper.kept().scheduler.starts.clear();
        assert_eq!(refused(AssignOutcome::Applied), Err(format!("{cannot}does not schedule it")));
        // No process has an id as high as that.
        keeper.assign(&[seat(1 << 30, &cpus)]).unwrap();
        let refused = keeper.assign(&[seat(own, &CpuSet::of(&[]))]).unwrap_err().to_string();
        assert!(refused.contains("a seat is no node"), "{refused}");
    }

    #[test]
    fn a_scheduler_that_left_is_noticed_though_it_goes_on_answering() {
        let (keeper, cpus) = keeper(&[(7, 70)]);
        keeper.assign(&[seat(7, &cpus)]).unwrap();
        keeper.kept().scheduler.has_left = true;
        let (over, wait) = mpsc::channel();
        drop(over);
        let left = keeper.renew_until(&wait).unwrap_err().to_string();
        assert!(left.contains("has left"), "{left}");
        assert!(keeper.assign(&[seat(7, &cpus)]).is_err());
    }
}
