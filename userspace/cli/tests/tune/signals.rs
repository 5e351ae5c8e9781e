// SPDX-License-Identifier: GPL-2.0-only
//! Signals that `tandem` gets or was started with.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::bench::{Bench, known, text, wait_until};

/// Has `command` begin with these signals ignored and these blocked.
fn begin_with(command: &mut Command, ignored: &'static [i32], blocked: &'static [i32]) {
    // SAFETY: between fork and exec only system calls are made, on what is on the stack.
    unsafe {
        command.pre_exec(move || {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            blocked.iter().for_each(|&signal| assert_eq!(libc::sigaddset(&raw mut mask, signal), 0));
            // Whoever runs the tests may ignore some.
            let usual = [libc::SIGHUP, libc::SIGINT, libc::SIGPIPE];
            usual.iter().for_each(|&signal| assert_ne!(libc::signal(signal, libc::SIG_DFL), libc::SIG_ERR));
            ignored.iter().for_each(|&signal| assert_ne!(libc::signal(signal, libc::SIG_IGN), libc::SIG_ERR));
            assert_eq!(libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut()), 0);
            Ok(())
        });
    }
}

fn send(signal: &str, process: u32) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

/// Signals that the program ignores and blocks, which it says.
const SAYS: &str = "sleep 0.03; exec grep -E '^Sig(Ign|Blk)' /proc/self/status";

/// Stands for a scheduler that does nothing.
const SCHEDULER: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = --report ] && report=$2; shift; done
trap 'echo "{\"intervals\":0,\"thread_moves\":[],\"mover\":{\"moved_pages\":0},\"plans\":[]}" > "$report"; exit 0' TERM
echo loaded
while :; do sleep 0.02; done
"#;

/// A `tandem` in the directory of `bench`, beside that scheduler.
fn with_a_scheduler(bench: &Bench) -> PathBuf {
    fs::write(bench.path("scx_tandem"), SCHEDULER).unwrap();
    fs::set_permissions(bench.path("scx_tandem"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_tandem"), bench.path("tandem")).unwrap();
    bench.path("tandem")
}

#[test]
fn the_program_ignores_and_blocks_what_it_would_without_tandem() {
    let bench = Bench::new(SAYS);
    let tandem = with_a_scheduler(&bench);
    assert!(bench.tandem(&["tune", "--repeats", "4", "--", "./prog"]).status.success());
    let cases: [(&[i32], &[i32]); 3] =
        [(&[], &[]), (&[libc::SIGHUP, libc::SIGPIPE, libc::SIGINT], &[]), (&[libc::SIGQUIT], &[libc::SIGWINCH])];
    for (ignored, blocked) in cases {
        let mut alone = Command::new(bench.path("prog"));
        let mut tuned = bench.command(&["run", "--tuned", "--", "./prog"]);
        let mut scheduled = Command::new(&tandem);
        scheduled.args(["run", "--", "./prog"]);
        let said = [&mut alone, &mut tuned, &mut scheduled].map(|command| {
            begin_with(command.current_dir(bench.directory.path()), ignored, blocked);
            text(&command.output().unwrap().stdout)
        });
        let [alone, others @ ..] = &said;
        assert!(
            alone.contains("SigIgn") && others.iter().all(|one| one == alone),
            "{ignored:?}, {blocked:?}: {said:?}"
        );
    }
}

#[test]
fn what_is_ignored_from_the_start_ends_neither_a_session_nor_a_program() {
    let bench = Bench::new("sleep 0.1");
    let mut tune = bench.command(&["tune", "--repeats", "4", "--", "./prog"]);
    begin_with(&mut tune, &[libc::SIGHUP, libc::SIGINT], &[]);
    let mut tune = tune.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    bench.wait_for_runs(2);
    send("-HUP", tune.id());
    send("-INT", tune.id());
    assert_eq!(tune.wait().unwrap().code(), Some(0));

    fs::remove_file(bench.path("runs")).unwrap();
    let mut run = bench.command(&["run", "--tuned", "--", "./prog"]);
    begin_with(&mut run, &[libc::SIGHUP], &[]);
    let mut run = run.stderr(Stdio::null()).spawn().unwrap();
    bench.wait_for_runs(1);
    send("-HUP", run.id());
    assert_eq!(run.wait().unwrap().code(), Some(0));
}

/// Whether a process is in this state.
fn is_in_state(process: u32, state: char) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().starts_with(state)
}

#[test]
fn a_run_during_which_tandem_was_suspended_does_not_count_and_is_repeated() {
    let bench = Bench::new("sleep 0.3");
    let arguments = ["tune", "--repeats", "4", "--", "./prog"];
    let tune = bench.start(&arguments);
    bench.wait_for_runs(1);
    send("-STOP", tune.id());
    wait_until(|| is_in_state(tune.id(), 'T'));
    send("-CONT", tune.id());
    let output = tune.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), said.matches("it was suspended").count()), (Some(0), 1), "{said}");
    let runs = bench.runs();
    assert_eq!(known(&bench.tandem(&arguments)), runs - 1, "{said}");
}
