// SPDX-License-Identifier: GPL-2.0-only
//! Who gets how much CPU time, in numbers.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use tandem_bpf::{AssignOutcome, Assignment, Scheduler};
use tandem_guest_tests::{Scx, Worker, assignment, set_affinity, set_nice, wait_until, watch_tasks};

use crate::trial;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("hogs_with_a_cpu_each_get_nearly_all_of_it", hogs_with_a_cpu_each_get_nearly_all_of_it),
        trial("cpu_time_goes_by_weight", cpu_time_goes_by_weight),
        trial("a_light_thread_does_not_starve_beside_heavy_ones", a_light_thread_does_not_starve_beside_heavy_ones),
        trial("a_light_thread_that_is_given_other_weights_does_not_starve", a_reweighted_thread_does_not_starve),
        trial("pinned_threads_that_had_a_cpu_to_themselves_owe_nothing", pinned_threads_owe_nothing),
        trial("a_pinned_thread_has_its_share_beside_confined_ones", a_pinned_thread_has_its_share_beside_confined_ones),
        trial("who_yields_leaves_the_cpu_to_who_works", who_yields_leaves_the_cpu_to_who_works),
        trial("nobody_starves_on_a_full_node", nobody_starves_on_a_full_node),
        trial("four_threads_a_cpu_share_the_machine", four_threads_a_cpu_share_the_machine),
    ]
}

/// What each worker runs within the next `window`, and how long that was.
fn watch(workers: &[Worker], scheduler: &Scheduler, window: Duration) -> (Vec<u64>, Duration) {
    let tids: Vec<u32> = workers.iter().map(|worker| worker.tid).collect();
    watch_tasks(&tids, scheduler, window)
}

/// The CPUs of each node that has some.
fn cpus_by_node(scx: &Scx) -> Vec<Vec<u32>> {
    let nodes = scx.topology.nodes_with_cpus();
    nodes.map(|node| scx.topology.nodes[node].cpus.iter().map(|cpu| cpu.0).collect()).collect()
}

fn hogs_with_a_cpu_each_get_nearly_all_of_it() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    for cpus in cpus_by_node(&scx) {
        let hogs: Vec<Worker> = cpus.iter().map(|_| Worker::start()).collect();
        hogs.iter().for_each(|hog| set_affinity(hog.tid, &cpus));
        let (ran_ns, elapsed) = watch(&hogs, &scheduler, Duration::from_secs(3));
        let least = *ran_ns.iter().min().expect("a hog") as f64 / elapsed.as_nanos() as f64;
        assert!(least >= 0.95, "CPUs {cpus:?}: a hog got {:.1} % of one: {ran_ns:?} ns", least * 100.0);
    }
}

/// Two threads on one CPU, nice 0 and nice 5: the kernel's weights are 1024 and 335.
fn cpu_time_goes_by_weight() {
    const EXPECTED: f64 = 1024.0 / 335.0;
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let cpu = *cpus_by_node(&scx).concat().last().expect("a CPU");
    let threads = [Worker::start(), Worker::nice(5)];
    threads.iter().for_each(|thread| set_affinity(thread.tid, &[cpu]));
    let (ran_ns, _) = watch(&threads, &scheduler, Duration::from_secs(6));
    let ratio = ran_ns[0] as f64 / ran_ns[1] as f64;
    assert!((ratio / EXPECTED - 1.0).abs() < 0.05, "ran {ratio:.2} : 1, weights are {EXPECTED:.2} : 1");
}

