// SPDX-License-Identifier: GPL-2.0-only
//! CPUs come and go, with and without an agent.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use tandem_bpf::{Assignment, Scheduler};
use tandem_guest_tests::{
    ControlGroup, Hog, Scx, Worker, assignment, enable_seq, event, run_ns, set_affinity, state, unload, wait_until,
};
use tandem_policies::model::Topology;

use crate::trial;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("the_agent_goes_on_when_cpus_come_and_go", the_agent_goes_on_when_cpus_come_and_go),
        trial("a_calibration_counts_on_though_its_file_is_gone", a_calibration_counts_on_though_its_file_is_gone),
        trial("the_agent_goes_on_while_many_cpus_come_and_go", the_agent_goes_on_while_many_cpus_come_and_go),
        trial("every_cpu_comes_and_goes_without_an_agent", every_cpu_comes_and_goes_without_an_agent),
        trial(
            "all_nodes_but_the_first_come_and_go_without_an_agent",
            all_nodes_but_the_first_come_and_go_without_an_agent,
        ),
        trial("a_whole_node_comes_and_goes_without_an_agent", a_whole_node_comes_and_goes_without_an_agent),
        trial("a_cpu_goes_though_threads_there_wait_for_their_quota", a_cpu_goes_though_threads_wait_for_their_quota),
    ]
}

/// A CPU that can go offline, online again when dropped.
struct Removable {
    cpu: u32,
    online: PathBuf,
}

impl Removable {
    /// All CPUs that the machine lets go.
    fn all(topology: &Topology) -> Vec<Self> {
        let cpus = topology.nodes.values().flat_map(|node| &node.cpus);
        let online = |cpu: u32| PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/online"));
        cpus.map(|cpu| Self { cpu: cpu.0, online: online(cpu.0) }).filter(|cpu| cpu.online.exists()).collect()
    }

    fn set(&self, online: bool) {
        fs::write(&self.online, if online { "1" } else { "0" })
            .unwrap_or_else(|error| panic!("CPU {}, online {online}: {error}", self.cpu));
    }
}

impl Drop for Removable {
    fn drop(&mut self) {
        if fs::read_to_string(&self.online).is_ok_and(|online| online.trim() == "0") {
            self.set(true);
        }
    }
}

/// All of them get on.
fn get_on(workers: &[Worker], scheduler: &Scheduler) {
    let before: Vec<u64> = workers.iter().map(Worker::rounds).collect();
    wait_until("every thread gets on", || {
        assert_loaded(scheduler);
        workers.iter().zip(&before).all(|(worker, &before)| worker.rounds() > before)
    });
}

/// A calibration of this machine, which root alone may write.
fn write_calibration(path: &str) {
    let nodes: Vec<u32> =
        tandem_machine::read_running().expect("a topology").topology.nodes.values().map(|node| node.id.0).collect();
    let rows = vec![vec![100.0; nodes.len()]; nodes.len()];
    let text = format!(
        "cpu = {:?}\nnodes = {nodes:?}\nlatency_ns = {rows:?}\nbandwidth_mb_s = {rows:?}\n[parameters]\n",
        tandem_sense::cpu_model()
    );
    fs::write(path, text).expect("/tmp can be written");
    fs::set_permissions(path, Permissions::from_mode(0o644)).expect("the file is ours");
}

/// What was judged at the start counts until a reload, whatever becomes of the file.
fn a_calibration_counts_on_though_its_file_is_gone() {
    const FILE: &str = "/tmp/calibration.toml";
    write_calibration(FILE);
    let scx = Scx::start(&["--dry-run", "--manage", "pid=1", "--interval-ms", "500", "--calibration", FILE]);
    fs::remove_file(FILE).expect("the file is ours");
    let Some(last) = Removable::all(&scx.topology).pop() else {
        println!("skipped: no CPU of this machine can go offline");
        return;
    };
    last.set(false);
    wait_until("the agent goes on", || scx.log().contains("took over"));
    let log = scx.log();
    assert_eq!(log.matches("latencies between nodes are those measured in").count(), 2, "{log}");
    scx.reload();
    wait_until("a reload needs the file", || scx.log().contains("/tmp/calibration.toml: cannot be read"));
    assert!(scx.stop().success());
}

