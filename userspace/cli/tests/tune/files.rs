// SPDX-License-Identifier: GPL-2.0-only
//! What a session writes, and what it must not take the place of.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;

use crate::bench::{Bench, known, text};

/// What is said of a session with these options, which must not run anything.
fn refused(bench: &Bench, options: &[&str]) -> String {
    let output = bench.tandem(&[&["tune", "--repeats", "4"], options, &["--", "./prog", "data"]].concat());
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), bench.runs(), said.lines().count()), (Some(2), 0, 1), "{options:?}: {said}");
    said
}

#[test]
fn what_is_no_result_is_not_replaced_and_that_is_said_before_anything_runs() {
    let bench = Bench::new("sleep 0.04");
    for name in ["notes.txt", "in", "data"] {
        fs::write(bench.path(name), "of somebody").unwrap();
    }
    fs::hard_link(bench.path("prog"), bench.path("also-prog")).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(bench.path("socket")).unwrap();
    let all = || {
        let files = fs::read_dir(bench.directory.path()).unwrap().flatten();
        let mut all: Vec<_> = files.map(|file| (file.file_name(), fs::read(file.path()).ok())).collect();
        all.sort();
        all
    };
    let before = all();
    for (options, words) in [
        (&["-o", "socket"][..], "socket is no regular file"),
        (&["--html", "socket"], "socket is no regular file"),
        (&["--store", "socket"], "socket is no regular file"),
        (&["-o", "/nonexistent/x.toml"], "/nonexistent/x.toml cannot be written"),
        (&["-o", "same", "--store", "./same"], "-o same: that is the store of runs"),
        (&["-o", "same", "--html", "same"], "--html same: that is the result"),
        (&["-o", "prog"], "-o prog: that is the program"),
        (&["-o", "also-prog"], "-o also-prog: that is the program"),
        (&["--stdin", "in", "-o", "in"], "-o in: that is what the program reads"),
        (&["--html", "data"], "--html data: that is a file of the program's"),
        (&["-o", "notes.txt"], "notes.txt: is no result of tandem tune"),
    ] {
        let said = refused(&bench, options);
        assert!(said.contains(words), "{options:?}: {said}");
        assert!(all() == before, "{options:?} changed something");
    }
}

#[test]
fn a_link_to_the_result_stays_a_link() {
    let bench = Bench::new("sleep 0.04");
    fs::create_dir(bench.path("results")).unwrap();
    let tune = |name: &str| bench.tandem(&["tune", "--repeats", "4", "-o", name, "--", "./prog"]);
    assert!(tune("results/prog.toml").status.success());
    symlink("results/prog.toml", bench.path("latest")).unwrap();
    fs::remove_file(bench.path("prog.tandem.sqlite")).unwrap();
    assert!(tune("latest").status.success());
    assert!(bench.path("latest").is_symlink() && bench.path("results/prog.toml").is_file());
}

#[test]
fn a_second_session_on_one_store_is_refused_until_the_first_has_ended_however_it_ended() {
    let bench = Bench::new("sleep 0.1");
    let arguments = ["tune", "--repeats", "4", "--", "./prog"];
    let mut first = bench.start(&arguments);
    bench.wait_for_runs(1);
    let second = bench.tandem(&arguments);
    let said = text(&second.stderr);
    assert_eq!((second.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("prog.tandem.sqlite: another `tandem tune` keeps its runs there"), "{said}");
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(bench.tandem(&arguments).status.success());
}

#[test]
fn a_program_that_is_built_anew_or_deleted_meanwhile_ends_the_session_with_the_runs_of_before() {
    for change in ["cp prog other; echo '# anew' >> other; mv other prog", "rm prog"] {
        let bench = Bench::new(&format!("[ $(wc -l < runs) -lt 4 ] || {{ {change}; }}\nsleep 0.04"));
        let before = fs::read(bench.path("prog")).unwrap();
        let arguments = ["tune", "--json", "--repeats", "4", "--", "./prog"];
        let output = bench.tandem(&arguments);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), bench.runs()), (Some(2), 4), "{said}");
        assert!(said.lines().last().unwrap().contains("./prog is not the file that it was"), "{said}");
        let result: toml::Table = fs::read_to_string(bench.path("prog.tandem.toml")).unwrap().parse().unwrap();
        let runs: i64 =
            result["measured"].as_array().unwrap().iter().map(|one| one["runs"].as_integer().unwrap()).sum();
        // One is there to see whether it follows a number of threads, which may be a candidate too.
        assert!((2..=3).contains(&runs), "{result}");
        fs::write(bench.path("prog"), before).unwrap();
        fs::set_permissions(bench.path("prog"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(known(&bench.tandem(&arguments)), 3);
    }
}

