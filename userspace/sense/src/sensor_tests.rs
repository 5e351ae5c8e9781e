// SPDX-License-Identifier: GPL-2.0-only
//! The sensor over a sampler that says what it is told to say, of this process.

use tandem_policies::model::{NodeId, NodeIndex, Transfers};

use super::*;
use crate::access::{Access, Counts, Measured, SamplerTraits};
use crate::device::DeviceCounters;
use crate::source::{DataSource, Level};
use crate::testing::topology;

const SECOND: u64 = 1_000_000_000;
const TID: u32 = 5;

/// Hands out the same batch at every call.
struct Scripted(Batch);

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

fn process() -> ProcessId {
    ProcessId(std::process::id())
}

/// 30 accesses to `address` that stand for 100 each: two of three from memory, one from a cache of another node.
fn batch(address: u64) -> Batch {
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
            time_ns: at as u64,
            cpu: CpuId(0),
            measured: Some(Measured { latency_ns, source, node: Some(NodeId(2)), physical: None, period: 100 }),
        }
    };
    let counts = Counts { process: process(), tid: TID, instructions: 500_000, cycles: 1_000_000, lines: None };
    Batch { accesses: (0..30).map(access).collect(), windows: Vec::new(), counts: vec![counts] }
}

fn snapshot(batch: Batch) -> Snapshot {
    let machine = topology(2);
    let mut sensor = Sensor::over(Box::new(Scripted(batch)), SensorConfig::default(), &machine);
    sensor.set_managed([process()].into());
    sensor.sample(SECOND).unwrap();
    assert_eq!((sensor.name(), sensor.counters().accesses()), ("device", 30));
    let account = TaskAccount {
        id: ThreadId { tid: TID, start_boottime_ns: 1 },
        process: process(),
        command: "work".to_owned(),
        node: NodeIndex(0),
        cpu: CpuId(0),
        allowed: PerNode::filled(2, true),
        run_ns: vec![SECOND / 2, 0].into(),
        on_cooldown: false,
    };
    sensor.snapshot(&machine, vec![account], SECOND, SECOND + SECOND / 2, |_, _| None)
}

#[test]
fn what_hardware_measures_is_in_the_snapshot() {
    let memory = vec![1_u8; 1 << 21];
    let snapshot = snapshot(batch(memory.as_ptr() as u64 + 4096));
    let (thread, group) = (&snapshot.threads[0], &snapshot.groups[0]);
    assert_eq!((thread.latency_ns, group.latency_ns), (Some(170.0), Some(170.0)));
    assert_eq!((thread.operations_per_s, thread.cycles_per_s), (Some(1e6), Some(2e6)));
    assert_eq!(thread.transfers_per_s, Some(Transfers { within_node: 0.0, across_nodes: 2000.0 }));
    let served = |node| snapshot.nodes[NodeIndex(node)].served_latency_ns;
    assert_eq!((served(0), served(1)), (None, Some(180.0)));
    let (accesses, users) = (group.accesses_per_s[NodeIndex(0)], group.users[0].1);
    assert!((accesses - 6000.0).abs() < 1e-6 && (users - 6000.0).abs() < 1e-6, "3000 in half a second: {group:?}");
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
}
