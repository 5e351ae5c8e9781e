// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::decider::{Decider, PolicyChoice};
use crate::testing::{PageRun, SnapshotBuilder, page_destinations, ring_of_four, two_nodes};

const ALL: u64 = 512;

/// Counts by node as a group on node 3 of the ring has them.
fn counts(nv: [f64; 4]) -> SnapshotBuilder {
    let samples = nv.iter().sum();
    SnapshotBuilder::new(ring_of_four(1)).group(&[0, 0, 0, ALL], &nv).with_group(|group| group.samples = samples)
}

/// A run that waits for no thread mapping.
fn impatient(builder: SnapshotBuilder) -> PageRun {
    PageRun::new(&POLICY, builder.build()).with("wait_decisions", 0.0)
}

#[test]
fn a_node_needs_more_than_twice_the_second_and_one() {
    let moved = |nv| impatient(counts(nv)).decide();
    assert_eq!(moved([3.0, 1.0, 0.0, 0.0]), []);
    assert_eq!(moved([4.0, 1.0, 0.0, 0.0]), [(0, 0)]);
    assert_eq!(moved([7.0, 3.0, 0.0, 0.0]), []);
    assert_eq!(moved([8.0, 3.0, 0.0, 0.0]), [(0, 0)]);
}

#[test]
fn a_single_access_moves_nothing_and_two_do() {
    let moved = |nv| impatient(counts(nv)).decide();
    assert_eq!((moved([0.0, 1.0, 0.0, 0.0]), moved([0.0, 2.0, 0.0, 0.0])), (vec![], vec![(0, 1)]));
}

#[test]
fn two_nodes_that_lead_alike_leave_the_group_where_it_is() {
    assert_eq!(impatient(counts([9.0, 9.0, 0.0, 0.0])).decide(), []);
}

#[test]
fn a_group_on_its_node_stays() {
    assert_eq!(impatient(counts([0.0, 0.0, 0.0, 9.0])).decide(), []);
}

#[test]
fn what_a_migration_halved_counts_half_afterwards() {
    // 8 and 3 of 11 move the group; halved that is 4 and 1.5.
    let mut run = impatient(counts([8.0, 3.0, 0.0, 0.0])).with("half_life_s", 0.0);
    assert_eq!(run.step(), [(0, 0)]);
    assert_eq!(run.step(), []);
    let then = |run: &mut PageRun, nv: [f64; 4]| {
        let group = &mut run.snapshot.groups[0];
        (group.accesses_per_s, group.samples) = (nv.to_vec().into(), nv.iter().sum());
        run.decide()
    };
    // Node 1 has 3 / 2 and 8 more: 9.5 > 2 x 4 + 1, which 11 > 2 x 8 + 1 would not be.
    assert_eq!(then(&mut run, [8.0, 10.4, 0.0, 0.0]), []);
    assert_eq!(then(&mut run, [8.0, 11.0, 0.0, 0.0]), [(0, 1)]);
}

#[test]
fn what_was_halved_ages_as_the_counts_do() {
    let mut run = impatient(counts([8.0, 3.0, 0.0, 0.0]));
    run.step();
    assert_eq!(run.step(), []);
    // A half-life later the half that was taken is 2 and .75; of 4 and 6.25 are left 2 and 5.5.
    run.pass_ns(3_000_000_000);
    let group = &mut run.snapshot.groups[0];
    (group.accesses_per_s, group.samples) = (vec![4.0, 6.25, 0.0, 0.0].into(), 10.25);
    assert_eq!(run.decide(), [(0, 1)]);
    let group = &mut run.snapshot.groups[0];
    (group.accesses_per_s, group.samples) = (vec![4.0, 5.5, 0.0, 0.0].into(), 9.5);
    assert_eq!(run.decide(), []);
}

#[test]
fn a_migration_that_was_not_made_halves_nothing() {
    let mut run = impatient(counts([4.0, 1.0, 0.0, 0.0]));
    assert_eq!([run.decide(), run.decide(), run.decide()], [[(0, 0)], [(0, 0)], [(0, 0)]]);
}

/// Thread 1 on node 0 of two, a group that node 1 uses.
fn with_a_thread() -> SnapshotBuilder {
    SnapshotBuilder::new(two_nodes(1)).thread(1, 0, None).group(&[ALL, 0], &[0.0, 9.0])
}

