// SPDX-License-Identifier: GPL-2.0-only
//! Page policy `next-touch`: pages go to the thread that touches them next.
//!
//! Problem: a program enters a new phase, or its threads were moved, and where pages are used has nothing to do with the
//! past. Mechanism (Goglin and Furmento, 2009, after Solaris' madvise): at a given moment all pages are marked, and
//! each one goes to the node of the thread that touches it first from then on. Parameters: [`PARAMETERS`].
//!
//! Programs say when; we do not know, so that an epoch begins with the first decision and then every `epoch_s`. Touches
//! are seen in samples: a group was touched when its aged count is at least one above what is left of the one before.
//! Of several threads that touched it within an interval the one with most new samples counts as the first, the
//! lower id on a tie. The group goes to the node on which that thread is then, and is told so again until it is there or the
//! epoch ends. A group that first appears during an epoch was touched in it.

use std::ops::Range;

use crate::model::{GroupId, NodeIndex, PageGroup, Plan, Snapshot, ThreadId};
use crate::page_moves::{self, PageMoves};
use crate::registry::{Inputs, Kind, Memory, MissingSignal, Parameter, Parameters, Policy, Signal};
use crate::users::Users;

/// Page policy `next-touch`.
///
/// Groups go to the thread that touches them first in an epoch, which is seen at the second look:
///
/// ```
/// use tandem_policies::{example, next_touch, registry::Memory};
///
/// let (mut snapshot, mut memory) = (example::crossed(), Memory::default());
/// assert!(example::decided_again(&next_touch::POLICY, &snapshot, &mut memory)?.is_empty());
/// snapshot.time_ns += snapshot.interval_ns;
/// let moves = example::decided_again(&next_touch::POLICY, &snapshot, &mut memory)?;
/// assert!(moves[0].starts_with("pages at 0x200000 of process 1 (2048 KiB) -> node 0: thread 1 on node 0 touched it first"));
/// # Ok::<(), tandem_policies::registry::MissingSignal>(())
/// ```
pub static POLICY: Policy = Policy {
    name: "next-touch",
    kind: Kind::Page,
    needs: &[Signal::GroupUsers, Signal::GroupResidency],
    parameters: PARAMETERS,
    source: "Goglin, Furmento, MTAAP 2009: migration on next touch; Solaris madvise(MADV_ACCESS_LWP)",
    decide: |inputs: &mut Inputs| decide(inputs.snapshot, inputs.parameters, inputs.memory),
    ..Policy::PLAIN
};

/// Parameters of `next-touch`.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::real("epoch_s", 10.0, "s; 0: one epoch without end", 0.0, 86_400.0),
    page_moves::HALF_LIFE_S,
    page_moves::HOME_SHARE,
    page_moves::RESERVE_PERCENT,
];

/// Part of a sample that rounding may have taken.
const ONE_SAMPLE: f64 = 1.0 - 1e-6;

/// What `next-touch` remembers.
#[derive(Debug, Default)]
struct Remembered {
    /// Begin of the epoch; `None` before the first decision.
    epoch_ns: Option<u64>,
    time_ns: u64,
    /// All groups of the last decision, ascending.
    groups: Vec<Known>,
    /// Their samples by thread.
    users: Vec<(ThreadId, f64)>,
}

/// One group.
#[derive(Debug)]
struct Known {
    id: GroupId,
    samples: f64,
    /// Its part of the samples by thread.
    users: Range<usize>,
    /// The first thread that touched it in this epoch, and its node then.
    toucher: Option<(ThreadId, NodeIndex)>,
}

