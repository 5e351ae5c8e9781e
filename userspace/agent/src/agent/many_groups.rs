// SPDX-License-Identifier: GPL-2.0-only
//! A machine of two nodes on which very many page groups were seen, by a sampler that follows a script.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use tandem_policies::model::{CpuId, LatencySource, NodeIndex, PAGE_BYTES, ProcessId, Snapshot, Topology};
use tandem_sense::{
    Access, Batch, Sampler, SamplerCounters, SamplerError, SamplerTraits, Sensor, SensorConfig, TaskAccount, Window,
};

use crate::testing::SECOND_NS;

const GROUP_BYTES: u64 = 2 << 20;
/// Each group is used by one thread only, and seen so often.
const LOOKS: u64 = 3;
/// As much as comes between two snapshots.
const GROUPS_PER_INTERVAL: u64 = 10_000;

/// Hands out what it holds.
struct Scripted(Rc<RefCell<Batch>>);

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

/// So many threads on node 1, and what is seen of their page groups, all on node 0.
pub(super) struct ManyGroups {
    script: Rc<RefCell<Batch>>,
    sensor: Sensor,
    topology: Topology,
    threads: u32,
    groups: u64,
    start: u64,
    now_ns: u64,
}

impl ManyGroups {
    /// Nothing was seen yet.
    pub(super) fn new(threads: u32, groups: u64) -> Self {
        let (script, topology) = (Rc::new(RefCell::new(Batch::default())), machine());
        let mut sensor = Sensor::over(Box::new(Scripted(script.clone())), SensorConfig::default(), &topology);
        sensor.set_managed([ProcessId(std::process::id())].into());
        Self { script, sensor, topology, threads, groups, start: reserve(groups), now_ns: SECOND_NS }
    }

    /// Intervals until each group was seen; the last one's snapshot, with memory where it is to be.
    pub(super) fn see_all(&mut self) -> Snapshot {
        let mut snapshot = None;
        for first in (0..self.groups).step_by(GROUPS_PER_INTERVAL as usize) {
            drop(snapshot.take());
            snapshot = Some(self.see(first..(first + GROUPS_PER_INTERVAL).min(self.groups)));
        }
        snapshot.expect("there are groups")
    }

    /// An interval of 10 ms in which these groups are seen.
    pub(super) fn see(&mut self, groups: Range<u64>) -> Snapshot {
        self.now_ns += SECOND_NS / 100;
        *self.script.borrow_mut() = self.seen(groups);
        self.sensor.sample(self.now_ns).expect("a script goes on");
        let since_ns = self.now_ns - SECOND_NS;
        let mut snapshot = self.sensor.snapshot(&self.topology, self.accounts(), since_ns, self.now_ns, |_, _| None);
        // As if memory were there, and all of it worth a move.
        snapshot.groups.iter_mut().for_each(|group| group.resident_pages = vec![512, 0].into());
        snapshot.threads.iter_mut().for_each(|thread| thread.accesses_per_s = Some(vec![1e7, 0.0].into()));
        snapshot.page_move_ns = Some(1e-3);
        snapshot
    }

    fn seen(&self, groups: Range<u64>) -> Batch {
        let mut batch = Batch::default();
        for group in groups {
            for look in 0..LOOKS {
                let (tid, time_ns) = (1 + (group % u64::from(self.threads)) as u32, self.now_ns - look);
                let process = ProcessId(std::process::id());
                let address = self.start + group * GROUP_BYTES + look * PAGE_BYTES;
                let (bytes, store, cpu, measured) = (8, false, CpuId(0), None);
                batch.accesses.push(Access { process, tid, address, bytes, store, time_ns, cpu, measured });
                batch.windows.push(Window { process, tid, time_ns, instructions: 256 });
            }
        }
        batch
    }

    fn accounts(&self) -> Vec<TaskAccount> {
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
            woken_by: None,
        };
        (1..=self.threads).map(account).collect()
    }
}

/// Address space for so many groups, which is never touched.
fn reserve(groups: u64) -> u64 {
    let (bytes, flags) = ((groups + 1) * GROUP_BYTES, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping, nowhere in particular; writable, so that it counts as data, and never unmapped.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    (start as u64).next_multiple_of(GROUP_BYTES)
}

fn machine() -> Topology {
    let mut nodes = crate::testing::snapshot(&[]).topology.nodes.values().cloned().collect::<Vec<_>>();
    nodes.iter_mut().for_each(|node| (node.memory_pages, node.free_pages) = (1 << 40, 1 << 40));
    Topology::new(nodes, LatencySource::Distance).expect("two nodes")
}