#[test]
fn nothing_of_what_a_program_writes_is_left_whatever_ends_the_session() {
    let bench = Bench::new("echo words; sleep 0.04");
    fs::create_dir(bench.path("tmp")).unwrap();
    let mut killed = bench.command(&["tune", "--repeats", "8", "--", "./prog"]);
    let mut killed = killed.env("TMPDIR", bench.path("tmp")).stderr(std::process::Stdio::null()).spawn().unwrap();
    bench.wait_for_runs(3);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(fs::read_dir(bench.path("tmp")).unwrap().count(), 0);
}

#[test]
fn a_result_of_another_command_is_not_replaced() {
    let bench = Bench::new("sleep 0.04");
    fs::create_dir(bench.path("other")).unwrap();
    let program = fs::read_to_string(bench.path("prog")).unwrap();
    fs::copy(bench.path("prog"), bench.path("other/prog")).unwrap();
    assert!(bench.tandem(&["tune", "--repeats", "4", "--", "./prog"]).status.success());
    fs::remove_file(bench.path("runs")).unwrap();
    let before = fs::read(bench.path("prog.tandem.toml")).unwrap();
    let said = refused(&bench, &[]);
    let words = "prog.tandem.toml: that is the result of another command (`./prog`): name another file with -o";
    assert!(said.contains(words), "{said}");
    fs::write(bench.path("other/prog"), program.clone() + "# of another folder\n").unwrap();
    let output = bench.tandem(&["tune", "--repeats", "4", "--", "other/prog"]);
    assert!(text(&output.stderr).contains(words) && bench.runs() == 0, "{output:?}");
    assert!(fs::read(bench.path("prog.tandem.toml")).unwrap() == before);
    // Built anew it is the same program, however it is named.
    fs::write(bench.path("prog"), program + "# anew\n").unwrap();
    let path = bench.path("prog");
    assert!(bench.tandem(&["tune", "--repeats", "4", "--", path.to_str().unwrap()]).status.success());
}

#[test]
fn a_session_that_is_interrupted_does_not_replace_what_a_whole_one_found() {
    let bench = Bench::new("[ ! -f twice ] || [ $(wc -l < runs) -lt 3 ] || exec sleep 1000\nsleep 0.04");
    assert!(bench.tandem(&["tune", "--repeats", "4", "--", "./prog"]).status.success());
    let before = fs::read(bench.path("prog.tandem.toml")).unwrap();
    fs::remove_file(bench.path("runs")).unwrap();
    fs::write(bench.path("twice"), "").unwrap();
    let again = bench.start(&["tune", "--repeats", "4", "--store", "again", "--", "./prog"]);
    bench.wait_for_runs(3);
    assert!(Command::new("kill").args(["-INT", &again.id().to_string()]).status().unwrap().success());
    let output = again.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    let words = "is kept in again, the same command goes on; prog.tandem.toml stays what a whole search found";
    assert!(said.contains(words), "{said}");
    assert!(fs::read(bench.path("prog.tandem.toml")).unwrap() == before);
}

/// As it is it is the fastest, for which there is no evidence.
#[test]
fn a_result_of_an_interrupted_session_is_replaced_by_the_next_one_though_it_is_the_program_as_it_is() {
    let bench =
        Bench::new("[ $(wc -l < runs) -lt 4 ] || exec sleep 1000\n[ -z $OMP_NUM_THREADS ] || sleep 0.3\nsleep 0.04");
    for store in ["first", "second"] {
        let tune = bench.start(&["tune", "--repeats", "4", "--store", store, "--", "./prog"]);
        bench.wait_for_runs(4);
        assert!(Command::new("kill").args(["-INT", &tune.id().to_string()]).status().unwrap().success());
        let output = tune.wait_with_output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(!said.contains("stays what a whole search found"), "{said}");
        let result = fs::read_to_string(bench.path("prog.tandem.toml")).unwrap();
        assert!(result.contains("\ncomplete = false\n") && !result.contains("[configuration]"), "{result}");
        fs::remove_file(bench.path("runs")).unwrap();
    }
}
