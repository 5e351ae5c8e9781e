// SPDX-License-Identifier: GPL-2.0-only
//! Where threads without an assignment are at home.

use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::sync::mpsc;
use std::time::Duration;

use libtest_mimic::Trial;
use tandem_bpf::Scheduler;
use tandem_guest_tests::{
    Bound, Scx, TRACE, Worker, assignment, event, read, set_affinity, set_nice, trace, wait_until,
};
use tandem_policies::model::NodeIndex;

use crate::trial;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("a_thread_that_made_way_comes_back", a_thread_that_made_way_comes_back),
        trial("a_thread_that_stays_away_belongs_there", a_thread_that_stays_away_belongs_there),
        trial(
            "a_new_thread_that_was_bound_belongs_there_when_it_is_released",
            a_new_thread_that_was_bound_belongs_there,
        ),
        trial("who_wakes_up_at_home_takes_the_cpu_of_a_visitor", who_wakes_up_at_home_takes_the_cpu_of_a_visitor),
        trial("partners_come_to_one_node", partners_come_to_one_node),
        trial("an_idle_cpu_handles_the_wake_up_itself", an_idle_cpu_handles_the_wake_up_itself),
    ]
}

/// Two nodes with CPUs, and all CPUs.
struct Machine {
    nodes: [(NodeIndex, Vec<u32>); 2],
    all: Vec<u32>,
}

impl Machine {
    fn of(scx: &Scx) -> Self {
        let cpus = |node: NodeIndex| scx.topology.nodes[node].cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>();
        let nodes: Vec<_> = scx.topology.nodes_with_cpus().map(|node| (node, cpus(node))).collect();
        let all = nodes.iter().flat_map(|(_, cpus)| cpus.clone()).collect();
        let [first, .., last] = &nodes[..] else { panic!("the machine has two nodes with CPUs") };
        Self { nodes: [first.clone(), last.clone()], all }
    }

    /// Lets a thread belong to one of the two nodes.
    fn settle(&self, worker: &Worker, at: usize, scheduler: &Scheduler) {
        let (node, cpus) = &self.nodes[at];
        set_affinity(worker.tid, cpus);
        wait_until("it belongs there", || worker.record(scheduler).home == node.0 as u32);
        set_affinity(worker.tid, &self.all);
    }

    /// Lets a thread run for so long on one of the two nodes.
    fn stay(&self, worker: &Worker, at: usize, least_ns: u64, scheduler: &Scheduler) {
        let (node, cpus) = &self.nodes[at];
        let ran_ns = || worker.record(scheduler).run_ns[node.0];
        let before_ns = ran_ns();
        set_affinity(worker.tid, cpus);
        wait_until("it runs there", || ran_ns() >= before_ns + least_ns);
        set_affinity(worker.tid, &self.all);
    }
}

fn is_on(worker: &Worker, cpus: &[u32], scheduler: &Scheduler) -> bool {
    cpus.contains(&worker.record(scheduler).cpu)
}

fn a_thread_that_made_way_comes_back() {
    let scx = Scx::start_observing();
    let (scheduler, machine) = (scx.handle(), Machine::of(&scx));
    let worker = Worker::start();
    machine.settle(&worker, 0, &scheduler);
    machine.stay(&worker, 0, 100_000_000, &scheduler);
    let [home, away] = machine.nodes.each_ref().map(|(node, _)| node.0);
    let before_ns = worker.record(&scheduler).run_ns[away];
    let was_away = (0..20).any(|_| {
        // Allowed everything again at once, it may come back before it ran there.
        set_affinity(worker.tid, &machine.nodes[1].1);
        set_affinity(worker.tid, &machine.all);
        wait_until("it comes back", || is_on(&worker, &machine.nodes[0].1, &scheduler));
        let record = worker.record(&scheduler);
        assert_eq!(record.home, home as u32);
        record.run_ns[away] > before_ns
    });
    assert!(was_away, "it was never away");
}

