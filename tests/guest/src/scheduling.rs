// SPDX-License-Identifier: GPL-2.0-only
//! Scheduling itself: affinity, weights, nobody starves, time is accounted.

use std::time::Duration;

use libtest_mimic::Trial;
use tandem_bpf::Assignment;
use tandem_guest_tests::{Scx, Worker, monotonic_ns, set_affinity, wait_until};
use tandem_policies::model::NodeIndex;

use crate::trial;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("pinned_threads_run_on_their_cpu_only", pinned_threads_run_on_their_cpu_only),
        trial("cpu_time_goes_by_weight", cpu_time_goes_by_weight),
        trial("run_time_is_accounted_by_node", run_time_is_accounted_by_node),
        trial("a_waking_thread_takes_a_whole_idle_core", a_waking_thread_takes_a_whole_idle_core),
        trial("an_overfull_node_does_not_leave_others_idle", an_overfull_node_does_not_leave_others_idle),
        trial("every_thread_gets_on_under_oversubscription", every_thread_gets_on_under_oversubscription),
    ]
}

fn pinned_threads_run_on_their_cpu_only() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    for (_, node) in scx.topology.nodes.iter() {
        for &cpu in &node.cpus {
            let worker = Worker::start();
            set_affinity(worker.tid, &[cpu.0]);
            let index = scx.topology.index_of(node.id).expect("its own node").0;
            let before = worker.record(&scheduler).run_ns;
            wait_until("it runs", || worker.record(&scheduler).run_ns[index] > before[index] + 50_000_000);
            let after = worker.record(&scheduler).run_ns;
            for other in (0..after.len()).filter(|&other| other != index) {
                assert_eq!(after[other], before[other], "CPU {}: it ran on node index {other}", cpu.0);
            }
        }
    }
}

/// Two threads on one CPU, nice 0 (weight 100 of 100) and nice 5 (weight about 33).
fn cpu_time_goes_by_weight() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let cpu = scx.topology.nodes.values().flat_map(|node| &node.cpus).next_back().expect("a CPU").0;
    let threads = [Worker::start(), Worker::nice(5)];
    for thread in &threads {
        set_affinity(thread.tid, &[cpu]);
    }
    let ran = |thread: &Worker| thread.record(&scheduler).run_ns.iter().sum::<u64>();
    let before = threads.each_ref().map(ran);
    wait_until("they ran for long", || ran(&threads[0]) - before[0] > 4_000_000_000);
    let [heavy, light] = [ran(&threads[0]) - before[0], ran(&threads[1]) - before[1]];
    let weights = threads.each_ref().map(|thread| f64::from(thread.record(&scheduler).weight));
    let ratio = heavy as f64 / light as f64;
    let expected = weights[0] / weights[1];
    assert!((ratio / expected - 1.0).abs() < 0.1, "ran {ratio:.2} : 1, weights are {expected:.2} : 1");
}

/// The kernel's own account of the thread and ours agree.
fn run_time_is_accounted_by_node() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let worker = Worker::start();
    let kernel_ns = || -> u64 {
        let text = std::fs::read_to_string(format!("/proc/self/task/{}/schedstat", worker.tid)).expect("schedstat");
        text.split_whitespace().next().expect("a field").parse().expect("a number")
    };
    let ours_ns = || worker.record(&scheduler).run_ns.iter().sum::<u64>();
    let before = (kernel_ns(), ours_ns());
    std::thread::sleep(Duration::from_secs(3));
    let (kernel, ours) = (kernel_ns() - before.0, ours_ns() - before.1);
    assert!((ours as f64 / kernel as f64 - 1.0).abs() < 0.1, "ours {ours} ns, the kernel's {kernel} ns");
}

