// SPDX-License-Identifier: GPL-2.0-only
//! Slurm as executor: requests become tasks of job arrays.
//!
//! A submission is a directory below one that all machines see, with a request file for each task; a worker writes its
//! reply beside its request, under another name until it is whole. Tasks whose reply is missing though Slurm does not know
//! them any more are lost, and submitted again: not at once, as file systems of a network may hide what is there for a while.
//!
//! Its job has the name of its directory, which no other one has. So whatever kills a session, and even if that is while it submits, the
//! next one finds what is under way and what is done, and takes it over (`left.rs`).
//!
//! What Slurm refuses at first it will refuse for ever; once it has taken something, it may be its controller that is away. So
//! later submissions are tried again, eight times in a row, ever more seldom, and as often as it takes while others are under way. It may
//! be the number of tasks, too, so each array is half as large as the one that was refused.

mod left;
mod refusals;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tandem_ab::say::say_line;
use tandem_ab::stop::Stop;

use left::Left;
use refusals::Refusals;

use super::{Executor, Reply, Request, TRIES, last_line};
use crate::lock::Lock;
use crate::shell;

/// Tasks of one array at most: what Slurm allows by default.
const MOST_TASKS: usize = 1000;
/// How often replies are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often Slurm is asked what it still knows of.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// So long Slurm must not know of a task whose reply is not in the directory until it is lost: NFS shows for up to a minute what a
/// directory was.
const LOST_AFTER: Duration = Duration::from_secs(90);
/// In the environment, seconds instead of that, for file systems that show everything at once.
const LOST_AFTER_VARIABLE: &str = "TANDEM_SLURM_LOST_AFTER";
/// What the names of submissions begin with, and how many characters that chance chooses follow.
const PREFIX: &str = "tandem-tune-";
const CHANCE_CHARACTERS: usize = 16;

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
    /// How long a task is waited for that Slurm does not know.
    lost_after: Duration,
    /// Whether Slurm has taken anything yet.
    has_taken: Cell<bool>,
    /// What earlier sessions submitted, as far as nobody asked for it yet.
    left: RefCell<Vec<Left>>,
    /// Whether any trial was asked for.
    has_asked: Cell<bool>,
}

/// A program of Slurm's, which the terminal's Ctrl-C does not reach.
fn command(name: &str) -> Command {
    let mut command = Command::new(name);
    command.process_group(0);
    command
}

/// The name of the job of a submission; `None` if `directory` is none.
fn name_of(directory: &Path) -> Option<&str> {
    directory.file_name()?.to_str().filter(|name| name.starts_with(PREFIX))
}

/// Removes the directory of a submission of which no job runs. A task that was just cancelled may write to it still.
fn forget(directory: &Path) {
    if let Err(error) = fs::remove_dir_all(directory) {
        say_line(format_args!("tandem: {}: not removed, it may be deleted: {error}", directory.display()));
    }
}

struct Submission {
    directory: PathBuf,
    /// Index of the request by task; `None` once there is a reply.
    tasks: Vec<Option<usize>>,
    /// By task, since when Slurm does not know of it.
    unknown_since: Vec<Option<Instant>>,
}

