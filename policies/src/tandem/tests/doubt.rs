// SPDX-License-Identifier: GPL-2.0-only
//! What seems to be gained because some accesses were seen and others were not.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::model::PageGroup;

/// Two nodes, with half of the memory each.
const HOMES: [usize; 2] = [2, 3];

/// Adds four threads of a process that use all of its memory alike, as 105 samples have it, `more` times as many of them: as recorded
/// in a guest, in millions of accesses per second to either half.
fn alike(builder: SnapshotBuilder, process: u32, more: f64) -> SnapshotBuilder {
    let seen = [(3, [254.0, 316.0]), (2, [260.0, 313.0]), (3, [312.0, 265.0]), (2, [188.0, 382.0])];
    let tid = |at: usize| 100 * process + at as u32;
    let of = |thread: &mut Thread| thread.process = ProcessId(process);
    let threads = seen.iter().enumerate().fold(builder, |all, (at, (node, rates))| {
        let row = [0.0, 0.0, 1e6 * rates[0], 1e6 * rates[1]];
        all.thread(tid(at), *node, Some(&row)).with_thread(of)
    });
    HOMES.iter().enumerate().fold(threads, |all, (half, &home)| {
        let users: Vec<(u32, f64)> = (0..seen.len()).map(|at| (tid(at), 1e6 * seen[at].1[half])).collect();
        let resident: Vec<u64> = (0..4).map(|node| if node == home { ALL } else { 0 }).collect();
        all.group_used_by(&resident, &users).with_group(|group| {
            group.id.process = ProcessId(process);
            group.samples = [48.9, 56.4][half] * more;
        })
    })
}

/// Four nodes as far from each other as they can be.
fn apart() -> SnapshotBuilder {
    let far = |own: usize| PerNode::from_fn(4, |node| if node.0 == own { 10 } else { 20 }).values().copied().collect();
    let distance: Vec<Vec<u32>> = (0..4).map(far).collect();
    SnapshotBuilder::new(machine(&[2; 4], &distance.iter().map(Vec::as_slice).collect::<Vec<_>>()))
}

/// Programs of which a first plan moves something by chance.
fn doubtful(snapshot: &Snapshot) -> Vec<u32> {
    let defaults = POLICY.defaults();
    let seen = Seen::of(snapshot, &defaults);
    let planned = seen.planned(&seen.room, &Horizons::all(10.0), &Still::default(), effort(1, 40_000));
    planned.doubtful.iter().map(|program| program.0).collect()
}

#[test]
fn threads_that_use_all_memory_alike_take_it_nowhere_however_they_were_seen() {
    let seen = |more: f64| {
        let snapshot = alike(apart(), 1, more).build();
        (doubtful(&snapshot), planned(&snapshot).is_empty())
    };
    assert_eq!(seen(2.0), (vec![1], true), "twice the standard error");
    assert_eq!(seen(20.0), (vec![], false), "seven times");
}

#[test]
fn memory_of_few_goes_to_none_of_them_by_chance() {
    let goes_to = |more: f64| {
        let snapshot = alike(apart(), 1, more).build();
        let problem = problem(&snapshot);
        problem.place_shared(&problem.shared[0], |user| snapshot.threads[user].node.0).1
    };
    assert_eq!(goes_to(1.0), None);
    assert_eq!(goes_to(20.0), Some(3));
}

/// Threads 1 and 2 of these programs that use memory of the first one's node, the other one a fifth more, as so many samples of each
/// have it; with a CPU a node.
fn rivals(programs: [u32; 2], samples: f64) -> SnapshotBuilder {
    let each = [(1, 0, 1e6), (2, 1, 1.2e6)].into_iter().zip(programs);
    each.fold(SnapshotBuilder::new(two_nodes(1)), |all, ((tid, node, per_s), program)| {
        let all = all.thread(tid, node, Some(&[per_s, 0.0])).with_thread(|thread| thread.process = ProcessId(program));
        all.group_used_by(&[ALL, 0], &[(tid, per_s)]).with_group(|group| {
            (group.samples, group.unmovable) = (samples, Some(Unmovable::Bound));
            group.id.process = ProcessId(program);
        })
    })
}

