// SPDX-License-Identifier: GPL-2.0-only
//! The sensor over a sampler that says what it is told to say, of this process.

use std::fs::File;

use tandem_policies::model::{MemoryLines, NodeId, NodeIndex, PerNode, Transfers};

use super::*;
use crate::access::{Access, Counts, Measured, SamplerTraits, Window};
use crate::affinity::GROUP_BYTES;
use crate::device::DeviceCounters;
use crate::fresh_pages::FreshPages;
use crate::source::{DataSource, Level};
use crate::testing::{large_pages, topology, unseen, withheld};

pub(super) const SECOND: u64 = 1_000_000_000;
const TID: u32 = 5;

/// Hands out the same batch at every call.
pub(super) struct Scripted(pub(super) Batch);

impl Sampler for Scripted {
    fn traits(&self) -> SamplerTraits {
        crate::device::TRAITS
    }

    fn set_managed(&mut self, _managed: &BTreeSet<ProcessId>) {}

    fn drain(&mut self, _now_ns: u64) -> Result<Batch, SamplerError> {
        Ok(self.0.clone())
    }

    fn counters(&self) -> SamplerCounters {
        SamplerCounters::Device(DeviceCounters { accesses: 30, ..DeviceCounters::default() })
    }
}

pub(super) fn process() -> ProcessId {
    ProcessId(std::process::id())
}

/// After all snapshots, so that none counts less for its age.
const FRESH_NS: u64 = 1 << 40;

/// 30 accesses to `address` that stand for 100 each: two of three from memory, one from a cache of another node.
pub(super) fn batch(address: u64) -> Batch {
    let access = |at: usize| {
        let level = if at < 20 { Level::Memory } else { Level::PeerCache };
        let source = DataSource { level, remote: Some(true), ..DataSource::UNKNOWN };
        let latency_ns = Some(if at < 20 { 180 } else { 150 });
        Access {
            process: process(),
            tid: TID,
            address,
            bytes: 0,
            store: false,
            time_ns: FRESH_NS + at as u64,
            cpu: CpuId(0),
            measured: Some(Measured { latency_ns, source, node: Some(NodeId(2)), physical: None, period: 100 }),
        }
    };
    let counts = Counts {
        process: process(),
        tid: TID,
        instructions: 500_000,
        flops: 0,
        cycles: 1_000_000,
        transfers: None,
        memory: MemoryLines { all: Some(500.0), remote: None },
    };
    Batch { accesses: (0..30).map(access).collect(), windows: Vec::new(), counts: vec![counts] }
}

/// The same, of whose memory hardware tells this node.
pub(super) fn batch_on(address: u64, node: Option<NodeId>) -> Batch {
    let mut batch = batch(address);
    batch.accesses.iter_mut().filter_map(|access| access.measured.as_mut()).for_each(|measured| measured.node = node);
    batch
}

/// A thread of this process that used half a second of node 0.
fn account() -> TaskAccount {
    account_of(TID)
}

pub(super) fn account_of(tid: u32) -> TaskAccount {
    TaskAccount {
        id: ThreadId { tid, start_boottime_ns: 1 },
        process: process(),
        cgroup: None,
        command: "work".to_owned(),
        node: NodeIndex(0),
        cpu: CpuId(0),
        allowed: PerNode::filled(2, true),
        run_ns: vec![SECOND / 2, 0].into(),
        on_cooldown: false,
        woken_by: None,
    }
}

fn snapshot(batch: Batch) -> Snapshot {
    let machine = topology(2);
    let mut sensor = Sensor::over(Box::new(Scripted(batch)), SensorConfig::default(), &machine);
    sensor.set_managed([process()].into());
    sensor.sample(SECOND).unwrap();
    assert_eq!(sensor.name(), "device");
    sensor.snapshot(&machine, vec![account()], SECOND, SECOND + SECOND / 2, |_, _| None)
}

