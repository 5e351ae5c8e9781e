// SPDX-License-Identifier: GPL-2.0-only
//! The lookahead sampler on a real process: this test binary, started again as a workload.
//!
//! Needs perf events (root, CAP_PERFMON or perf_event_paranoid = -1) and fails without them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tandem_policies::model::{
    CpuId, LatencySource, Node, NodeId, NodeIndex, PAGE_BYTES, PerNode, ProcessId, ThreadId, Topology,
};
use tandem_sense::{
    Access, Lookahead, LookaheadConfig, Sampler, Sensor, SensorConfig, StopReason, TaskAccount, monotonic_ns,
    thread_cpu_ns,
};

const WORDS: usize = 32 << 17;

/// The workload: two threads, each at random in its own 32 MiB and, one time in five, in 32 MiB of both.
#[test]
#[ignore = "started by the other tests"]
fn workload() {
    let buffer = || -> &'static [u64] { Box::leak((0..WORDS as u64).collect::<Box<[u64]>>()) };
    let report = |name: u64, buffer: &[u64]| {
        let range = buffer.as_ptr_range();
        println!("buffer {name} {} {}", range.start as u64, range.end as u64);
    };
    let shared = buffer();
    report(0, shared);
    for seed in 1..=2_u64 {
        let own = buffer();
        std::thread::spawn(move || {
            // SAFETY: no arguments.
            report(u64::from(unsafe { libc::gettid() } as u32), own);
            let (mut random, mut sum) = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), 0_u64);
            loop {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let from = if random >> 40 & 4 != 0 && random >> 50 & 1 != 0 { shared } else { own };
                sum = std::hint::black_box(sum.wrapping_add(from[random as usize % WORDS]));
            }
        });
    }
    // Ends when the parent lets go of the pipe, or dies.
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}

struct Workload {
    child: Child,
    /// By thread; 0 is shared.
    buffers: BTreeMap<u32, Range<u64>>,
}

impl Workload {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["workload", "--exact", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the workload");
        let mut buffers = BTreeMap::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while buffers.len() < 3 {
            let line = lines.next().expect("the workload tells its buffers").unwrap();
            if let Some(at) = line.find("buffer ") {
                let numbers: Vec<u64> = line[at + 7..].split(' ').map(|number| number.parse().unwrap()).collect();
                buffers.insert(numbers[0] as u32, numbers[1]..numbers[2]);
            }
        }
        Self { child, buffers }
    }

    fn process(&self) -> ProcessId {
        ProcessId(self.child.id())
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().expect("the workload ends");
    }
}

fn online_cpus() -> Vec<CpuId> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    list.trim()
        .split(',')
        .flat_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            first.parse().unwrap()..=last.parse().unwrap()
        })
        .map(CpuId)
        .collect()
}

fn open(budget_fraction: f64, workload: &Workload) -> Lookahead {
    let config = LookaheadConfig { budget_fraction: Some(budget_fraction), ..Default::default() };
    let mut sampler = Lookahead::open(config, &online_cpus()).unwrap_or_else(|error| panic!("{error}"));
    sampler.set_managed(&BTreeSet::from([workload.process()]));
    sampler
}

/// Drains every 10 ms until there are this many.
fn sample(sampler: &mut Lookahead, count: usize) -> Vec<Access> {
    let (start, mut accesses) = (Instant::now(), Vec::new());
    while accesses.len() < count {
        assert!(start.elapsed() < Duration::from_secs(60), "no progress: {:?}", sampler.counters());
        std::thread::sleep(Duration::from_millis(10));
        accesses.extend(sampler.drain(monotonic_ns()).unwrap().accesses);
    }
    accesses
}

#[test]
fn accesses_belong_to_the_thread_that_makes_them() {
    let workload = Workload::start();
    let mut sampler = open(0.3, &workload);
    let accesses = sample(&mut sampler, 3000);
    let (mut own, mut shared, mut wrong, mut elsewhere) = (0, 0, 0, 0);
    for access in &accesses {
        match workload.buffers.iter().find(|(_, range)| range.contains(&access.address)) {
            Some((0, _)) => shared += 1,
            Some((owner, _)) if *owner == access.tid => own += 1,
            Some(_) => wrong += 1,
            None => elsewhere += 1,
        }
    }
    let counters = sampler.counters();
    println!("own {own} shared {shared} wrong {wrong} elsewhere {elsewhere}");
    println!("a run {:?} ns in the mean, {counters:?}", counters.mean_run_ns());
    assert_eq!(wrong, 0);
    assert!(elsewhere * 20 <= accesses.len(), "{elsewhere} of {} in neither buffer", accesses.len());
    // One access in four is shared.
    let share = f64::from(shared) / f64::from(own + shared);
    assert!((0.2..0.3).contains(&share), "shared {share}");
    for tid in workload.buffers.keys().filter(|tid| **tid != 0) {
        let of_thread = accesses.iter().filter(|access| access.tid == *tid).count();
        assert!(of_thread * 4 >= accesses.len(), "thread {tid} is seen as often as the other: {of_thread}");
    }
}

