// SPDX-License-Identifier: GPL-2.0-only
//! `tandem replay`, as its users call it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tandem_trace::testing::{Shape, choices, recording};

const INTERVALS: usize = 6;

/// Runs in `directory`, where `trace` is a recording made with sma and tmma.
fn replay(directory: &Path, arguments: &[&str]) -> Output {
    let file = directory.join("trace");
    if !file.exists() {
        std::fs::write(&file, recording(Shape::SMALL, &choices("sma", "tmma"), 1, INTERVALS).0).unwrap();
    }
    Command::new(env!("CARGO_BIN_EXE_tandem")).arg("replay").args(arguments).current_dir(directory).output().unwrap()
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn the_recorded_policies_decide_as_recorded_and_totals_say_so() {
    let directory = tempfile::tempdir().unwrap();
    let output = replay(directory.path(), &["trace"]);
    let (words, warnings) = said(&output);
    assert!(output.status.success() && warnings.is_empty(), "{output:?}");
    assert!(words.starts_with("recorded by test 1.0 with sma+tmma"), "{words}");
    assert!(words.contains("6 intervals, 6 decisions: 6 as recorded, 0 different"), "{words}");
    assert!(words.lines().any(|line| line.starts_with("    pages at ")), "plans are printed: {words}");
    let output = replay(directory.path(), &["trace", "--json"]);
    let report = json(&output);
    assert_eq!(report["totals"]["same"], INTERVALS);
    assert_eq!(report["totals"]["recorded"], report["totals"]["replayed"]);
    assert_eq!(report["decisions"].as_array().unwrap().len(), INTERVALS);
    assert_eq!(report["warning"], Value::Null);
    assert_eq!(said(&replay(directory.path(), &["trace", "--json"])), said(&output), "byte for byte");
}

#[test]
fn other_policies_are_compared_move_by_move() {
    let directory = tempfile::tempdir().unwrap();
    let report = json(&replay(directory.path(), &["trace", "--json", "--policy", "none+none"]));
    assert!(report["totals"]["different"].as_u64().unwrap() > 0);
    assert_eq!(report["totals"]["replayed"]["plans"], 0);
    let differences =
        report["decisions"].as_array().unwrap().iter().flat_map(|one| one["differences"].as_array().unwrap());
    assert!(differences.clone().all(|difference| difference["only_recorded"].is_object()));
    let output = replay(directory.path(), &["trace", "--thread-policy", "none", "--page-policy", "locality"]);
    assert!(output.status.success(), "differences are expected: {output:?}");
    assert!(said(&output).0.starts_with("recorded by test 1.0 with sma+tmma"));
    assert!(said(&output).0.lines().next().unwrap().ends_with("replayed with none+locality"));
}

#[test]
fn a_report_has_the_courses_and_every_decision() {
    let directory = tempfile::tempdir().unwrap();
    let output =
        replay(directory.path(), &["trace", "--policy", "none+locality", "--html", "replay.html", "--plots", "plots"]);
    assert!(output.status.success(), "{output:?}");
    let page = std::fs::read_to_string(directory.path().join("replay.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 4, "{page}");
    let escaped =
        |line: &str| line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    assert!(said(&output).0.lines().all(|line| page.contains(&escaped(line))), "{page}");
    assert!(!page.contains("<script") && page.contains("prefers-color-scheme: dark"));
    assert!(directory.path().join("plots/predicted-gain.png").exists());
    let refused = replay(directory.path(), &["trace", "--html", "none/replay.html"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let both = replay(directory.path(), &["trace", "--json", "--html", "both.html"]);
    assert_eq!(json(&both), json(&replay(directory.path(), &["trace", "--json"])));
    assert!(directory.path().join("both.html").exists());
}

#[test]
fn a_recording_is_read_from_standard_input_and_up_to_its_damage() {
    let directory = tempfile::tempdir().unwrap();
    let whole = replay(directory.path(), &["trace"]);
    let file = directory.path().join("trace");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() - 30;
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let tandem = Command::new(env!("CARGO_BIN_EXE_tandem"))
        .args(["replay", "-"])
        .stdin(Stdio::from(std::fs::File::open(&file).unwrap()))
        .output()
        .unwrap();
    let (words, warnings) = said(&tandem);
    assert!(tandem.status.success());
    assert!(words.contains("5 intervals, 5 decisions: 5 as recorded"), "{words} instead of {whole:?}");
    assert!(warnings.starts_with("tandem: warning: -: the recording is damaged: the frame at byte "), "{warnings}");
    assert_eq!(warnings.lines().count(), 1);
}

#[test]
fn what_cannot_be_replayed_is_refused_in_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    replay(directory.path(), &["trace"]);
    std::fs::write(directory.path().join("other"), "[settings]\n").unwrap();
    let newer = [b"\x8fTANDEM\n".as_slice(), &7_u32.to_le_bytes()].concat();
    std::fs::write(directory.path().join("newer"), newer).unwrap();
    let header = std::fs::read(directory.path().join("trace")).unwrap()[..12].to_vec();
    std::fs::write(directory.path().join("empty"), header).unwrap();
    for (arguments, expected) in [
        (&["missing"][..], "missing: cannot be opened: No such file"),
        (&["other"], "other: this is not a recording of scx_tandem"),
        (&["newer"], "newer: the recording has version 7 of the format"),
        (&["empty"], "empty: the recording was cut off: it ends at byte 12"),
        (&["."], ".: cannot be read: Is a directory (os error 21)\n"),
        (&["trace", "--policy", "smb"], "--policy smb: no policy has this name"),
        (&["trace", "--thread-policy", "smb"], "there is no thread policy \"smb\""),
    ] {
        let output = replay(directory.path(), arguments);
        let words = said(&output).1;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(words.contains(expected) && words.lines().count() == 1, "{arguments:?}: {words}");
    }
}