#[test]
fn what_hardware_measures_is_in_the_snapshot() {
    let memory = vec![1_u8; 1 << 21];
    let snapshot = snapshot(batch(memory.as_ptr() as u64 + 4096));
    let (thread, group) = (&snapshot.threads[0], &snapshot.groups[0]);
    assert_eq!((thread.latency_ns, group.latency_ns), (Some(170.0), Some(170.0)));
    assert_eq!((thread.operations_per_s, thread.cycles_per_s), (Some(1e6), Some(2e6)));
    assert_eq!(thread.transfers_per_s, Some(Transfers { within_node: 0.0, across_nodes: 2000.0 }));
    assert_eq!(thread.memory_lines_per_s, MemoryLines { all: Some(1000.0), remote: None });
    let served = |node| snapshot.nodes[NodeIndex(node)].served_latency_ns;
    assert_eq!((served(0), served(1)), (None, Some(180.0)));
    assert_eq!(snapshot.nodes[NodeIndex(1)].latency_ns_from.values().copied().collect::<Vec<_>>(), [Some(180.0), None]);
    assert_eq!(snapshot.access_rates, Some(AccessRates::Measured));
    let (accesses, users) = (group.accesses_per_s[NodeIndex(0)], group.users[0].1);
    assert!((accesses - 6000.0).abs() < 1e-6 && (users - 6000.0).abs() < 1e-6, "3000 in half a second: {group:?}");
}

#[test]
fn stores_of_which_nobody_tells_what_answered_them_are_no_accesses_to_memory() {
    let memory = vec![1_u8; 1 << 21];
    let mut with_stores = batch(memory.as_ptr() as u64 + 4096);
    let mut store = with_stores.accesses[0];
    store.store = true;
    let sample = store.measured.as_mut().unwrap();
    (sample.source, sample.period) = (DataSource::UNKNOWN, 1_000_000);
    with_stores.accesses.push(store);
    let accesses_per_s = snapshot(with_stores).groups[0].accesses_per_s[NodeIndex(0)];
    assert!((accesses_per_s - 6000.0).abs() < 1e-6, "{accesses_per_s}");
}

/// `pmu` knows latencies and not the node: that is told by where the group's pages are.
#[test]
fn latencies_by_pair_of_nodes_need_no_hardware_that_names_the_node() {
    let (machine, memory) = (topology(2), vec![1_u8; 1 << 22]);
    let start = (memory.as_ptr() as u64).next_multiple_of(GROUP_BYTES);
    let from_node_0 = |pages: [u64; 2]| {
        let config = SensorConfig { home_pages: 0, ..SensorConfig::default() };
        let mut sensor = Sensor::over(Box::new(Scripted(Batch::default())), config, &machine);
        sensor.set_managed([process()].into());
        sensor.known_homes.put(2, vec![(GroupId { process: process(), start }, pages.to_vec().into())], SECOND);
        sensor.pending.add(&batch_on(start + 4096, None));
        let seen = sensor.snapshot(&machine, vec![account()], SECOND, SECOND + SECOND / 2, |_, _| None);
        [0, 1].map(|memory| seen.nodes[NodeIndex(memory)].latency_ns_from.get(NodeIndex(0)).copied().flatten())
    };
    assert_eq!(from_node_0([0, 512]), [None, Some(180.0)]);
    assert_eq!(from_node_0([1, 511]), [None, None], "which of them answered is not known");
}

#[test]
fn who_only_infers_leaves_them_open() {
    let memory = vec![1_u8; 1 << 21];
    let mut inferred = batch(memory.as_ptr() as u64 + 4096);
    inferred.accesses.iter_mut().for_each(|access| access.measured = None);
    inferred.counts.clear();
    let snapshot = snapshot(inferred);
    let thread = &snapshot.threads[0];
    assert_eq!((thread.latency_ns, thread.operations_per_s, thread.cycles_per_s), (None, None, None));
    assert_eq!((thread.transfers_per_s, snapshot.groups[0].latency_ns), (None, None));
    assert_eq!(snapshot.access_rates, Some(AccessRates::Inferred));
}

/// Of ten accesses in each look nine are to text.
#[test]
fn accesses_that_belong_to_no_group_make_the_rates_of_groups_no_larger() {
    let memory = vec![1_u8; 1 << 21];
    let text = accesses_that_belong_to_no_group_make_the_rates_of_groups_no_larger as fn() as usize as u64;
    let mut seen = batch_on(memory.as_ptr() as u64 + 4096, None);
    seen.counts.clear();
    seen.accesses.iter_mut().for_each(|access| access.measured = None);
    let window = |of: &Access| Window { process: of.process, tid: TID, time_ns: of.time_ns, instructions: 250 };
    seen.windows = seen.accesses.iter().map(window).collect();
    let beside = seen.accesses.iter().flat_map(|access| [Access { address: text, ..*access }; 9]);
    seen.accesses = beside.chain(seen.accesses.iter().copied()).collect();
    let per_s = snapshot(seen).groups[0].accesses_per_s[NodeIndex(0)];
    assert!((per_s - 4e6).abs() < 1.0, "one in 250 instructions: {per_s}");
}

