// SPDX-License-Identifier: GPL-2.0-only
//! Loading, leaving, dying, taking over.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use tandem_bpf::{Identity, Pins};
use tandem_guest_tests::{
    Scx, Worker, assignment, enable_seq, monotonic_ns, program, read, scx_tandem_fails, set_affinity, set_sched_ext,
    state, unload, wait_until, watch_tasks,
};

use tandem_policies::model::NodeIndex;

use crate::trial;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("stopping_unloads_and_leaves_nothing", stopping_unloads_and_leaves_nothing),
        trial("a_killed_agent_leaves_the_scheduler_until_unload", a_killed_agent_leaves_the_scheduler_until_unload),
        trial("assignments_of_a_killed_agent_run_out", assignments_of_a_killed_agent_run_out),
        trial("a_new_agent_takes_over_without_a_gap", a_new_agent_takes_over_without_a_gap),
        trial("assignments_go_on_under_a_new_agent", assignments_go_on_under_a_new_agent),
        trial("the_agent_goes_on_after_what_it_could_not_read", the_agent_goes_on_after_what_it_could_not_read),
        trial("the_scheduler_of_another_version_is_replaced", the_scheduler_of_another_version_is_replaced),
        trial("a_second_agent_is_refused", a_second_agent_is_refused),
        trial("unload_says_what_it_found", unload_says_what_it_found),
        trial("words_that_nobody_reads_any_more_end_nothing", words_that_nobody_reads_any_more_end_nothing),
        trial("partial_mode_leaves_normal_tasks_alone", partial_mode_leaves_normal_tasks_alone),
        trial("normal_tasks_starve_those_of_partial_mode", normal_tasks_starve_those_of_partial_mode),
    ]
}

/// Changes of the machine that must not outlive scx_tandem.
fn machine_state() -> Vec<String> {
    let affinity =
        read("/proc/self/status").lines().filter(|line| line.contains("_allowed")).map(str::to_owned).collect();
    let sysctls = ["/proc/sys/kernel/numa_balancing", "/proc/sys/kernel/sched_schedstats"].map(read);
    [affinity, sysctls.to_vec()].concat()
}

fn stopping_unloads_and_leaves_nothing() {
    let before = machine_state();
    let scx = Scx::start(&[]);
    assert!(read("/sys/kernel/sched_ext/root/ops").starts_with("tandem"));
    assert!(scx.stop().success());
    assert_eq!(state(), "disabled");
    assert!(!Pins::default().dir().exists());
    assert_eq!(machine_state(), before);
}

fn a_killed_agent_leaves_the_scheduler_until_unload() {
    let worker = Worker::start();
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    scx.kill();
    assert_eq!(state(), "enabled");
    let rounds = worker.rounds();
    let switches = scheduler.statistics().expect("statistics").busy_ns().iter().sum::<u64>();
    wait_until("scheduling goes on", || {
        let busy_ns: u64 = scheduler.statistics().expect("statistics").busy_ns().iter().sum();
        worker.rounds() > rounds && busy_ns > switches + 1_000_000_000
    });
    unload();
    assert_eq!(state(), "disabled");
    assert!(!Pins::default().dir().exists());
}

fn assignments_of_a_killed_agent_run_out() {
    let worker = Worker::start();
    let scx = Scx::start_observing();
    let mut scheduler = scx.handle();
    let record = worker.record(&scheduler);
    let node = other_node(&scx, record.home);
    let assignment = assignment(&record, NodeIndex(node as usize), Duration::from_secs(3));
    scheduler.assign(&[assignment]).expect("assigned");
    scx.kill();
    assert_eq!(worker.record(&scheduler).assigned, Some(node));
    wait_until("the lease runs out", || worker.record(&scheduler).assigned.is_none());
    assert!(monotonic_ns() >= assignment.expires_ns, "not before its end");
    let rounds = worker.rounds();
    wait_until("the thread goes on", || worker.rounds() > rounds);
    unload();
}

/// A node with CPUs that is not `node`.
fn other_node(scx: &Scx, node: u32) -> u32 {
    let other = scx.topology.nodes_with_cpus().find(|other| other.0 as u32 != node);
    other.expect("two nodes").0 as u32
}