/// A thread that uses one hardware thread of a core; another that sleeps and wakes must not come beside it while a whole
/// core of its node is idle.
fn a_waking_thread_takes_a_whole_idle_core() {
    const WAKE_UPS: usize = 100;
    let machine = tandem_machine::read_running().expect("the guest has a topology");
    let node = machine.topology.nodes.values().next_back().expect("a node");
    let cores: Vec<_> = machine.cores.iter().filter(|core| node.cpus.contains(&core[0])).collect();
    let [first, _, ..] = cores[..] else {
        println!("skipped: the last node has one core");
        return;
    };
    if first.len() < 2 {
        println!("skipped: this machine has no SMT");
        return;
    }
    let _scx = Scx::start_observing();
    let worker = Worker::start();
    set_affinity(worker.tid, &[first[0].0]);
    let beside = std::thread::spawn({
        let cpus: Vec<u32> = node.cpus.iter().map(|cpu| cpu.0).collect();
        let siblings: Vec<u32> = first.iter().map(|cpu| cpu.0).collect();
        move || {
            // SAFETY: gettid cannot fail.
            let tid = unsafe { libc::gettid() } as u32;
            // It starts beside the worker, and would stay if an idle hardware thread were enough.
            set_affinity(tid, &siblings[1..]);
            set_affinity(tid, &cpus);
            let wake_up = || {
                std::thread::sleep(Duration::from_millis(5));
                // SAFETY: sched_getcpu has no preconditions.
                unsafe { libc::sched_getcpu() as u32 }
            };
            (0..WAKE_UPS).filter(|_| siblings.contains(&wake_up())).count()
        }
    });
    let beside = beside.join().expect("the sleeper does not panic");
    // The other core is not always idle: the agent and the kernel's threads use it too.
    assert!(beside < WAKE_UPS / 2, "{beside} of {WAKE_UPS} wake-ups beside a busy hardware thread");
}

/// All threads are assigned to one node; CPUs elsewhere take those that wait longer than their price.
fn an_overfull_node_does_not_leave_others_idle() {
    let scx = Scx::start_observing();
    let mut scheduler = scx.handle();
    let cpus: usize = scx.topology.nodes.values().map(|node| node.cpus.len()).sum();
    let full = scx.topology.nodes_with_cpus().next().expect("a node");
    let workers: Vec<Worker> = (0..cpus).map(|_| Worker::start()).collect();
    let batch: Vec<Assignment> = workers
        .iter()
        .map(|worker| {
            let record = worker.record(&scheduler);
            Assignment {
                tid: record.tid,
                start_boottime_ns: record.start_boottime_ns,
                node: Some(full.0 as u32),
                generation: 1,
                expires_ns: monotonic_ns() + 20_000_000_000,
            }
        })
        .collect();
    scheduler.assign(&batch).expect("assigned");
    let busy_ns = || scheduler.statistics().expect("statistics").busy_ns().to_vec();
    std::thread::sleep(Duration::from_secs(1));
    let (before, start_ns) = (busy_ns(), monotonic_ns());
    std::thread::sleep(Duration::from_secs(5));
    let (after, elapsed_ns) = (busy_ns(), monotonic_ns() - start_ns);
    for node in scx.topology.nodes_with_cpus() {
        let capacity_ns = elapsed_ns * scx.topology.nodes[node].cpus.len() as u64;
        let share = (after[node.0] - before[node.0]) as f64 / capacity_ns as f64;
        assert!(share > 0.5, "node index {} was busy for {:.0} % only", node.0, share * 100.0);
    }
}

fn every_thread_gets_on_under_oversubscription() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let cpus: usize = (0..scx.topology.len()).map(|node| scx.topology.nodes[NodeIndex(node)].cpus.len()).sum();
    let workers: Vec<Worker> = (0..cpus * 3).map(|_| Worker::start()).collect();
    let before: Vec<u64> = workers.iter().map(Worker::rounds).collect();
    wait_until("every thread gets on", || {
        workers.iter().zip(&before).all(|(worker, &before)| worker.rounds() > before)
    });
    assert!(scheduler.exit(|_, _| ()).expect("readable").is_none(), "the watchdog did not fire");
}
