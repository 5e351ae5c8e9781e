// SPDX-License-Identifier: GPL-2.0-only
//! Slurm as executor: requests become tasks of job arrays.
//!
//! A submission is a directory below one that all machines see, with a request file for each task; a worker writes its
//! reply beside its request, under another name until it is whole. Tasks whose reply is missing though Slurm does not know
//! them any more are lost, and submitted again.
//!
//! What Slurm refuses at first it will refuse for ever; once it has taken something, it may be its controller that is away. So
//! later submissions are tried again, eight times in a row, ever more seldom.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tandem_ab::say::say_line;
use tandem_ab::stop::Stop;
use tandem_ab::store::write_whole;

use super::{Executor, Reply, Request, TRIES, last_line};
use crate::lock::Lock;
use crate::shell;

/// Tasks of one array at most: what Slurm allows by default.
const MOST_TASKS: usize = 1000;
/// How often replies are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often Slurm is asked what it still knows of.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// So often in a row Slurm must not know of a task until it is lost: file systems of a network show a reply late.
const UNKNOWN_TIMES: u32 = 3;
/// How often in a row a submission may be refused after an earlier one was not: four minutes, with the waits between.
const SUBMIT_TRIES: u32 = 8;
/// How long is waited after the first refusal; after each other one twice as long as before it.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// In a submission's directory, the file with its job's number.
const JOB_FILE: &str = "job";

/// In the directory of submissions, the file that the session locks whose they are.
const LOCK_FILE: &str = "lock";

/// Hands requests to Slurm.
#[derive(Debug)]
pub struct Slurm {
    /// Whose submissions they are.
    _lock: Lock,
    /// Of submissions; all machines see it at this path.
    directory: PathBuf,
    /// `tandem` on the machines that run trials.
    worker: PathBuf,
    /// For sbatch.
    options: Vec<String>,
    /// Whether Slurm has taken anything yet.
    has_taken: Cell<bool>,
}

/// A program of Slurm's, which the terminal's Ctrl-C does not reach.
fn command(name: &str) -> Command {
    let mut command = Command::new(name);
    command.process_group(0);
    command
}

/// Removes the directory of a submission of which no job runs. A task that was just cancelled may write to it still.
fn forget(directory: &Path) {
    // Without a job's number nobody takes it for one that runs.
    let removed = fs::remove_file(directory.join(JOB_FILE)).and_then(|()| fs::remove_dir_all(directory));
    if let Err(error) = removed {
        say_line(format_args!("tandem: {}: not removed, it may be deleted: {error}", directory.display()));
    }
}

struct Submission {
    job: String,
    directory: PathBuf,
    /// Index of the request by task; `None` once there is a reply.
    tasks: Vec<Option<usize>>,
    /// By task, how often in a row Slurm did not know of it.
    unknown_times: Vec<u32>,
}

impl Slurm {
    /// Prepares `directory`. What an earlier session left running there is cancelled.
    ///
    /// # Errors
    /// The directory cannot be made or read, or another session has its jobs there.
    pub fn new(directory: PathBuf, worker: PathBuf, options: Vec<String>) -> Result<Self> {
        let in_words = || format!("{}: cannot be used for jobs", directory.display());
        fs::create_dir_all(&directory).with_context(in_words)?;
        let Some(lock) = Lock::try_hold(&directory.join(LOCK_FILE)).with_context(in_words)? else {
            bail!(
                "{}: another `tandem tune` has its jobs there: name another directory with --jobs",
                directory.display()
            );
        };
        let directory_of_all = fs::canonicalize(&directory).with_context(in_words)?;
        let slurm = Self { _lock: lock, directory: directory_of_all, worker, options, has_taken: Cell::new(false) };
        for left in fs::read_dir(&slurm.directory).with_context(in_words)? {
            let left = left.with_context(in_words)?.path();
            if let Ok(job) = fs::read_to_string(left.join(JOB_FILE)) {
                slurm.cancel(job.trim(), &left);
            }
        }
        Ok(slurm)
    }