fn a_new_agent_takes_over_without_a_gap() {
    let first = Scx::start_observing();
    let seq = enable_seq();
    first.kill();
    let second = Scx::start_observing();
    assert!(second.log().contains("took over"), "{}", second.log());
    assert_eq!(enable_seq(), seq, "the scheduler was never away");
    assert!(second.stop().success());
    assert_eq!(state(), "disabled");
}

/// No agent decides anything: what holds the thread after the first one's lease is that lease, taken over.
fn assignments_go_on_under_a_new_agent() {
    // A lease of 20 s, in which an agent can be started on an emulated machine too.
    let agent = || {
        let process = format!("pid={}", std::process::id());
        Scx::start(&["--interval-ms", "10000", "--manage", &process, "--policy", "none+locality"])
    };
    // It uses no memory that could be placed.
    let worker = Worker::start();
    let first = agent();
    let record = worker.record(&first.handle());
    let node = other_node(&first, record.home);
    let assignment = assignment(&record, NodeIndex(node as usize), Duration::from_secs(20));
    first.handle().assign(&[assignment]).expect("assigned");
    first.kill();
    let second = agent();
    assert!(second.log().contains("took over"), "{}", second.log());
    let scheduler = second.handle();
    wait_until("the first agent's lease is over", || {
        assert_eq!(worker.record(&scheduler).assigned, Some(node), "without a gap");
        monotonic_ns() > assignment.expires_ns + 1_000_000_000
    });
    assert!(second.stop().success());
}

/// A file that is empty until this is dropped.
struct Covered(String);

impl Covered {
    fn new(file: String) -> Self {
        shell(&format!(": > /tmp/nothing; mount -o bind /tmp/nothing {file}"));
        Self(file)
    }
}

impl Drop for Covered {
    fn drop(&mut self) {
        shell(&format!("umount {}", self.0));
    }
}

fn shell(command: &str) {
    let status = Command::new("/bin/sh").args(["-c", command]).status().expect("a shell is in the guest");
    assert!(status.success(), "{command}");
}

/// What the kernel tells of a node's memory cannot be read for a while.
fn the_agent_goes_on_after_what_it_could_not_read() {
    let scx = Scx::start_observing_at(200);
    let seq = enable_seq();
    let node = scx.topology.nodes.values().next().expect("a node").id.0;
    let memory = format!("/sys/devices/system/node/node{node}/meminfo");
    let covered = Covered::new(memory);
    wait_until("it noticed", || scx.log().contains("the agent begins anew"));
    drop(covered);
    wait_until("another agent took over", || scx.log().contains("took over the scheduler that is loaded"));
    assert_eq!(enable_seq(), seq, "the scheduler was never away");
    assert!(scx.stop().success());
}

/// What an upgrade and the way back find: a scheduler that another version loaded and left.
fn the_scheduler_of_another_version_is_replaced() {
    let first = Scx::start_observing();
    let scheduler = first.handle();
    let own = scheduler.identity().expect("an identity");
    scheduler.set_identity(Identity { object_hash: !own.object_hash, ..own }).expect("noted");
    first.kill();
    let seq = enable_seq();
    let second = Scx::start_observing();
    assert!(second.log().contains("made for another version or machine: loading anew"), "{}", second.log());
    assert_ne!(enable_seq(), seq, "loaded anew");
    assert_eq!(second.handle().identity().expect("an identity"), own);
    second.kill();
    // A version that has a map which the other did not have.
    std::fs::remove_file(Pins::default().map("dump")).expect("a pin");
    let third = Scx::start_observing();
    assert!(third.log().contains("cannot be used"), "{}", third.log());
    assert!(third.stop().success());
    assert_eq!(state(), "disabled");
    assert!(!Pins::default().dir().exists());
}

fn a_second_agent_is_refused() {
    let _first = Scx::start_observing();
    let refused = scx_tandem_fails(program().arg("--dry-run"));
    assert!(refused.message.contains("another scx_tandem is running"), "{}", refused.message);
    assert_eq!(state(), "enabled");
}

