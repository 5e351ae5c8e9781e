// SPDX-License-Identifier: GPL-2.0-only
//! Scheduling itself: affinity, weights, nobody starves, time is accounted.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use tandem_bpf::{AssignOutcome, Assignment, Scheduler};
use tandem_guest_tests::{
    Memory, Scx, Worker, assignment, event, monotonic_ns, read, run_ns, set_affinity, wait_until,
};
use tandem_policies::model::{CpuId, NodeIndex};

use crate::trial;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("pinned_threads_run_on_their_cpu_only", pinned_threads_run_on_their_cpu_only),
        trial("run_time_is_accounted_by_node", run_time_is_accounted_by_node),
        trial("a_waking_thread_takes_a_whole_idle_core", a_waking_thread_takes_a_whole_idle_core),
        trial("threads_with_a_cpu_each_are_alone_on_it", threads_with_a_cpu_each_are_alone_on_it),
        trial("a_pinned_thread_shares_its_cpu_with_others", a_pinned_thread_shares_its_cpu_with_others),
        trial("a_new_thread_starts_where_its_parent_is_at_home", a_new_thread_starts_where_its_parent_is_at_home),
        trial("a_thread_for_each_cpu_of_a_node_belongs_there", a_thread_for_each_cpu_of_a_node_belongs_there),
        trial("a_new_process_starts_on_the_node_with_most_room", a_new_process_starts_on_the_node_with_most_room),
        trial(
            "processes_that_start_together_begin_on_different_nodes",
            processes_that_start_together_begin_on_different_nodes,
        ),
        trial("a_new_process_starts_where_memory_is_free", a_new_process_starts_where_memory_is_free),
        trial("a_waking_thread_displaces_one_that_ran_for_long", a_waking_thread_displaces_one_that_ran_for_long),
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

/// The kernel's own account of the thread and ours agree.
fn run_time_is_accounted_by_node() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let worker = Worker::start();
    let kernel_ns = || run_ns(worker.tid);
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

fn all_cpus(scx: &Scx) -> Vec<u32> {
    scx.topology.nodes.values().flat_map(|node| node.cpus.iter().map(|cpu| cpu.0)).collect()
}

/// As many threads as CPUs that they may use: on one CPU of every node, and on all of the last node.
fn threads_with_a_cpu_each_are_alone_on_it() {
    const LOOKS: usize = 100;
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let with_cpus: Vec<_> = scx.topology.nodes_with_cpus().map(|node| &scx.topology.nodes[node].cpus).collect();
    let one_each: Vec<u32> = with_cpus.iter().map(|cpus| cpus[cpus.len() - 1].0).collect();
    let last: Vec<u32> = with_cpus[with_cpus.len() - 1].iter().map(|cpu| cpu.0).collect();
    for cpus in [one_each, last] {
        let workers: Vec<Worker> = cpus.iter().map(|_| Worker::start()).collect();
        workers.iter().for_each(|worker| set_affinity(worker.tid, &cpus));
        let alone = || {
            let used: BTreeSet<u32> = workers.iter().map(|worker| worker.record(&scheduler).cpu).collect();
            used.len() == workers.len()
        };
        wait_until("each is alone on a CPU", alone);
        let look = || {
            std::thread::sleep(Duration::from_millis(10));
            alone()
        };
        let times = (0..LOOKS).filter(|_| look()).count();
        // Reading the records takes a CPU for a moment, for which somebody has to make room.
        assert!(times >= LOOKS * 8 / 10, "CPUs {cpus:?}: each alone in {times} of {LOOKS} looks");
    }
}