impl Slurm {
    /// Prepares `directory`. What an earlier session left running there is taken over as it is asked for again; what is not is
    /// cancelled in the end.
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
        let mut left = Vec::new();
        for there in fs::read_dir(&directory_of_all).with_context(in_words)? {
            left.extend(Left::of(there.with_context(in_words)?.path()));
        }
        let (has_taken, has_asked, left) = (Cell::new(false), Cell::new(false), RefCell::new(left));
        let (directory, lost_after) = (directory_of_all, lost_after()?);
        Ok(Self { _lock: lock, directory, worker, options, lost_after, has_taken, left, has_asked })
    }

    /// A submission of these requests, or why Slurm refuses it.
    fn submit(&self, requests: &[Request], of: &[usize]) -> Result<Result<Submission, String>> {
        let builder = tempfile::Builder::new().prefix(PREFIX).rand_bytes(CHANCE_CHARACTERS).tempdir_in(&self.directory);
        let directory = builder?.keep();
        for (task, &request) in of.iter().enumerate() {
            fs::write(directory.join(format!("{task}.request")), serde_json::to_vec(&requests[request])?)?;
        }
        let quoted = |path: &Path| shell::quoted(&path.display().to_string());
        let script = format!("exec {} trial {}/$SLURM_ARRAY_TASK_ID.request", quoted(&self.worker), quoted(&directory));
        let mut command = command("sbatch");
        command.args(["--nodes=1", "--ntasks=1", "--exclusive", "--requeue"]);
        command.arg(format!("--array=0-{}", of.len() - 1)).arg("--output").arg(directory.join("%a.log"));
        command.args(&self.options).args(["--job-name", name_of(&directory).unwrap_or_default(), "--wrap", &script]);
        let output = command.output().context("sbatch does not start: is Slurm installed here?")?;
        if !output.status.success() {
            fs::remove_dir_all(&directory)?;
            return Ok(Err(last_line(&String::from_utf8_lossy(&output.stderr))));
        }
        self.has_taken.set(true);
        Ok(Ok(Submission::new(directory, of.iter().copied().map(Some).collect())))
    }

    /// Cancels the job of a submission and forgets that, unless it fails: the next session tries again.
    fn cancel(&self, directory: &Path) {
        let name = name_of(directory).unwrap_or_default();
        match cancelled(&["--name", name]) {
            Ok(()) => forget(directory),
            Err(why) => say_line(format_args!(
                "tandem: job {name} may still run, as scancel failed ({why}): the same command takes it over or cancels it later"
            )),
        }
    }

    /// Cancels single tasks. Those that go on all the same do so for nobody.
    fn cancel_tasks(&self, tasks: &[&str]) {
        if tasks.is_empty() {
            return;
        }
        if let Err(why) = cancelled(tasks) {
            say_line(format_args!("tandem: jobs {} run on, as scancel failed: {why}", tasks.join(", ")));
        }
    }

    /// Tasks of a submission that Slurm has not ended, with what it calls each; `None` if it cannot be asked now.
    fn known_tasks(&self, directory: &Path) -> Option<BTreeMap<usize, String>> {
        let arguments = ["--noheader", "--array", "--format=%K %i", "--name", name_of(directory)?];
        let Output { status, stdout, .. } = command("squeue").args(arguments).output().ok()?;
        let task = |line: &str| {
            let (task, id) = line.trim().split_once(' ')?;
            Some((task.parse().ok()?, id.trim().to_owned()))
        };
        status.success().then(|| String::from_utf8_lossy(&stdout).lines().filter_map(task).collect())
    }

    /// What earlier sessions have under way or done of `requests`, of which `waiting` are those that nobody carries out then.
    fn take_over(&self, requests: &[Request], waiting: &mut Vec<usize>) -> Result<Vec<Submission>> {
        let (mut taken, before) = (Vec::new(), waiting.len());
        let mut left = self.left.borrow_mut();
        if requests.iter().any(|request| *request != Request::Describe) {
            self.has_asked.set(true);
            let others = left.extract_if(.., |left| !left.is_of(requests));
            others.for_each(|other| other.end(self));
        }
        for at in (0..left.len()).rev() {
            if let Some(submission) = left[at].taken_over(self, requests, waiting)? {
                left.swap_remove(at);
                taken.push(submission);
            }
        }
        if before > waiting.len() {
            let many = before - waiting.len();
            say_line(format_args!("tandem: {many} of {before} trials were submitted already: they are taken over"));
        }
        Ok(taken)
    }

    /// Indices of requests of which no reply will come.
    fn lost(&self, submission: &mut Submission) -> Vec<usize> {
        let Some(known) = self.known_tasks(&submission.directory) else { return Vec::new() };
        submission.lost(&known, Instant::now(), self.lost_after)
    }
}

/// How long a task is waited for that Slurm does not know.
fn lost_after() -> Result<Duration> {
    let Some(given) = std::env::var_os(LOST_AFTER_VARIABLE) else { return Ok(LOST_AFTER) };
    let seconds = given.to_str().and_then(|text| text.parse().ok());
    seconds.map(Duration::from_secs).with_context(|| format!("{LOST_AFTER_VARIABLE}: is no number of seconds"))
}

/// Has Slurm cancel what these arguments name, or tells why not.
fn cancelled(what: &[&str]) -> Result<(), String> {
    match command("scancel").arg("--quiet").args(what).output() {
        Ok(Output { status, .. }) if status.success() => Ok(()),
        Ok(Output { stderr, .. }) => Err(last_line(&String::from_utf8_lossy(&stderr))),
        Err(error) => Err(format!("it does not start: {error}")),
    }
}

impl Drop for Slurm {
    /// Nobody will ask for what is left, unless this session ended before it asked for anything.
    fn drop(&mut self) {
        let left = if self.has_asked.get() { self.left.take() } else { Vec::new() };
        for left in left {
            left.end(self);
        }
    }
}

impl Submission {
    fn new(directory: PathBuf, tasks: Vec<Option<usize>>) -> Self {
        Self { directory, unknown_since: vec![None; tasks.len()], tasks }
    }