#[test]
fn budget_is_kept_and_used() {
    let workload = Workload::start();
    let mut sampler = open(0.01, &workload);
    let (start, mut dearest_ns) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(Duration::from_millis(10));
        let before_ns = sampler.counters().cost_ns;
        sampler.drain(monotonic_ns()).unwrap();
        dearest_ns = dearest_ns.max(sampler.counters().cost_ns - before_ns);
    }
    // What 4 s pay for is there at first.
    let earned_ns = 0.01 * (4e9 + start.elapsed().as_nanos() as f64);
    let spent_ns = sampler.counters().cost_ns as f64;
    println!("{spent_ns} of {earned_ns} ns, the dearest look {dearest_ns} ns, {:?}", sampler.counters());
    // The last look may cost more than is left: how much more depends on what else the machine does.
    assert!(spent_ns <= earned_ns + dearest_ns as f64, "{spent_ns} of {earned_ns} ns");
    assert!(spent_ns >= 0.05 * earned_ns, "used at all: {spent_ns} of {earned_ns} ns");
}

/// With a budget that a few looks at the rings use up: reading them is paid for too.
#[test]
fn reading_samples_is_within_the_budget_too() {
    let workload = Workload::start();
    let fraction = 1e-5;
    let mut sampler = open(fraction, &workload);
    let (start, mut dearest_ns, mut spent_ns, mut looks, mut free_ns) = (Instant::now(), 0, 0, 0, vec![]);
    while start.elapsed() < Duration::from_secs(3) {
        std::thread::sleep(Duration::from_millis(10));
        let (before_ns, from_ns) = (sampler.counters().cost_ns, thread_cpu_ns());
        sampler.drain(monotonic_ns()).unwrap();
        let (took_ns, charged_ns) = (thread_cpu_ns() - from_ns, sampler.counters().cost_ns - before_ns);
        dearest_ns = dearest_ns.max(charged_ns);
        if charged_ns == 0 {
            free_ns.push(took_ns);
        } else {
            spent_ns += took_ns;
            looks += 1;
        }
    }
    let (counters, earned_ns) = (sampler.counters(), fraction * (4e9 + start.elapsed().as_nanos() as f64));
    free_ns.sort();
    let free_ns = free_ns[free_ns.len() / 2];
    println!("{looks} looks for {spent_ns} ns, the dearest {dearest_ns} ns, others {free_ns} ns, {counters:?}");
    let most_ns = earned_ns + dearest_ns as f64;
    assert!(counters.cost_ns as f64 <= most_ns, "{} of {most_ns} ns", counters.cost_ns);
    assert!(counters.cost_ns > counters.emulation_ns, "the rings were read");
    let called_ns = f64::from(looks) * 20_000.0;
    assert!(spent_ns as f64 <= most_ns + called_ns, "what is charged is what was spent: {spent_ns} of {most_ns} ns");
    assert!(free_ns < 100_000, "a call that charges nothing returns at once: {free_ns} ns");
}

#[test]
fn unmanaged_processes_are_dropped_before_emulation() {
    let workload = Workload::start();
    let mut sampler = open(0.3, &workload);
    sampler.set_managed(&BTreeSet::new());
    // The kernel declines them where it can.
    while sampler.counters().unmanaged + sampler.counters().declined < 20 {
        std::thread::sleep(Duration::from_millis(10));
        assert!(sampler.drain(monotonic_ns()).unwrap().accesses.is_empty());
    }
    assert_eq!((sampler.counters().samples, sampler.counters().emulated), (0, 0));
}

