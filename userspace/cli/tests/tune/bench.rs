// SPDX-License-Identifier: GPL-2.0-only
//! A program whose runs can be counted, in a directory of its own, and `tandem` on it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(120);

/// A program in a directory of its own that notes each of its runs.
pub struct Bench {
    pub directory: tempfile::TempDir,
}

impl Bench {
    /// `body` is what the program does besides, in the shell's language.
    pub fn new(body: &str) -> Self {
        let bench = Self { directory: tempfile::tempdir().unwrap() };
        fs::write(bench.path("prog"), format!("#!/bin/sh\necho run >> runs\n{body}\n")).unwrap();
        fs::set_permissions(bench.path("prog"), fs::Permissions::from_mode(0o755)).unwrap();
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
        command.args(arguments).current_dir(self.directory.path()).stdin(Stdio::null());
        heed(&mut command, &[libc::SIGHUP, libc::SIGINT]);
        command
    }

    pub fn tandem(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Starts one that is killed when the program has run so often.
    pub fn kill_after(&self, runs: usize, arguments: &[&str]) {
        let mut killed = self.start(arguments);
        self.wait_for_runs(runs);
        killed.kill().unwrap();
        killed.wait().unwrap();
    }

    pub fn runs(&self) -> usize {
        fs::read_to_string(self.path("runs")).map_or(0, |runs| runs.lines().count())
    }

    /// Waits until the program has run so often.
    pub fn wait_for_runs(&self, runs: usize) {
        wait_until(|| self.runs() >= runs);
    }
}

/// Waits for what must come.
pub fn wait_until(is_there: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_there() {
        assert!(start.elapsed() < PATIENCE, "it did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Has `command` begin with the default for these signals: whoever runs tests in the background may ignore them.
fn heed(command: &mut Command, signals: &'static [i32]) {
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(move || {
            signals.iter().for_each(|&signal| assert_ne!(libc::signal(signal, libc::SIG_DFL), libc::SIG_ERR));
            Ok(())
        });
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// How many runs are known, as it is said at the beginning.
pub fn known(output: &Output) -> usize {
    let said = text(&output.stderr);
    let line = said.lines().find_map(|line| line.strip_suffix(" runs are known already"));
    line.and_then(|line| line.strip_prefix("tune: ")).unwrap_or_else(|| panic!("{said}")).parse().unwrap()
}