#[test]
fn threads_change_places_for_a_rate_only_if_it_is_known_well_enough() {
    let seen = |programs, samples: f64| {
        let snapshot = rivals(programs, samples).build();
        moves(&snapshot, &planned(&snapshot)).0
    };
    for programs in [[1, 1], [1, 2]] {
        assert_eq!(seen(programs, 100.0), [], "of {programs:?}");
        assert_eq!(seen(programs, 3000.0), [(1, 1), (2, 0)], "of {programs:?}");
    }
}

#[test]
fn a_thread_that_stays_since_its_gain_may_be_chance_has_its_reason_once() {
    let stays = super::stays::stays(&rivals([1, 1], 100.0).build());
    assert_eq!(stays.iter().map(|stay| stay.thread.tid).collect::<Vec<_>>(), [2], "{stays:?}");
}

#[test]
fn a_thread_that_may_not_stay_goes_whatever_it_gains() {
    let builder = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, Some(&[1.1e6, 1e6]));
    let builder = builder.with_thread(|thread| thread.allowed[NodeIndex(0)] = false);
    let bound = |group: &mut PageGroup| group.unmovable = Some(Unmovable::Bound);
    let builder = builder.group_used_by(&[ALL, 0], &[(1, 1.1e6)]).with_group(bound);
    let snapshot = builder.group_used_by(&[0, ALL], &[(1, 1e6)]).with_group(bound).build();
    assert_eq!(moves(&snapshot, &planned(&snapshot)).0, [(1, 1)]);
}

#[test]
fn a_thread_that_may_not_stay_goes_though_others_of_its_program_stay_since_their_gain_may_be_chance() {
    let builder = rivals([1, 1], 100.0).thread(3, 1, Some(&[1.0, 1.0])).with_thread(|thread| {
        thread.allowed[NodeIndex(1)] = false;
        thread.cpu_time_ns = 100_000_000;
    });
    let snapshot = builder.build();
    assert_eq!(doubtful(&snapshot), [1]);
    assert_eq!(moves(&snapshot, &planned(&snapshot)).0, [(3, 0)]);
}

/// A thread on node 0 whose memory is on node 1.
fn far(builder: SnapshotBuilder) -> SnapshotBuilder {
    builder.thread_with_memory_on(1, 0, 1).group_used_by(&[0, ALL, 0, 0], &[(1, 1e6)])
}

#[test]
fn what_may_be_chance_keeps_no_other_program_from_moving() {
    let snapshot = alike(far(apart()), 2, 2.0).build();
    let (threads, groups) = moves(&snapshot, &planned(&snapshot));
    assert_eq!(threads.len() + groups.len(), 1, "one goes to the other: {threads:?} {groups:?}");
    assert!(threads.iter().all(|thread| thread.0 == 1) && groups.iter().all(|group| group.0 == 0));
}

#[test]
fn a_program_makes_room_for_another_one_though_it_gains_nothing() {
    let of_other = |thread: &mut Thread| thread.process = ProcessId(2);
    let builder = SnapshotBuilder::new(two_nodes(1))
        .thread_with_memory_on(1, 0, 1)
        .thread(2, 1, Some(&[1e4, 1.1e4]))
        .with_thread(of_other)
        .group_used_by(&[0, ALL], &[(1, 1e6)])
        .with_group(|group| group.unmovable = Some(Unmovable::Bound));
    let builder = [[ALL, 0], [0, ALL]].into_iter().zip([1e4, 1.1e4]).fold(builder, |all, (resident, per_s)| {
        all.group_used_by(&resident, &[(2, per_s)]).with_group(|group| {
            group.id.process = ProcessId(2);
            group.unmovable = Some(Unmovable::Bound);
        })
    });
    let snapshot = builder.build();
    assert_eq!(moves(&snapshot, &planned(&snapshot)).0, [(1, 1), (2, 0)]);
}

