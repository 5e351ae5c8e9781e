// SPDX-License-Identifier: GPL-2.0-only
//! One run of a program that is tuned: on this machine, and `tandem trial`, which carries out a request for another one.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead as _, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use tandem_ab::say::say_line;
use tandem_ab::stop::Stop;
use tandem_ab::store::write_whole;
use tandem_machine::read_running;
use tandem_policies::foreign::printable;
use tandem_policies::model::Topology;
use tandem_tune::executable::Executable;
use tandem_tune::launch::{End, Limit, Program, Streams};
use tandem_tune::mapping::Profiled;
use tandem_tune::placer::ThreadsBy;
use tandem_tune::places::Places;
use tandem_tune::plan::Plan;
use tandem_tune::remote::{Description, Job, Reply, Request};
use tandem_tune::seat::CpuSet;
use tandem_tune::session::{Asked, Ran, Trial};
use tandem_tune::subject::Subject;
use tandem_tune::surroundings::host_name;

use super::movers::{self, Beside};
use super::{INTERRUPTED, code, page_use};
use crate::signals::{self, Suspension};

/// Who ends a whole job tells this process of it as well, at about the same time.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// Bytes at the end of what a program wrote among which its last words are looked for.
const LAST_BYTES: u64 = 1 << 16;

/// In a command, stands for the number of threads.
pub const THREADS: &str = "{threads}";

/// What is carried out.
#[derive(Args)]
pub struct Arguments {
    /// The request; the reply goes beside it, ending in `.reply` [default: a line of standard input, and standard output]
    #[arg(value_name = "FILE.request")]
    request: Option<PathBuf>,
}

/// Carries out a request. Without a file the end of standard input is the wish to stop. Whoever is stopped gives no reply.
///
/// # Errors
/// There is no request, or the reply cannot be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let stop = signals::stop()?;
    let request = match &arguments.request {
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?,
        None => asked(&stop)?,
    };
    let request = serde_json::from_str(&request).context("this is no request of `tandem tune`")?;
    let Some(reply) = reply(&request, &stop) else { return Ok(ExitCode::from(INTERRUPTED)) };
    let reply = serde_json::to_string(&reply)? + "\n";
    match &arguments.request {
        Some(path) => write_whole(&path.with_extension("reply"), reply.as_bytes())?,
        None => std::io::stdout().write_all(reply.as_bytes()).context("standard output cannot be written")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The first line of standard input; a thread waits for its end.
fn asked(stop: &Stop) -> Result<String> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("standard input cannot be read")?;
    let wish = stop.clone();
    std::thread::spawn(move || {
        // Whatever else comes means nothing; an error is an end too.
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        wish.wish();
    });
    Ok(line)
}

/// `None` if it was stopped.
fn reply(request: &Request, stop: &Stop) -> Option<Reply> {
    let reply = match request {
        Request::Describe => describe().map(|machine| Reply::Machine(Box::new(machine))),
        Request::Run(job) => carry_out(job, stop, &trial_of),
        Request::Profile(job) => carry_out(job, stop, &profile_of),
    };
    match reply {
        Ok(Reply::Trial(trial)) if is_cut_short(&trial.seen.end, stop) => None,
        Ok(Reply::Profiled(profiled)) if *profiled == Profiled::Stopped => None,
        Ok(reply) => Some(reply),
        Err(error) => Some(Reply::Refused(format!("{error:#}"))),
    }
}

/// Whether a run ended because the job that it was part of was ended: that says nothing of its configuration.
pub fn is_cut_short(end: &End, stop: &Stop) -> bool {
    let begun = Instant::now();
    while *end == End::Signal(libc::SIGTERM) && !stop.wished() && begun.elapsed() < TOLD_WITHIN {
        std::thread::sleep(Duration::from_millis(10));
    }
    *end == End::Stopped || stop.wished()
}

/// This machine, as far as this process may use it: more it cannot give to a program, nor would who limited it want that.
///
/// # Errors
/// It cannot be read.
pub fn describe() -> Result<Description> {
    Ok(Description { obstacle: movers::obstacle_here(), map_obstacle: page_use::obstacle_here(), ..usable()? })
}

/// The same without what stands in the way of placing pages.
pub fn usable() -> Result<Description> {
    let machine = read_running().context("the machine's topology cannot be read")?;
    let allowed = CpuSet::of_thread(0).context("which CPUs may be used cannot be read")?;
    Ok(Description::of(machine, &allowed))
}

/// Runs what a request is about in some way.
type Way<'a> = &'a dyn Fn(&What, &Asked, &Stop) -> Result<Reply, String>;

fn trial_of(what: &What, asked: &Asked, stop: &Stop) -> Result<Reply, String> {
    let ran = here(what, asked.plan.as_ref(), &asked.places, asked.limit, stop)?;
    Ok(Reply::Trial(Box::new(ran)))
}

fn profile_of(what: &What, asked: &Asked, stop: &Stop) -> Result<Reply, String> {
    let Asked { plan, places, limit } = asked;
    let plan = plan.as_ref().ok_or("there is no plan whose pages were to be looked at")?;
    let profiled = page_use::profile(what, plan, places, *limit, stop).map_err(|error| format!("{error:#}"))?;
    Ok(Reply::Profiled(Box::new(profiled)))
}