/// By their weights alone the light thread would run once in a minute and a half, and the kernel's watchdog would eject
/// the scheduler before.
fn a_light_thread_does_not_starve_beside_heavy_ones() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let cpus = cpus_by_node(&scx).concat();
    let cpu = *cpus.last().expect("a CPU");
    // The one that may run on one CPU only, and the one that may run on others as well, wait in different queues.
    for light_may_use in [vec![cpu], vec![cpu, cpus[0]]] {
        let heavy: Vec<Worker> =
            light_may_use.iter().flat_map(|&on| [on; 2]).map(|on| pinned(Worker::nice(-20), on)).collect();
        let light = [Worker::nice(19)];
        set_affinity(light[0].tid, &light_may_use);
        // Whoever is new runs once soon.
        std::thread::sleep(Duration::from_secs(1));
        let (ran_ns, _) = watch(&light, &scheduler, Duration::from_secs(4));
        assert!(ran_ns[0] > 0, "it did not run for 4 s beside {} heavy ones", heavy.len());
    }
}

/// Somebody gives it another weight again and again, which takes it out of its queue and puts it back.
fn a_reweighted_thread_does_not_starve() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let cpu = *cpus_by_node(&scx).concat().last().expect("a CPU");
    let _heavy = [(); 2].map(|()| pinned(Worker::nice(-20), cpu));
    let light = pinned(Worker::nice(19), cpu);
    let ran_ns = || light.record(&scheduler).run_ns.iter().sum::<u64>();
    for _ in 0..2 {
        let (before_ns, begun) = (ran_ns(), Instant::now());
        let mut levels = [18, 19].into_iter().cycle();
        wait_until("it runs", || {
            set_nice(light.tid, levels.next().expect("a cycle"));
            ran_ns() > before_ns
        });
        assert!(begun.elapsed() < Duration::from_secs(4), "it waited for {:?}", begun.elapsed());
    }
}

fn pinned(worker: Worker, cpu: u32) -> Worker {
    set_affinity(worker.tid, &[cpu]);
    worker
}

/// Two threads that may use one CPU only have it to themselves for long; then others come, three to a CPU of the node.
fn pinned_threads_owe_nothing() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let cpus = cpus_by_node(&scx).pop().expect("a node");
    let alone: Vec<Worker> = (0..2).map(|_| pinned(Worker::start(), cpus[0])).collect();
    std::thread::sleep(Duration::from_secs(6));
    let others: Vec<Worker> = (0..3 * cpus.len()).map(|_| Worker::start()).collect();
    others.iter().for_each(|other| set_affinity(other.tid, &cpus));
    let (ran_ns, elapsed) = watch(&alone, &scheduler, Duration::from_secs(2));
    // Fair is a share of all threads, at most half of one CPU each.
    let fair = (cpus.len() as f64 / (alone.len() + others.len()) as f64).min(0.5);
    for ran_ns in ran_ns {
        let share = ran_ns as f64 / elapsed.as_nanos() as f64;
        assert!(
            share > fair / 2.0,
            "a pinned thread got {:.0} % of a CPU, fair is {:.0} %",
            share * 100.0,
            fair * 100.0
        );
    }
}

/// The queue of a node goes on with the four threads on two of its CPUs; those on the other two, six of them, fall behind it for good, and
/// so seem to come before one that may run on one CPU only. The watchdog would eject the scheduler after 20 s.
fn a_pinned_thread_has_its_share_beside_confined_ones() {
    const WINDOWS: usize = 3;
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let Some(cpus) = cpus_by_node(&scx).into_iter().find(|cpus| cpus.len() >= 4) else {
        println!("no node has four CPUs: nothing to see here");
        return;
    };
    let confined = |threads: usize, to: &[u32]| -> Vec<Worker> {
        let workers: Vec<Worker> = (0..threads).map(|_| Worker::start()).collect();
        workers.iter().for_each(|worker| set_affinity(worker.tid, to));
        workers
    };
    let _fast = confined(4, &cpus[..2]);
    let _slow = confined(6, &cpus[2..4]);
    std::thread::sleep(Duration::from_secs(2));
    let one = [pinned(Worker::start(), cpus[2])];
    for _ in 0..WINDOWS {
        let (ran_ns, elapsed) = watch(&one, &scheduler, Duration::from_secs(4));
        // Fair is a seventh of two CPUs.
        let share = ran_ns[0] as f64 / elapsed.as_nanos() as f64;
        assert!(share > 1.0 / 7.0, "the pinned thread got {:.1} % of a CPU", share * 100.0);
    }
}

