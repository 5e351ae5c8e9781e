// SPDX-License-Identifier: GPL-2.0-only
//! Programs whose code is in other files than the one that is named: scripts, and what is preloaded.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::process::{Command, Output};

use crate::bench::{Bench, known, text};

const TUNE: [&str; 5] = ["tune", "--repeats", "4", "--", "./prog"];

/// A script that execs `worker`, and a library `preloaded.so`.
fn bench() -> Bench {
    let bench = Bench::new("exec ./worker 0.04");
    fs::copy("/bin/sleep", bench.path("worker")).unwrap();
    fs::write(bench.path("preloaded.c"), "int preloaded;\n").unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-o", "preloaded.so", "preloaded.c"]).current_dir(bench.directory.path());
    assert!(gcc.status().unwrap().success());
    bench
}

/// Tunes it with the library preloaded.
fn tune(bench: &Bench) -> Output {
    bench.command(&TUNE).env("LD_PRELOAD", bench.path("preloaded.so")).output().unwrap()
}

/// Builds a file anew: one that works like it, of other bytes.
fn build_anew(bench: &Bench, name: &str) {
    fs::rename(bench.path(name), bench.path("old")).unwrap();
    fs::copy(bench.path("old"), bench.path(name)).unwrap();
    OpenOptions::new().append(true).open(bench.path(name)).unwrap().write_all(b"anew").unwrap();
}

#[test]
fn what_a_script_starts_and_what_is_preloaded_is_part_of_what_is_tuned() {
    for name in ["worker", "preloaded.so"] {
        let bench = bench();
        assert!(tune(&bench).status.success());
        let runs = bench.runs();
        let again = tune(&bench);
        assert!(!text(&again.stderr).contains("is not what"), "{again:?}");
        assert_eq!((known(&again), bench.runs()), (runs, runs), "{name}");
        let before = fs::read(bench.path(name)).unwrap();
        build_anew(&bench, name);
        let anew = tune(&bench);
        let said = text(&anew.stderr);
        let words =
            format!("/{name}, which the program runs, is not what was tuned here last: runs of before do not count");
        assert!(anew.status.success() && said.matches(&words).count() == 1, "{said}");
        assert!(!said.contains("are known already") && bench.runs() >= runs + 4, "{said}");
        fs::write(bench.path(name), before).unwrap();
        assert_eq!(known(&tune(&bench)), runs, "{name} is what it was at first");
    }
}

#[test]
fn what_is_preloaded_later_is_noted_though_the_program_is_known_without_it() {
    let bench = bench();
    assert!(bench.tandem(&TUNE).status.success());
    assert!(tune(&bench).status.success());
    build_anew(&bench, "preloaded.so");
    let said = text(&tune(&bench).stderr);
    assert!(said.contains("/preloaded.so, which the program runs, is not what was tuned"), "{said}");
}

#[test]
fn what_a_script_starts_is_noted_once_it_can_be_started() {
    let bench = bench();
    fs::rename(bench.path("worker"), bench.path("not-yet")).unwrap();
    bench.tandem(&TUNE);
    fs::rename(bench.path("not-yet"), bench.path("worker")).unwrap();
    assert!(bench.tandem(&TUNE).status.success());
    build_anew(&bench, "worker");
    let said = text(&bench.tandem(&TUNE).stderr);
    assert!(said.contains("/worker, which the program runs, is not what was tuned"), "{said}");
}

#[test]
fn without_what_was_preloaded_it_is_another_program() {
    let bench = bench();
    assert!(tune(&bench).status.success());
    let without = bench.tandem(&TUNE);
    assert!(without.status.success() && !text(&without.stderr).contains("are known already"), "{without:?}");
}

#[test]
fn a_result_is_not_of_what_a_script_starts_once_that_is_built_anew() {
    let bench = bench();
    assert!(bench.tandem(&TUNE).status.success());
    let run = || text(&bench.tandem(&["run", "--tuned", "--", "./prog"]).stderr);
    assert!(!run().contains("warning"));
    build_anew(&bench, "worker");
    let said = run();
    assert!(
        said.contains("/worker is not what it was") && said.contains("it may not be the fastest any more"),
        "{said}"
    );
}

#[test]
fn what_a_script_starts_ends_the_session_when_it_is_built_anew_meanwhile() {
    let change = "cp worker other; echo >> other; mv other worker";
    let bench = Bench::new(&format!("[ $(wc -l < runs) -lt 4 ] || {{ {change}; }}\nexec ./worker 0.04"));
    fs::copy("/bin/sleep", bench.path("worker")).unwrap();
    let output = bench.tandem(&TUNE);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), bench.runs()), (Some(2), 4), "{said}");
    assert!(said.lines().last().unwrap().contains("/worker is not the file that it was when this session"), "{said}");
}

#[test]
fn a_library_that_is_built_anew_meanwhile_ends_the_session() {
    let bench =
        Bench::new("[ $(wc -l < runs) -lt 4 ] || { cp libpart.so new; echo >> new; mv new libpart.so; }; sleep 0.04");
    fs::write(bench.path("part.c"), "int part(void) { return 0; }\n").unwrap();
    let main = "#include <stdlib.h>\nint part(void);\nint main(void) { return part() + system(\"./prog\"); }\n";
    fs::write(bench.path("main.c"), main).unwrap();
    let gcc = |words: &str| {
        let mut gcc = Command::new("gcc");
        assert!(gcc.args(words.split(' ')).current_dir(bench.directory.path()).status().unwrap().success());
    };
    gcc("-shared -fPIC -o libpart.so part.c");
    gcc("-o linked main.c -L. -lpart -Wl,-rpath,$ORIGIN");
    let output = bench.tandem(&["tune", "--repeats", "4", "--", "./linked"]);
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), bench.runs()), (Some(2), 4), "{said}");
    assert!(said.lines().last().unwrap().contains("/libpart.so is not the file that it was when this"), "{said}");
}

#[test]
fn code_that_a_program_makes_itself_is_no_part_of_what_is_tuned() {
    for made in ["cp worker made; date +%N >> made", "rm -f made; cp -a worker made"] {
        let bench = Bench::new(&format!("{made}; exec ./made 0.04"));
        fs::copy("/bin/sleep", bench.path("worker")).unwrap();
        let output = bench.tandem(&TUNE);
        assert!(output.status.success(), "{made}: {output:?}");
        let runs = bench.runs();
        assert_eq!((known(&bench.tandem(&TUNE)), bench.runs()), (runs, runs), "{made}");
    }
}
