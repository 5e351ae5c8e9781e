// SPDX-License-Identifier: GPL-2.0-only
//! `tandem tune` and `tandem run --tuned`, as their users call them, with programs whose runs can be counted.

mod applied;
mod bench;
mod code;
mod cpus;
mod executors;
mod files;
mod signals;

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use bench::{Bench, known, text};
use executors::fake_ssh;

#[test]
fn the_result_is_written_shown_and_applied() {
    // The second word is the number of threads.
    let bench = Bench::new("echo $2 $OMP_NUM_THREADS >> threads; sleep 0.05");
    let output = bench.tandem(&["tune", "--repeats", "4", "--html", "r.html", "--", "./prog", "-t", "{threads}"]);
    assert!(output.status.success(), "{output:?}");
    let (shown, said) = (text(&output.stdout), text(&output.stderr));
    assert!(said.contains("1 configuration (") && said.contains("runs of 0."), "{said}");
    assert!(shown.contains("as it is") && shown.contains("1 thread scatter on 1 node"), "{shown}");
    assert!(shown.contains("note: the program has 1 thread at a time"), "{shown}");
    assert!(shown.contains("nor does {threads} in its command change it"), "{shown}");
    assert!(fs::read_to_string(bench.path("r.html")).unwrap().contains("<h1>tandem tune: ./prog</h1>"));
    // A second time all is known.
    let runs = bench.runs();
    assert!(bench.tandem(&["tune", "--repeats", "4", "--", "./prog", "-t", "{threads}"]).status.success());
    assert_eq!(bench.runs(), runs);

    // Whichever was the faster by chance: the result says one of two things, and both are applied.
    fs::remove_file(bench.path("threads")).unwrap();
    let applied = bench.tandem(&["run", "--tuned", "prog.tandem.toml", "--", "./prog", "-t", "{threads}"]);
    assert!(applied.status.success() && !text(&applied.stderr).contains("warning"), "{applied:?}");
    let tuned = fs::read_to_string(bench.path("prog.tandem.toml")).unwrap().contains("[configuration]");
    let threads = fs::read_to_string(bench.path("threads")).unwrap();
    assert_eq!(threads == "1 1\n", tuned, "{threads}");
}

#[test]
fn without_a_file_the_result_of_this_directory_is_applied_or_it_is_said_how_to_make_it() {
    let bench = Bench::new("sleep 0.03; exit ${1:-0}");
    let output = bench.tandem(&["run", "--tuned", "--", "./prog", "3"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("there is no prog.tandem.toml here: make it with `tandem tune -- ./prog 3`"), "{said}");
    let said = text(&bench.tandem(&["run", "--tuned", "--", "./prog", "3 4"]).stderr);
    assert!(said.contains("make it with `tandem tune -- ./prog '3 4'`"), "{said}");
    assert!(bench.tandem(&["tune", "--repeats", "4", "--", "./prog"]).status.success());
    let output = bench.tandem(&["run", "--tuned", "--", "./prog", "3"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("warning: prog.tandem.toml: it was tuned with the arguments ``, not `3`"), "{said}");
}

#[test]
fn what_differs_from_the_tuned_program_is_warned_of_and_its_exit_code_is_passed_on() {
    let bench = Bench::new("sleep 0.03");
    assert!(bench.tandem(&["tune", "--repeats", "4", "--", "./prog"]).status.success());
    fs::write(bench.path("other"), "#!/bin/sh\nexit 7\n").unwrap();
    fs::set_permissions(bench.path("other"), fs::Permissions::from_mode(0o755)).unwrap();
    let output = bench.tandem(&["run", "--tuned", "prog.tandem.toml", "--", "./other", "x"]);
    assert_eq!(output.status.code(), Some(7));
    let said = text(&output.stderr);
    assert!(said.contains("./other is not the program that was tuned (./prog)"), "{said}");
    assert!(said.contains("it was tuned with the arguments ``, not `x`"), "{said}");
    let result = fs::read_to_string(bench.path("prog.tandem.toml")).unwrap();
    fs::write(bench.path("prog.tandem.toml"), result.replace("node 0: CPUs ", "node 0: CPUs 70-")).unwrap();
    let said = text(&bench.tandem(&["run", "--tuned", "prog.tandem.toml", "--", "./prog"]).stderr);
    assert!(said.contains("it was tuned on another machine: it had node 0: CPUs 70-"), "{said}");
}

/// Two regions; says how many threads each has.
const TEAMS: &str = r#"
#include <omp.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) void few(void) {
	#pragma omp parallel
	#pragma omp single
	printf("few %d\n", omp_get_num_threads());
}
__attribute__((noinline)) void many(void) {
	#pragma omp parallel
	#pragma omp single
	printf("many %d\n", omp_get_num_threads());
}
int main(void) {
	few(), many(), usleep(30000);
	return 5;
}
"#;

#[test]
fn seats_of_single_regions_in_a_result_are_applied() {
    let bench = Bench::new("sleep 0.03");
    assert!(bench.tandem(&["tune", "--repeats", "4", "--", "./prog"]).status.success());
    fs::write(bench.path("teams.c"), TEAMS).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-fopenmp", "-o", "teams", "teams.c"]).current_dir(bench.directory.path());
    assert!(gcc.status().unwrap().success());
    let mut result: toml::Table = fs::read_to_string(bench.path("prog.tandem.toml")).unwrap().parse().unwrap();
    let seats = "threads = 1\nthread_nodes = 1\nthread_placement = \"scatter\"\n";
    let base = format!("{seats}page_nodes = 1\npage_placement = \"first-touch\"\n").parse::<toml::Table>().unwrap();
    let of_many = seats.replace("threads = 1", "threads = 2").parse::<toml::Table>().unwrap();
    result.insert("configuration".into(), base.into());
    result.insert("seats".into(), toml::Table::from_iter([("many._omp_fn.0".to_owned(), of_many.into())]).into());
    fs::write(bench.path("teams.toml"), result.to_string()).unwrap();
    let output = bench.tandem(&["run", "--tuned", "teams.toml", "--", "./teams"]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(5), "few 1\nmany 2\n"), "{output:?}");
}

