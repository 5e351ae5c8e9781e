// SPDX-License-Identifier: GPL-2.0-only
//! `tandem run`, as its users call it, with a script that plays the part of scx_tandem.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A busy machine may be slow; what never comes is waited for this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Says that it is loaded, and leaves a report when it is told to end.
const QUICK: &str = r#"trap 'echo "$REPORT" > "$report"; exit 0' TERM
echo "  INFO loaded"
while :; do sleep 0.05; done
"#;
/// Loads for ever, and says when it is told to end.
const SLOW: &str = r#"trap 'touch "$here/ended"; exit 0' TERM
touch "$here/loading"
while :; do sleep 0.05; done
"#;
const REPORT: &str = r#"{"intervals": 3, "thread_moves_total": 11000, "thread_moves": [], "mover": {"moved_pages": 5},
    "plans_total": 12000, "undone_plans": 10500, "plans": [{"verdict": "trial"}]}"#;

/// A folder with `tandem`, and with that script beside it.
struct Place(tempfile::TempDir);

impl Place {
    fn new(scheduler: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        if fs::hard_link(env!("CARGO_BIN_EXE_tandem"), place.path("tandem")).is_err() {
            fs::copy(env!("CARGO_BIN_EXE_tandem"), place.path("tandem")).unwrap();
        }
        let begin = "#!/bin/sh\nhere=$(dirname \"$0\")\ntouch \"$here/started\"\nfor report; do :; done\n";
        fs::write(place.path("scx_tandem"), format!("{begin}{scheduler}")).unwrap();
        fs::set_permissions(place.path("scx_tandem"), fs::Permissions::from_mode(0o755)).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `tandem run WORDS`; standard output and error are kept.
    fn run(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("tandem"));
        command.arg("run").args(words).current_dir(self.0.path()).env("REPORT", REPORT);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: between fork and exec only a system call is made.
        unsafe { command.pre_exec(heed_signals) };
        command
    }