/// One thread spins until there is something to do and yields meanwhile, the other one works. The one that yields has less
/// virtual time all along.
fn who_yields_leaves_the_cpu_to_who_works() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let cpu = *cpus_by_node(&scx).concat().last().expect("a CPU");
    let threads = [pinned(Worker::start(), cpu), pinned(Worker::doing(std::thread::yield_now), cpu)];
    let (ran_ns, _) = watch(&threads, &scheduler, Duration::from_secs(3));
    let share = ran_ns[0] as f64 / ran_ns.iter().sum::<u64>() as f64;
    assert!(share > 0.9, "who works got {:.1} % of the CPU: {ran_ns:?} ns", share * 100.0);
}

/// Eight threads a CPU, all assigned to one node and bound to it: nobody waits for more than 2.5 s. An emulated machine that
/// stands still for a third of a second charges that to whoever runs then, who waits eight times as long.
fn nobody_starves_on_a_full_node() {
    const THREADS_PER_CPU: usize = 8;
    const WINDOWS: usize = 3;
    const WINDOW: Duration = Duration::from_secs(3);
    let scx = Scx::start_observing();
    let mut scheduler = scx.handle();
    let cpus = cpus_by_node(&scx).swap_remove(0);
    let node = scx.topology.nodes_with_cpus().next().expect("a node");
    let hogs: Vec<Worker> = (0..THREADS_PER_CPU * cpus.len()).map(|_| Worker::start()).collect();
    let assign = |hog: &Worker| {
        set_affinity(hog.tid, &cpus);
        assignment(&hog.record(&scheduler), node, Duration::from_secs(50))
    };
    let batch: Vec<Assignment> = hogs.iter().map(assign).collect();
    let outcomes = scheduler.assign(&batch).expect("assigned");
    assert!(outcomes.iter().all(|&outcome| outcome == AssignOutcome::Applied), "{outcomes:?}");
    for _ in 0..WINDOWS {
        let (ran_ns, _) = watch(&hogs, &scheduler, WINDOW);
        assert!(ran_ns.iter().all(|&ran_ns| ran_ns > 0), "in {WINDOW:?} they ran for {ran_ns:?} ns");
    }
}

/// Four threads a CPU, bound and assigned nowhere, beside some of nice 19, which take nobody's place: in 10 s the slowest
/// of the four a CPU runs for at least 0.9 of what the fastest does; in one of three such windows, as an emulated machine whose host is
/// busy stands still now and then, and charges that to whoever runs.
fn four_threads_a_cpu_share_the_machine() {
    const THREADS_PER_CPU: usize = 4;
    const LIGHT: usize = 3;
    const WINDOWS: usize = 3;
    let scx = Scx::start_observing();
    let cpus = cpus_by_node(&scx).concat().len();
    let _light: Vec<Worker> = (0..LIGHT).map(|_| Worker::nice(19)).collect();
    let threads: Vec<Worker> = (0..THREADS_PER_CPU * cpus).map(|_| Worker::start()).collect();
    std::thread::sleep(Duration::from_secs(1));
    let is_fair = || {
        let before: Vec<u64> = threads.iter().map(Worker::cpu_time_ns).collect();
        std::thread::sleep(Duration::from_secs(10));
        let ran = threads.iter().zip(before).map(|(thread, before)| thread.cpu_time_ns() - before);
        let ran_ns: Vec<u64> = ran.collect();
        let (least, most) = (ran_ns.iter().min().expect("threads"), ran_ns.iter().max().expect("threads"));
        let ratio = *least as f64 / *most as f64;
        println!("the slowest of {} got {ratio:.3} of what the fastest got: {ran_ns:?} ns", threads.len());
        ratio >= 0.9
    };
    assert!((0..WINDOWS).any(|_| is_fair()));
}
