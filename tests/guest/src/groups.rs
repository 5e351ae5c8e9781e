// SPDX-License-Identifier: GPL-2.0-only
//! Control groups: cpu.weight and cpu.max.

use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use tandem_bpf::{AssignOutcome, Scheduler};
use tandem_guest_tests::{ControlGroup, Hog, Scx, assignment, event, run_ns, wait_until, watch_tasks};

use crate::trial;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("groups_share_cpus_by_their_weights", groups_share_cpus_by_their_weights),
        trial("a_weight_holds_on_every_level", a_weight_holds_on_every_level),
        trial("groups_that_come_and_go_leave_nothing", groups_that_come_and_go_leave_nothing),
        trial("weights_of_groups_can_be_ignored", weights_of_groups_can_be_ignored),
        trial("a_quota_of_a_group_is_kept", a_quota_is_kept),
        trial("who_is_killed_does_not_wait_for_a_quota", who_is_killed_does_not_wait_for_a_quota),
        trial("nobody_waits_for_a_quota_with_a_lock_of_the_kernel", nobody_waits_for_a_quota_with_a_lock),
        trial("who_leaves_a_group_without_quota_waited_for_no_cpu", who_leaves_a_group_without_quota_waited_for_no_cpu),
        trial("a_cpuset_is_stronger_than_an_assignment", a_cpuset_is_stronger_than_an_assignment),
    ]
}

/// The first CPUs of the last node, as many as asked for.
fn cpus(scx: &Scx, count: usize) -> Vec<u32> {
    let node = scx.topology.nodes_with_cpus().last().expect("a node");
    scx.topology.nodes[node].cpus.iter().take(count).map(|cpu| cpu.0).collect()
}

fn hog_in(group: &ControlGroup, cpus: &[u32]) -> Hog {
    let hog = Hog::on(cpus);
    group.take(hog.pid());
    hog
}

/// What these ran for, of all that the first list and the second ran together.
fn share(hogs: &[&Hog], others: &[&Hog], scheduler: &Scheduler) -> f64 {
    let tids: Vec<u32> = hogs.iter().chain(others).map(|hog| hog.pid()).collect();
    let (ran_ns, _) = watch_tasks(&tids, scheduler, Duration::from_secs(5));
    let of = |ran_ns: &[u64]| ran_ns.iter().sum::<u64>() as f64;
    of(&ran_ns[..hogs.len()]) / of(&ran_ns)
}

fn assert_share(found: f64, expected: f64) {
    assert!(
        (found / expected - 1.0).abs() < 0.1,
        "{:.1} % of the time, {:.1} % by weight",
        found * 100.0,
        expected * 100.0
    );
}

/// 100 : 300, with as many processes in each, then with more in the lighter one; then with the weights exchanged.
fn groups_share_cpus_by_their_weights() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let cpus = cpus(&scx, 2);
    let [light, heavy] = ["light", "heavy"].map(ControlGroup::new);
    heavy.set("cpu.weight", "300");
    let [a, b] = [(); 2].map(|()| hog_in(&light, &cpus));
    let [c, d] = [(); 2].map(|()| hog_in(&heavy, &cpus));
    assert_share(share(&[&a, &b], &[&c, &d], &scheduler), 0.25);
    let [e, f] = [(); 2].map(|()| hog_in(&light, &cpus));
    assert_share(share(&[&a, &b, &e, &f], &[&c, &d], &scheduler), 0.25);
    drop((e, f));
    light.set("cpu.weight", "300");
    heavy.set("cpu.weight", "100");
    assert_share(share(&[&c, &d], &[&a, &b], &scheduler), 0.25);
}

/// Half for one group; a quarter and three quarters of the other half for the two below the other.
fn a_weight_holds_on_every_level() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let cpu = cpus(&scx, 1);
    let [one, other] = ["one", "other"].map(ControlGroup::new);
    let [light, heavy] = ["light", "heavy"].map(|name| other.below(name));
    heavy.set("cpu.weight", "300");
    let [of_one, of_light, of_heavy] = [&one, &light, &heavy].map(|group| hog_in(group, &cpu));
    assert_share(share(&[&of_one], &[&of_light, &of_heavy], &scheduler), 0.5);
    assert_share(share(&[&of_light], &[&of_heavy], &scheduler), 0.25);
    drop(of_light);
    assert_share(share(&[&of_one], &[&of_heavy], &scheduler), 0.5);
}