/// One that may run on one CPU only, among as many others as there are CPUs: it gets its half of that CPU.
fn a_pinned_thread_shares_its_cpu_with_others() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let cpu = *all_cpus(&scx).last().expect("a CPU");
    let threads = [Worker::start(), Worker::start(), Worker::start()];
    set_affinity(threads[0].tid, &[cpu]);
    set_affinity(threads[1].tid, &[cpu]);
    // May run elsewhere as far as the scheduler can see, but its other CPU is taken.
    let other = all_cpus(&scx)[0];
    let hog = Worker::nice(-20);
    set_affinity(hog.tid, &[other]);
    set_affinity(threads[2].tid, &[cpu]);
    let ran = |thread: &Worker| thread.record(&scheduler).run_ns.iter().sum::<u64>();
    let before = threads.each_ref().map(ran);
    wait_until("they ran for long", || ran(&threads[0]) - before[0] > 2_000_000_000);
    let ran_ns: Vec<u64> = threads.iter().zip(before).map(|(thread, before)| ran(thread) - before).collect();
    let (least, most) = (ran_ns.iter().min().expect("three"), ran_ns.iter().max().expect("three"));
    assert!(*least as f64 > *most as f64 * 0.9, "ran for {ran_ns:?} ns");
    assert!(event(&scheduler, "queued_on_cpu") > 0, "they waited in the CPU's own queue");
}

/// Assigns the calling thread to a node for 50 s.
fn assign_me(scheduler: &mut Scheduler, node: NodeIndex) {
    // SAFETY: gettid cannot fail.
    let me = unsafe { libc::gettid() } as u32;
    let record = scheduler.tasks().expect("tasks").into_iter().find(|task| task.tid == me).expect("this thread");
    assert_eq!(
        scheduler.assign(&[assignment(&record, node, Duration::from_secs(50))]).expect("assigned"),
        [AssignOutcome::Applied]
    );
}

/// The parent's home changes from thread to thread, so it is mostly still elsewhere itself.
fn a_new_thread_starts_where_its_parent_is_at_home() {
    const ROUNDS: usize = 5;
    let scx = Scx::start_observing();
    let mut scheduler = scx.handle();
    let nodes: Vec<NodeIndex> = scx.topology.nodes_with_cpus().collect();
    let starts_there = |node: &&NodeIndex| {
        assign_me(&mut scheduler, **node);
        // The thread before needs its CPU beyond the moment in which its end is seen.
        wait_until_idle(&scx.topology.nodes[**node].cpus);
        Worker::start().record(&scheduler).home == node.0 as u32
    };
    let times = nodes.iter().cycle().take(ROUNDS * nodes.len()).filter(starts_there).count();
    // Whoever finds no room there, because something else runs for a moment, starts next to it.
    assert!(times >= ROUNDS * nodes.len() * 6 / 10, "{times} of {} times", ROUNDS * nodes.len());
}

/// Who makes them takes a CPU for as long as it makes them, and sleeps then.
fn a_thread_for_each_cpu_of_a_node_belongs_there() {
    const ROUNDS: usize = 5;
    const RAN_NS: u64 = 200_000_000;
    let scx = Scx::start_observing();
    let mut scheduler = scx.handle();
    let nodes: Vec<NodeIndex> = scx.topology.nodes_with_cpus().collect();
    let belong_there = |node: &&NodeIndex| {
        let cpus = &scx.topology.nodes[**node].cpus;
        assign_me(&mut scheduler, **node);
        wait_until_idle(cpus);
        let crowd = Worker::crowd(cpus.len());
        wait_until("they ran", || crowd.iter().all(|worker| worker.cpu_time_ns() > RAN_NS));
        // All at once: who reads takes a CPU there too, and whoever makes way for long belongs elsewhere then.
        let tasks = scheduler.tasks().expect("tasks");
        let at_home = tasks.iter().filter(|task| task.home == node.0 as u32);
        at_home.filter(|task| crowd.iter().any(|worker| worker.tid == task.tid)).count() == crowd.len()
    };
    let times = nodes.iter().cycle().take(ROUNDS * nodes.len()).filter(belong_there).count();
    // On a machine that others use making threads may take so long that the last ones belong elsewhere before it is over.
    assert!(times >= ROUNDS * nodes.len() * 3 / 10, "{times} of {} times", ROUNDS * nodes.len());
}