/// Thirty accesses of one look to one page.
#[test]
fn an_entry_counts_for_all_that_it_stands_for() {
    let (machine, memory) = (topology(2), vec![1_u8; 1 << 21]);
    let mut sensor = told_sensor(&machine);
    let mut seen = batch(memory.as_ptr() as u64 + 4096);
    seen.accesses.iter_mut().for_each(|access| (access.measured, access.time_ns) = (None, SECOND));
    sensor.pending.add(&seen);
    assert_eq!(sensor.pending.accesses.len(), 1);
    sensor.snapshot(&machine, vec![account()], SECOND / 2, SECOND, |_, _| None);
    assert_eq!(sensor.table.total(account().id), 30.0);
}

/// The first two pages of each MiB of 2 MiB were touched, by one thread each.
fn groups_of_halves(memory: &FreshPages) -> Vec<(u64, u64)> {
    let (machine, start) = (topology(2), memory.start().next_multiple_of(GROUP_BYTES));
    let mut batch = Batch::default();
    for at in 0..60_u64 {
        let (half, page) = (at % 2, at / 2 % 2);
        let address = start + half * GROUP_BYTES / 2 + page * 4096;
        // SAFETY: of the 4 MiB that the caller mapped the second half begins behind this.
        unsafe { (address as *mut u8).write_volatile(1) };
        let one = batch_on(address, None).accesses.remove(0);
        batch.accesses.push(Access { tid: TID + half as u32, time_ns: at, ..one });
    }
    let mut sensor = Sensor::over(Box::new(Scripted(Batch::default())), SensorConfig::default(), &machine);
    sensor.set_managed([process()].into());
    sensor.pending.add(&batch);
    let mut snapshot = |at: u64| {
        let accounts = vec![account_of(TID), account_of(TID + 1)];
        sensor.snapshot(&machine, accounts, at * SECOND, (at + 1) * SECOND, |_, _| None)
    };
    assert_eq!(snapshot(1).groups.len(), 1, "nothing was known before");
    snapshot(2).groups.iter().map(|group| (group.id.start - start, group.bytes)).collect()
}

#[test]
fn memory_of_two_threads_becomes_two_groups_unless_it_is_one_large_page() {
    let half = GROUP_BYTES / 2;
    let small = FreshPages::small(1024).unwrap();
    if let Err(why) = withheld(File::open("/proc/kpageflags")) {
        return unseen(&why);
    }
    assert_eq!(groups_of_halves(&small), [(0, half), (half, half)]);
    let Some(large) = large_pages(1024) else { return unseen("this kernel has no transparent huge pages") };
    assert_eq!(groups_of_halves(&large), [(0, GROUP_BYTES)]);
}

/// A sensor that is told where the pages of this process are, instead of asking the kernel.
pub(super) fn told_sensor(machine: &Topology) -> Sensor {
    let config = SensorConfig { home_pages: 0, ..SensorConfig::default() };
    let mut sensor = Sensor::over(Box::new(Scripted(Batch::default())), config, machine);
    sensor.set_managed([process()].into());
    sensor
}

/// Two batches of 30 accesses each, the first to memory on node 0, the second to memory on the other node.
#[test]
fn what_a_thread_did_before_it_turned_to_other_memory_is_forgotten() {
    let (machine, memory) = (topology(2), vec![1_u8; 5 << 20]);
    let address = (memory.as_ptr() as u64).next_multiple_of(GROUP_BYTES);
    let mut sensor = told_sensor(&machine);
    let mut per_node = Vec::new();
    for (at, home) in [[512, 0], [0, 512]].into_iter().enumerate() {
        let start = address + at as u64 * GROUP_BYTES;
        sensor.known_homes.put(2, vec![(GroupId { process: process(), start }, home.to_vec().into())], SECOND);
        sensor.pending.add(&batch_on(start + 4096, None));
        let now_ns = (at as u64 + 2) * SECOND / 2;
        let snapshot = sensor.snapshot(&machine, vec![account()], now_ns - SECOND / 2, now_ns, |_, _| None);
        per_node.push(snapshot.threads[0].accesses_per_s.clone().expect("a signal"));
    }
    assert_eq!((per_node[0][NodeIndex(1)], per_node[1][NodeIndex(0)]), (0.0, 0.0), "{per_node:?}");
    assert!(per_node[1][NodeIndex(1)] > 0.0);
    assert_eq!((sensor.table_counters().turned, sensor.table.groups().len()), (1, 1));
}

