// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::affinity::AffinityConfig;
use crate::regions::{Region, RegionKind};
use crate::testing::topology;

const PROCESS: ProcessId = ProcessId(7);
const GROUP: u64 = 2 << 20;
const SECOND: u64 = 1_000_000_000;

fn thread(tid: u32) -> ThreadId {
    ThreadId { tid, start_boottime_ns: 1 }
}

fn account(tid: u32, run_ns: [u64; 2]) -> TaskAccount {
    TaskAccount {
        id: thread(tid),
        process: PROCESS,
        cgroup: None,
        command: "work".to_owned(),
        node: NodeIndex(usize::from(run_ns[1] > run_ns[0])),
        cpu: CpuId(2 * u32::from(run_ns[1] > run_ns[0])),
        allowed: PerNode::filled(2, true),
        run_ns: run_ns.to_vec().into(),
        on_cooldown: tid == 2,
        woken_by: None,
    }
}

fn take(performance: &mut PerformanceMemory) -> Snapshot {
    take_with(MIN_ACCESSES as u32 / 4, performance)
}

/// Thread 1 on node 0 uses groups 1 (3 of 4) and 2; thread 2 on node 1 uses group 2 at half a CPU.
/// Each has 4 x `quarter` accesses.
fn take_with(quarter: u32, performance: &mut PerformanceMemory) -> Snapshot {
    let region = Region::of(GROUP, 3 * GROUP, RegionKind::Data);
    let (mut table, mut rates) = (AffinityTable::new(AffinityConfig::default()), RateTable::new(SECOND));
    let id = |start| GroupId { process: PROCESS, start };
    for (tid, address, times) in [(1, GROUP, 3), (1, 2 * GROUP, 1), (2, 2 * GROUP, 4)] {
        for time_ns in 0..times * quarter {
            table.add(PROCESS, thread(tid), u64::from(time_ns), address, Some(&region));
        }
    }
    rates.add(thread(1), 400, 4);
    rates.add(thread(2), 400, 4);
    let mut homes = KnownHomes::default();
    homes.put(2, vec![(id(GROUP), vec![512, 0].into()), (id(2 * GROUP), vec![128, 384].into())], 0);
    let parts = Parts {
        topology: &topology(2),
        table: &table,
        frames: None,
        rates: &rates,
        access_rates: AccessRates::Inferred,
        measures: &Measures::default(),
        policies: &ThreadPolicies::default(),
        homes: &homes,
        turned_ns: &BTreeMap::new(),
        known: &BTreeMap::new(),
        busy_ns: Some(vec![SECOND + 5, 0].into()),
        interval_ns: SECOND,
        now_ns: 100 * SECOND,
    };
    let woken = |by, account: TaskAccount| TaskAccount { woken_by: Some((by, 500)), ..account };
    let accounts = vec![woken(1, account(2, [0, SECOND / 2])), woken(77, account(1, [SECOND, 0]))];
    let kept = |group: GroupId, bytes| (group.start == GROUP && bytes == GROUP).then_some(Unmovable::Cooldown);
    parts.snapshot(accounts, performance, kept)
}

#[test]
fn who_wakes_a_thread_is_told_if_it_is_managed() {
    let snapshot = take(&mut PerformanceMemory::default());
    assert_eq!(snapshot.threads[0].woken_by, None, "by somebody else");
    assert_eq!(snapshot.threads[1].woken_by, Some((thread(1), 500.0)));
}

#[test]
fn accesses_go_to_the_nodes_of_memory_and_of_threads() {
    let snapshot = take(&mut PerformanceMemory::default());
    // 1 % of 1e9 instructions: 1e7 accesses/s at a whole CPU.
    let rows: Vec<_> = snapshot.threads.iter().map(|thread| thread.accesses_per_s.clone().unwrap()).collect();
    let near = |row: &PerNode<f64>, expected: [f64; 2]| {
        row.values().zip(expected).all(|(value, expected)| (value - expected).abs() < 1.0)
    };
    assert!(near(&rows[0], [7.5e6 + 0.625e6, 1.875e6]), "{rows:?}");
    assert!(near(&rows[1], [1.25e6, 3.75e6]), "{rows:?}");
    assert!(near(&snapshot.groups[0].accesses_per_s, [7.5e6, 0.0]));
    assert!(near(&snapshot.groups[1].accesses_per_s, [2.5e6, 5e6]));
    let users: Vec<_> = snapshot.groups[1].users.iter().map(|(user, _)| user.tid).collect();
    assert_eq!(users, [1, 2]);
    // Both touched the first page of group 2: the lesser rate.
    assert_eq!(snapshot.threads[0].sharing.len(), 1);
    assert!((snapshot.threads[0].sharing[0].1 - 2.5e6).abs() < 1.0);
}

