// SPDX-License-Identifier: GPL-2.0-only
//! How much memory the loop takes with very many page groups: all of it but the scheduler, in a process of its own.

use std::collections::BTreeSet;
use std::process::Command;

use tandem_act::{Call, Cooldowns, MovePages, Mover, MoverConfig, PageMove};
use tandem_policies::model::{LatencySource, NodeId, PAGE_BYTES, Plan};
use tandem_sense::{Access, Batch, Sampler, SamplerCounters, SamplerError, SamplerTraits, SensorConfig, Window};
use tandem_view::Board;

use super::acting::places_of_moved;
use super::*;
use crate::cost::CostReport;
use crate::leases::leases;
use crate::testing::SECOND_NS;

const GROUPS: u64 = 100_000;
const GROUP_BYTES: u64 = 2 << 20;
const THREADS: u32 = 8;
/// Each is used by its thread only, and seen so often.
const LOOKS: u64 = 3;
/// As much as comes between two snapshots.
const GROUPS_PER_INTERVAL: u64 = 10_000;
/// The goal is 64 MB, of which scx_tandem takes 12.4 MB before it knows of any group: its program, and what it loaded.
const MOST_BYTES: u64 = 64_000_000 - 12_400_000;

/// Hands out what it holds.
struct Scripted(std::rc::Rc<std::cell::RefCell<Batch>>);

impl Sampler for Scripted {
    fn traits(&self) -> SamplerTraits {
        SamplerTraits { name: "scripted", coverage: "", bias: "", cost: "" }
    }

    fn set_managed(&mut self, _managed: &BTreeSet<ProcessId>) {}

    fn drain(&mut self, _now_ns: u64) -> Result<Batch, SamplerError> {
        Ok(std::mem::take(&mut self.0.borrow_mut()))
    }

    fn counters(&self) -> SamplerCounters {
        SamplerCounters::default()
    }
}

/// Every page is on node 0, until it was moved to node 1.
struct Everywhere;

