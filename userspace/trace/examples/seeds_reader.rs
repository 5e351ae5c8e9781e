// SPDX-License-Identifier: GPL-2.0-only
//! Writes what the fuzz target starts from into a directory: small recordings, and their columns in its own form.

use std::path::PathBuf;

use tandem_trace::testing::{Shape, choices, frames, recording};

fn main() -> std::io::Result<()> {
    let directory = PathBuf::from(std::env::args_os().nth(1).expect("usage: seeds_reader DIRECTORY"));
    std::fs::create_dir_all(&directory)?;
    // So small that most columns are not compressed and can be changed byte by byte.
    let tiny = Shape { nodes: 2, threads: 2, groups: 3, samples: 15, common_percent: 34, neighbours_percent: 0 };
    for (name, shape, page_policy) in [("tiny", tiny, "tmma"), ("small", Shape::SMALL, "locality")] {
        let (file, _) = recording(shape, &choices("sma", page_policy), 1, 3);
        let mut columns = Vec::new();
        for (_, payload) in frames(&file).iter().filter(|(kind, _)| *kind == 2) {
            columns.extend((payload.len() as u16).to_le_bytes());
            columns.extend(payload);
        }
        std::fs::write(directory.join(format!("{name}-file")), file)?;
        std::fs::write(directory.join(format!("{name}-columns")), columns)?;
    }
    Ok(())
}