/// Moves of groups to the threads that touched them first in this epoch.
///
/// # Errors
/// [`MissingSignal`] if no group knows its users.
pub fn decide(snapshot: &Snapshot, parameters: &Parameters, memory: &mut Memory) -> Result<Plan, MissingSignal> {
    page_moves::require(snapshot, POLICY.name, Signal::GroupUsers, |group| !group.users.is_empty())?;
    let memory = memory.of::<Remembered>();
    let begins = memory.epoch_begins(snapshot.time_ns, parameters.get("epoch_s"));
    let left = page_moves::aged(parameters, snapshot.time_ns.saturating_sub(memory.time_ns));
    let users = Users::of(snapshot);
    let mut moves = PageMoves::new(snapshot, parameters);
    let mut before = std::mem::take(&mut memory.groups).into_iter().peekable();
    let users_before = std::mem::take(&mut memory.users);
    for group in &snapshot.groups {
        while before.next_if(|known| known.id < group.id).is_some() {}
        let earlier = before.next_if(|known| known.id == group.id);
        let first = memory.users.len();
        add_samples_by_user(group, &mut memory.users);
        let own = first..memory.users.len();
        let mut known = Known { id: group.id, samples: group.samples, users: own.clone(), toucher: None };
        if !begins {
            let now = Seen { samples: group.samples, users: &memory.users[own] };
            let past = earlier.as_ref().map_or(Seen::default(), |earlier| Seen {
                samples: left * earlier.samples,
                users: &users_before[earlier.users.clone()],
            });
            let told = earlier.as_ref().and_then(|earlier| earlier.toucher);
            known.toucher = told.or_else(|| first_toucher(now, past, left, &users));
            send(&mut moves, group, known.toucher);
        }
        memory.groups.push(known);
    }
    memory.time_ns = snapshot.time_ns;
    Ok(moves.plan())
}

impl Remembered {
    /// Whether an epoch begins at `time_ns`.
    fn epoch_begins(&mut self, time_ns: u64, epoch_s: f64) -> bool {
        let is_over = |begin_ns: u64| epoch_s > 0.0 && time_ns.saturating_sub(begin_ns) as f64 >= epoch_s * 1e9;
        let begins = self.epoch_ns.is_none_or(is_over);
        if begins {
            self.epoch_ns = Some(time_ns);
        }
        begins
    }
}

/// Adds the samples of `group` by thread to `samples`, in proportion to their accesses.
fn add_samples_by_user(group: &PageGroup, samples: &mut Vec<(ThreadId, f64)>) {
    let all: f64 = group.users.iter().map(|&(_, per_s)| per_s).sum();
    let own = |&(thread, per_s): &(ThreadId, f64)| (thread, group.samples * per_s / all);
    samples.extend(group.users.iter().map(own).filter(|(_, samples)| samples.is_finite()));
}

/// What was seen of a group.
#[derive(Clone, Copy, Default)]
struct Seen<'a> {
    samples: f64,
    /// Samples by thread.
    users: &'a [(ThreadId, f64)],
}

/// The thread with most samples of `now` since `past`, if the group was touched since; of samples by thread then, `left` is
/// left.
fn first_toucher(now: Seen, past: Seen, left: f64, users: &Users) -> Option<(ThreadId, NodeIndex)> {
    let new = now.samples - past.samples;
    if new.is_nan() || new < ONE_SAMPLE {
        return None;
    }
    let past_of = |thread: ThreadId| -> f64 {
        past.users.iter().find(|(user, _)| *user == thread).map_or(0.0, |(_, samples)| left * samples)
    };
    let mut first: Option<(ThreadId, NodeIndex, f64)> = None;
    for &(thread, samples) in now.users {
        let touched = samples - past_of(thread);
        if let Some(node) = users.node(thread)
            && touched > first.map_or(0.0, |(_, _, most)| most)
        {
            first = Some((thread, node, touched));
        }
    }
    first.map(|(thread, node, _)| (thread, node))
}