/// Most of an interval passed before the thread turned: what was seen by then is of no use any more. Where memory is that
/// was not used lately is known from hardware alone.
#[test]
fn a_turn_is_seen_before_the_interval_ends() {
    let (machine, memory) = (topology(2), vec![1_u8; 5 << 20]);
    let addresses = [0, 1].map(|at| (memory.as_ptr() as u64).next_multiple_of(GROUP_BYTES) + at * GROUP_BYTES);
    let mut sensor = told_sensor(&machine);
    let group = |at: usize| GroupId { process: process(), start: addresses[at] };
    sensor.known_homes.put(2, vec![(group(0), vec![512, 0].into())], SECOND);
    let near = || batch_on(addresses[0] + 4096, Some(NodeId(0)));
    let far = || batch_on(addresses[1], Some(NodeId(2)));
    sensor.pending.add(&near());
    assert!(!sensor.sees_turn(SECOND), "nothing is known of before");
    sensor.snapshot(&machine, vec![account()], SECOND, SECOND + SECOND / 2, |_, _| None);
    for _ in 0..4 {
        sensor.pending.add(&near());
        assert!(!sensor.sees_turn(SECOND));
    }
    sensor.pending.add(&batch_on(addresses[0] + 4096, Some(NodeId(2))));
    assert!(!sensor.sees_turn(SECOND), "its pages were moved, it did not turn");
    sensor.pending.add(&far());
    assert!(sensor.sees_turn(SECOND));
    sensor.known_homes.put(2, vec![(group(1), vec![0, 512].into())], SECOND);
    let now_ns = 2 * SECOND;
    let snapshot = sensor.snapshot(&machine, vec![account()], now_ns - SECOND / 2, now_ns, |_, _| None);
    let row = snapshot.threads[0].accesses_per_s.clone().expect("a signal");
    assert_eq!((row[NodeIndex(0)], snapshot.threads[0].turned_ns), (0.0, Some(now_ns)));
    sensor.pending.add(&far());
    assert!(!sensor.sees_turn(SECOND), "it stays there");
}

/// Memory that no snapshot has seen yet is where the kernel says: here on the first node, and before all was on the other.
#[test]
fn a_turn_to_memory_that_was_never_seen_is_seen() {
    let (machine, memory) = (topology(2), vec![1_u8; 5 << 20]);
    let addresses = [0, 1].map(|at| (memory.as_ptr() as u64).next_multiple_of(GROUP_BYTES) + at * GROUP_BYTES);
    let mut sensor = told_sensor(&machine);
    let group = GroupId { process: process(), start: addresses[0] };
    sensor.known_homes.put(2, vec![(group, vec![0, 512].into())], SECOND);
    sensor.pending.add(&batch_on(addresses[0], None));
    sensor.snapshot(&machine, vec![account()], SECOND, SECOND + SECOND / 2, |_, _| None);
    sensor.pending.add(&batch_on(addresses[0], None));
    assert!(!sensor.sees_turn(SECOND));
    sensor.pending.add(&batch_on(addresses[1], None));
    assert!(sensor.sees_turn(SECOND));
    assert_eq!(sensor.table_counters().homes.asked, 1, "one page tells of its 2 MiB");
}

/// Six looks an interval are too few to tell, but four such intervals are not.
#[test]
fn a_thread_that_is_seldom_looked_at_is_seen_to_turn_over_several_intervals() {
    let (machine, memory) = (topology(2), vec![1_u8; 5 << 20]);
    let address = (memory.as_ptr() as u64).next_multiple_of(GROUP_BYTES);
    let mut sensor = told_sensor(&machine);
    let groups = [0, 1].map(|at| GroupId { process: process(), start: address + at * GROUP_BYTES });
    sensor.known_homes.put(2, vec![(groups[0], vec![512, 0].into())], SECOND);
    sensor.pending.add(&batch_on(groups[0].start, None));
    sensor.snapshot(&machine, vec![account()], SECOND / 2, SECOND, |_, _| None);
    let mut turned = Vec::new();
    for interval in 1..=5 {
        let mut few = batch_on(groups[1].start, None);
        few.accesses.truncate(6);
        // Looks of their own.
        few.accesses.iter_mut().for_each(|access| access.time_ns += interval * 1000);
        sensor.pending.add(&few);
        sensor.known_homes.put(2, vec![(groups[1], vec![0, 512].into())], SECOND);
        sensor.sees_turn(SECOND);
        let snapshot = sensor.snapshot(&machine, vec![account()], SECOND, SECOND + interval, |_, _| None);
        turned.push(snapshot.threads[0].turned_ns == Some(SECOND + interval));
    }
    assert_eq!(turned, [false, false, false, true, false]);
}

