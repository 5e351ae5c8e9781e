// SPDX-License-Identifier: GPL-2.0-only
//! The same thing again and again under load, in a short form and in one that proves more and takes minutes.

use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use tandem_bpf::{Pins, Scheduler};
use tandem_guest_tests::{Scx, Worker, enable_seq, event, monotonic_ns, set_affinity, state, unload, wait_until};

use crate::trial;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("long_loading_and_unloading_under_load", || load_and_unload(50)).with_ignored_flag(true),
        trial("agents_killed_at_random", || kill_agents(2)),
        trial("long_agents_killed_at_random", || kill_agents(100)).with_ignored_flag(true),
        trial("processes_that_come_and_go_leave_nothing", || fork_storm(1_000)),
        trial("long_processes_that_come_and_go_leave_nothing", || fork_storm(50_000)).with_ignored_flag(true),
        trial("affinity_that_changes_all_the_time", || change_affinity(Duration::from_secs(3))),
        trial("long_affinity_that_changes_all_the_time", || change_affinity(Duration::from_secs(120)))
            .with_ignored_flag(true),
    ]
}

fn all_cpus() -> Vec<u32> {
    let topology = tandem_machine::read_running().expect("the guest has a topology").topology;
    topology.nodes.values().flat_map(|node| node.cpus.iter().map(|cpu| cpu.0)).collect()
}

/// A thread for each CPU, and one more that is bound to the last: whoever starts has to share. They let others go first:
/// verifying a scheduler takes an emulated CPU seconds, which for equals would be minutes.
fn load(cpus: &[u32]) -> Vec<Worker> {
    const NICE: i32 = 10;
    let bound = Worker::nice(NICE);
    set_affinity(bound.tid, &cpus[cpus.len() - 1..]);
    std::iter::once(bound).chain(cpus.iter().map(|_| Worker::nice(NICE))).collect()
}

fn assert_all_get_on(workers: &[Worker]) {
    let before: Vec<u64> = workers.iter().map(Worker::rounds).collect();
    wait_until("every thread gets on", || {
        workers.iter().zip(&before).all(|(worker, &before)| worker.rounds() > before)
    });
}

fn load_and_unload(times: u64) {
    let workers = load(&all_cpus());
    let seq = enable_seq();
    for time in 1..=times {
        let scx = Scx::start_observing();
        assert_eq!(enable_seq(), seq + time);
        assert_all_get_on(&workers);
        assert!(scx.stop().success());
        assert_eq!(state(), "disabled");
        assert!(!Pins::default().dir().exists());
        println!("loaded and unloaded {time} times");
    }
    assert_all_get_on(&workers);
}

/// A generator with a seed of its own for each run, which is printed so that a failure can be repeated.
fn generator() -> Pcg64Mcg {
    let seed = monotonic_ns();
    println!("seed {seed}");
    Pcg64Mcg::seed_from_u64(seed)
}

/// Agents with everything on, killed wherever they are just then; each next one takes over.
fn kill_agents(times: usize) {
    let workers = load(&all_cpus());
    let mut generator = generator();
    let first = Scx::start(&["--interval-ms", "100"]);
    let seq = enable_seq();
    first.kill();
    for time in 1..=times {
        let agent = Scx::start(&["--interval-ms", "100"]);
        assert!(agent.log().contains("took over"), "{}", agent.log());
        std::thread::sleep(Duration::from_millis(generator.next_u64() % 500));
        agent.kill();
        assert_eq!((state().as_str(), enable_seq()), ("enabled", seq), "the scheduler was never away");
        println!("killed {time} agents");
    }
    assert_all_get_on(&workers);
    unload();
    assert_eq!(state(), "disabled");
}

/// Tasks that the scheduler keeps something about.
fn known_tasks(scheduler: &Scheduler) -> u64 {
    event(scheduler, "task_made") - event(scheduler, "task_gone")
}

/// Processes that run a program and end, from several threads at once.
fn fork_storm(processes: usize) {
    const STARTERS: usize = 8;
    /// Threads of the kernel's that come and go by themselves.
    const OTHERS: u64 = 40;
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let before = known_tasks(&scheduler);
    let made = event(&scheduler, "task_made");
    let start = || {
        for _ in 0..processes / STARTERS {
            assert!(Command::new("/bin/true").status().expect("a program of the guest").success());
        }
    };
    std::thread::scope(|scope| (0..STARTERS).for_each(|_| drop(scope.spawn(start))));
    assert!(event(&scheduler, "task_made") - made >= processes as u64, "it saw them all");
    wait_until("nothing is left of them", || known_tasks(&scheduler) <= before + OTHERS);
    assert!(scx.stop().success());
}

/// Threads whose affinity changes faster than they are scheduled, to one CPU, a few, all.
fn change_affinity(length: Duration) {
    let scx = Scx::start_observing();
    let cpus = all_cpus();
    let workers = load(&cpus);
    let mut generator = generator();
    let end = Instant::now() + length;
    while Instant::now() < end {
        let worker = &workers[generator.next_u64() as usize % workers.len()];
        let first = generator.next_u64() as usize % cpus.len();
        let count = 1 + generator.next_u64() as usize % (cpus.len() - first);
        set_affinity(worker.tid, &cpus[first..first + count]);
    }
    workers.iter().for_each(|worker| set_affinity(worker.tid, &cpus));
    assert_all_get_on(&workers);
    assert!(scx.handle().exit(|_, _| ()).expect("readable").is_none(), "the scheduler is still there");
    assert!(scx.stop().success());
}