fn the_agent_goes_on_when_cpus_come_and_go() {
    let scx = Scx::start_observing_at(500);
    let seq = enable_seq();
    let Some(last) = Removable::all(&scx.topology).pop() else {
        println!("skipped: no CPU of this machine can go offline");
        return;
    };
    for (online, times) in [(false, 1), (true, 2)] {
        last.set(online);
        wait_until("the agent has seen it", || {
            let log = scx.log();
            log.matches("CPUs or nodes came or went").count() == times && log.matches("took over").count() == times
        });
    }
    let topology = tandem_machine::read_running().expect("the guest has a topology").topology;
    assert!(topology.nodes.values().zip(scx.topology.nodes.values()).all(|(now, then)| now.cpus == then.cpus));
    assert!(!scx.handle().tasks().expect("tasks").is_empty());
    assert_eq!(enable_seq(), seq, "the scheduler was never away");
    assert!(scx.stop().success());
}

/// As where SMT is switched off: more CPUs go while the agent begins anew for the first of them. Each node keeps one.
fn the_agent_goes_on_while_many_cpus_come_and_go() {
    const ROUNDS: usize = 4;
    let scx = Scx::start_observing_at(100);
    let seq = enable_seq();
    let nodes = scx.topology.nodes.values();
    let kept: Vec<u32> = nodes.filter_map(|node| node.cpus.first()).map(|cpu| cpu.0).collect();
    let mut removable = Removable::all(&scx.topology);
    removable.retain(|removable| !kept.contains(&removable.cpu));
    for round in 1..=ROUNDS {
        for online in [false, true] {
            let before = scx.log().matches("took over").count();
            removable.iter().for_each(|cpu| cpu.set(online));
            wait_until("the agent goes on", || removable.is_empty() || scx.log().matches("took over").count() > before);
        }
        println!("round {round}: taken over {} times so far", scx.log().matches("took over").count());
    }
    assert_eq!(enable_seq(), seq, "the scheduler was never away");
    assert!(scx.stop().success());
}

fn every_cpu_comes_and_goes_without_an_agent() {
    let scx = Scx::start_observing();
    let seq = enable_seq();
    let topology = scx.topology.clone();
    let scheduler = scx.handle();
    scx.kill();
    let removable = Removable::all(&topology);
    let mut workers: Vec<Worker> =
        (0..topology.nodes.values().map(|node| node.cpus.len()).sum()).map(|_| Worker::start()).collect();
    for cpu in &removable {
        // One that may run nowhere else, and waits for its turn beside one that may.
        let pinned = [Worker::start(), Worker::start()];
        pinned.iter().for_each(|worker| set_affinity(worker.tid, &[cpu.cpu]));
        cpu.set(false);
        get_on(&pinned, &scheduler);
        get_on(&workers, &scheduler);
        cpu.set(true);
        get_on(&workers, &scheduler);
        // It is used again: by a thread that may run nowhere else.
        let again = [Worker::start()];
        set_affinity(again[0].tid, &[cpu.cpu]);
        get_on(&again, &scheduler);
        workers.truncate(topology.len());
    }
    assert_never_away(&scheduler, seq);
    unload();
}

/// No error, no watchdog; else what the kernel wrote down.
fn assert_loaded(scheduler: &Scheduler) {
    let dump = scheduler.exit(|_, dump| String::from_utf8_lossy(dump).trim_end_matches('\0').to_owned());
    if let Some(dump) = dump.expect("readable") {
        let events: Vec<_> = scheduler.statistics().expect("statistics").events().collect();
        panic!("the kernel ejected the scheduler: {dump}\nevents: {events:?}");
    }
}

fn assert_never_away(scheduler: &Scheduler, seq: u64) {
    assert_loaded(scheduler);
    assert_eq!(state(), "enabled");
    assert_eq!(enable_seq(), seq, "the scheduler was never away");
}