/// What it says of a scheduler of somebody else's is with the other refusals.
fn unload_says_what_it_found() {
    let said = || {
        let done = program().arg("--unload").output().expect("scx_tandem is in the guest");
        assert!(done.status.success(), "{done:?}");
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    };
    assert_eq!(said(), "INFO nothing was loaded");
    Scx::start_observing().kill();
    assert_eq!(said(), "INFO unloaded");
    assert_eq!(state(), "disabled");
}

/// Killed when dropped, if it has not ended.
struct Unheard(Child);

impl Unheard {
    fn signal(&self, signal: i32) {
        // SAFETY: the child is ours and was not waited for yet.
        let result = unsafe { libc::kill(self.0.id() as i32, signal) };
        assert_eq!(result, 0, "kill: {}", std::io::Error::last_os_error());
    }

    fn assert_alive(&mut self) {
        let ended = self.0.try_wait().expect("it is our child");
        assert!(ended.is_none(), "it ended: {ended:?}");
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            self.0.kill().expect("it is our child");
            self.0.wait().expect("it is our child");
        }
    }
}

/// As with `scx_tandem 2>&1 | head`, or when its terminal is closed, which sends SIGHUP too.
fn words_that_nobody_reads_any_more_end_nothing() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = program();
    command.args(["--dry-run", "--manage", "pid=1", "--interval-ms", "200", "--stats", "1"]).stdin(Stdio::null());
    command.stdout(writer.try_clone().expect("a pipe can be shared")).stderr(writer);
    let mut scx = Unheard(command.spawn().expect("scx_tandem is in the guest"));
    drop((reader, command));
    wait_until("it is loaded", || {
        scx.assert_alive();
        state() == "enabled" && Pins::default().exist()
    });
    let seq = enable_seq();
    for _ in 0..2 {
        std::thread::sleep(Duration::from_secs(3));
        scx.assert_alive();
        scx.signal(libc::SIGHUP);
    }
    std::thread::sleep(Duration::from_secs(3));
    scx.assert_alive();
    assert_eq!(enable_seq(), seq, "the scheduler was never away");
    scx.signal(libc::SIGTERM);
    let ended = scx.0.wait().expect("it is our child");
    assert!(ended.success(), "{ended}");
    assert_eq!(state(), "disabled");
}

fn partial_mode_leaves_normal_tasks_alone() {
    let worker = Worker::start();
    let scx = Scx::start(&["--dry-run", "--partial"]);
    assert!(scx.log().contains("starve"), "it warns: {}", scx.log());
    assert_eq!(read("/sys/kernel/sched_ext/switch_all"), "0");
    let runs_in_ext = || worker.record(&scx.handle()).run_ns.iter().any(|&ns| ns > 0);
    assert!(!runs_in_ext());
    set_sched_ext(worker.tid);
    wait_until("a thread of the class SCHED_EXT is scheduled by us", runs_in_ext);
}

/// What the warning is about: one thread of each class on one CPU. Kernels before 7.0 give the one of SCHED_EXT nothing
/// at all, and eject the scheduler after 20 s; later ones a twentieth. It has the CPU to itself once the other is gone.
fn normal_tasks_starve_those_of_partial_mode() {
    const WINDOW: Duration = Duration::from_secs(5);
    let scx = Scx::start(&["--dry-run", "--partial"]);
    let scheduler = scx.handle();
    let cpus = &scx.topology.nodes.values().next().expect("a node").cpus;
    let cpu = cpus.last().expect("a CPU").0;
    let [normal, ours] = [Worker::start(), Worker::start()];
    [&normal, &ours].iter().for_each(|worker| set_affinity(worker.tid, &[cpu]));
    set_sched_ext(ours.tid);
    let share = || {
        let (ran_ns, elapsed) = watch_tasks(&[ours.tid], &scheduler, WINDOW);
        ran_ns[0] as f64 / elapsed.as_nanos() as f64
    };
    let beside = share();
    println!("{:.1} % of a CPU beside a thread of the normal class", beside * 100.0);
    assert!(beside < 0.15, "it got {:.1} %", beside * 100.0);
    drop(normal);
    let alone = share();
    assert!(alone > 0.8, "alone it got {:.1} %", alone * 100.0);
}
