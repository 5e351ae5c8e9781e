// SPDX-License-Identifier: GPL-2.0-only
//! docs/autotune.md says what this search makes of the recorded tables. Here, as it takes the search as it is built now, which
//! Python's tests do not know.

use std::path::Path;
use std::process::Command;

#[test]
fn the_document_says_what_this_search_makes_of_the_recorded_tables() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let judge = env!("CARGO_BIN_EXE_judge-tuning");
    let done = Command::new("python3").arg(root.join("tests/tuning.py")).args(["--check", "--judge", judge]).output();
    let done = done.unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
