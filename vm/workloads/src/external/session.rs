// SPDX-License-Identifier: GPL-2.0-only
//! Starts the processes of a session, times those that do the work, and proves that it was done.

use crate::frame::mark;
use crate::truth::monotonic_ns;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

/// How often something is looked at that only the processes themselves know.
const LOOK: Duration = Duration::from_millis(5);
/// How long servers may take to answer first.
const PATIENCE_NS: u64 = 60_000_000_000;

/// A process that others talk to.
pub struct Server {
    /// Its program and arguments.
    pub words: Vec<String>,
    /// Whether it answers.
    pub answers: Box<dyn Fn() -> bool>,
}

/// What a program measured itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Own {
    /// Its measure, if that is the metric.
    pub value: Option<f64>,
    /// 99th percentile of its requests' times.
    pub p99_ns: Option<u64>,
}

/// See [`Session::proof`].
pub type Proof = Box<dyn Fn(&[String]) -> Result<Own>>;

/// What is to be started.
pub struct Session {
    /// Started first; they must answer before the timed part begins, and are ended after the proof.
    pub servers: Vec<Server>,
    /// Done when they answer, before the timed part begins.
    pub prepare: Box<dyn Fn() -> Result<()>>,
    /// Programs and arguments, started together; the timed part lasts until the last has ended.
    pub commands: Vec<Vec<String>>,
    /// What is done in all.
    pub work: u64,
    /// Proves from what the commands printed that this was done; gives what they measured themselves.
    pub proof: Proof,
}

impl Session {
    /// A session that starts nothing and says to have done so much work.
    pub fn nothing(work: u64) -> Self {
        Self {
            servers: Vec::new(),
            prepare: Box::new(|| Ok(())),
            commands: Vec::new(),
            work,
            proof: Box::new(|_| Ok(Own::default())),
        }
    }
}

/// What a session gave.
pub struct Outcome {
    /// Length of the timed part.
    pub seconds: f64,
    /// The program's own measure, or else the length of the timed part.
    pub value: f64,
    /// What was done in all.
    pub work: u64,
    /// See [`Own::p99_ns`].
    pub p99_ns: Option<u64>,
}

/// Programs that run; killed when dropped.
struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended already is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a session to its end in `folder`.
///
/// # Errors
/// A program is missing or fails, a server never answers, the proof fails.
pub fn run(session: &Session, folder: &Path) -> Result<Outcome> {
    let mut servers = Running(Vec::new());
    for (index, server) in session.servers.iter().enumerate() {
        let log = folder.join(format!("server-{index}.log"));
        servers.0.push(start(&server.words, folder, &log)?);
        wait_for(server, servers.0.last_mut().expect("just pushed"), &log)?;
    }
    (session.prepare)()?;
    let logs: Vec<PathBuf> = (0..session.commands.len()).map(|at| folder.join(format!("command-{at}.log"))).collect();
    let begin_ns = monotonic_ns();
    mark::begin();
    let mut commands = Running(Vec::new());
    for (words, log) in session.commands.iter().zip(&logs) {
        // One by one, so that those that run are ended where the next does not start.
        commands.0.push(start(words, folder, log)?);
    }
    for ((child, words), log) in commands.0.iter_mut().zip(&session.commands).zip(&logs) {
        let status = child.wait().context("a program cannot be waited for")?;
        if !status.success() {
            bail!("{} failed ({status}): {}", words[0], last_words(&printed(log)?));
        }
    }
    mark::end();
    let seconds = (monotonic_ns() - begin_ns) as f64 / 1e9;
    let printed = logs.iter().map(|log| printed(log)).collect::<Result<Vec<_>>>()?;
    let own = (session.proof)(&printed)?;
    Ok(Outcome { seconds, value: own.value.unwrap_or(seconds), work: session.work, p99_ns: own.p99_ns })
}

fn start(words: &[String], folder: &Path, log: &Path) -> Result<Child> {
    let file = File::create(log).with_context(|| format!("{} cannot be written", log.display()))?;
    let errors = file.try_clone().context("a file cannot be shared")?;
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(folder).stdin(std::process::Stdio::null()).stdout(file).stderr(errors);
    command.spawn().with_context(|| format!("{} does not start: install it, or name its folder in PATH", words[0]))
}