/// A region of 4 ms, again and again.
const ENDLESS: &str = r#"
#include <unistd.h>
int main(void)
{
	for (;;)
		#pragma omp parallel
		usleep(4000);
}
"#;

#[test]
fn a_program_that_never_ends_is_tuned_on_the_beginning_of_its_runs_and_only_if_that_is_wanted() {
    let bench = Bench::new("");
    fs::write(bench.path("endless.c"), ENDLESS).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-fopenmp", "-o", "endless", "endless.c"]).current_dir(bench.directory.path());
    assert!(gcc.status().unwrap().success());
    let ssh = fake_ssh(&bench, "", "");
    let elsewhere = ["--store", "elsewhere", "--executor", "ssh-hosts", "--hosts", "a", "--ssh", &ssh];
    for place in [&[][..], &elsewhere[..]] {
        let output = bench.tandem(&[&["tune", "--budget", "15s", "--json"], place, &["--", "./endless"]].concat());
        let said = text(&output.stderr);
        assert!(output.status.success() && said.contains("each is ended after "), "{said}");
        let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let all = result["measured"].as_array().unwrap();
        let as_it_is = all.iter().find(|one| one["configuration"] == "as it is").unwrap();
        // Some of a quarter of a minute.
        assert!((0.2..5.0).contains(&as_it_is["median_s"].as_f64().unwrap()), "{as_it_is}");
    }
    let refused = bench.tandem(&["tune", "--budget", "1s", "--whole", "--store", "other", "--", "./endless"]);
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("one run of the program takes longer than"), "{said}");
}

#[test]
fn checkpoints_are_refused_with_what_criu_says() {
    let bench = Bench::new("");
    let arguments = ["tune", "--codelets", "criu", "--", "./prog"];
    let said = |path: &Path| {
        let output = bench.command(&arguments).env("PATH", path).output().unwrap();
        assert_eq!((output.status.code(), bench.runs()), (Some(2), 0), "{output:?}");
        text(&output.stderr)
    };
    assert!(said("/nowhere".as_ref()).contains("--codelets criu: criu does not start"));
    let criu = bench.path("criu");
    fs::write(&criu, "#!/bin/sh\necho 'Error (a.c:1): vdso: oh no' >&2; exit 1\n").unwrap();
    fs::set_permissions(&criu, fs::Permissions::from_mode(0o755)).unwrap();
    let refused = said(bench.directory.path());
    assert!(refused.contains("it says: Error (a.c:1): vdso: oh no; regions can be"), "{refused}");
    assert!(refused.contains("--codelets in-place"), "{refused}");
    let elsewhere = ["tune", "--codelets", "criu", "--executor", "ssh-hosts", "--hosts", "one", "--", "./prog"];
    let refused = text(&bench.tandem(&elsewhere).stderr);
    assert!(refused.contains("checkpoints are made on this machine alone"), "{refused}");
}

#[test]
fn after_kill_nothing_is_measured_twice() {
    let bench = Bench::new("sleep 0.04");
    let arguments = ["tune", "--json", "--repeats", "8", "--", "./prog"];
    bench.kill_after(4, &arguments);
    let going_on = bench.tandem(&arguments);
    assert!(going_on.status.success() && known(&going_on) >= 2, "{going_on:?}");
    let runs = bench.runs();
    let again = bench.tandem(&arguments);
    assert_eq!(bench.runs(), runs, "all is known");
    // Only the run during which it was killed ran without being known.
    let lost = runs - known(&again);
    assert!(lost <= 1, "{lost} of {runs} runs were lost");
    let results = [going_on, again].map(|output| serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap());
    assert_eq!(results[0], results[1]);
}