#[test]
fn pages_wait_for_the_first_thread_mapping() {
    let mut run = PageRun::new(&POLICY, with_a_thread().build());
    assert_eq!([run.decide(), run.decide()], [[], []]);
    run.snapshot.threads[0].node = NodeIndex(1);
    assert_eq!(run.decide(), [(0, 1)]);
}

#[test]
fn pages_wait_no_longer_than_five_decisions() {
    let mut run = PageRun::new(&POLICY, with_a_thread().build());
    let plans: Vec<_> = (0..6).map(|_| run.decide()).collect();
    assert_eq!(plans.iter().position(|plan| !plan.is_empty()), Some(5));
}

#[test]
fn each_process_waits_for_itself() {
    let mut run = PageRun::new(&POLICY, with_a_thread().build());
    run.decide();
    let mut other = run.snapshot.groups[0].clone();
    other.id.process.0 += 1;
    run.snapshot.groups.push(other);
    run.snapshot.threads[0].node = NodeIndex(1);
    assert_eq!(run.decide(), [(0, 1)]);
}

/// Threads (0,4), (1,5), (2,6), (3,7) share pages pairwise on 4 nodes x 2 CPUs; thread i starts on node i mod 4
/// shifted by one, so that nobody is near its pages.
#[test]
fn pages_that_pairs_share_follow_only_after_the_threads_were_placed() {
    let builder =
        (0..8).fold(SnapshotBuilder::new(ring_of_four(2)), |all, tid| all.thread(tid, tid as usize / 2, None));
    let share = |all: SnapshotBuilder, pair: u32| all.group_used_by(&[ALL, 0, 0, 0], &[(pair, 50.0), (pair + 4, 50.0)]);
    let mut run = PageRun::new(&POLICY, (0..4).fold(builder, share).build());
    assert_eq!(run.step(), []);
    for thread in &mut run.snapshot.threads {
        thread.node = NodeIndex(thread.id.tid as usize % 4);
    }
    for pair in 0..4 {
        run.snapshot.groups[pair].accesses_per_s = PerNode::from_fn(4, |node| if node.0 == pair { 100.0 } else { 0.0 });
    }
    assert_eq!(run.step(), [(1, 1), (2, 2), (3, 3)]);
    assert_eq!(run.step(), []);
}

/// The same through both policies: `kmaf` places the threads by what they share, and the pages follow to where they ended.
#[test]
fn kmaf_and_kmaf_bring_pairs_together_and_then_their_pages() {
    let builder =
        (0..8).fold(SnapshotBuilder::new(ring_of_four(2)), |all, tid| all.thread(tid, tid as usize / 2, None));
    let builder = (0..4).fold(builder, |all, pair| all.shared(pair, pair + 4, 1e4));
    let share = |all: SnapshotBuilder, pair: u32| all.group_used_by(&[ALL, 0, 0, 0], &[(pair, 50.0), (pair + 4, 50.0)]);
    let mut now = (0..4).fold(builder, share).build();
    let mut decider = Decider::new(PolicyChoice::of_both("kmaf+kmaf").unwrap());
    let mut kinds = Vec::new();
    for _ in 0..12 {
        let decision = decider.decide(&now, 1, 100_000);
        assert!(decision.answers.iter().all(Result::is_ok));
        kinds.extend(decision.taken);
        if let Some(plan) = decision.plan() {
            let moved = if decision.taken == Some(1) { page_destinations(&now, plan) } else { Vec::new() };
            now = now.after_thread_moves(plan);
            for (group, to) in moved {
                now.groups[group].resident_pages = PerNode::from_fn(4, |node| if node.0 == to { ALL } else { 0 });
            }
        }
        let nodes: BTreeMap<ThreadId, NodeIndex> = now.threads.iter().map(|thread| (thread.id, thread.node)).collect();
        for group in &mut now.groups {
            let mut accesses = PerNode::filled(4, 0.0);
            group.users.iter().for_each(|&(id, per_s)| accesses[nodes[&id]] += per_s);
            group.accesses_per_s = accesses;
        }
        now.time_ns += 1_000_000_000;
    }
    assert_eq!(kinds, [0, 1], "threads once, then pages once");
    for (pair, group) in now.groups.iter().enumerate() {
        let nodes = [pair, pair + 4].map(|tid| now.threads[tid].node);
        assert_eq!([nodes[0], nodes[1]], [group.home().unwrap(); 2], "pair {pair}");
    }
}
