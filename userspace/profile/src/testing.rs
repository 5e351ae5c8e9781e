// SPDX-License-Identifier: GPL-2.0-only
//! One machine, and one builder of traces, for all tests.

use std::path::Path;

use tandem_machine::MachineFile;
use tandem_policies::model::Topology;

use crate::machine::Machine;
use crate::profile::{Profile, Running, Sampled};
use crate::samples::Samples;
use crate::trace::Trace;

const RING: &str = "name = 'ring'\nnodes = 4\ncpus_per_node = 2\n\
    distance = [[10, 12, 20, 12], [12, 10, 12, 20], [20, 12, 10, 12], [12, 20, 12, 10]]\n";

/// Four nodes with two CPUs each; 100 ns locally, 120 to a neighbour, 200 across.
pub fn ring() -> Topology {
    machine().topology().expect("a checked file")
}

/// Its machine file.
pub fn machine() -> MachineFile {
    MachineFile::parse(RING, Path::new("ring.toml")).expect("a machine file")
}

/// A trace of a main thread, which touches all pages first and hardly runs, and of eight threads that share in pairs
/// `apart` by turns of `turn` slices: `aparts` in order. Thread t uses pages 10 t to 10 t + 9.
pub fn trace(folder: &Path, aparts: &[usize], turn: u64) -> Trace {
    let mut words = vec![u64::from_le_bytes(*b"TDTRACE1"), 40, 1, 10_000_000];
    words.extend([1, 0, 5000, 0, 90]);
    words.extend((0..90).map(|page| page << 29 | 1 << 28 | 1));
    for slice in 1..=turn * aparts.len() as u64 {
        let apart = aparts[((slice - 1) / turn) as usize];
        for thread in 1..9u64 {
            let at = thread as usize - 1;
            let partner = if (at / apart).is_multiple_of(2) { at + apart } else { at - apart } as u64 + 1;
            words.extend([slice, thread, 10_000_000, 1, 10, partner << 56 | 500]);
            words.extend((0..10).map(|page| (10 * thread + page) << 29 | 1000));
        }
    }
    words.extend([0, 2, 9, turn * aparts.len() as u64 * 10_000_000]);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(folder.join("40.trace"), bytes).expect("a folder of the test");
    Trace::read(folder).expect("a trace")
}

/// The profile of such a trace on the ring.
pub fn profile(aparts: &[usize], turn: u64) -> Profile {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = trace(folder.path(), aparts, turn);
    let machine = Machine::of_file(&machine()).expect("a machine");
    Profile::of(&trace, &["pairs".to_owned(), "--<b>".to_owned()], &machine, 1_000_000).expect("a profile")
}

/// The profile of a program of two threads that were sampled on two nodes: both used one page together, on node 1, in each of
/// three slices of a second.
pub fn running() -> Profile {
    running_at(Some(1))
}

/// The same with the page at `home`.
pub fn running_at(home: Option<usize>) -> Profile {
    let mut samples = Samples::new(0, 1_000_000_000);
    for at in 0..12u64 {
        samples.add(40, 40 + (at % 2) as u32, at * 250_000_000, 4096);
    }
    [40, 41].iter().for_each(|&tid| samples.ran(40, tid, 3_000_000_000));
    let running = Running {
        sampler: Sampled { name: "lookahead".to_owned(), samples: samples.count() },
        nodes: vec![0, 1],
        names: vec!["40 (main)".to_owned(), "41 (a <b>)".to_owned()],
        homes: vec![home],
        memory: (0..3).map(|at| (f64::from(at), vec![1.0, 2.0, 0.0, 0.0])).collect(),
    };
    let machine = Machine::of_file(&machine()).expect("a machine");
    let trace = samples.trace(3_000_000_000).expect("a trace");
    Profile::of_running(&trace, &["server".to_owned()], &machine, &running).expect("a profile")
}
