// SPDX-License-Identifier: GPL-2.0-only
//! How the CPU time of queueing, moving and undoing grows with the number of groups, of which none moves at the first try.
//! Prints a table of docs/policies-speed.md: `cargo test --release -p tandem-act grow -- --nocapture`

use std::collections::BTreeMap;
use std::sync::Mutex;

use tandem_machine::ProgramId;
use tandem_policies::model::ProcessId;

use super::tests::{S, wanted};
use super::*;
use crate::Call;
use crate::move_pages::thread_cpu_ns;

/// Where a count grows tenfold, n log n grows as its power of 1.1 to 1.2; what goes beyond caches adds to that. The square is 2.
const MOST_GROWTH: f64 = 1.5;

/// Each page is on node 0, and busy when it is sent for the first time.
#[derive(Default)]
struct BusyAtFirst(Mutex<BTreeMap<u64, i32>>);

impl MovePages for BusyAtFirst {
    fn program(&self, _: ProcessId) -> Option<ProgramId> {
        None
    }

    fn call(&self, _: ProcessId, addresses: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call {
        let mut sent = self.0.lock().unwrap();
        for (address, status) in addresses.iter().zip(status) {
            match (to, sent.get_mut(address)) {
                (None, node) => *status = node.copied().unwrap_or(0),
                (Some(to), Some(node)) => (*node, *status) = (to.0 as i32, to.0 as i32),
                (Some(_), None) => {
                    sent.insert(*address, 0);
                }
            }
        }
        Call { result: Ok(0), time_ns: 1 }
    }
}

/// CPU time of each step in ms: queueing, the first try, the second, undoing.
fn steps_ms(groups: u64) -> [f64; 4] {
    let unbounded = MoverConfig {
        pages_per_s: 1 << 40,
        call_ns_per_s: 1 << 40,
        run_ns: u64::MAX,
        // What other threads do is not measured.
        calls: 1,
        ..MoverConfig::default()
    };
    let (mut mover, mut cooldowns) = (Mover::new(BusyAtFirst::default(), unbounded), Cooldowns::new(65_536));
    let mut clock_ns = thread_cpu_ns();
    let mut took_ms = || {
        let before_ns = std::mem::replace(&mut clock_ns, thread_cpu_ns());
        (clock_ns - before_ns) as f64 / 1e6
    };
    for group in 0..groups {
        mover.enqueue(wanted(2 * group, 1, 1, 1), 0, &cooldowns).unwrap();
    }
    let queued_ms = took_ms();
    assert!(mover.run(S, &mut cooldowns).is_empty() && !mover.is_ready(S), "all wait");
    let tried_ms = took_ms();
    assert_eq!(mover.run(2 * S, &mut cooldowns).len() as u64, groups);
    let moved_ms = took_ms();
    mover.undo(Generation(1), 3 * S, 9 * S);
    assert_eq!(mover.run(3 * S, &mut cooldowns).iter().map(|one| one.moved_pages).sum::<u64>(), groups);
    [queued_ms, tried_ms, moved_ms, took_ms()]
}

#[test]
fn moving_grows_with_groups_hardly_faster_than_these() {
    const GROUPS: [u64; 3] = [300, 3000, 30_000];
    let least = |groups: u64| {
        (0..3).map(|_| steps_ms(groups)).reduce(|a, b| std::array::from_fn(|step| a[step].min(b[step]))).expect("runs")
    };
    let times = GROUPS.map(least);
    for (groups, [queued, tried, moved, undone]) in GROUPS.iter().zip(&times) {
        println!("| {groups} | {queued:.2} | {tried:.2} | {moved:.2} | {undone:.2} |");
    }
    let growth: [f64; 4] = std::array::from_fn(|step| (times[2][step] / times[1][step]).log10());
    println!("growth of queueing, trying, moving, undoing: {growth:.2?}");
    assert!(growth.iter().all(|growth| *growth < MOST_GROWTH), "{growth:?}");
}