    /// A submission of these requests, or why Slurm refuses it.
    fn submit(&self, requests: &[Request], of: &[usize]) -> Result<Result<Submission, String>> {
        let directory = tempfile::Builder::new().prefix("jobs-").tempdir_in(&self.directory)?.keep();
        for (task, &request) in of.iter().enumerate() {
            fs::write(directory.join(format!("{task}.request")), serde_json::to_vec(&requests[request])?)?;
        }
        let quoted = |path: &Path| shell::quoted(&path.display().to_string());
        let script = format!("exec {} trial {}/$SLURM_ARRAY_TASK_ID.request", quoted(&self.worker), quoted(&directory));
        let mut command = command("sbatch");
        command.args(["--parsable", "--job-name=tandem-tune", "--nodes=1", "--ntasks=1", "--exclusive", "--requeue"]);
        command.arg(format!("--array=0-{}", of.len() - 1)).arg("--output").arg(directory.join("%a.log"));
        command.args(&self.options).args(["--wrap", &script]);
        let output = command.output().context("sbatch does not start: is Slurm installed here?")?;
        if !output.status.success() {
            fs::remove_dir_all(&directory)?;
            return Ok(Err(last_line(&String::from_utf8_lossy(&output.stderr))));
        }
        self.has_taken.set(true);
        // With several clusters their name follows.
        let job = String::from_utf8_lossy(&output.stdout).trim().split(';').next().unwrap_or_default().to_owned();
        write_whole(&directory.join(JOB_FILE), job.as_bytes())?;
        let tasks: Vec<Option<usize>> = of.iter().copied().map(Some).collect();
        Ok(Ok(Submission { job, directory, unknown_times: vec![0; tasks.len()], tasks }))
    }

    /// Cancels a job and forgets its submission, unless that fails: the next session tries again.
    fn cancel(&self, job: &str, directory: &Path) {
        let why = match command("scancel").args(["--quiet", job]).output() {
            Ok(Output { status, .. }) if status.success() => return forget(directory),
            Ok(Output { stderr, .. }) => last_line(&String::from_utf8_lossy(&stderr)),
            Err(error) => format!("it does not start: {error}"),
        };
        say_line(format_args!(
            "tandem: job {job} may still run, as scancel failed ({why}): the same command cancels it later"
        ));
    }

    /// Numbers of tasks that Slurm has not ended; `None` if it cannot be asked now.
    fn known_tasks(&self, job: &str) -> Option<BTreeSet<usize>> {
        let arguments = ["--noheader", "--array", "--format=%K", "--jobs", job];
        let Output { status, stdout, stderr } = command("squeue").args(arguments).output().ok()?;
        if !status.success() {
            // It forgets what has ended after some minutes.
            return String::from_utf8_lossy(&stderr).contains("Invalid job id").then(BTreeSet::new);
        }
        Some(String::from_utf8_lossy(&stdout).lines().filter_map(|line| line.trim().parse().ok()).collect())
    }

    /// Indices of requests of which no reply will come.
    fn lost(&self, submission: &mut Submission) -> Vec<usize> {
        let Some(known) = self.known_tasks(&submission.job) else { return Vec::new() };
        let mut lost = Vec::new();
        for (task, times) in submission.unknown_times.iter_mut().enumerate() {
            let is_unknown = submission.tasks[task].is_some() && !known.contains(&task);
            *times = if is_unknown { *times + 1 } else { 0 };
            if *times >= UNKNOWN_TIMES {
                lost.extend(submission.tasks[task].take());
            }
        }
        lost
    }
}

impl Submission {
    /// Replies that have come since the last time.
    fn replies(&mut self) -> Result<Vec<(usize, Reply)>> {
        let mut replies = Vec::new();
        for (task, request) in self.tasks.iter_mut().enumerate() {
            let path = self.directory.join(format!("{task}.reply"));
            let Some(index) = request.filter(|_| path.exists()) else { continue };
            let text = fs::read(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
            let reply = serde_json::from_slice(&text).with_context(|| format!("{}: is no reply", path.display()))?;
            replies.push((index, reply));
            *request = None;
        }
        Ok(replies)
    }

    fn is_done(&self) -> bool {
        self.tasks.iter().all(Option::is_none)
    }

    /// The last words of any of its tasks.
    fn last_words(&self) -> String {
        let logs = fs::read_dir(&self.directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let texts = logs.filter(|path| path.extension().is_some_and(|kind| kind == "log")).map(fs::read_to_string);
        texts.flatten().find(|text| !text.trim().is_empty()).map_or("nothing".to_owned(), |text| last_line(&text))
    }
}

impl Executor for Slurm {
    fn carry_out(
        &self,
        requests: &[Request],
        stop: &Stop,
        replied: &mut dyn FnMut(usize, Reply) -> Result<()>,
    ) -> Result<()> {
        let mut round = Round {
            slurm: self,
            requests,
            waiting: (0..requests.len()).collect(),
            losses: vec![0; requests.len()],
            submissions: Vec::new(),
            refusals: Refusals::default(),
            asked: Instant::now(),
        };
        let result = loop {
            match round.go_on(replied) {
                Ok(()) if !round.is_done() && !stop.wished() => std::thread::sleep(LOOK_EVERY),
                result => break result,
            }
        };
        // What came since the last look is a finished trial, too.
        let last = result.and_then(|()| round.hand_over(replied));
        round.end();
        last
    }
}

/// Requests on their way.
struct Round<'a> {
    slurm: &'a Slurm,
    requests: &'a [Request],
    /// Indices of requests that are not submitted.
    waiting: Vec<usize>,
    /// By request, how often it was lost.
    losses: Vec<u32>,
    submissions: Vec<Submission>,
    refusals: Refusals,
    /// When Slurm was asked last.
    asked: Instant,
}

impl Round<'_> {
    /// Submits what waits, hands over what has come, and looks for what is lost.
    fn go_on(&mut self, replied: &mut dyn FnMut(usize, Reply) -> Result<()>) -> Result<()> {
        self.submit()?;
        self.hand_over(replied)?;
        if self.is_done() || self.asked.elapsed() < ASK_EVERY {
            return Ok(());
        }
        self.asked = Instant::now();
        for submission in &mut self.submissions {
            let lost = self.slurm.lost(submission);
            lost.iter().for_each(|&request| self.losses[request] += 1);
            if lost.iter().any(|&request| self.losses[request] >= TRIES) {
                let words = submission.last_words();
                bail!("a job ended {TRIES} times without a reply, the last time after: {words}");
            }
            self.waiting.extend(lost);
        }
        Ok(())
    }

