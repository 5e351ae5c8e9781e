// SPDX-License-Identifier: GPL-2.0-only
//! A scx_tandem that lives as long as the program it is for.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::summary::Report;
use tandem_ab::say::say_line;

/// What scx_tandem prints when the program may start.
const READY: [&str; 2] = ["loaded", "took over the scheduler"];

/// How often a wish to give up is looked for while it loads.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Flags by which it manages what this process starts.
pub fn managed() -> [OsString; 2] {
    // This process is the root of the tree, for the sake of orphans, but is none of the program's.
    [format!("--manage=pid={}", std::process::id()).into(), "--exclude=comm=tandem".into()]
}

/// A running scx_tandem.
pub struct Scheduler {
    child: Child,
    /// Passes on what it says of errors; returns its last words.
    errors: JoinHandle<String>,
    directory: TempDir,
}

impl Scheduler {
    /// Starts it, and waits until it is loaded. What it says goes to `log`.
    ///
    /// # Errors
    /// Its own sentence, if it ends instead.
    pub fn start(flags: &[OsString], log: Option<&Path>) -> Result<Self> {
        Ok(Self::start_unless(|| false, flags, log)?.expect("nobody gives it up"))
    }

    /// The same; `None` if `given_up` says so before it is loaded. Then it is gone again.
    ///
    /// # Errors
    /// Its own sentence, if it ends instead.
    pub fn start_unless(given_up: impl Fn() -> bool, flags: &[OsString], log: Option<&Path>) -> Result<Option<Self>> {
        let directory = tempfile::tempdir().context("there is no place for a report")?;
        let log = match log {
            Some(path) => Some(File::create(path).with_context(|| format!("{}: cannot be made", path.display()))?),
            None => None,
        };
        let program = program()?;
        let mut command = Command::new(&program);
        command.args(flags).arg("--report").arg(report_in(&directory)).env("RUST_LOG", "info,scx_utils=warn");
        // In a group of its own: Ctrl-C is for the program, and the scheduler ends after it.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        // SAFETY: between fork and exec only a system call is made.
        unsafe { command.pre_exec(end_with_parent) };
        let mut child = command.spawn().with_context(|| format!("{}: cannot be started", program.display()))?;
        let mut errors = child.stderr.take().expect("it is piped");
        let came = ready(child.stdout.take().expect("it is piped"), log, given_up);
        if came == Came::Ended {
            let mut said = String::new();
            errors.read_to_string(&mut said).context("what scx_tandem says cannot be read")?;
            child.wait().context("scx_tandem cannot be waited for")?;
            let sentence = said.lines().next().unwrap_or("scx_tandem ended before it was loaded, without a word");
            bail!("{}", sentence.trim_start_matches("error: "));
        }
        let errors = std::thread::spawn(move || pass_on(errors));
        let scheduler = Self { child, errors, directory };
        if came == Came::GivenUp {
            scheduler.give_up()?;
            return Ok(None);
        }
        Ok(Some(scheduler))
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it, which unloads it, and returns what it did. What it left loaded because it was killed is unloaded too.
    ///
    /// # Errors
    /// It did not end well, with its last words.
    pub fn stop(self) -> Result<Report> {
        let (status, said, directory) = self.end()?;
        if !status.success() {
            let said = if said.is_empty() { said } else { format!(", its last words: {said}") };
            unload().with_context(|| format!("scx_tandem did not end well ({status}){said}"))?;
            bail!("scx_tandem did not end well ({status}){said}: look at the kernel log");
        }
        let path = report_in(&directory);
        let text = fs::read_to_string(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{}: is no report", path.display()))
    }

    /// Ends it before it said that it is loaded. Perhaps it was by then.
    fn give_up(self) -> Result<()> {
        let (status, ..) = self.end()?;
        if status.success() { Ok(()) } else { unload() }
    }

    /// Ends its process: how, its last words, and where its report is.
    fn end(mut self) -> Result<(ExitStatus, String, TempDir)> {
        // SAFETY: the child is ours and was not waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let status = self.child.wait().context("scx_tandem cannot be waited for")?;
        Ok((status, self.errors.join().expect("passing on does not panic"), self.directory))
    }
}

/// Unloads what a scx_tandem that is gone left behind.
fn unload() -> Result<()> {
    let program = program()?;
    let ended = Command::new(&program).arg("--unload").stdin(Stdio::null()).output();
    let ended = ended.with_context(|| format!("{}: cannot be started", program.display()))?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        bail!("what it left cannot be unloaded ({said}): run `scx_tandem --unload`");
    }
    Ok(())
}

/// Passes on what is said of errors; returns the last line.
fn pass_on(errors: impl Read) -> String {
    let mut last = String::new();
    for line in BufReader::new(errors).lines().map_while(Result::ok) {
        say_line(format_args!("{line}"));
        if !line.trim().is_empty() {
            line.trim_start_matches("error: ").clone_into(&mut last);
        }
    }
    last
}

fn report_in(directory: &TempDir) -> PathBuf {
    directory.path().join("report.json")
}

/// The scx_tandem beside this program, else the one in the path.
fn program() -> Result<PathBuf> {
    let beside =
        std::env::current_exe().context("this program's own path cannot be read")?.with_file_name("scx_tandem");
    Ok(if beside.exists() { beside } else { PathBuf::from("scx_tandem") })
}

/// The scheduler must not stay when this process is killed.
fn end_with_parent() -> std::io::Result<()> {
    // SAFETY: this operation takes plain numbers and concerns the calling process only.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// What came of waiting until it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Loaded,
    Ended,
    GivenUp,
}

/// Waits until scx_tandem says that it is loaded, ends instead, or is `given_up`. Goes on to take down what it says.
fn ready(output: impl Read + Send + 'static, mut log: Option<File>, given_up: impl Fn() -> bool) -> Came {
    let (sender, ready) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let said = sentence(&line);
            if READY.iter().any(|word| said.ends_with(word) || said.contains(&format!("{word} that"))) {
                // Only the first time somebody waits for it.
                let _ = sender.send(());
            }
            // A full disk must not stop the program that runs.
            if log.as_mut().is_some_and(|log| writeln!(log, "{line}").is_err()) {
                log = None;
            }
        }
    });
    loop {
        match ready.recv_timeout(LOOK_EVERY) {
            Ok(()) => return Came::Loaded,
            Err(RecvTimeoutError::Disconnected) => return Came::Ended,
            Err(RecvTimeoutError::Timeout) if given_up() => return Came::GivenUp,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// What a line of the log says, whichever format it has.
fn sentence(line: &str) -> String {
    let object = serde_json::from_str::<serde_json::Value>(line).ok();
    let message = object.as_ref().and_then(|object| object["message"].as_str());
    message.unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_ready_when_it_says_so_and_not_when_it_ends() {
        let json = "{\"level\":\"INFO\",\"message\":\"loaded\"}\n";
        for said in ["  INFO loaded\n", "x\n INFO took over the scheduler that is loaded\n", json] {
            assert_eq!(ready(said.as_bytes(), None, || false), Came::Loaded, "{said}");
        }
        for said in
            ["", "  WARN the loaded scheduler was made for another version: loading anew\n", " INFO unloaded soon\n"]
        {
            assert_eq!(ready(said.as_bytes(), None, || false), Came::Ended, "{said}");
        }
    }
}