/// A running process goes through groups that are made and removed, and in and out of one that stays, whose weight must
/// be worth as much afterwards.
fn groups_that_come_and_go_leave_nothing() {
    const ROUNDS: usize = 100;
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let cpu = cpus(&scx, 1);
    let exist = || event(&scheduler, "group_made") - event(&scheduler, "group_removed");
    let [light, heavy] = ["light", "heavy"].map(ControlGroup::new);
    heavy.set("cpu.weight", "300");
    let before = exist();
    let stays = hog_in(&light, &cpu);
    let goes = hog_in(&heavy, &cpu);
    for _ in 0..ROUNDS {
        let short_lived = ControlGroup::new("short-lived");
        short_lived.take(goes.pid());
        light.take(goes.pid());
        heavy.take(goes.pid());
    }
    wait_until("the groups are gone", || exist() == before);
    assert!(event(&scheduler, "group_made") >= ROUNDS as u64, "the scheduler saw them");
    assert_share(share(&[&stays], &[&goes], &scheduler), 0.25);
}

fn weights_of_groups_can_be_ignored() {
    let scx = Scx::start(&["--dry-run", "--manage", "pid=1", "--interval-ms", "10000", "--no-cgroup-weight"]);
    let scheduler = scx.handle();
    let cpu = cpus(&scx, 1);
    let [light, heavy] = ["light", "heavy"].map(ControlGroup::new);
    heavy.set("cpu.weight", "300");
    let [a, b] = [&light, &heavy].map(|group| hog_in(group, &cpu));
    assert_share(share(&[&a], &[&b], &scheduler), 0.5);
}

/// Half a CPU for a group, for one of two processes on a CPU, and for the group above as well.
fn a_quota_is_kept() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let cpu = cpus(&scx, 1);
    let half = ControlGroup::new("half");
    half.set("cpu.max", "50000 100000");
    let hog = hog_in(&half, &cpu);
    assert_share_of_a_cpu(&hog, &scheduler, 0.5);
    // Two hogs have no more than one.
    let other = hog_in(&half, &cpus(&scx, 2));
    let both = share_of_a_cpu(&hog, &scheduler) + share_of_a_cpu(&other, &scheduler);
    assert!((both / 0.5 - 1.0).abs() < 0.2, "two got {:.1} % of a CPU, their quota is 50 %", both * 100.0);
    drop(other);
    drop(hog);
    // The smaller of two quotas on the way up counts.
    half.set("cpu.max", "20000 100000");
    let below = half.below("below");
    below.set("cpu.max", "80000 100000");
    let hog = hog_in(&below, &cpu);
    assert_share_of_a_cpu(&hog, &scheduler, 0.2);
    half.set("cpu.max", "max");
    assert_share_of_a_cpu(&hog, &scheduler, 0.8);
    assert!(event(&scheduler, "throttled") > 0);
}

/// What it holds others wait for: its memory, locks of the kernel's.
fn who_is_killed_does_not_wait_for_a_quota() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let group = ControlGroup::new("nearly-nothing");
    group.set("cpu.max", "1000 1000000");
    // One on each CPU, and each of them is noticed at a tick only: together they owe several periods.
    let all = scx.topology.nodes.values().flat_map(|node| &node.cpus);
    let mut hogs: Vec<Hog> = all.map(|cpu| hog_in(&group, &[cpu.0])).collect();
    let hog = hogs.pop().expect("a CPU");
    wait_until("it waits", || waits_for_its_quota(&hog, &scheduler));
    let begun = Instant::now();
    drop(hog);
    println!("gone within {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(1), "it took {:?}", begun.elapsed());
}

/// Whoever joins is starting its program then, with locks that all need who start or end one of the same file.
fn nobody_waits_for_a_quota_with_a_lock() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let group = ControlGroup::new("nearly-nothing");
    group.set("cpu.max", "1000 1000000");
    let cpus: Vec<u32> = scx.topology.nodes.values().flat_map(|node| &node.cpus).map(|cpu| cpu.0).collect();
    let mut hogs = vec![hog_in(&group, &cpus)];
    wait_until("it waits", || waits_for_its_quota(&hogs[0], &scheduler));
    for _ in 0..24 {
        let begun = Instant::now();
        hogs.push(hog_in(&group, &cpus));
        let status = Command::new("/bin/sh").args(["-c", ":"]).status().expect("a shell is in the guest");
        assert!(status.success() && begun.elapsed() < Duration::from_secs(2), "it took {:?}", begun.elapsed());
    }
}

