// SPDX-License-Identifier: GPL-2.0-only
//! A running scx_tandem.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tandem_bpf::{Pins, Scheduler};
use tandem_policies::model::Topology;

use crate::{read, wait_until};

const PROGRAM: &str = "/bin/scx_tandem";

/// `enabled` or `disabled`: whether a sched_ext scheduler is loaded.
pub fn state() -> String {
    read("/sys/kernel/sched_ext/state")
}

/// Times that a sched_ext scheduler was enabled since boot.
///
/// # Panics
/// If the kernel does not say.
pub fn enable_seq() -> u64 {
    read("/sys/kernel/sched_ext/enable_seq").parse().expect("a number")
}

/// Unloads the scheduler that a killed scx_tandem left.
///
/// # Panics
/// If it stays.
pub fn unload() {
    let done = program().arg("--unload").status().expect("scx_tandem is in the guest");
    assert!(done.success());
}

/// scx_tandem, stopped and unloaded when dropped.
pub struct Scx {
    child: Child,
    log: PathBuf,
    /// The machine it was loaded on.
    pub topology: Topology,
}

impl Scx {
    /// Starts it and waits until it is loaded.
    ///
    /// # Panics
    /// If it ends instead.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_as(program().args(arguments))
    }

    /// Starts it as a command that was prepared, and waits until it is loaded.
    ///
    /// # Panics
    /// If it ends instead.
    pub fn start_as(command: &mut Command) -> Self {
        let log = PathBuf::from(format!("/tmp/scx_tandem-{}.log", crate::monotonic_ns()));
        let file = File::create(&log).expect("/tmp can be written");
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a file can be shared"))
            .stderr(file)
            .spawn()
            .expect("scx_tandem is in the guest");
        let topology = tandem_machine::read_running().expect("the guest has a topology").topology;
        let mut scx = Self { child, log, topology };
        wait_until("scx_tandem is loaded", || {
            let ended = scx.child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "scx_tandem ended: {}", scx.log());
            let log = scx.log();
            log.contains("INFO loaded") || log.contains("took over")
        });
        assert_eq!(state(), "enabled");
        scx
    }

    /// Starts it observing only, so that a test's own assignments stand. With intervals of 10 s leases may last 60 s.
    pub fn start_observing() -> Self {
        Self::start_observing_at(10_000)
    }

    /// The same with other intervals.
    pub fn start_observing_at(interval_ms: u32) -> Self {
        Self::start(&["--dry-run", "--manage", "pid=1", "--interval-ms", &interval_ms.to_string()])
    }

    /// A second handle on the scheduler.
    ///
    /// # Panics
    /// If the pins are not there.
    pub fn handle(&self) -> Scheduler {
        Scheduler::open(&Pins::default(), self.topology.len()).expect("the scheduler is pinned")
    }

    /// What it has printed.
    ///
    /// # Panics
    /// If the log cannot be read.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("the log can be read")
    }

    /// Asks it to end and waits.
    ///
    /// # Panics
    /// If it cannot be asked.
    pub fn stop(mut self) -> ExitStatus {
        self.signal(libc::SIGTERM);
        self.child.wait().expect("a child can be waited for")
    }

    /// Stops it in good order; what it reported in this file, for which it was asked.
    ///
    /// # Panics
    /// If it fails, or there is no such report.
    pub fn stop_and_report(self, file: &Path) -> serde_json::Value {
        assert!(self.stop().success());
        let text = fs::read_to_string(file).expect("a report was asked for");
        serde_json::from_str(&text).expect("it is JSON")
    }

    /// Kills it without any chance to clean up.
    ///
    /// # Panics
    /// If it cannot be killed.
    pub fn kill(mut self) {
        self.signal(libc::SIGKILL);
        self.child.wait().expect("a child can be waited for");
    }

    /// Asks it to read its configuration again.
    ///
    /// # Panics
    /// If it cannot be asked.
    pub fn reload(&self) {
        self.signal(libc::SIGHUP);
    }

    /// Stops it where it is, as a debugger or a freezer of control groups does; it goes on after `frozen`.
    ///
    /// # Panics
    /// If it cannot be stopped.
    pub fn freeze_for(&self, frozen: Duration) {
        self.signal(libc::SIGSTOP);
        std::thread::sleep(frozen);
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child is ours and was not waited for yet.
        let result = unsafe { libc::kill(self.child.id() as i32, signal) };
        assert_eq!(result, 0, "kill: {}", std::io::Error::last_os_error());
    }
}

impl Drop for Scx {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("scx_tandem said:\n{}", self.log());
        }
        if let Ok(None) = self.child.try_wait() {
            self.signal(libc::SIGTERM);
            self.child.wait().expect("a child can be waited for");
        }
    }
}

/// Until then scx_tandem has refused, or will not.
const REFUSED_WITHIN: Duration = Duration::from_secs(60);

/// How a run of scx_tandem failed.
pub struct Failed {
    /// Its exit code.
    pub code: Option<i32>,
    /// What it said.
    pub message: String,
}

/// Runs scx_tandem, which must refuse, and leave nothing loaded or pinned behind.
///
/// # Panics
/// If it does not refuse, or leaves something behind.
pub fn scx_tandem_fails(command: &mut Command) -> Failed {
    let pinned = Pins::default().exist();
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("scx_tandem is in the guest");
    let deadline = Instant::now() + REFUSED_WITHIN;
    while child.try_wait().expect("it is our child").is_none() {
        if Instant::now() >= deadline {
            child.kill().expect("it is our child");
            panic!("it was not refused: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let done = child.wait_with_output().expect("it has ended");
    assert!(!done.status.success(), "it was not refused");
    assert_eq!(Pins::default().exist(), pinned, "a refusal changes nothing");
    let message = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(message.trim().lines().count(), 1, "one sentence: {message}");
    Failed { code: done.status.code(), message }
}

/// The program, to be given arguments.
pub fn program() -> Command {
    debug_assert!(Path::new(PROGRAM).exists());
    Command::new(PROGRAM)
}