fn a_thread_that_stays_away_belongs_there() {
    const LOOKS: usize = 20;
    let scx = Scx::start_observing();
    let (scheduler, machine) = (scx.handle(), Machine::of(&scx));
    let worker = Worker::start();
    machine.settle(&worker, 0, &scheduler);
    machine.stay(&worker, 1, 200_000_000, &scheduler);
    let there = (0..LOOKS).filter(|_| is_on(&worker, &machine.nodes[1].1, &scheduler)).count();
    assert!(there >= LOOKS / 2, "{there} of {LOOKS} looks");
    assert_eq!(worker.record(&scheduler).home, machine.nodes[1].0.0 as u32);
}

/// As programs do that give each thread a place before it begins to work. Made on the other node, it would go back there.
fn a_new_thread_that_was_bound_belongs_there() {
    const LONG_NS: u64 = 200_000_000;
    let scx = Scx::start_observing();
    let (scheduler, machine) = (scx.handle(), Machine::of(&scx));
    // SAFETY: gettid cannot fail.
    let own_tid = || unsafe { libc::gettid() } as u32;
    let record = |tid: u32| scheduler.tasks().expect("tasks can be read").into_iter().find(|task| task.tid == tid);
    for at in [0, 1] {
        let (node, cpus) = &machine.nodes[at];
        set_affinity(own_tid(), &machine.nodes[1 - at].1);
        let is_here = || record(own_tid()).expect("it knows this thread").home == machine.nodes[1 - at].0.0 as u32;
        // Looking takes it time to run there.
        wait_until("this thread belongs to the other node", is_here);
        let (sender, receiver) = mpsc::channel();
        let _bound = Bound::start(cpus, {
            let all = machine.all.clone();
            move || {
                set_affinity(own_tid(), &all);
                sender.send(own_tid()).expect("somebody waits");
                // Until nobody listens any more.
                while sender.send(own_tid()).is_ok() {
                    (0..100_000).for_each(|_| std::hint::spin_loop());
                }
            }
        });
        // Gone before the thread is waited for, whatever happens.
        let listener = receiver;
        let tid = listener.recv().expect("it starts");
        let ran_ns = || record(tid).map_or(0, |task| task.run_ns.iter().sum::<u64>());
        wait_until("it has worked for a while", || ran_ns() > LONG_NS);
        let found = record(tid);
        println!("{found:?}");
        assert_eq!(found.map(|task| task.home), Some(node.0 as u32));
    }
}

/// On one node a thread more than it has CPUs, so that one of them runs on the other node, where one sleeps now and then. They have
/// more weight than that one at first.
fn who_wakes_up_at_home_takes_the_cpu_of_a_visitor() {
    const VISITS: u64 = 10;
    const NICE: i32 = -5;
    let scx = Scx::start_observing();
    let (mut scheduler, machine) = (scx.handle(), Machine::of(&scx));
    let [(full, full_cpus), (visited, visited_cpus)] = &machine.nodes;
    let both = [full_cpus.clone(), visited_cpus.clone()].concat();
    let mut belongs_to = |worker: &Worker, node: NodeIndex| {
        set_affinity(worker.tid, &both);
        let assigned = assignment(&worker.record(&scheduler), node, Duration::from_secs(50));
        scheduler.assign(&[assigned]).expect("it is assigned");
    };
    // SAFETY: gettid cannot fail.
    let me = unsafe { libc::gettid() } as u32;
    set_affinity(me, full_cpus);
    let (wake, woken) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let sleeper = Worker::doing(move || {
        if woken.recv().is_err() || tell.send(()).is_err() {
            std::thread::yield_now();
        }
    });
    // Gone before the thread is waited for, whatever happens.
    let waker = wake;
    belongs_to(&sleeper, *visited);
    let workers: Vec<Worker> = (0..both.len()).map(|_| Worker::nice(NICE)).collect();
    for (at, worker) in workers.iter().enumerate() {
        belongs_to(worker, if at + 1 < visited_cpus.len() { *visited } else { *full });
    }
    let wake_up = || {
        waker.send(()).expect("it listens");
        told.recv().expect("it tells");
    };
    let ended = || event(&scheduler, "visit_ended");
    // The workers themselves wake up when they start.
    let before = ended();
    (0..10 * VISITS).for_each(|_| wake_up());
    let heavy = ended() - before;
    assert!(heavy < VISITS, "{heavy} of {} times though they have more weight", 10 * VISITS);
    workers.iter().for_each(|worker| set_nice(worker.tid, 0));
    let before_ns = sleeper.record(&scheduler).run_ns;
    wait_until("visits end", || {
        wake_up();
        ended() >= before + VISITS
    });
    set_affinity(me, &machine.all);
    let after_ns = sleeper.record(&scheduler).run_ns;
    let [at_home_ns, away_ns] = [visited, full].map(|node| after_ns[node.0] - before_ns[node.0]);
    println!("{at_home_ns} ns at home, {away_ns} away");
    assert!(at_home_ns > away_ns, "it runs at home");
}