impl MovePages for Everywhere {
    fn call(&self, _process: ProcessId, addresses: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call {
        status.fill(to.map_or(0, |node| node.0 as i32));
        Call { result: Ok(0), time_ns: 1000 * addresses.len() as u64 }
    }
}

/// Address space that is never touched.
fn reserve() -> u64 {
    let (bytes, flags) = ((GROUPS + 1) * GROUP_BYTES, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping, nowhere in particular; writable, so that it counts as data, and never unmapped.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    (start as u64).next_multiple_of(GROUP_BYTES)
}

/// What is seen of these groups in an interval: each of them is one thread's.
fn seen(start: u64, groups: std::ops::Range<u64>, now_ns: u64) -> Batch {
    let mut batch = Batch::default();
    for group in groups {
        for look in 0..LOOKS {
            let (tid, time_ns) = (1 + (group % u64::from(THREADS)) as u32, now_ns - look);
            let (process, address) = (ProcessId(std::process::id()), start + group * GROUP_BYTES + look * PAGE_BYTES);
            let (bytes, store, cpu, measured) = (8, false, CpuId(0), None);
            batch.accesses.push(Access { process, tid, address, bytes, store, time_ns, cpu, measured });
            batch.windows.push(Window { process, tid, time_ns, instructions: 256, accesses: 1 });
        }
    }
    batch
}

/// Threads on node 1 whose memory is on node 0.
fn accounts() -> Vec<TaskAccount> {
    let account = |tid| TaskAccount {
        id: crate::testing::id(tid),
        process: ProcessId(std::process::id()),
        command: "worker".to_owned(),
        node: NodeIndex(1),
        cpu: CpuId(2),
        cgroup: None,
        allowed: vec![false, true].into(),
        run_ns: vec![0, SECOND_NS].into(),
        on_cooldown: false,
    };
    (1..=THREADS).map(account).collect()
}

fn machine() -> Topology {
    let mut nodes = crate::testing::snapshot(&[]).topology.nodes.values().cloned().collect::<Vec<_>>();
    nodes.iter_mut().for_each(|node| (node.memory_pages, node.free_pages) = (1 << 40, 1 << 40));
    Topology::new(nodes, LatencySource::Distance).expect("two nodes")
}

/// The snapshot of an interval in which all groups are known, all on node 0.
fn sense(sensor: &mut Sensor, script: &std::cell::RefCell<Batch>, topology: &Topology) -> Snapshot {
    let start = reserve();
    sensor.set_managed([ProcessId(std::process::id())].into());
    let mut now_ns = SECOND_NS;
    let mut snapshot = None;
    for first in (0..GROUPS).step_by(GROUPS_PER_INTERVAL as usize) {
        now_ns += SECOND_NS / 100;
        *script.borrow_mut() = seen(start, first..first + GROUPS_PER_INTERVAL, now_ns);
        sensor.sample(now_ns).expect("a script goes on");
        drop(snapshot.take());
        snapshot = Some(sensor.snapshot(topology, accounts(), now_ns - SECOND_NS, now_ns, |_, _| None));
    }
    let mut snapshot = snapshot.expect("some intervals");
    assert_eq!(snapshot.groups.len() as u64, GROUPS);
    // As if memory were there, and all of it worth a move.
    snapshot.groups.iter_mut().for_each(|group| group.resident_pages = vec![512, 0].into());
    snapshot.threads.iter_mut().for_each(|thread| thread.accesses_per_s = Some(vec![1e7, 0.0].into()));
    snapshot.page_move_ns = Some(1e-3);
    snapshot
}

/// Leases, queue and undo log of a plan, and what is said of it.
fn carry_out(snapshot: &Snapshot, plan: &Plan) -> Report {
    let leases = leases(snapshot, plan);
    assert!(!leases.is_empty());
    let config = MoverConfig { pages_per_s: 1 << 40, call_ns_per_s: 1 << 40, ..MoverConfig::default() };
    let (mut mover, mut cooldowns) = (Mover::new(Everywhere, config), Cooldowns::new(COOLDOWNS));
    let (mut reasons, mut report) = (Reasons::default(), Report::default());
    let changed = places_of_moved(snapshot, plan);
    for planned in &plan.moves {
        let tandem_policies::model::Action::MovePages { group, bytes, to } = planned.action else { continue };
        let to = snapshot.topology.nodes[to].id;
        let wanted = PageMove { group, bytes, huge: false, to, generation: Generation(1), cooldown_ns: SECOND_NS };
        if mover.enqueue(wanted, 0, &cooldowns).is_ok() {
            reasons.note(Generation(1), group, planned.reason.clone());
        }
    }
    let mut now_ns = 0;
    while mover.queued_groups() > 0 {
        now_ns += SECOND_NS / 10;
        for outcome in mover.run(now_ns, &mut cooldowns) {
            report.page_moves.push(PagesMove {
                time_ns: now_ns,
                process: outcome.group.process.0,
                start: outcome.start,
                to: outcome.to.0,
                moved_pages: outcome.moved_pages,
                reason: reasons.take(&outcome),
                outcome,
            });
        }
    }
    assert!(!mover.undo_log().is_empty() && !changed.is_empty());
    report
}

#[test]
#[ignore = "in a process of its own: a_hundred_thousand_page_groups_stay_within_what_is_documented runs it"]
fn an_interval_with_a_hundred_thousand_page_groups() {
    crate::give_back_large_blocks();
    let script = std::rc::Rc::new(std::cell::RefCell::new(Batch::default()));
    let topology = machine();
    let mut sensor = Sensor::over(Box::new(Scripted(script.clone())), SensorConfig::default(), &topology);
    let peak_mib = |what: &str| {
        let mut cost = CostReport::default();
        cost.note_interval();
        let bytes = cost.peak_resident_bytes.expect("Linux tells");
        println!("{what}: {:.1} MiB", bytes as f64 / 1_048_576.0);
        bytes
    };
    let before_bytes = peak_mib("before");
    let snapshot = sense(&mut sensor, &script, &topology);
    peak_mib("snapshot");
    let mut decider = Decider::new(PolicyChoice::of_both("tandem").expect("the default"));
    let decision = Decision::new(1, decider.decide(&snapshot, 1, STEPS));
    peak_mib("decision");
    let plan = decision.plan().expect("all threads are far from their memory");
    assert!(plan.moves.len() > 10_000, "{} moves", plan.moves.len());
    let report = carry_out(&snapshot, plan);
    peak_mib("acting");
    let board = Board::default();
    board.publish(status(&crate::testing::config(), &snapshot, &report, UnderWay::default()));
    let bytes = peak_mib("told") - before_bytes;
    assert!(bytes < MOST_BYTES, "{:.1} MiB", bytes as f64 / 1_048_576.0);
}

#[test]
fn a_hundred_thousand_page_groups_stay_within_what_is_documented() {
    let name = "agent::memory_tests::an_interval_with_a_hundred_thousand_page_groups";
    let own = std::env::current_exe().expect("this test is a program");
    // What fills allocated memory makes resident what nobody uses.
    let mut again = Command::new(own);
    again.env_remove("MALLOC_PERTURB_").args(["--exact", name, "--ignored", "--nocapture"]);
    let done = again.output().expect("it runs again");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&done.stderr));
}