#[test]
fn threads_ascend_and_keep_their_marks() {
    let snapshot = take(&mut PerformanceMemory::default());
    assert_eq!(snapshot.threads.iter().map(|thread| thread.id.tid).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((snapshot.threads[0].on_cooldown, snapshot.threads[1].on_cooldown), (false, true));
    assert_eq!(snapshot.groups[0].unmovable, Some(Unmovable::Cooldown));
    assert_eq!(snapshot.groups[1].unmovable, None);
    assert_eq!(snapshot.nodes[NodeIndex(0)].unmanaged_ns, 5);
    assert_eq!(snapshot.nodes[NodeIndex(1)].busy_ns, SECOND / 2, "never less than the managed threads used");
}

#[test]
fn performance_is_remembered_where_the_thread_ran() {
    let snapshot = take(&mut PerformanceMemory::default());
    let of_first = &snapshot.threads[0].performance;
    // 81.25 % local at 100 ns, the rest at 200 ns.
    assert!((of_first[NodeIndex(0)].unwrap() - 1.0 / 118.75).abs() < 1e-9);
    assert_eq!(of_first[NodeIndex(1)], None);
}

/// Thread 1 on node 0 with so many accesses, seen in `looks` looks at it, to one group whose pages are on `home`.
fn alone(accesses: u64, looks: u64, home: usize) -> Snapshot {
    alone_after(accesses, looks, home, &[4])
}

/// The same, after stretches of its code with so many accesses were followed.
fn alone_after(accesses: u64, looks: u64, home: usize, stretches: &[u32]) -> Snapshot {
    let region = Region::of(GROUP, 2 * GROUP, RegionKind::Data);
    let (mut table, mut rates) = (AffinityTable::new(AffinityConfig::default()), RateTable::new(SECOND));
    for access in 0..accesses {
        table.add(PROCESS, thread(1), access * looks / accesses, GROUP, Some(&region));
    }
    stretches.iter().for_each(|&accesses| rates.add(thread(1), 400, accesses));
    let pages = PerNode::from_fn(2, |node| if node.0 == home { 512 } else { 0 });
    let mut homes = KnownHomes::default();
    homes.put(2, vec![(GroupId { process: PROCESS, start: GROUP }, pages)], 0);
    let parts = Parts {
        topology: &topology(2),
        table: &table,
        frames: None,
        rates: &rates,
        access_rates: AccessRates::Inferred,
        measures: &Measures::default(),
        policies: &ThreadPolicies::default(),
        homes: &homes,
        turned_ns: &BTreeMap::new(),
        known: &BTreeMap::new(),
        busy_ns: None,
        interval_ns: SECOND,
        now_ns: 100 * SECOND,
    };
    parts.snapshot(vec![account(1, [SECOND, 0])], &mut PerformanceMemory::default(), |_, _| None)
}

/// The same thread with the same accesses, its memory on the node where it runs and all of it on the other one.
#[test]
fn performance_falls_when_all_memory_is_remote() {
    let accesses = 2 * MIN_ACCESSES as u64;
    let performance_on = |home| alone(accesses, accesses, home).threads[0].performance[NodeIndex(0)].unwrap();
    let (local, remote) = (performance_on(0), performance_on(1));
    assert!((local * 100.0 - 1.0).abs() < 1e-9 && (remote * 200.0 - 1.0).abs() < 1e-9, "{local} {remote}");
}

#[test]
fn too_few_accesses_are_no_signal() {
    let mut performance = PerformanceMemory::default();
    let snapshot = take_with(MIN_ACCESSES as u32 / 4 - 1, &mut performance);
    assert!(snapshot.threads.iter().all(|thread| thread.accesses_per_s.is_none()));
    assert_eq!(snapshot.threads[0].performance[NodeIndex(0)], None);
    assert_eq!(snapshot.groups.len(), 2, "what the groups know is given with its number of samples");
}

#[test]
fn a_thread_that_computes_is_known_after_as_many_looks_as_any_other() {
    let row = |accesses: u32, stretches: usize| {
        let each: Vec<u32> = (0..stretches).map(|at| if at == 0 { accesses } else { 0 }).collect();
        alone_after(u64::from(accesses), u64::from(accesses), 1, &each).threads[0].accesses_per_s.clone()
    };
    let enough = MIN_LOOKS as usize;
    assert_eq!([row(0, enough - 1), row(3, enough - 1)], [None, None]);
    assert_eq!(row(0, enough), Some(PerNode::filled(2, 0.0)));
    let few = row(3, enough).expect("a signal");
    assert!(few[NodeIndex(1)] > 0.0 && few[NodeIndex(0)] == 0.0, "{few:?}");
}

#[test]
fn one_look_at_a_thread_is_no_signal_however_much_it_shows() {
    let is_known = |looks| alone(50, looks, 0).threads[0].accesses_per_s.is_some();
    assert!(!is_known(1) && !is_known(MIN_LOOKS as u64 - 1));
    assert!(is_known(MIN_LOOKS as u64));
}
