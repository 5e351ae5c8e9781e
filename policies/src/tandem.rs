// SPDX-License-Identifier: GPL-2.0-only
//! Joint policy `tandem`: threads and pages as unknowns of one objective.
//!
//! Problem: a thread far from its memory can go to it, or its memory can come. Policies for one side decide that by who is
//! asked first. One thread with much memory should go; many threads on a full node that share a little should get the
//! memory.
//!
//! Mechanism: what a placement of threads costs per second, every page being where it then pays best, is one function
//! (`problem`); a search finds a placement that costs less (`search`); the plan moves threads and page groups to it
//! (`plan`). Groups that chance could have made up are judged together with those like them (`owners`). Waits at busy
//! memories are foreseen (`knee.rs`), so that not all go where little is going on now. What a move costs is spread over a
//! horizon: the time for which placements have been lasting (`History`).
//!
//! Ours; the terms and where they come from are in docs/policies/tandem.md. Parameters: [`PARAMETERS`].

mod build;
mod cold;
mod history;
mod latencies;
mod loads;
mod owners;
mod partners;
mod plan;
mod problem;
mod residents;
mod runs;
mod search;
mod stays;
mod still;
mod together;

use crate::model::{NodeIndex, Plan, Snapshot, Thread};
use crate::page_moves::{self, PageMoves};
use crate::registry::{Inputs, Kind, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::relocation::busy;
use crate::stay::Stay;
use crate::users::{Ledger, Users};

use build::Facts;
use history::{History, Horizons};
use owners::Owners;
use plan::{Planned, Planner};
use problem::Prices;
use search::Effort;
use still::Still;

/// Joint policy `tandem`.
///
/// Two threads come to those that they share with, and the memory of the others comes to them:
///
/// ```
/// use tandem_policies::{example, tandem};
///
/// let snapshot = example::crossed();
/// let moves = example::decided(&tandem::POLICY, &snapshot)?;
/// assert!(moves[0].starts_with("threads 2 and 3: nodes 0 <-> 1: 2: it exchanges lines with threads that are on node 1"));
/// assert!(moves[1].starts_with("pages at 0x200000 of process 1 (2048 KiB) -> node 0: thread 1 on node 0 uses it"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "tandem",
    kind: Kind::Joint,
    needs_one_of: &[&[Signal::ThreadAccesses], &[Signal::ThreadTransfers, Signal::ThreadSharing]],
    parameters: PARAMETERS,
    source: "ours: one objective for threads and pages",
    decide,
    weighs_cpus: true,
    quick: true,
    stays: |memory| memory.peek::<History>().map_or(&[], |history| &history.stays),
    ..Policy::PLAIN
};

/// Parameters of `tandem`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::real("least_gain_percent", 1.5, "% of the stall", 0.0, 100.0),
    Parameter::real("errors", 3.0, "standard errors of the samples", 0.0, 100.0),
    Parameter::real("first_horizon_s", 10.0, "s over which a move must pay, at first", 0.1, 3600.0),
    Parameter::real("least_horizon_s", 1.0, "s over which a move must pay, at least", 0.1, 3600.0),
    Parameter::real("most_horizon_s", 40.0, "s over which a move must pay, at most", 0.1, 1e6),
    Parameter::real("page_move_ns", 30_000.0, "ns that moving a base page delays, until it was measured", 0.0, 1e9),
    Parameter::real("huge_page_move_ns", 1e7, "ns that moving a huge page delays, until it was measured", 0.0, 1e12),
    Parameter::real("thread_move_ns", 1e6, "ns to move a thread, its caches included", 0.0, 1e12),
    Parameter::real("wake_lines", 50.0, "lines that threads exchange when one wakes the other and sleeps", 0.0, 1e6),
    Parameter::whole("most_steps", 40_000.0, "changes looked at", 0.0, 1e9),
    Parameter::whole("thread_steps", 40.0, "changes looked at for each thread, if that is more", 0.0, 1e6),
    Parameter::real("min_cpu_percent", 1.0, "% of one CPU", 0.0, 100.0),
    Parameter::real(
        "cpu_lines_per_s",
        62.5e6,
        "lines per second of a memory for each CPU of its node; 0: no limit",
        0.0,
        1e12,
    ),
    Parameter::whole(
        "cold_to_memory_only",
        0.0,
        "1: cold groups go to memory-only nodes where there is little room",
        0.0,
        1.0,
    ),
    page_moves::HOME_SHARE,
    page_moves::RESERVE_PERCENT,
];

