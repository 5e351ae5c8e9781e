// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::model::{NodeIndex, ProcessId};
use crate::testing::{PageRun, SnapshotBuilder, ring_of_four};

const ALL: u64 = 512;
const SECOND_NS: u64 = 1_000_000_000;

/// Threads 0 to 3, thread i on node i of the ring.
fn ring() -> SnapshotBuilder {
    (0..4).fold(SnapshotBuilder::new(ring_of_four(1)), |all, tid| all.thread(tid, tid as usize, None))
}

/// `count` groups on node 0, of which the first was seen to be used by `tids` and the others by nobody.
fn array(builder: SnapshotBuilder, count: usize, tids: &[u32]) -> SnapshotBuilder {
    let users: Vec<(u32, f64)> = tids.iter().map(|&tid| (tid, 10.0)).collect();
    let builder = builder.group_used_by(&[ALL, 0, 0, 0], &users);
    let rest =
        |all: SnapshotBuilder, _| all.group_used_by(&[ALL, 0, 0, 0], &[]).with_group(|group| group.samples = 0.0);
    (1..count).fold(builder, rest)
}

/// The nodes that hold the groups.
fn homes(run: &PageRun) -> Vec<usize> {
    run.snapshot.groups.iter().map(|group| group.home().unwrap().0).collect()
}

#[test]
fn an_array_is_cut_into_as_many_chunks_as_threads_and_then_stays() {
    let mut run = PageRun::new(&POLICY, array(ring(), 8, &[0, 1, 2, 3]).build());
    run.step();
    assert_eq!(homes(&run), [0, 0, 1, 1, 2, 2, 3, 3]);
    assert_eq!(run.step(), []);
}

#[test]
fn with_page_nodes_there_is_a_chunk_for_each_of_these_whoever_uses_the_array() {
    let mut run = PageRun::new(&POLICY, array(ring(), 8, &[3]).build()).with("page_nodes", 4.0);
    run.step();
    assert_eq!(homes(&run), [0, 0, 1, 1, 2, 2, 3, 3]);
    assert_eq!(run.step(), []);
    let mut run = PageRun::new(&POLICY, array(ring(), 6, &[0, 1, 2, 3]).build()).with("page_nodes", 2.0);
    run.step();
    assert_eq!(homes(&run), [0, 0, 0, 1, 1, 1]);
}

#[test]
fn only_threads_that_use_the_array_get_a_chunk() {
    let mut run = PageRun::new(&POLICY, array(ring(), 6, &[1, 3]).build());
    run.step();
    assert_eq!(homes(&run), [1, 1, 1, 3, 3, 3]);
}

#[test]
fn a_group_across_a_border_goes_where_its_middle_is() {
    let mut run = PageRun::new(&POLICY, array(ring(), 5, &[0, 3]).build());
    run.step();
    assert_eq!(homes(&run), [0, 0, 3, 3, 3]);
}

#[test]
fn blocks_of_one_group_are_interleaving() {
    let mut run = PageRun::new(&POLICY, array(ring(), 6, &[0, 1, 2, 3]).build()).with("block_groups", 1.0);
    run.step();
    assert_eq!(homes(&run), [0, 1, 2, 3, 0, 1]);
}

#[test]
fn a_gap_and_another_process_begin_another_dataset() {
    let builder = array(ring(), 2, &[0, 1]);
    let mut run = PageRun::new(&POLICY, array(builder, 2, &[2, 3]).build());
    run.snapshot.groups[2].id.start += 4096;
    run.snapshot.groups[3].id.start += 4096;
    run.step();
    assert_eq!(homes(&run), [0, 1, 2, 3]);
    let mut other = PageRun::new(&POLICY, array(array(ring(), 2, &[0, 1]), 2, &[2, 3]).build());
    (2..4).for_each(|at| other.snapshot.groups[at].id.process = ProcessId(2));
    other.step();
    assert_eq!(homes(&other), [0, 1, 2, 3]);
}

#[test]
fn a_thread_that_samples_miss_keeps_its_chunk_for_thirty_seconds() {
    let mut run = PageRun::new(&POLICY, array(ring(), 4, &[0, 1, 2, 3]).build());
    run.step();
    run.snapshot.groups[0].users.truncate(2);
    run.pass_ns(30 * SECOND_NS);
    assert_eq!(run.step(), []);
    run.pass_ns(1);
    run.step();
    assert_eq!(homes(&run), [0, 0, 1, 1]);
}

#[test]
fn an_array_that_grows_remembers_its_threads() {
    let mut run = PageRun::new(&POLICY, array(ring(), 4, &[0, 3]).build());
    let mut first = run.snapshot.groups.remove(0);
    run.snapshot.groups[0].users = std::mem::take(&mut first.users);
    run.snapshot.groups[0].samples = 100.0;
    run.step();
    run.snapshot.groups[0].users.truncate(1);
    run.snapshot.groups.insert(0, first);
    run.step();
    assert_eq!(homes(&run), [0, 0, 3, 3]);
}

#[test]
fn a_chunk_follows_its_thread() {
    let mut run = PageRun::new(&POLICY, array(ring(), 4, &[0, 1]).build());
    run.step();
    run.snapshot.threads[1].node = NodeIndex(2);
    assert_eq!(run.step(), [(2, 2), (3, 2)]);
}

#[test]
fn too_few_samples_of_the_whole_array_leave_it_alone() {
    let with = |samples: f64| {
        let mut run = PageRun::new(&POLICY, array(ring(), 4, &[1]).build());
        run.snapshot.groups[0].samples = samples;
        run.decide().len()
    };
    assert_eq!((with(3.9), with(4.0)), (0, 4));
}

#[test]
fn the_reason_names_chunk_thread_and_node() {
    let plan = PageRun::new(&POLICY, array(ring(), 4, &[0, 1]).build()).plan().unwrap();
    assert_eq!(plan.moves[0].reason, "chunk 2 of 2 of the dataset at 0x200000 is by thread 1 near node 1");
}

#[test]
fn without_users_the_signal_is_missing() {
    let error = PageRun::new(&POLICY, ring().group(&[ALL, 0, 0, 0], &[9.0; 4]).build()).plan().unwrap_err();
    assert_eq!(error.signal, Signal::GroupUsers);
}
