// SPDX-License-Identifier: GPL-2.0-only
//! Writes what the fuzz target starts from into a directory: a record of each kind that is parsed, in the target's own form.

use std::path::PathBuf;

/// Kinds of records (include/uapi/linux/perf_event.h) with words enough for all of their fields.
const KINDS: [(&str, u8, usize); 7] = [
    ("lost", 2, 2),
    ("throttle", 5, 3),
    ("sample", 9, 24),
    ("aux", 11, 3),
    ("lost-samples", 13, 1),
    ("switch", 14, 0),
    ("switch-cpu-wide", 15, 4),
];

fn main() -> std::io::Result<()> {
    let directory = PathBuf::from(std::env::args_os().nth(1).expect("usage: seeds_records DIRECTORY"));
    std::fs::create_dir_all(&directory)?;
    for (name, kind, words) in KINDS {
        // As code in user space; numbers that are small are a CPU, an ABI, a size of raw data or a period.
        let body: Vec<u8> = (0..words as u64).flat_map(|word| (word % 3).to_ne_bytes()).collect();
        let piece = [&[kind, 2, 0, body.len() as u8][..], &body].concat();
        std::fs::write(directory.join(name), [&[0, 0][..], &piece, &piece].concat())?;
    }
    Ok(())
}