fn decide(inputs: &mut Inputs) -> Result<Plan, MissingSignal> {
    let (snapshot, parameters) = (inputs.snapshot, inputs.parameters);
    let active = busy(snapshot, parameters.get("min_cpu_percent"));
    inputs.memory.of::<History>().stays.clear();
    let tells = |thread: &Thread| {
        let lines = thread.transfers_per_s.filter(|lines| lines.within_node + lines.across_nodes > 0.0);
        thread.accesses_per_s.is_some() || thread.woken_by.is_some() || (lines.is_some() && !thread.sharing.is_empty())
    };
    if !active.is_empty() && !active.iter().any(|thread| tells(thread)) {
        return Err(MissingSignal { policy: "tandem", signal: Signal::ThreadAccesses });
    }
    let history = inputs.memory.of::<History>();
    let horizons = history.horizons(snapshot, &active, parameters);
    let of_threads = parameters.get("thread_steps") * active.len() as f64;
    let steps = inputs.steps.min(parameters.get("most_steps").max(of_threads) as u64);
    let effort = Effort { seed: inputs.seed, steps, first: history.next_thread };
    let planned = decide_within(snapshot, parameters, &horizons, effort);
    (history.next_thread, history.stays) = (planned.next_thread, planned.stays);
    let plan = if planned.is_worth_a_trial { planned.plan } else { Plan::default() };
    history.note(snapshot, &plan, parameters);
    if parameters.get("cold_to_memory_only") < 1.0 {
        return Ok(plan);
    }
    history.cold.watch(snapshot);
    Ok(if plan.is_empty() { history.cold.plan(snapshot, parameters) } else { plan })
}

/// Gain for which there is no room, in shares of the plan's, that is put up with.
const MOST_DENIED: f64 = 0.1;

/// How often a plan is made, each time without what the last one may have moved by chance; and from which attempt on all stays of
/// whom any plan was in doubt of. If the last one is in doubt still, nothing moves.
const MOST_ATTEMPTS: usize = 9;
const HOLDING_FROM: usize = 5;
/// The steps of the search for each plan after the first are so many times fewer.
const FEWER_STEPS: u64 = 4;

/// The plan for moves that must pay within `horizons`.
fn decide_within(snapshot: &Snapshot, parameters: &Parameters, horizons: &Horizons, effort: Effort) -> Planned {
    let seen = Seen::of(snapshot, parameters);
    let (mut still, mut stays) = (Still::default(), Vec::new());
    let mut planned = seen.planned_with_room(horizons, &still, effort);
    for attempt in 1..MOST_ATTEMPTS {
        let Some(threads_stay) = still.after(&planned.plan, &planned.doubtful, snapshot) else { break };
        // Of threads that may not go the next plan has nothing to say.
        let stays_now =
            |stay: &Stay| snapshot.thread(stay.thread).is_some_and(|thread| threads_stay.contains(&thread.process));
        stays.extend(planned.stays.iter().copied().filter(stays_now));
        if attempt + 1 >= HOLDING_FROM {
            still.hold_all();
        }
        planned = seen.planned_with_room(horizons, &still, Effort { steps: effort.steps / FEWER_STEPS, ..effort });
    }
    planned.is_worth_a_trial &= planned.doubtful.is_empty();
    planned.stays.append(&mut stays);
    planned
}

/// A snapshot, and what it tells at a first look.
struct Seen<'a> {
    snapshot: &'a Snapshot,
    parameters: &'a Parameters,
    ledger: Ledger<'a>,
    owners: Owners,
    /// By node, pages for which there is room, and the memory to which pages of its threads go.
    room: Vec<f64>,
    memory_of: Vec<Option<usize>>,
}