fn send(moves: &mut PageMoves, group: &PageGroup, toucher: Option<(ThreadId, NodeIndex)>) {
    let Some((thread, node)) = toucher else { return };
    let Some(to) = moves.destination(node) else { return };
    let id = moves.snapshot.topology.nodes[node].id;
    moves.send(group, to, |moves| {
        format!("thread {thread} on node {id} touched it first in this epoch{}", moves.home_in_words(group))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{PageRun, SnapshotBuilder, two_nodes};

    const ALL: u64 = 512;
    const SECOND_NS: u64 = 1_000_000_000;

    /// Threads 1 and 2 on nodes 0 and 1; one group on node 0, used by thread 1 with 100 samples.
    fn used_by_1() -> PageRun {
        let threads = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).thread(2, 1, None);
        PageRun::new(&POLICY, threads.group_used_by(&[ALL, 0], &[(1, 10.0)]).build())
    }

    /// The same with the group on node 1.
    fn away_from_1() -> PageRun {
        let mut run = used_by_1();
        run.snapshot.groups[0].resident_pages = vec![0, ALL].into();
        run
    }

    fn per_sample(group: &PageGroup) -> f64 {
        group.users.iter().map(|(_, per_s)| per_s).sum::<f64>() / group.samples
    }

    /// One second later: what was seen has aged, and `new` samples of `tid` came.
    fn touch(run: &mut PageRun, tid: u32, new: f64) {
        run.pass_ns(SECOND_NS);
        let left = (0.5f64).powf(1.0 / 3.0);
        let id = run.snapshot.threads.iter().find(|thread| thread.id.tid == tid).unwrap().id;
        let group = &mut run.snapshot.groups[0];
        let rate = |samples: f64, group: &PageGroup| samples * per_sample(group);
        let mut users: crate::model::GroupUsers =
            group.users.iter().map(|&(thread, per_s)| (thread, per_s * left)).collect();
        match users.iter_mut().find(|(thread, _)| *thread == id) {
            Some((_, per_s)) => *per_s += rate(new, group),
            None => users.push((id, rate(new, group))),
        }
        (group.users, group.samples) = (users, group.samples * left + new);
    }

    #[test]
    fn the_first_decision_only_marks() {
        assert_eq!(away_from_1().decide(), []);
    }

    #[test]
    fn the_next_thread_takes_the_group_however_much_another_used_it_before() {
        let mut run = used_by_1();
        run.step();
        touch(&mut run, 2, 1.0);
        assert_eq!(run.step(), [(0, 1)]);
    }

    #[test]
    fn what_is_not_touched_stays() {
        let mut run = away_from_1();
        run.step();
        touch(&mut run, 1, 0.0);
        assert_eq!(run.step(), []);
    }

    #[test]
    fn only_the_first_touch_of_an_epoch_counts() {
        let mut run = used_by_1();
        run.step();
        touch(&mut run, 1, 3.0);
        assert_eq!(run.step(), []);
        touch(&mut run, 2, 50.0);
        assert_eq!(run.step(), []);
    }

    #[test]
    fn an_epoch_ends_after_ten_seconds_and_touches_before_it_do_not_count() {
        let mut run = used_by_1();
        for _ in 0..10 {
            run.step();
            touch(&mut run, 1, 3.0);
        }
        assert_eq!(run.step(), []);
        touch(&mut run, 2, 3.0);
        assert_eq!(run.step(), [(0, 1)]);
    }

    #[test]
    fn an_epoch_of_zero_seconds_never_ends() {
        let mut run = used_by_1().with("epoch_s", 0.0);
        for _ in 0..30 {
            run.step();
            touch(&mut run, 1, 3.0);
        }
        touch(&mut run, 2, 30.0);
        assert_eq!(run.step(), []);
    }

    #[test]
    fn a_group_that_did_not_arrive_is_sent_again_where_it_was_sent_before() {
        let mut run = used_by_1();
        run.step();
        touch(&mut run, 2, 1.0);
        assert_eq!(run.decide(), [(0, 1)]);
        touch(&mut run, 1, 9.0);
        assert_eq!(run.step(), [(0, 1)]);
        assert_eq!(run.step(), []);
    }

    #[test]
    fn a_group_that_appears_during_an_epoch_goes_to_its_user() {
        let mut run = used_by_1();
        let later = std::mem::take(&mut run.snapshot.groups);
        run.step();
        run.snapshot.groups = later;
        run.snapshot.groups[0].resident_pages = vec![0, ALL].into();
        run.pass_ns(SECOND_NS);
        assert_eq!(run.step(), [(0, 0)]);
    }

    #[test]
    fn of_two_threads_the_one_with_more_new_samples_was_first() {
        let mut run = used_by_1();
        run.step();
        touch(&mut run, 1, 2.0);
        // Without a second's ageing in between: both within one interval.
        let group = &mut run.snapshot.groups[0];
        let id = run.snapshot.threads[1].id;
        group.users.push((id, 3.0 * per_sample(group)));
        group.samples += 3.0;
        assert_eq!(run.step(), [(0, 1)]);
    }
}