/// All nodes but the last are busy to the last CPU but one; the parent is at home on the first.
fn a_new_process_starts_on_the_node_with_most_room() {
    const PROCESSES: usize = 20;
    let scx = Scx::start_observing();
    let nodes: Vec<_> = scx.topology.nodes_with_cpus().map(|node| &scx.topology.nodes[node].cpus).collect();
    let (free, busy) = nodes.split_last().expect("a node");
    if busy.iter().any(|cpus| cpus.len() < 2) {
        println!("skipped: a node with one CPU is either full or free");
        return;
    }
    let _hogs: Vec<Worker> = busy
        .iter()
        .flat_map(|cpus| &cpus[1..])
        .map(|cpu| {
            let hog = Worker::start();
            set_affinity(hog.tid, &[cpu.0]);
            hog
        })
        .collect();
    assign_me(&mut scx.handle(), scx.topology.nodes_with_cpus().next().expect("a node"));
    let starts_there = || {
        wait_until_idle(free);
        let cpu = cpu_of_a_new_process();
        free.iter().any(|of| of.0 == cpu)
    };
    let times = (0..PROCESSES).filter(|_| starts_there()).count();
    assert!(times > PROCESSES * 3 / 4, "{times} of {PROCESSES} processes started on the free node");
}

/// The first one sleeps when the second one starts, and claims nothing. What starts both has just started itself.
fn processes_that_start_together_begin_on_different_nodes() {
    const PAIRS: usize = 10;
    let scx = Scx::start_observing();
    if scx.topology.nodes_with_cpus().count() < 2 {
        println!("skipped: there is one node");
        return;
    }
    let scheduler = scx.handle();
    let home_of = |tid: u32| {
        let tasks = scheduler.tasks().expect("tasks");
        tasks.iter().find(|task| task.tid == tid).expect("the sleeper").home
    };
    let differ = || {
        let script = "sleep 60 & echo $!; read go; sleep 60 & echo $!; wait";
        let mut shell = Command::new("sh");
        let mut shell =
            shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh runs");
        let mut said = BufReader::new(shell.stdout.take().expect("a pipe")).lines();
        let mut sleeper = || said.next().expect("a line").expect("text").parse::<u32>().expect("a number");
        let first = sleeper();
        wait_until("it sleeps", || read(&format!("/proc/{first}/stat")).contains("(sleep) S"));
        shell.stdin.take().expect("a pipe").write_all(b"\n").expect("it reads");
        let second = sleeper();
        let homes = [first, second].map(home_of);
        for tid in [first, second] {
            // SAFETY: no memory is involved; the shell has not waited for it yet.
            unsafe { libc::kill(tid as i32, libc::SIGKILL) };
        }
        shell.wait().expect("it is ours");
        homes[0] != homes[1]
    };
    let times = (0..PAIRS).filter(|_| differ()).count();
    // Where the first one takes a tenth of a second to fall asleep, the second one may come beside it.
    assert!(times >= PAIRS / 2, "{times} of {PAIRS} pairs began on different nodes");
}

/// The CPU on which a program runs that was just started.
fn cpu_of_a_new_process() -> u32 {
    let done = Command::new("cat").arg("/proc/self/stat").output().expect("cat runs");
    let stat = String::from_utf8(done.stdout).expect("text");
    // Behind the name in brackets, which may have spaces: the 39th field of all is the CPU.
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    fields.split_whitespace().nth(36).expect("a CPU").parse().expect("a number")
}

/// Waits until each of these CPUs has been idle since.
fn wait_until_idle(cpus: &[CpuId]) {
    let idle_ticks = || -> Vec<u64> {
        let times = read("/proc/stat");
        let of = |cpu: &CpuId| -> u64 {
            let name = format!("cpu{}", cpu.0);
            let mut fields = times
                .lines()
                .map(str::split_whitespace)
                .find_map(|mut fields| (fields.next() == Some(&name)).then_some(fields));
            fields.as_mut().and_then(|fields| fields.nth(3)).expect("a CPU's idle time").parse().expect("a number")
        };
        cpus.iter().map(of).collect()
    };
    let before = idle_ticks();
    wait_until("CPUs are idle", || idle_ticks().iter().zip(&before).all(|(now, before)| now > before));
}