    /// Hands over replies that have come.
    fn hand_over(&mut self, replied: &mut dyn FnMut(usize, Reply) -> Result<()>) -> Result<()> {
        for submission in &mut self.submissions {
            submission.replies()?.into_iter().try_for_each(|(at, reply)| replied(at, reply))?;
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        while !self.waiting.is_empty() && self.refusals.are_over(Instant::now()) {
            let of = &self.waiting[..self.waiting.len().min(MOST_TASKS)];
            match self.slurm.submit(self.requests, of)? {
                Ok(submission) => {
                    self.waiting.drain(..submission.tasks.len());
                    self.submissions.push(submission);
                    self.refusals = Refusals::default();
                }
                Err(why) if !self.slurm.has_taken.get() => bail!("sbatch refused: {why}"),
                Err(why) => self.refusals.add(&why, Instant::now())?,
            }
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.submissions.iter().all(Submission::is_done)
    }

    /// Cancels what is under way.
    fn end(self) {
        for submission in self.submissions {
            if submission.is_done() {
                forget(&submission.directory);
            } else {
                self.slurm.cancel(&submission.job, &submission.directory);
            }
        }
    }
}

/// Refusals in a row.
#[derive(Debug, Default)]
struct Refusals {
    many: u32,
    /// When it is tried again.
    again: Option<Instant>,
}

impl Refusals {
    /// One more.
    ///
    /// # Errors
    /// It was the last one.
    fn add(&mut self, why: &str, now: Instant) -> Result<()> {
        self.many += 1;
        match self.many {
            SUBMIT_TRIES => bail!("sbatch refused {SUBMIT_TRIES} times in a row, the last time: {why}"),
            1 => say_line(format_args!(
                "tandem: sbatch refused: {why}; it is tried again, {} times at most",
                SUBMIT_TRIES - 1
            )),
            _ => {}
        }
        self.again = Some(now + FIRST_WAIT * 2_u32.pow(self.many - 1));
        Ok(())
    }

    fn are_over(&self, now: Instant) -> bool {
        self.again.is_none_or(|again| now >= again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_directory(directory: &Path) -> Result<Slurm> {
        Slurm::new(directory.to_owned(), "/bin/tandem".into(), Vec::new())
    }

    #[test]
    fn a_second_session_does_not_take_the_jobs_of_one_that_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let first = in_directory(directory.path()).unwrap();
        let jobs = directory.path().join("jobs-1");
        fs::create_dir(&jobs).unwrap();
        let said = format!("{:#}", in_directory(directory.path()).unwrap_err());
        assert!(
            said.contains("another `tandem tune` has its jobs there: name another directory with --jobs"),
            "{said}"
        );
        drop(first);
        assert!(in_directory(directory.path()).is_ok());
    }
    #[test]
    fn refusals_are_waited_for_ever_longer_and_not_for_ever() {
        let (mut refusals, mut now, mut waited) = (Refusals::default(), Instant::now(), Duration::ZERO);
        let begin = now;
        for many in 0..SUBMIT_TRIES - 1 {
            refusals.add("away", now).unwrap();
            let wait = FIRST_WAIT * 2_u32.pow(many);
            assert!(!refusals.are_over(now + wait / 2) && refusals.are_over(now + wait));
            (now, waited) = (now + wait, waited + wait);
        }
        assert!(waited < Duration::from_secs(240) && now == begin + waited, "{waited:?}");
        let said = refusals.add("away", now).unwrap_err().to_string();
        assert_eq!(said, "sbatch refused 8 times in a row, the last time: away");
    }
}