/// A fault sampler whose batch is what it is told.
pub(super) struct Faults(pub(super) Batch);

impl Sampler for Faults {
    fn traits(&self) -> SamplerTraits {
        crate::fault::TRAITS
    }

    fn set_managed(&mut self, _managed: &BTreeSet<ProcessId>) {}

    fn drain(&mut self, _now_ns: u64) -> Result<Batch, SamplerError> {
        Ok(self.0.clone())
    }

    fn counters(&self) -> SamplerCounters {
        SamplerCounters::Fault(crate::FaultCounters::default())
    }

    fn sees_faults(&self) -> bool {
        true
    }
}

/// Two threads fault in turn on one frame, at two places of the address space as two processes would see it: they
/// share. Of the same place in other frames they do not.
#[test]
fn faults_tell_sharing_by_frame_and_not_by_address() {
    let machine = topology(2);
    let data = vec![0_u8; 64 << 10];
    let address = data.as_ptr() as u64;
    let fault = |at: u64, tid, page, physical| Access {
        tid,
        time_ns: at,
        address: address + page * 4096,
        measured: Some(Measured {
            latency_ns: None,
            source: DataSource::UNKNOWN,
            node: None,
            physical: Some(physical),
            period: 1,
        }),
        ..batch(address).accesses[0]
    };
    let shared = (0..40).map(|at| fault(at, 5 + (at % 2) as u32, at % 2, 0x9000));
    let private = (40..80).map(|at| fault(at, 5 + (at % 2) as u32, 3, 0x10_0000 + at * 4096));
    let batch = Batch { accesses: shared.chain(private).collect(), ..Batch::default() };
    let mut sensor = Sensor::over(Box::new(Faults(batch)), SensorConfig::default(), &machine);
    sensor.set_managed([process()].into());
    let account = |tid| TaskAccount { id: ThreadId { tid, start_boottime_ns: 1 }, ..account() };
    let accounts = vec![account(5), account(6)];
    sensor.snapshot(&machine, accounts.clone(), 0, SECOND, |_, _| None);
    sensor.sample(SECOND).unwrap();
    let faulted = sensor.snapshot(&machine, accounts.clone(), SECOND, 2 * SECOND, |_, _| None);
    assert_eq!(
        (faulted.threads[0].latency_ns, faulted.threads[0].transfers_per_s),
        (None, None),
        "no cache is told of"
    );
    let seen = sensor.snapshot(&machine, accounts, 2 * SECOND, 3 * SECOND, |_, _| None);
    let of = |at: usize| seen.threads[at].sharing.clone();
    let [(other, per_s)] = of(0)[..] else { panic!("{:?}", of(0)) };
    assert_eq!((other.tid, of(1)[0].0.tid), (6, 5));
    // 39 alternations, of which some have faded over the second since.
    assert!((15.0..39.0).contains(&per_s), "{per_s}");
    let (homes, frames) = (sensor.known_homes.bytes(), sensor.frames.as_ref().map_or(0, FrameTable::bytes));
    assert!(homes > 0 && frames > 0);
    assert_eq!(sensor.group_bytes(), sensor.table.bytes() + homes + frames, "all that grows with memory is told");
}

#[test]
fn groups_that_moved_are_asked_for_before_older_answers() {
    let memory = FreshPages::small(1536).unwrap();
    memory.touch();
    let first = memory.start().next_multiple_of(GROUP_BYTES);
    let groups = [first, first + GROUP_BYTES].map(|start| GroupId { process: process(), start });
    let machine = topology(2);
    let mut config = SensorConfig::default();
    config.home_pages = HomeQuery::new(config.home_stride_pages).cost_pages(GROUP_BYTES);
    let mut sensor = Sensor::over(Box::new(Scripted(Batch::default())), config, &machine);
    sensor.set_managed([process()].into());
    for (at, group) in groups.into_iter().enumerate() {
        sensor.pending.add(&batch(group.start + 4096));
        sensor.known_homes.put(2, vec![(group, vec![0, 512].into())], (at as u64 + 1) * SECOND);
    }
    sensor.note_moved(groups[1]);
    let asked = |sensor: &Sensor| groups.map(|group| sensor.known_homes.age_ms(group, 10 * SECOND) == 0);
    sensor.snapshot(&machine, vec![account()], 9 * SECOND, 10 * SECOND, |_, _| None);
    assert_eq!(asked(&sensor), [false, true], "though the answer for the other one is older");
    sensor.snapshot(&machine, vec![account()], 9 * SECOND, 10 * SECOND, |_, _| None);
    assert_eq!(asked(&sensor), [true, true]);
}

