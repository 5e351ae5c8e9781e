// SPDX-License-Identifier: GPL-2.0-only
//! Random transactions: whatever is wrong with them, they change nothing and each is counted for what is wrong.

use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use libtest_mimic::Trial;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use tandem_bpf::{AssignOutcome, Assignment, MAX_BATCH, Pins, Scheduler};
use tandem_guest_tests::{Scx, Worker, assignment, monotonic_ns};

use crate::trial;

const LEASE: Duration = Duration::from_secs(50);
/// Longer than any lease that scx_tandem grants here.
const TOO_LONG_NS: u64 = 3_600_000_000_000;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("random_bad_transactions_change_nothing_and_are_counted", || random_bad_transactions(20)),
        trial("random_bytes_as_a_batch_change_nothing_and_are_counted", || random_batches(20)),
        trial("many_random_bad_transactions", || random_bad_transactions(20_000)).with_ignored_flag(true),
        trial("many_random_bytes_as_a_batch", || random_batches(20_000)).with_ignored_flag(true),
    ]
}

/// A generator with a seed of its own for each run, which is printed so that a failure can be repeated.
fn generator() -> Pcg64Mcg {
    let seed = monotonic_ns();
    println!("seed {seed}");
    Pcg64Mcg::seed_from_u64(seed)
}

fn below(generator: &mut Pcg64Mcg, end: u64) -> u64 {
    generator.next_u64() % end
}

/// What can be wrong with an assignment, in the order in which the scheduler looks.
const FAULTS: [AssignOutcome; 6] = [
    AssignOutcome::NoTask,
    AssignOutcome::WrongStart,
    AssignOutcome::Stale,
    AssignOutcome::Expired,
    AssignOutcome::LeaseTooLong,
    AssignOutcome::BadNode,
];

/// Makes `fault` true of an assignment.
fn spoil(right: &mut Assignment, fault: AssignOutcome, nodes: u64, generator: &mut Pcg64Mcg) {
    let now_ns = monotonic_ns();
    match fault {
        // Thread ids end at 4194304.
        AssignOutcome::NoTask => right.tid = 4_194_305 + below(generator, 4_000_000_000) as u32,
        AssignOutcome::WrongStart => right.start_boottime_ns ^= 1 << below(generator, 64),
        AssignOutcome::Stale => right.generation = below(generator, right.generation),
        AssignOutcome::Expired => right.expires_ns = below(generator, now_ns),
        AssignOutcome::LeaseTooLong => {
            right.expires_ns = now_ns + TOO_LONG_NS + below(generator, u64::MAX - now_ns - TOO_LONG_NS);
        }
        // Number 255 withdraws.
        AssignOutcome::BadNode => right.node = Some((nodes + 256 * below(generator, 1 << 23)) as u32),
        other => unreachable!("{other:?} is no fault of a field"),
    }
}

/// An assignment with one fault or more, and the outcome that it must have.
fn bad(right: Assignment, nodes: u64, generator: &mut Pcg64Mcg) -> (Assignment, AssignOutcome) {
    let mut spoiled = right;
    let mut faults: Vec<AssignOutcome> = FAULTS.into_iter().filter(|_| below(generator, 4) == 0).collect();
    if faults.is_empty() {
        faults.push(FAULTS[below(generator, FAULTS.len() as u64) as usize]);
    }
    // A lease cannot be over and too long.
    if faults.contains(&AssignOutcome::Expired) {
        faults.retain(|&fault| fault != AssignOutcome::LeaseTooLong);
    }
    for &fault in &faults {
        spoil(&mut spoiled, fault, nodes, generator);
    }
    (spoiled, faults[0])
}

fn random_bad_transactions(batches: usize) {
    let mut generator = generator();
    let worker = Worker::start();
    let scx = Scx::start_observing();
    let mut scheduler = scx.handle();
    let node = scx.topology.nodes_with_cpus().next().expect("a node has CPUs");
    let record = worker.record(&scheduler);
    for _ in 0..batches {
        let right = Assignment { generation: monotonic_ns(), ..assignment(&record, node, LEASE) };
        assert_eq!(scheduler.assign(&[right]).expect("taken"), [AssignOutcome::Applied]);
        let before = (state_of(&worker, &scheduler), counts(&scheduler));
        let (batch, expected): (Vec<_>, Vec<_>) =
            (0..MAX_BATCH).map(|_| bad(right, scx.topology.len() as u64, &mut generator)).unzip();
        let outcomes = scheduler.assign(&batch).expect("the batch is taken");
        for ((item, outcome), expected) in batch.iter().zip(&outcomes).zip(&expected) {
            assert_eq!(outcome, expected, "{item:?} beside {right:?}");
        }
        assert_eq!(state_of(&worker, &scheduler), before.0, "the assignment in force is as it was");
        for (outcome, count) in counts(&scheduler) {
            let was = before.1.iter().find(|(other, _)| *other == outcome).expect("the same outcomes").1;
            let new = expected.iter().filter(|&&other| other == outcome).count() as u64;
            assert_eq!(count, was + new, "{outcome:?} is counted");
        }
    }
}

fn random_batches(batches: usize) {
    let mut generator = generator();
    let worker = Worker::start();
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let map = MapHandle::from_pinned_path(Pins::default().map("batches")).expect("the map is pinned");
    let key = [0; 4];
    let before = state_of(&worker, &scheduler);
    for _ in 0..batches {
        let mut bytes = vec![0; map.value_size() as usize];
        generator.fill_bytes(&mut bytes);
        // Every third batch has a length that can be; most random ones are far too long.
        let count = match below(&mut generator, 3) {
            0 => below(&mut generator, MAX_BATCH as u64 + 1) as u32,
            1 => MAX_BATCH as u32 + 1 + below(&mut generator, 3) as u32,
            _ => generator.next_u32(),
        };
        bytes[..4].copy_from_slice(&count.to_ne_bytes());
        map.update(&key, &bytes, MapFlags::ANY).expect("the map takes a batch");
        let answered = |scheduler: &Scheduler| counts(scheduler).iter().map(|(_, count)| count).sum::<u64>();
        let was = answered(&scheduler);
        let taken = scheduler.run_assign().is_ok();
        assert_eq!(taken, count <= MAX_BATCH as u32, "a batch of {count}");
        let expected = if taken { u64::from(count) } else { 0 };
        assert_eq!(answered(&scheduler), was + expected, "each item of a batch of {count} is counted");
        assert_eq!(state_of(&worker, &scheduler), before, "nothing is assigned");
    }
}

/// What assignments could change of a thread.
fn state_of(worker: &Worker, scheduler: &Scheduler) -> (Option<u32>, u32, u32) {
    let record = worker.record(scheduler);
    (record.assigned, record.weight, record.allowed_nodes)
}

fn counts(scheduler: &Scheduler) -> Vec<(AssignOutcome, u64)> {
    scheduler.statistics().expect("statistics").assignments().collect()
}