/// Waits for a byte and passes it on. Without the other end nothing is left to do until the worker is dropped.
fn pass_on(mut from: PipeReader, mut to: PipeWriter) -> impl FnMut() {
    move || {
        let mut byte = [0];
        if from.read_exact(&mut byte).and_then(|()| to.write_all(&byte)).is_err() {
            std::thread::yield_now();
        }
    }
}

/// Two that wake each other in turn.
fn partners() -> [Worker; 2] {
    let (there, mut first) = std::io::pipe().expect("a pipe");
    let (back, second) = std::io::pipe().expect("a pipe");
    let kick = first.try_clone().expect("another end of the pipe");
    let workers = [Worker::doing(pass_on(there, second)), Worker::doing(pass_on(back, kick))];
    first.write_all(&[1]).expect("the pipe has room");
    workers
}

fn partners_come_to_one_node() {
    let scx = Scx::start_observing();
    let (scheduler, machine) = (scx.handle(), Machine::of(&scx));
    let workers = partners();
    let home = |at: usize| workers[at].record(&scheduler).home;
    // They follow each other wherever they may go.
    machine.settle(&workers[0], 0, &scheduler);
    set_affinity(workers[0].tid, &machine.nodes[0].1);
    machine.stay(&workers[1], 1, 100_000_000, &scheduler);
    wait_until("the other comes", || home(1) == machine.nodes[0].0.0 as u32);
    assert!(event(&scheduler, "followed") > 0);
    let partner = workers[1].record(&scheduler).partner.expect("a partner");
    assert_eq!(partner.0, workers[0].tid);
    assert!(partner.1 >= 8, "woken {} times", partner.1);
}

/// What is written to enqueue a thread is written on the CPU that it runs on then, not on the one that wakes it: it need not
/// travel.
fn an_idle_cpu_handles_the_wake_up_itself() {
    const WAKE_UPS: usize = 200;
    const ENQUEUED: &str = "sched/sched_wakeup";
    let _scx = Scx::start_observing();
    let workers = partners();
    let is_of_theirs = |line: &&str| workers.iter().any(|worker| line.contains(&format!(" pid={} ", worker.tid)));
    trace(ENQUEUED, true);
    wait_until("they wake each other", || read(TRACE).lines().filter(is_of_theirs).count() >= WAKE_UPS);
    trace(ENQUEUED, false);
    // NAME-TID [CPU] FLAGS TIME: sched_wakeup: ... target_cpu=CPU
    let is_there = |line: &&str| {
        let (before, target) = line.rsplit_once(" target_cpu=").expect("a target");
        before.contains(&format!(" [{target}] "))
    };
    let trace = read(TRACE);
    let theirs: Vec<&str> = trace.lines().filter(is_of_theirs).collect();
    let there = theirs.iter().copied().filter(|line| is_there(line)).count();
    assert!(
        there * 10 > theirs.len() * 9,
        "{there} of {} wake-ups where the thread runs, such as {}",
        theirs.len(),
        theirs[0]
    );
}
