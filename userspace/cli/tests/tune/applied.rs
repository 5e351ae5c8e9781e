// SPDX-License-Identifier: GPL-2.0-only
//! `tandem run --tuned`: what files it takes, and what the program gets.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use crate::bench::{Bench, text};

/// A bench with a result, and that as a table.
fn with_result(body: &str) -> (Bench, toml::Table) {
    let bench = Bench::new(body);
    assert!(bench.tandem(&["tune", "--repeats", "4", "--", "./prog"]).status.success());
    fs::remove_file(bench.path("runs")).unwrap();
    let result = fs::read_to_string(bench.path("prog.tandem.toml")).unwrap().parse().unwrap();
    (bench, result)
}

/// What is said of a command that must end without running the program; if it goes on, it is ended.
fn refused(bench: &Bench, arguments: &[&str]) -> String {
    let mut within = Command::new("timeout");
    within.args(["20", env!("CARGO_BIN_EXE_tandem")]).args(arguments).current_dir(bench.directory.path());
    let output = within.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), bench.runs(), said.lines().count()), (Some(2), 0, 1), "{arguments:?}: {said}");
    said
}

#[test]
fn what_is_no_regular_file_is_not_read() {
    let bench = Bench::new("sleep 0.04");
    assert!(Command::new("mkfifo").arg(bench.path("fifo")).status().unwrap().success());
    for file in ["fifo", "/dev/zero", "."] {
        let said = refused(&bench, &["tune", "--stdin", file, "--", "./prog"]);
        assert!(said.contains(&format!("{file}: is no regular file")), "{said}");
        let said = refused(&bench, &["run", "--tuned", file, "--", "./prog"]);
        assert!(said.contains(&format!("{file}: is no regular file")), "{said}");
    }
}

#[test]
fn a_result_with_numbers_that_make_no_sense_here_is_refused_in_one_sentence() {
    let (bench, whole) = with_result("sleep 0.03");
    let said = |key: &str, value: i64| {
        let seats = "threads = 1\nthread_nodes = 1\nthread_placement = \"scatter\"\n";
        let text = format!("{seats}page_nodes = 1\npage_placement = \"first-touch\"\n");
        let mut configuration: toml::Table = text.parse().unwrap();
        configuration.insert(key.to_owned(), value.into());
        let mut result = whole.clone();
        result.insert("configuration".into(), configuration.into());
        fs::write(bench.path("wrong.toml"), result.to_string()).unwrap();
        refused(&bench, &["run", "--tuned", "wrong.toml", "--", "./prog"])
    };
    for key in ["threads", "thread_nodes", "page_nodes"] {
        for value in [0, 100_000, 2_000_000_000] {
            let said = said(key, value);
            assert!(said.contains(&format!("wrong.toml: configuration.{key} = {value}: it has to be 1 to ")), "{said}");
        }
    }
    let unknown = said("threads", -1);
    assert!(unknown.contains("wrong.toml: is no result of tandem tune: invalid value"), "{unknown}");
}

#[test]
fn seats_for_a_region_that_the_program_does_not_have_are_refused() {
    let (bench, mut result) = with_result("sleep 0.03");
    let seats = "threads = 1\nthread_nodes = 1\nthread_placement = \"scatter\"\n";
    let base = format!("{seats}page_nodes = 1\npage_placement = \"first-touch\"\n").parse::<toml::Table>().unwrap();
    let of_region = seats.parse::<toml::Table>().unwrap();
    result.insert("configuration".into(), base.into());
    result.insert("seats".into(), toml::Table::from_iter([("nowhere".to_owned(), of_region.into())]).into());
    fs::write(bench.path("seats.toml"), result.to_string()).unwrap();
    let run = ["run", "--tuned", "seats.toml", "--", "./prog"];
    let said = refused(&bench, &run);
    assert!(said.contains("seats.toml: seats.\"nowhere\": neither ./prog nor its libraries have"), "{said}");
    // It had the region when it was tuned.
    let region = "name = \"nowhere\"\nentries = 1\nshare = 1.0\nas_it_is_s = 1.0\ntuned_s = 1.0\nbest = \"as it is\"\n\
        best_s = 1.0\nbest_runs = 1\ntogether = \"as it is\"\ntogether_s = 1.0\n";
    let regions = vec![region.parse::<toml::Table>().unwrap().into()];
    result.insert("regions".into(), toml::Value::Array(regions));
    fs::write(bench.path("seats.toml"), result.to_string()).unwrap();
    assert!(bench.tandem(&run).status.success());
    fs::remove_file(bench.path("runs")).unwrap();
    let program = fs::read_to_string(bench.path("prog")).unwrap();
    fs::write(bench.path("prog"), format!("{program}# built anew\n")).unwrap();
    assert_eq!(refused(&bench, &run), said, "it may have none of this name any more");
}

#[test]
fn arguments_that_are_no_text_reach_the_program_as_they_are() {
    let (bench, _) = with_result("sleep 0.03; printf %s \"$*\" > words");
    let word = OsStr::from_bytes(b"a\xff{threads}\xfe");
    assert!(bench.command(&["run", "--tuned", "--", "./prog"]).arg(word).status().unwrap().success());
    let got = fs::read(bench.path("words")).unwrap();
    let number = got.strip_prefix(b"a\xff").and_then(|rest| rest.strip_suffix(b"\xfe")).unwrap();
    assert!(number.iter().all(u8::is_ascii_digit) && !number.is_empty(), "{got:?}");
}

#[test]
fn the_command_that_applies_a_result_can_be_pasted_into_a_shell() {
    let bench = Bench::new("if [ \"$OMP_NUM_THREADS\" ]; then sleep 0.03; else sleep 0.3; fi");
    let output = bench.tandem(&["tune", "--repeats", "4", "-o", "my result.toml", "--", "./prog", "a b", "$HOME"]);
    let shown = text(&output.stdout);
    let words = "apply it: tandem run --tuned 'my result.toml' -- ./prog 'a b' '$HOME'\n";
    assert!(shown.contains(words), "{shown} {}", text(&output.stderr));
}