/// Free memory of a node in kB, and all of it.
fn memory_kb(node: u32) -> (usize, usize) {
    let text = read(&format!("/sys/devices/system/node/node{node}/meminfo"));
    let of = |name: &str| -> usize {
        let line = text.lines().find(|line| line.contains(name)).expect("a line of this name");
        line.split_whitespace().nth(3).expect("a value").parse().expect("a number")
    };
    (of("MemFree:"), of("MemTotal:"))
}

/// Takes memory of a node until no more than this is free. Piece by piece: the scheduler's agent grows meanwhile, and the kernel
/// would kill whoever asks for what is not there any more.
fn fill(node: u32, left_percent: usize) -> Vec<Memory> {
    const PIECE_KB: usize = 16 << 10;
    let mut taken = Vec::new();
    loop {
        let (free_kb, all_kb) = memory_kb(node);
        let more_kb = free_kb.saturating_sub(all_kb * left_percent / 100).min(PIECE_KB);
        if more_kb < PIECE_KB / 16 {
            return taken;
        }
        taken.push(Memory::on_node(node, more_kb * 1024));
    }
}

/// The parent is at home on the last node and takes a CPU there, so that all others have more room; but their memory is
/// used up to a few percent.
fn a_new_process_starts_where_memory_is_free() {
    const PROCESSES: usize = 20;
    const LEFT_PERCENT: usize = 8;
    let scx = Scx::start_observing();
    let nodes: Vec<NodeIndex> = scx.topology.nodes_with_cpus().collect();
    let (free, full) = nodes.split_last().expect("a node");
    let free_cpus = &scx.topology.nodes[*free].cpus;
    if free_cpus.len() < 2 {
        println!("skipped: the parent takes the only CPU of its node");
        return;
    }
    let taken: Vec<Memory> = full.iter().flat_map(|&node| fill(scx.topology.nodes[node].id.0, LEFT_PERCENT)).collect();
    assign_me(&mut scx.handle(), *free);
    let starts_there = || {
        // The process before needs its CPU beyond the moment in which its parent sees its end.
        wait_until_idle(free_cpus);
        let cpu = cpu_of_a_new_process();
        free_cpus.iter().any(|of| of.0 == cpu)
    };
    // The scheduler looks twice a second, and until then the other nodes have more room.
    wait_until("the scheduler has seen where memory is free", || (0..3).all(|_| starts_there()));
    let times = (0..PROCESSES).filter(|_| starts_there()).count();
    drop(taken);
    assert!(times > PROCESSES * 3 / 4, "{times} of {PROCESSES} processes started where memory is free");
}

fn a_waking_thread_displaces_one_that_ran_for_long() {
    const WAKE_UPS: u64 = 100;
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let _hogs: Vec<Worker> = all_cpus(&scx).iter().map(|_| Worker::start()).collect();
    let before = event(&scheduler, "preempted");
    for _ in 0..WAKE_UPS {
        std::thread::sleep(Duration::from_millis(10));
    }
    let displaced = event(&scheduler, "preempted") - before;
    assert!(displaced > WAKE_UPS / 4, "{displaced} tasks displaced by {WAKE_UPS} wake-ups");
}

/// All threads are assigned to one node; CPUs elsewhere take those that wait longer than their price.
fn an_overfull_node_does_not_leave_others_idle() {
    let scx = Scx::start_observing();
    let mut scheduler = scx.handle();
    let cpus: usize = scx.topology.nodes.values().map(|node| node.cpus.len()).sum();
    let full = scx.topology.nodes_with_cpus().next().expect("a node");
    let workers: Vec<Worker> = (0..cpus).map(|_| Worker::start()).collect();
    let batch: Vec<Assignment> =
        workers.iter().map(|worker| assignment(&worker.record(&scheduler), full, Duration::from_secs(20))).collect();
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