#[test]
fn after_kill_a_file_that_the_program_writes_is_no_other_input() {
    let bench = Bench::new("sleep 0.04; date +%N > $1");
    let arguments = ["tune", "--json", "--repeats", "8", "--", "./prog", "out"];
    fs::write(bench.path("out"), "before").unwrap();
    bench.kill_after(4, &arguments);
    let going_on = bench.tandem(&arguments);
    assert!(going_on.status.success() && known(&going_on) >= 2, "{going_on:?}");
}

#[test]
fn ctrl_c_keeps_what_is_done_and_leaves_no_process() {
    let bench = Bench::new("[ $(wc -l < runs) -lt 4 ] || exec sleep 1000\nsleep 0.04");
    let mut stopped = bench.start(&["tune", "--", "./prog"]);
    bench.wait_for_runs(4);
    let kill = Command::new("kill").args(["-INT", &stopped.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let status = stopped.wait().unwrap();
    let mut said = String::new();
    stopped.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted: every finished run is kept"), "{said}");
    let is_run = |line: &&str| line.trim_end_matches(", 1 thread").ends_with(" s") && !line.contains(" configuration");
    let finished = said.lines().filter(is_run).count();
    assert_eq!(finished, bench.runs() - 1, "{said}");
    assert!(bench.path("prog.tandem.toml").exists());
    // Who has ended but was not waited for yet has no directory.
    let is_there = |process: &fs::DirEntry| {
        fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == bench.directory.path())
    };
    let left: Vec<_> = fs::read_dir("/proc").unwrap().flatten().filter(is_there).map(|one| one.file_name()).collect();
    assert!(left.is_empty(), "{left:?} are still there: {said}");
}

#[test]
fn programs_that_cannot_be_tuned_are_refused_in_one_sentence() {
    let said = |body: &str, options: &[&str]| {
        let bench = Bench::new(body);
        fs::write(bench.path("input"), "word\n").unwrap();
        let output = bench.tandem(&[&["tune", "--repeats", "4"], options, &["--", "./prog"]].concat());
        (output.status.code(), text(&output.stderr).lines().last().unwrap().to_owned())
    };
    let fails = said("echo broken >&2; exit 3", &[]);
    assert_eq!(fails.0, Some(2));
    assert!(fails.1.contains("fails as it is: exit code 3, its last words: broken"), "{fails:?}");
    let reads = "read word || exit 1; sleep 0.04";
    assert!(said(reads, &[]).1.contains("give that with --stdin FILE"));
    assert_eq!(said(reads, &["--stdin", "input"]).0, Some(0));
    assert!(said("", &["--stdin", "missing"]).1.contains("missing: cannot be read"));
    assert!(said("", &["--budget", "soon"]).0 == Some(2));
    let unknown = Bench::new("").tandem(&["tune", "--pages", "first-touch,best", "--", "./prog"]);
    assert!(text(&unknown.stderr).contains("there is no such page placement; there are first-touch, "), "{unknown:?}");
    assert_eq!(unknown.status.code(), Some(2));
    let none = Bench::new("").tandem(&["tune", "--", "./no-such-program"]);
    assert!(text(&none.stderr).contains("./no-such-program: there is no such program"), "{none:?}");
}

#[test]
fn the_budget_ends_the_search_and_the_rest_is_told() {
    let bench = Bench::new("sleep 0.2");
    let output = bench.tandem(&["tune", "--budget", "1s", "--repeats", "100", "--", "./prog"]);
    assert!(output.status.success(), "{output:?}");
    assert!((2..=5).contains(&bench.runs()), "{} runs", bench.runs());
    let said = text(&output.stderr);
    assert!(said.contains("1 s at most"), "{said}");
    let note = "note: the search was cut off before its end: more runs may find another one the best";
    assert!(text(&output.stdout).contains(note), "{output:?}");
}

#[test]
fn a_file_that_is_no_result_is_refused() {
    let bench = Bench::new("");
    let output = bench.tandem(&["run", "--tuned", "prog", "--", "./prog"]);
    assert_eq!((output.status.code(), bench.runs()), (Some(2), 0));
    assert!(text(&output.stderr).contains("prog: is no result of tandem tune"), "{output:?}");
    let output = bench.tandem(&["run", "--tuned", "prog", "--dry-run", "--", "./prog"]);
    assert!(text(&output.stderr).contains("cannot be used with"), "{output:?}");
    assert!(!bench.path("prog.tandem.toml").exists());
}

#[test]
fn a_session_whose_words_nobody_takes_goes_on() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let bench = Bench::new("sleep 0.03");
    let mut tune = bench.command(&["tune", "--repeats", "4", "--", "./prog"]);
    let status = tune.stdout(full()).stderr(full()).status().unwrap();
    // What it would show is lost, what it writes is not.
    assert!(status.code() == Some(2) && bench.path("prog.tandem.toml").exists(), "{status}");
    let status = bench.command(&["run", "--tuned", "--", "./prog", "other"]).stderr(full()).status().unwrap();
    assert!(status.success(), "{status}");
    let status = bench.command(&["tune", "--", "./no-such-program"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(2));
}