fn carry_out(job: &Job, stop: &Stop, way: Way) -> Result<Reply> {
    let in_words = || format!("{}: cannot be used as directory", job.directory.display());
    std::env::set_current_dir(&job.directory).with_context(in_words)?;
    let topology = usable()?.topology;
    let executable = Executable::of(&job.command)?.with(code::names(&job.subject));
    let here_it_is = Subject::of(&job.command, job.input.as_deref(), &topology)?.with_code_of(&job.subject)?;
    let differences = job.subject.differences(&here_it_is);
    if !differences.is_empty() {
        return Ok(Reply::Refused(differences.join(", ")));
    }
    let suspension = Suspension::noted()?;
    let what = What {
        command: &job.command,
        input: job.input.as_deref(),
        functions: &job.subject.functions,
        threads_by: job.subject.threads_by,
        suspension,
    };
    let reply = way(&what, &asked_by(job, &topology), stop);
    if let Some(changed) = executable.changed() {
        return Ok(Reply::Refused(format!("{} is not the file that it was when it began", changed.display())));
    }
    Ok(reply.unwrap_or_else(Reply::NotSetUp))
}

/// The run that a job is.
fn asked_by(job: &Job, topology: &Topology) -> Asked {
    let plan = job.plan.clone();
    let places = plan.as_ref().map_or_else(Places::default, |plan| Places::of(plan, topology));
    let places = Places { page_map: job.page_map.clone().map(Arc::new), main: job.main.clone(), ..places };
    Asked { plan, places, limit: Limit { time: job.limit_s.map(Duration::from_secs_f64), entries: job.last_entry } }
}

/// What is run.
pub struct What<'a> {
    /// The program and its arguments.
    pub command: &'a [String],
    /// What it reads.
    pub input: Option<&'a Path>,
    /// Functions that count as parallel regions.
    pub functions: &'a [String],
    /// What its threads are kept on their seats by.
    pub threads_by: ThreadsBy,
    /// Whether this process is suspended meanwhile.
    pub suspension: Suspension,
}

/// Runs the program on this machine, again if this process was suspended meanwhile: the program was as well, or stood still for
/// want of its tracer, and its time says nothing.
///
/// # Errors
/// It cannot be run, in words.
pub fn here(what: &What, plan: Option<&Plan>, places: &Places, limit: Limit, stop: &Stop) -> Ran {
    what.suspension.was_there();
    loop {
        let ran = run_here(what, plan, places, limit, stop);
        if !what.suspension.was_there() || stop.wished() {
            return ran.map_err(|error| format!("{error:#}"));
        }
        say_line(format_args!(
            "tandem: it was suspended while the program ran: that run does not count, it runs again"
        ));
    }
}

fn run_here(what: &What, plan: Option<&Plan>, places: &Places, limit: Limit, stop: &Stop) -> Result<Trial> {
    // It has no name, so that nothing is left of it whatever ends this process.
    let output = tempfile::tempfile().context("there is no place for what the program writes")?;
    let path = format!("/proc/self/fd/{}", output.as_raw_fd()).into();
    let streams = Streams::Files { input: what.input.map(Path::to_owned), output: path };
    let program = Program { command: words(what.command, plan), streams, functions: what.functions.to_vec() };
    let beside = Beside::of(plan.map(|plan| &plan.base), what.threads_by);
    let ran = movers::run(&program, &beside, places, limit, stop, |_| ())?;
    // That says nothing of the configuration, which was not carried out.
    if let (ThreadsBy::Assignments, Some(Err(why))) = (what.threads_by, &ran.moved_pages) {
        bail!("its threads were not assigned all the time: {why}");
    }
    let last_words = last_line(&output)?;
    Ok(Trial { seen: ran.seen, last_words, moved_pages: ran.moved_pages, host: host_name() })
}

/// The command with its number of threads, the most that any region has; as many as there are CPUs for the program as it is.
pub fn words(command: &[impl AsRef<OsStr>], plan: Option<&Plan>) -> Vec<OsString> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    told(command, plan.map_or(cpus, Plan::most_threads))
}

/// The command with this number of threads.
pub fn told(command: &[impl AsRef<OsStr>], threads: usize) -> Vec<OsString> {
    let threads = threads.to_string();
    command.iter().map(|word| with_number(word.as_ref(), &threads)).collect()
}

/// A word with `threads` instead of [`THREADS`]. It need not be text.
fn with_number(word: &OsStr, threads: &str) -> OsString {
    let (mut left, mut whole) = (word.as_bytes(), Vec::new());
    while let Some((&first, rest)) = left.split_first() {
        if let Some(behind) = left.strip_prefix(THREADS.as_bytes()) {
            whole.extend(threads.as_bytes());
            left = behind;
        } else {
            whole.push(first);
            left = rest;
        }
    }
    OsString::from_vec(whole)
}

/// The last line of what the program wrote, if it wrote anything. It may have written more than there is memory.
fn last_line(output: &File) -> Result<String> {
    let tail = tail(output).context("what the program wrote cannot be read")?;
    let text = String::from_utf8_lossy(&tail);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    Ok(printable(&line.chars().take(200).collect::<String>()))
}

fn tail(file: &File) -> std::io::Result<Vec<u8>> {
    let bytes = file.metadata()?.len();
    let first = bytes.saturating_sub(LAST_BYTES);
    let mut tail = vec![0; (bytes - first) as usize];
    file.read_exact_at(&mut tail, first)?;
    Ok(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_found_whatever_was_written_before_and_rules_no_terminal() {
        let output = tempfile::tempfile().unwrap();
        assert_eq!(last_line(&output).unwrap(), "");
        output.write_all_at(b"one\ntwo\n \n", 0).unwrap();
        assert_eq!(last_line(&output).unwrap(), "two");
        // More than there is memory.
        output.write_all_at(b"\nthree\n", 1 << 42).unwrap();
        assert_eq!(last_line(&output).unwrap(), "three");
        let output = tempfile::tempfile().unwrap();
        output.write_all_at("\u{1b}[2J\u{9b}1mä\n".as_bytes(), 0).unwrap();
        assert_eq!(last_line(&output).unwrap(), "?[2J?1mä");
    }
}
