// SPDX-License-Identifier: GPL-2.0-only
//! How much room a recording takes: an hour of 64 threads with 10000 page groups, at an interval a second, fits in 100 MB.
//!
//! The snapshots are those of [`tandem_trace::testing::Synthetic`]. What takes the room are groups with more users than a
//! snapshot names: nothing tells what the others add. `cargo test --release -p tandem-trace --test size -- --ignored
//! --nocapture` compares other mixes, whose sizes it prints, and writes a whole hour.

use std::time::Instant;

use tandem_policies::decider::Decider;
use tandem_trace::TraceWriter;
use tandem_trace::testing::{Shape, Synthetic, choices, settings};

const HOUR_BYTES: u64 = 100_000_000;
const HOUR_INTERVALS: u64 = 3600;
/// 64 threads on 4 nodes; 70 % of the groups have one user, 29 % four, 1 % all.
const HOUR: Shape =
    Shape { nodes: 4, threads: 64, groups: 10_000, samples: 60, common_percent: 1, neighbours_percent: 29 };
/// Until as many groups are forgotten as are new.
const WARM_UP: u64 = 25;

/// Bytes an hour, as far as `intervals` of it after the first ones tell, groups then, and ms to write an interval.
fn bytes_an_hour(shape: Shape, intervals: u64) -> (u64, usize, f64) {
    let (mut synthetic, mut decider) = (Synthetic::new(shape, 1), Decider::new(choices("none", "none")));
    let mut writer = TraceWriter::new(std::io::sink()).unwrap();
    writer.settings(&settings(decider.choices(), 1, 1)).unwrap();
    let (mut before, mut groups, mut spent) = (0, 0, 0.0);
    for at in 0..WARM_UP + intervals {
        if at == WARM_UP {
            (before, spent) = (writer.written_bytes(), 0.0);
        }
        let interval = synthetic.next_interval(&mut decider, 1, 1);
        groups = interval.snapshot.groups.len();
        let start = Instant::now();
        writer.interval(interval).unwrap();
        spent += start.elapsed().as_secs_f64() * 1e3;
    }
    let bytes = writer.written_bytes() - before;
    (bytes * HOUR_INTERVALS / intervals, groups, spent / intervals as f64)
}

#[test]
fn an_hour_of_64_threads_with_10000_groups_fits_in_100_mb() {
    let (bytes, groups, _) = bytes_an_hour(HOUR, 6);
    assert!(groups > 9_900, "{groups} groups");
    assert!(bytes < HOUR_BYTES, "{bytes} bytes");
}

#[test]
#[ignore = "takes minutes unless built with --release"]
fn groups_that_many_threads_use_on_many_nodes_take_the_room() {
    let mixes = [
        ("private", 0, 0, 60, 4),
        ("neighbours", 0, 50, 60, 4),
        ("1 % common", 1, 29, 60, 4),
        ("1 % common, 8 nodes", 1, 29, 60, 8),
        ("5 % common", 5, 25, 60, 4),
        ("all common", 100, 0, 60, 4),
        ("1 % common, sampled 10 times as much", 1, 29, 600, 4),
    ];
    let bytes = mixes.map(|(name, common_percent, neighbours_percent, samples, nodes)| {
        let shape = Shape { nodes, common_percent, neighbours_percent, samples, ..HOUR };
        let (bytes, groups, ms) = bytes_an_hour(shape, 60);
        println!("{name:40} {groups:6} groups {:7.1} MB an hour {ms:6.1} ms an interval", bytes as f64 / 1e6);
        bytes
    });
    let [private, neighbours, common, on_8_nodes, more_common, all_common, _] = bytes;
    assert!(private < neighbours && private < common, "{bytes:?}");
    // With the same samples, fewer groups are known where all threads use all.
    assert!(common < more_common && common < all_common, "{bytes:?}");
    assert!(common < on_8_nodes, "each node's accesses take room: {bytes:?}");
}

#[test]
#[ignore = "writes a whole hour; takes minutes unless built with --release"]
fn a_whole_hour_fits_in_100_mb() {
    let (bytes, _, _) = bytes_an_hour(HOUR, HOUR_INTERVALS - WARM_UP);
    println!("{:.1} MB", bytes as f64 / 1e6);
    assert!(bytes < HOUR_BYTES, "{bytes} bytes");
}