impl<'a> Seen<'a> {
    fn of(snapshot: &'a Snapshot, parameters: &'a Parameters) -> Self {
        let nodes = || (0..snapshot.topology.len()).map(NodeIndex);
        let ledger = Ledger::of(&snapshot.groups);
        let threads = Users::positions(snapshot);
        let home_share = parameters.get("home_share");
        let owners = owners::sort(&ledger, &snapshot.groups, nodes().len(), home_share, &|id| threads.seat(id));
        let moves = PageMoves::new(snapshot, parameters);
        let runs = |node: &NodeIndex| !snapshot.topology.nodes[*node].cpus.is_empty();
        let memory_of = |node: NodeIndex| moves.destination(node).filter(|_| runs(&node)).map(|memory| memory.0);
        Self {
            snapshot,
            parameters,
            ledger,
            owners,
            room: nodes().map(|node| moves.room(node) as f64).collect(),
            memory_of: nodes().map(memory_of).collect(),
        }
    }

    fn facts<'s>(&'s self, room: &'s [f64], horizons: &'s Horizons, still: &'s Still) -> Facts<'s> {
        let Self { snapshot, ref owners, ref memory_of, .. } = *self;
        let prices = Prices::of(snapshot, self.parameters);
        Facts { snapshot, owners, prices, horizons, room, memory_of, still }
    }

    fn planned_with_room(&self, horizons: &Horizons, still: &Still, effort: Effort) -> Planned {
        let planned = self.planned(&self.room, horizons, still, effort);
        let gain_ns_per_s: f64 = planned.plan.moves.iter().filter_map(|planned| planned.gain_ns_per_s).sum();
        if planned.denied_ns_per_s <= 0.0 || planned.denied_ns_per_s <= MOST_DENIED * gain_ns_per_s {
            return planned;
        }
        // Not enough room for the pages that should have followed: threads are placed as if there were none.
        self.planned(&vec![0.0; self.snapshot.topology.len()], horizons, still, effort)
    }

    fn planned(&self, room: &[f64], horizons: &Horizons, still: &Still, effort: Effort) -> Planned {
        let facts = self.facts(room, horizons, still);
        let problem = facts.problem();
        let found = search::solve(&problem, effort);
        let moves = PageMoves::new(self.snapshot, self.parameters);
        Planner::new(&facts, &problem, &found).plan(&self.ledger, moves)
    }
}

impl Prices {
    fn of(snapshot: &Snapshot, parameters: &Parameters) -> Self {
        let share = realisable(snapshot.realised_share);
        Self {
            page_ns: measured_or(parameters.get("page_move_ns"), snapshot.page_move_ns) / share,
            huge_page_ns: measured_or(parameters.get("huge_page_move_ns"), snapshot.huge_page_move_ns) / share,
            thread_ns: parameters.get("thread_move_ns") / share,
            wake_lines: parameters.get("wake_lines"),
            least_gain: parameters.get("least_gain_percent") / 100.0,
            errors: parameters.get("errors"),
            busy_ns: parameters.get("min_cpu_percent") / 100.0 * snapshot.interval_ns as f64,
            cpu_lines_per_s: parameters.get("cpu_lines_per_s"),
        }
    }
}

/// A measured cost of pages counts up to this multiple of what is assumed: a batch of which hardly anything moved must not
/// end all moves, for then nothing would be measured any more.
const MOST_TIMES_ASSUMED: f64 = 10.0;

/// What moving costs, in ns: what it took lately, or until pages were moved what is assumed.
fn measured_or(assumed_ns: f64, measured_ns: Option<f64>) -> f64 {
    let measured_ns = measured_ns.filter(|ns| ns.is_finite() && *ns > 0.0);
    measured_ns.map_or(assumed_ns, |ns| ns.min(MOST_TIMES_ASSUMED * assumed_ns))
}

/// Least share of its prediction that a plan is taken to bring: below it hardly anything would move, and nothing more would be
/// learnt.
const LEAST_REALISABLE: f64 = 0.25;

/// The share of what is predicted that a plan is taken to bring, by what the last ones did.
fn realisable(realised_share: Option<f64>) -> f64 {
    realised_share.filter(|share| share.is_finite()).map_or(1.0, |share| share.clamp(LEAST_REALISABLE, 1.0))
}

#[cfg(test)]
mod tests;
