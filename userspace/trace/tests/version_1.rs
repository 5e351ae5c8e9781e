// SPDX-License-Identifier: GPL-2.0-only
//! Recordings of version 1 stay readable: `version-1.trace` was written when that was the format.

use std::path::Path;

use tandem_policies::model::NodeIndex;
use tandem_trace::{Entry, Policies, Replay, TraceReader};

#[test]
fn a_file_of_version_1_is_read_as_it_was_written() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/version-1.trace");
    let entries: Result<Vec<Entry>, _> = TraceReader::new(std::fs::File::open(path).unwrap()).unwrap().collect();
    let entries = entries.expect("a whole file");
    let Entry::Settings(settings) = &entries[0] else { panic!("settings come first") };
    let names: Vec<&str> = settings.policies.iter().map(|policy| policy.name.as_str()).collect();
    assert_eq!((names, settings.seed, settings.steps), (vec!["sma", "locality"], 1, 10_000));
    let mut replay = Replay::new(Policies::Recorded, None);
    replay.begin(settings).unwrap();
    let intervals: Vec<_> = entries[1..]
        .iter()
        .map(|entry| match entry {
            Entry::Interval(interval) => interval,
            Entry::Settings(_) => panic!("one agent"),
        })
        .collect();
    assert_eq!(intervals.len(), 3);
    let last = &intervals[2].snapshot;
    assert_eq!((last.topology.len(), last.threads.len(), last.groups.len()), (2, 4, 12));
    assert_eq!(last.threads[3].command, "worker-3");
    assert_eq!(last.groups[0].resident_pages[NodeIndex(0)], 512);
    let samples: f64 = last.groups.iter().map(|group| group.samples).sum();
    assert_eq!(samples.to_bits(), SAMPLES_BITS, "{samples}");
    assert!(intervals.iter().any(|interval| interval.decision.as_ref().unwrap().plan().is_some()));
}

/// Sum of the samples behind all groups of the last interval.
const SAMPLES_BITS: u64 = 0x4068_30cc_2971_c9e1;