#[test]
fn pages_that_are_all_there_and_did_not_move_are_not_asked_for_at_each_look() {
    let memory = FreshPages::small(1536).unwrap();
    let first = memory.start().next_multiple_of(GROUP_BYTES);
    let groups = [first, first + GROUP_BYTES].map(|start| GroupId { process: process(), start });
    // SAFETY: pages of this memory, of which nothing else knows.
    (0..GROUP_BYTES).step_by(4096).for_each(|page| unsafe { ((first + page) as *mut u8).write(1) });
    let machine = topology(2);
    let mut sensor = Sensor::over(Box::new(Scripted(Batch::default())), SensorConfig::default(), &machine);
    sensor.set_managed([process()].into());
    for group in groups {
        sensor.pending.add(&batch(group.start + 4096));
    }
    let mut asked = |at_s: u64, moved: &[GroupId], doubted: bool| {
        moved.iter().for_each(|&group| sensor.note_moved(group));
        if doubted {
            sensor.doubt_homes();
        }
        sensor.snapshot(&machine, vec![account()], (at_s - 1) * SECOND, at_s * SECOND, |_, _| None);
        groups.map(|group| sensor.known_homes.age_ms(group, at_s * SECOND) == 0)
    };
    assert_eq!(asked(10, &[], false), [true, true]);
    assert_eq!(asked(11, &[], false), [false, true], "of the second one nothing is there yet");
    assert_eq!(asked(12, &groups[..1], false), [true, true], "it has moved");
    assert_eq!(asked(13, &[], false), [false, true]);
    assert_eq!(asked(14, &[], true), [true, true], "others moved some");
    assert_eq!(asked(15, &[], false), [false, true]);
    assert_eq!(asked(18, &[], false), [true, true], "it may be other memory by now");
}

#[test]
fn of_the_memory_of_a_program_that_is_gone_nothing_is_known() {
    let memory = FreshPages::small(1024).unwrap();
    memory.touch();
    let group = GroupId { process: process(), start: memory.start().next_multiple_of(GROUP_BYTES) };
    let machine = topology(2);
    let mut sensor = Sensor::over(Box::new(Scripted(batch(group.start + 4096))), SensorConfig::default(), &machine);
    sensor.set_managed([process()].into());
    let mut seen_without = |gone: u32| {
        sensor.sample(SECOND).unwrap();
        sensor.note_moved(group);
        sensor.forget(&[ProcessId(gone)].into());
        let regions = sensor.regions.find(group.process, group.start).is_some();
        let snapshot = sensor.snapshot(&machine, vec![account()], SECOND, SECOND + SECOND / 2, |_, _| None);
        (regions, snapshot.groups.len(), sensor.known_homes.get(group).is_some())
    };
    assert_eq!(seen_without(process().0 + 1), (false, 1, true), "another one is gone");
    assert_eq!(seen_without(process().0 + 1), (true, 1, true));
    assert_eq!(seen_without(process().0), (false, 0, false));
}

#[test]
fn a_group_that_is_one_huge_page_is_told_from_one_of_small_pages() {
    let huge_bytes = GROUP_BYTES;
    let is_huge = |pages: &FreshPages| {
        pages.touch();
        let start = pages.start().next_multiple_of(huge_bytes);
        let snapshot = snapshot(batch(start + 4096));
        let group = snapshot.groups.iter().find(|group| group.id.start == start).expect("it was accessed");
        assert_eq!(group.resident_pages[NodeIndex(0)], 512);
        group.huge
    };
    assert!(!is_huge(&FreshPages::small(1024).unwrap()));
    match FreshPages::large(1024) {
        Ok(large) => assert!(is_huge(&large)),
        Err(_) => println!("skipped: this kernel has no transparent huge pages"),
    }
}