/// Threads are at home on a node all of whose CPUs go.
fn a_whole_node_comes_and_goes_without_an_agent() {
    let scx = Scx::start_observing();
    let seq = enable_seq();
    let topology = scx.topology.clone();
    let mut scheduler = scx.handle();
    let all = Removable::all(&topology);
    let node = topology.nodes_with_cpus().last().expect("a node");
    let cpus = &topology.nodes[node].cpus;
    let gone: Vec<Removable> = all.into_iter().filter(|cpu| cpus.iter().any(|of| of.0 == cpu.cpu)).collect();
    if gone.len() < cpus.len() {
        println!("skipped: not every CPU of the last node can go offline");
        return;
    }
    let workers: Vec<Worker> = (0..2 * cpus.len()).map(|_| Worker::start()).collect();
    let to_node = |worker: &Worker| assignment(&worker.record(&scheduler), node, Duration::from_secs(50));
    let batch: Vec<Assignment> = workers.iter().map(to_node).collect();
    scheduler.assign(&batch).expect("assigned");
    scx.kill();
    gone.iter().for_each(|cpu| cpu.set(false));
    get_on(&workers, &scheduler);
    let elsewhere = |worker: &Worker| worker.record(&scheduler).allowed_nodes & (1 << node.0) == 0;
    wait_until("no thread counts on the node that is gone", || workers.iter().all(elsewhere));
    gone.iter().for_each(|cpu| cpu.set(true));
    get_on(&workers, &scheduler);
    wait_until("the node is used again", || {
        assert_loaded(&scheduler);
        !workers.iter().any(elsewhere)
    });
    assert_never_away(&scheduler, seq);
    unload();
}

/// The kernel waits until nothing is left on a CPU that goes, threads included whose control group has to wait.
fn a_cpu_goes_though_threads_wait_for_their_quota() {
    const THREADS: usize = 3;
    let scx = Scx::start_observing();
    let seq = enable_seq();
    let scheduler = scx.handle();
    let Some(last) = Removable::all(&scx.topology).pop() else {
        println!("skipped: no CPU of this machine can go offline");
        return;
    };
    let group = ControlGroup::new("nearly-nothing");
    group.set("cpu.max", "1000 1000000");
    // Else the kernel gives them other CPUs, which puts them into other queues.
    group.without_cpusets();
    let hogs = [(); THREADS].map(|()| Hog::on(&[last.cpu]));
    hogs.iter().for_each(|hog| group.take(hog.pid()));
    wait_until("all of them wait", || {
        let before: Vec<u64> = hogs.iter().map(|hog| run_ns(hog.pid())).collect();
        std::thread::sleep(Duration::from_millis(300));
        event(&scheduler, "throttled") > 0 && hogs.iter().map(|hog| run_ns(hog.pid())).eq(before)
    });
    let begun = Instant::now();
    last.set(false);
    println!("CPU {} went within {:?}", last.cpu, begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
    group.set("cpu.max", "max");
    let before: Vec<u64> = hogs.iter().map(|hog| run_ns(hog.pid())).collect();
    wait_until("they go on elsewhere", || {
        hogs.iter().zip(&before).all(|(hog, &before)| run_ns(hog.pid()) > before + 10_000_000)
    });
    assert_never_away(&scheduler, seq);
    assert!(scx.stop().success());
}

/// One node after another goes, all of them come back; the threads may run anywhere and some are bound to what goes.
fn all_nodes_but_the_first_come_and_go_without_an_agent() {
    let scx = Scx::start_observing();
    let seq = enable_seq();
    let topology = scx.topology.clone();
    let scheduler = scx.handle();
    scx.kill();
    let first = &topology.nodes[topology.nodes_with_cpus().next().expect("a node")].cpus;
    let mut removable = Removable::all(&topology);
    removable.retain(|cpu| first.iter().all(|of| of.0 != cpu.cpu));
    let workers: Vec<Worker> = (0..2 * (first.len() + removable.len())).map(|_| Worker::start()).collect();
    let bound: Vec<Worker> = removable.iter().map(|_| Worker::start()).collect();
    bound.iter().zip(&removable).for_each(|(worker, cpu)| set_affinity(worker.tid, &[cpu.cpu]));
    for cpu in &removable {
        cpu.set(false);
        get_on(&workers, &scheduler);
    }
    get_on(&bound, &scheduler);
    for cpu in &removable {
        cpu.set(true);
    }
    get_on(&workers, &scheduler);
    get_on(&bound, &scheduler);
    assert_never_away(&scheduler, seq);
    unload();
}