/// What waits in the rings of a process that is gone: nothing is read of whoever has its number next, nobody fails.
#[test]
fn samples_of_a_process_that_exited_before_they_were_run_come_to_nothing() {
    let workload = Workload::start();
    let process = workload.process();
    let mut sampler = open(0.3, &workload);
    // Samples are taken in the kernel meanwhile.
    let ran_ns = || -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", process.0)).expect("the workload runs");
        let of_task = |task: std::path::PathBuf| {
            let line = std::fs::read_to_string(task.join("schedstat")).expect("its threads stay");
            line.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).expect("nanoseconds")
        };
        tasks.map(|task| of_task(task.expect("an entry").path())).sum()
    };
    let before_ns = ran_ns();
    while ran_ns() - before_ns < 500_000_000 {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(workload);
    let batch = sampler.drain(monotonic_ns()).expect("the rings can be read");
    let counters = sampler.counters();
    println!("{counters:?}");
    assert!(batch.accesses.is_empty(), "{:?}", batch.accesses);
    assert!(counters.emulated > 0 && counters.samples >= counters.emulated, "{counters:?}");
    assert_eq!(counters.stops.keys().collect::<Vec<_>>(), [&StopReason::UnreadableCode], "{counters:?}");
}

#[test]
fn an_offline_cpu_is_named() {
    let Err(error) = Lookahead::open(LookaheadConfig::default(), &[CpuId(4000)]) else { panic!("no CPU 4000") };
    assert!(error.to_string().contains("CPU 4000"), "{error}");
}

/// One node with all CPUs, as most test machines are.
fn one_node() -> Topology {
    let cpus = online_cpus();
    let node = Node {
        id: NodeId(0),
        llcs: vec![cpus.clone()],
        cpus,
        slow_cpus: Default::default(),
        memory_pages: 1 << 20,
        free_pages: 1 << 19,
        distance: vec![10].into(),
        latency_ns: vec![100.0].into(),
    };
    Topology::new(vec![node], LatencySource::Distance).unwrap()
}

#[test]
fn snapshot_names_the_users_of_each_group() {
    let workload = Workload::start();
    let (topology, start_ns) = (one_node(), monotonic_ns());
    let config = SensorConfig { budget: 0.3, ..Default::default() };
    let mut sensor = Sensor::open(config, &topology, &online_cpus()).unwrap_or_else(|error| panic!("{error}"));
    sensor.set_managed(BTreeSet::from([workload.process()]));
    while sensor.counters().accesses() < 3000 {
        std::thread::sleep(Duration::from_millis(10));
        sensor.sample(monotonic_ns()).unwrap();
        assert!(monotonic_ns() - start_ns < 60_000_000_000, "no progress: {:?}", sensor.counters());
    }
    let now_ns = monotonic_ns();
    let account = |&tid| TaskAccount {
        id: ThreadId { tid, start_boottime_ns: 1 },
        process: workload.process(),
        cgroup: None,
        command: "workload".to_owned(),
        node: NodeIndex(0),
        cpu: CpuId(0),
        allowed: PerNode::filled(1, true),
        run_ns: vec![now_ns - start_ns].into(),
        on_cooldown: false,
        woken_by: None,
    };
    let tids: Vec<u32> = workload.buffers.keys().copied().filter(|tid| *tid != 0).collect();
    let accounts = tids.iter().map(account).collect();
    let snapshot = sensor.snapshot(&topology, accounts, start_ns, now_ns, |_, _| None);
    println!("{} groups, {:?}", snapshot.groups.len(), sensor.table_counters());

    let (mut right, mut wrong) = (0, 0);
    for group in &snapshot.groups {
        let end = group.id.start + group.bytes;
        let inside = |range: &Range<u64>| range.start <= group.id.start && end <= range.end;
        let Some((owner, _)) = workload.buffers.iter().find(|(_, range)| inside(range)) else { continue };
        let users: Vec<u32> = group.users.iter().map(|(user, _)| user.tid).collect();
        if users == [*owner] || *owner == 0 {
            right += 1
        } else {
            wrong += 1
        }
        let resident = group.resident_pages[NodeIndex(0)];
        assert_eq!(resident, group.bytes / PAGE_BYTES, "the workload wrote every page");
        assert_eq!(group.unmovable, None);
    }
    // Three buffers of 16 groups, less what their ends cut off.
    assert!(right >= 40 && wrong == 0, "right {right} wrong {wrong}");
    for thread in &snapshot.threads {
        assert!(thread.accesses_per_s.as_ref().is_some_and(|row| row.total() > 0.0), "{thread:?}");
        assert!(thread.performance[NodeIndex(0)].is_some());
        assert_eq!(thread.sharing.len(), 1, "the other thread shares its pages");
    }
    assert!(snapshot.nodes[NodeIndex(0)].busy_ns > 0);
}