/// Eight threads on a node of four CPUs that hardly wait one access after the other, and use memory of both nodes alike.
#[test]
fn what_is_known_of_cpus_is_not_in_doubt_by_what_is_not_of_accesses() {
    let threads = (1..=8).fold(SnapshotBuilder::new(two_nodes(4)), |all, tid| all.thread(tid, 0, Some(&[3e8, 3.1e8])));
    let users: Vec<(u32, f64)> = (1..=8).map(|tid| (tid, 3e8)).collect();
    let bound = |group: &mut PageGroup| group.unmovable = Some(Unmovable::Bound);
    let one = threads.group_used_by(&[ALL, 0], &users).with_group(bound);
    let snapshot = one.group_used_by(&[0, ALL], &users).with_group(bound).build();
    assert_eq!(moves(&snapshot, &planned(&snapshot)).0.len(), 4);
}

/// Beside threads that use all memory alike, one of their program that works a quarter of the time, may not go, and has memory elsewhere.
#[test]
fn pages_that_are_certain_to_be_nearer_go_though_other_moves_of_their_program_may_be_chance() {
    let stays = |thread: &mut Thread| {
        (thread.process, thread.allowed) = (ProcessId(2), PerNode::from_fn(4, |node| node.0 == 0));
    };
    let far = apart().thread_with_memory_on(1, 0, 1).with_thread(|thread| {
        (thread.accesses_per_s, thread.cpu_time_ns) = (Some(vec![0.0, 3e7, 0.0, 0.0].into()), 100_000_000);
        stays(thread);
    });
    let own = |group: &mut PageGroup| group.id.process = ProcessId(2);
    let snapshot = alike(far.group_used_by(&[0, ALL, 0, 0], &[(1, 3e7)]).with_group(own), 2, 2.0).build();
    assert_eq!(doubtful(&snapshot), [2]);
    assert_eq!(moves(&snapshot, &planned(&snapshot)), (vec![], vec![(0, 0)]));
}

/// Eight programs of one thread each on four nodes of two CPUs, which use memory of all nodes about alike, as some samples have it.
fn many(seed: u64) -> Snapshot {
    let mut rng = Pcg64::seed_from_u64(seed);
    let mut per_s = || 1e6 * (60.0 + (rng.next_u64() % 120) as f64);
    let threads = (1..=8).fold(apart(), |all, tid| {
        let rates: Vec<f64> = (0..4).map(|_| per_s()).collect();
        let own = |thread: &mut Thread| thread.process = ProcessId(tid);
        let all = all.thread(tid, tid as usize % 4, Some(&rates)).with_thread(own);
        (0..4).fold(all, |all, node| {
            let resident: Vec<u64> = (0..4).map(|at| if at == node { ALL } else { 0 }).collect();
            all.group_used_by(&resident, &[(tid, rates[node])]).with_group(|group| {
                (group.samples, group.unmovable) = (150.0, Some(Unmovable::Bound));
                group.id.process = ProcessId(tid);
            })
        })
    });
    threads.build()
}

#[test]
fn of_many_programs_none_is_moved_that_the_last_plan_is_in_doubt_of() {
    let mut moved = 0;
    for seed in 0..200 {
        let snapshot = many(seed);
        let seen = decide_within(&snapshot, &POLICY.defaults(), &Horizons::all(10.0), effort(1, 40_000));
        assert!(seen.doubtful.is_empty() || !seen.is_worth_a_trial, "seed {seed}: {:?}", seen.doubtful);
        moved += usize::from(seen.is_worth_a_trial);
    }
    assert!(moved > 100, "{moved} of 200");
}