    /// Indices of requests whose tasks are not among the `known` ones for so long, and have no reply.
    fn lost(&mut self, known: &BTreeMap<usize, String>, now: Instant, after: Duration) -> Vec<usize> {
        // A list of the directory is newer than what is known of single names.
        let names = fs::read_dir(&self.directory)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<_>>());
        // It may be so for a moment, and says nothing of any reply.
        let Ok(there): io::Result<BTreeSet<OsString>> = names else { return Vec::new() };
        let mut lost = Vec::new();
        for (task, since) in self.unknown_since.iter_mut().enumerate() {
            let has_replied = there.contains(OsStr::new(&format!("{task}.reply")));
            let is_unknown = self.tasks[task].is_some() && !known.contains_key(&task) && !has_replied;
            *since = is_unknown.then(|| since.unwrap_or(now));
            if since.is_some_and(|since| now.duration_since(since) >= after) {
                lost.extend(self.tasks[task].take());
            }
        }
        lost
    }

    /// The reply to a task, if it is there.
    fn reply(&self, task: usize) -> Result<Option<Reply>> {
        let path = self.directory.join(format!("{task}.reply"));
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{}: is no reply", path.display())).map(Some)
    }

    /// Takes the reply to a task, if it has come since the last time, with the index of its request.
    fn take_reply(&mut self, task: usize) -> Result<Option<(usize, Reply)>> {
        let Some(index) = self.tasks[task] else { return Ok(None) };
        let reply = self.reply(task);
        if !matches!(reply, Ok(None)) {
            // One that cannot be read will not be better the next time.
            self.tasks[task] = None;
        }
        let Some(reply) = reply? else { return Ok(None) };
        // A session that is killed before it has kept it runs it again, rather than that two count it.
        let request = self.directory.join(format!("{task}.request"));
        fs::remove_file(&request).with_context(|| format!("{}: cannot be removed", request.display()))?;
        Ok(Some((index, reply)))
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
        deadline: Option<Instant>,
        replied: &mut dyn FnMut(usize, Reply) -> Result<()>,
    ) -> Result<()> {
        let mut waiting = (0..requests.len()).collect();
        let submissions = self.take_over(requests, &mut waiting)?;
        let mut round = Round {
            slurm: self,
            requests,
            waiting,
            losses: vec![0; requests.len()],
            submissions,
            refusals: Refusals::default(),
            most_tasks: MOST_TASKS,
            unreadable: None,
            asked: Instant::now(),
        };
        let goes_on = || !stop.wished() && deadline.is_none_or(|deadline| Instant::now() < deadline);
        let result = loop {
            match round.go_on(replied) {
                Ok(()) if !round.is_done() && goes_on() => std::thread::sleep(LOOK_EVERY),
                result => break result,
            }
        };
        // What came since the last look is a finished trial, too.
        let last = round.hand_over(replied);
        let unreadable = round.unreadable.take();
        round.end();
        result.and(last).and(unreadable.map_or(Ok(()), Err))
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
    /// Tasks of an array, at most: half of what was refused.
    most_tasks: usize,
    /// Why a reply could not be read; the others are handed over before that ends the session.
    unreadable: Option<anyhow::Error>,
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
        for submission in self.submissions.iter_mut().filter(|submission| !submission.is_done()) {
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
            for task in 0..submission.tasks.len() {
                match submission.take_reply(task) {
                    Ok(None) => {}
                    Ok(Some((at, reply))) => replied(at, reply)?,
                    Err(error) => _ = self.unreadable.get_or_insert(error),
                }
            }
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<()> {
        while !self.waiting.is_empty() && self.refusals.are_over(Instant::now()) {
            let of = &self.waiting[..self.waiting.len().min(self.most_tasks)];
            match self.slurm.submit(self.requests, of)? {
                Ok(submission) => {
                    self.waiting.drain(..submission.tasks.len());
                    self.submissions.push(submission);
                    self.refusals = Refusals::default();
                }
                Err(why) if !self.slurm.has_taken.get() => bail!("sbatch refused: {why}"),
                Err(why) => {
                    self.most_tasks = of.len().div_ceil(2);
                    // Those that are under way may be as many as Slurm takes.
                    let ends = self.submissions.iter().all(Submission::is_done);
                    self.refusals.add(&why, Instant::now(), ends)?;
                }
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
                self.slurm.cancel(&submission.directory);
            }
        }
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
        let said = format!("{:#}", in_directory(directory.path()).unwrap_err());
        assert!(
            said.contains("another `tandem tune` has its jobs there: name another directory with --jobs"),
            "{said}"
        );
        drop(first);
        assert!(in_directory(directory.path()).is_ok());
    }

    #[test]
    fn a_task_is_lost_when_slurm_has_not_known_it_for_long_and_its_reply_is_not_in_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let mut submission = Submission::new(directory.path().to_owned(), vec![Some(7), Some(8), Some(9)]);
        let (begin, known) = (Instant::now(), BTreeMap::from([(1, "5_1".to_owned())]));
        let mut lost_at = |seconds| submission.lost(&known, begin + Duration::from_secs(seconds), LOST_AFTER);
        assert_eq!((lost_at(0), lost_at(6), lost_at(89)), (vec![], vec![], vec![]));
        fs::write(directory.path().join("2.reply"), "").unwrap();
        assert_eq!((lost_at(90), lost_at(1000)), (vec![7], vec![]), "one is known, one has replied, one is lost");
    }
}