/// Whether it does not run for 300 ms, when somebody does for a quota.
fn waits_for_its_quota(hog: &Hog, scheduler: &Scheduler) -> bool {
    let before = run_ns(hog.pid());
    std::thread::sleep(Duration::from_millis(300));
    event(scheduler, "throttled") > 0 && run_ns(hog.pid()) == before
}

/// Else it would go before all others, and to other nodes, as one that was kept from its own for long.
fn who_leaves_a_group_without_quota_waited_for_no_cpu() {
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let [poor, free] = ["poor", "free"].map(ControlGroup::new);
    poor.set("cpu.max", "1000 1000000");
    let hog = hog_in(&poor, &cpus(&scx, 2));
    wait_until("it waits", || waits_for_its_quota(&hog, &scheduler));
    let waited_ns = || {
        let tasks = scheduler.tasks().expect("tasks are listed");
        tasks.iter().find(|task| task.tid == hog.pid()).expect("the hog is there").wait_ns
    };
    let (waited_before_ns, ran_ns) = (waited_ns(), run_ns(hog.pid()));
    free.take(hog.pid());
    wait_until("it goes on", || run_ns(hog.pid()) > ran_ns + 10_000_000);
    let waited_ns = waited_ns() - waited_before_ns;
    println!("waited for {waited_ns} ns");
    assert!(waited_ns < 200_000_000, "{waited_ns} ns");
}

fn share_of_a_cpu(hog: &Hog, scheduler: &Scheduler) -> f64 {
    let (ran_ns, elapsed) = watch_tasks(&[hog.pid()], scheduler, Duration::from_secs(5));
    ran_ns[0] as f64 / elapsed.as_nanos() as f64
}

fn assert_share_of_a_cpu(hog: &Hog, scheduler: &Scheduler, expected: f64) {
    let found = share_of_a_cpu(hog, scheduler);
    assert!(
        (found / expected - 1.0).abs() < 0.1,
        "{:.1} % of a CPU, the quota is {:.1} %",
        found * 100.0,
        expected * 100.0
    );
}

/// A running process that is assigned to the first node goes into a cpuset of the last one.
fn a_cpuset_is_stronger_than_an_assignment() {
    let scx = Scx::start_observing();
    let mut scheduler = scx.handle();
    let nodes: Vec<_> = scx.topology.nodes_with_cpus().collect();
    let (first, last) = (nodes[0], nodes[nodes.len() - 1]);
    let all: Vec<u32> = scx.topology.nodes.values().flat_map(|node| &node.cpus).map(|cpu| cpu.0).collect();
    let hog = Hog::on(&all);
    let mut assign = || {
        let tasks = scheduler.tasks().expect("tasks can be read");
        let record = tasks.iter().find(|task| task.tid == hog.pid()).expect("the scheduler knows a running thread");
        scheduler.assign(&[assignment(record, first, Duration::from_secs(50))]).expect("the batch is taken")[0]
    };
    assert_eq!(assign(), AssignOutcome::Applied);
    let set = ControlGroup::new("set");
    let cpus: Vec<String> = scx.topology.nodes[last].cpus.iter().map(|cpu| cpu.0.to_string()).collect();
    set.set("cpuset.cpus", &cpus.join(","));
    set.take(hog.pid());
    assert_eq!(assign(), AssignOutcome::NodeForbidden);
    let (scheduler, run_ns) = (scx.handle(), |scheduler: &Scheduler| {
        let tasks = scheduler.tasks().expect("tasks can be read");
        tasks.into_iter().find(|task| task.tid == hog.pid()).expect("the scheduler knows a running thread").run_ns
    });
    let before = run_ns(&scheduler);
    wait_until("it runs in its cpuset", || run_ns(&scheduler)[last.0] > before[last.0] + 500_000_000);
    let elsewhere = |run_ns: &[u64]| run_ns.iter().sum::<u64>() - run_ns[last.0];
    assert!(elsewhere(&run_ns(&scheduler)) < elsewhere(&before) + 50_000_000, "it ran outside of its cpuset");
}