fn wait_for(server: &Server, child: &mut Child, log: &Path) -> Result<()> {
    let begin_ns = monotonic_ns();
    while !(server.answers)() {
        if let Some(status) = child.try_wait().context("a server cannot be waited for")? {
            bail!("{} ended ({status}): {}", server.words[0], last_words(&printed(log)?));
        }
        if monotonic_ns() - begin_ns > PATIENCE_NS {
            bail!("{} does not answer: {}", server.words[0], last_words(&printed(log)?));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn printed(log: &Path) -> Result<String> {
    let bytes = std::fs::read(log).with_context(|| format!("{} cannot be read", log.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn last_words(printed: &str) -> String {
    let last = printed.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or_else(|| "it printed nothing".to_owned(), |line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(commands: &[&[&str]], proof: fn(&[String]) -> Result<Own>) -> Session {
        let words = |command: &&[&str]| command.iter().map(|&word| word.to_owned()).collect();
        Session { commands: commands.iter().map(words).collect(), proof: Box::new(proof), ..Session::nothing(3) }
    }

    fn ran(session: &Session) -> Result<Outcome> {
        let folder = tempfile::tempdir().unwrap();
        run(session, folder.path())
    }

    fn server(script: &str, answers: bool) -> Session {
        let words = ["sh", "-c", script].map(str::to_owned).to_vec();
        let server = Server { words, answers: Box::new(move || answers) };
        Session { servers: vec![server], ..session(&[&["true"]], |_| Ok(Own::default())) }
    }

    #[test]
    fn the_timed_part_lasts_until_the_last_command_has_ended() {
        let outcome = ran(&session(&[&["sleep", "0.2"], &["true"]], |_| Ok(Own::default()))).unwrap();
        assert!(outcome.seconds >= 0.2);
        assert_eq!((outcome.work, outcome.value), (3, outcome.seconds));
        let outcome = ran(&session(&[&["true"]], |_| Ok(Own { value: Some(7.5), p99_ns: Some(9) }))).unwrap();
        assert_eq!((outcome.value, outcome.p99_ns), (7.5, Some(9)), "its own measures");
    }

    #[test]
    fn the_proof_sees_what_each_command_printed() {
        let proof = |printed: &[String]| {
            assert_eq!(printed, ["one\n", "two\n"]);
            bail!("not enough")
        };
        let said = ran(&session(&[&["echo", "one"], &["echo", "two"]], proof)).err().unwrap().to_string();
        assert_eq!(said, "not enough");
    }

    #[test]
    fn a_command_that_fails_is_told_with_its_last_words() {
        let said = ran(&session(&[&["sh", "-c", "echo no memory; exit 3"]], |_| Ok(Own::default())))
            .err()
            .unwrap()
            .to_string();
        assert_eq!(said, "sh failed (exit status: 3): no memory");
        let said = ran(&session(&[&["no-such-program"]], |_| Ok(Own::default()))).err().unwrap().to_string();
        assert!(said.starts_with("no-such-program does not start"), "{said}");
    }

    #[test]
    fn what_runs_is_ended_where_the_next_does_not_start() {
        // A length that no other sleep has.
        let length = format!("1000.{}", std::process::id());
        assert!(ran(&session(&[&["sleep", &length], &["no-such-program"]], |_| Ok(Own::default()))).is_err());
        let command = format!("sleep\0{length}\0");
        let runs = std::fs::read_dir("/proc").unwrap().any(|process| {
            std::fs::read_to_string(process.unwrap().path().join("cmdline")).is_ok_and(|words| words == command)
        });
        assert!(!runs, "it still runs");
    }

    #[test]
    fn servers_are_waited_for_and_ended() {
        assert!(ran(&server("sleep 1000", true)).is_ok(), "a server that would run for long is ended");
        let said = ran(&server("echo bad option; exit 1", false)).err().unwrap().to_string();
        assert_eq!(said, "sh ended (exit status: 1): bad option");
    }
}