    /// The summary of a run that ends with 0.
    fn summary(&self, words: &[&str]) -> Value {
        let words = [&["--json", "--summary", "s.json"], words, &["--", "true"]].concat();
        let output = self.run(&words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_str(&fs::read_to_string(self.path("s.json")).unwrap()).unwrap()
    }

    fn wait_for(&self, name: &str) {
        let begun = Instant::now();
        while !self.path(name).exists() {
            assert!(begun.elapsed() < PATIENCE, "{name} does not come");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What nohup or a shell's `&` has a test ignore, its programs would ignore too, and a shell could not trap.
fn heed_signals() -> std::io::Result<()> {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: the action of a valid signal.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    Ok(())
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `command` with a terminal of its own, whose session it leads; the terminal's other end.
fn in_terminal(command: &mut Command) -> (Child, File) {
    let (mut own, mut its) = (-1, -1);
    let (none, size) = (std::ptr::null_mut(), std::ptr::null());
    // SAFETY: both descriptors are written on success; there is no name, no setting and no size to read.
    let failed = unsafe { libc::openpty(&mut own, &mut its, none, std::ptr::null(), size) };
    assert_eq!(failed, 0, "openpty: {}", std::io::Error::last_os_error());
    // SAFETY: openpty just made both, and nobody else has them.
    let (own, its) = unsafe { (OwnedFd::from_raw_fd(own), OwnedFd::from_raw_fd(its)) };
    for end in [&own, &its] {
        // SAFETY: plain numbers; what the program inherits are its standard streams alone.
        assert_eq!(unsafe { libc::fcntl(end.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
    }
    let end = || Stdio::from(its.try_clone().unwrap());
    command.stdin(end()).stdout(end()).stderr(end());
    // SAFETY: between fork and exec only system calls are made, on what is there already.
    unsafe {
        command.pre_exec(|| match libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0 {
            true => Ok(()),
            false => Err(std::io::Error::last_os_error()),
        });
    }
    (command.spawn().unwrap(), File::from(own))
}

#[test]
fn a_signal_while_the_scheduler_loads_ends_it_and_starts_nothing() {
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143), (libc::SIGHUP, 129)] {
        let place = Place::new(SLOW);
        let child = place.run(&["--", "touch", "program"]).spawn().unwrap();
        place.wait_for("loading");
        // SAFETY: a child that was not waited for.
        unsafe { libc::kill(child.id().cast_signed(), signal) };
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), said(&output).as_str()), (Some(code), ""));
        assert!(place.path("ended").exists() && !place.path("program").exists(), "{signal}");
    }
}

#[test]
fn ctrl_c_while_the_scheduler_loads_ends_it_and_starts_nothing() {
    let place = Place::new(SLOW);
    let (mut child, mut terminal) = in_terminal(&mut place.run(&["--", "touch", "program"]));
    place.wait_for("loading");
    terminal.write_all(b"\x03").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(place.path("ended").exists() && !place.path("program").exists());
}

#[test]
fn a_terminal_that_is_gone_is_told_to_the_program() {
    let place = Place::new(QUICK);
    let script = "trap 'touch hung; exit 3' HUP; touch running; while :; do sleep 0.05; done";
    let (mut child, terminal) = in_terminal(&mut place.run(&["--", "sh", "-c", script]));
    place.wait_for("running");
    drop(terminal);
    place.wait_for("hung");
    assert_eq!(child.wait().unwrap().code(), Some(3), "though nobody reads the summary");
}

#[test]
fn ctrl_c_reaches_the_program_once() {
    let place = Place::new(QUICK);
    let script = "trap 'echo int >> ints' INT; touch running; while [ ! -e end ]; do sleep 0.05; done; exit 4";
    let (mut child, mut terminal) = in_terminal(&mut place.run(&["--", "sh", "-c", script]));
    place.wait_for("running");
    terminal.write_all(b"\x03").unwrap();
    place.wait_for("ints");
    std::thread::sleep(Duration::from_millis(300));
    fs::write(place.path("end"), "").unwrap();
    let reader = std::thread::spawn(move || {
        let mut shown = Vec::new();
        // A terminal whose other end is closed is an error to read.
        let _ = terminal.read_to_end(&mut shown);
        String::from_utf8_lossy(&shown).into_owned()
    });
    assert_eq!(child.wait().unwrap().code(), Some(4));
    assert_eq!(fs::read_to_string(place.path("ints")).unwrap(), "int\n");
    assert!(reader.join().unwrap().contains("exit code 4"));
}

#[test]
fn a_dry_run_is_called_one_whoever_asked_for_it() {
    let place = Place::new(QUICK);
    fs::write(place.path("t.toml"), "dry_run = true\n").unwrap();
    fs::set_permissions(place.path("t.toml"), fs::Permissions::from_mode(0o644)).unwrap();
    let dry = |words: &[&str]| place.summary(words)["dry_run"].as_bool().unwrap();
    let asked = [&["--dry-run"][..], &["-o", "dry_run=true"]].map(dry);
    assert_eq!((asked, dry(&[])), ([true; 2], false));
    // A file of somebody else than root's is refused.
    if fs::metadata(place.path("t.toml")).unwrap().uid() == 0 {
        assert!(dry(&["--config", "t.toml"]));
    }
    let mut by_environment = place.run(&["--json", "--", "true"]);
    let output = by_environment.env("TANDEM_DRY_RUN", "true").output().unwrap();
    assert!(said(&output).contains("\"dry_run\": true"), "{output:?}");
}

#[test]
fn what_the_lists_of_the_report_forgot_is_in_the_summary() {
    let summary = Place::new(QUICK).summary(&[]);
    let counts = ["thread_moves", "moved_pages", "plans", "undone_plans", "unjudged_plans"];
    assert_eq!(counts.map(|name| summary[name].as_u64().unwrap()), [11_000, 5, 12_000, 10_500, 1]);
}

#[test]
fn a_summary_that_cannot_be_written_is_refused_before_anything_is_loaded() {
    let place = Place::new(QUICK);
    let output =
        place.run(&["--summary", "no/such/s.json", "--log", "log", "--", "touch", "program"]).output().unwrap();
    assert!(output.status.code() == Some(2) && said(&output).starts_with("tandem: no/such/s.json cannot be written"));
    assert_eq!(["started", "program", "log"].map(|name| place.path(name).exists()), [false; 3]);
}

#[test]
fn a_summary_whose_folder_went_is_on_standard_error_and_the_program_keeps_its_exit_code() {
    let place = Place::new(QUICK);
    for (ends, code) in [("0", 2), ("7", 7)] {
        fs::create_dir(place.path("d")).unwrap();
        let script = format!("rmdir d; exit {ends}");
        let output = place.run(&["--summary", "d/s", "--", "sh", "-c", &script]).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains("moves: 11000 of threads, 5 pages\n"), "{said}");
        assert!(said.lines().last().unwrap().starts_with("tandem: d/s cannot be written"), "{said}");
    }
    // One that is there stays as it was until the new one is whole.
    fs::write(place.path("s"), "old").unwrap();
    assert!(place.run(&["--summary", "s", "--", "grep", "old", "s"]).output().unwrap().status.success());
    assert!(fs::read_to_string(place.path("s")).unwrap().starts_with("tandem: grep"));
}
