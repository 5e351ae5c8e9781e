// SPDX-License-Identifier: GPL-2.0-only
//! `tandem tune`: the best numbers and places of threads and pages for a program, found by running it.

mod assigner;
mod checkpoints;
mod code;
pub mod elsewhere;
mod files;
pub mod movers;
mod page_use;
pub mod trial;
mod work;
mod written;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use tandem_ab::say::say_line;
use tandem_ab::stop::Stop;
use tandem_ab::store::write_whole;
use tandem_tune::placer::ThreadsBy;
use tandem_tune::remote::{Description, Executor};
use tandem_tune::report;
use tandem_tune::session::Outcome;
use tandem_tune::shell;
use tandem_tune::space::{ALL, PagePlacement};
use tandem_tune::tuned::Tuned;

use crate::report_files::ReportFiles;
use crate::signals;
use files::Files;
use work::Work;

/// Exit code when the user stopped it.
const INTERRUPTED: u8 = 130;

/// What to tune, and within which limits.
#[derive(Args)]
#[command(after_help = "\
Tries numbers of threads (OMP_NUM_THREADS, and {threads} in CMD), nodes for threads, nodes for pages, and rules for both,
each applied from the program's first instruction on. What is found goes to NAME.tandem.toml; `tandem run --tuned -- CMD`
applies it. Every run is kept in NAME.tandem.sqlite: interrupted, the same command goes on. docs/autotune.md explains it.

Exit codes: 0 tuned, 2 bad input or a program that cannot be tuned, 130 interrupted (what was found until then is written
where no session that came further has written).")]
pub struct Arguments {
    /// Time for all runs, for example 90s, 30m or 2h. If whole runs do not fit, each is ended after as many entries of the
    /// program's parallel regions as do
    #[arg(long, value_name = "TIME", value_parser = duration)]
    budget: Option<Duration>,
    /// Run the program to its end each time, whatever the budget
    #[arg(long)]
    whole: bool,
    /// Runs of the best configurations
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeats: u16,
    /// Run every configuration so often, none stopped or dropped: to see what the search leaves out
    #[arg(long)]
    exhaustive: bool,
    /// Page placements to try, comma-separated: first-touch, interleave, dataset, locality, balance, mix; the
    /// last three need root [default: all that are possible]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = page_placement)]
    pages: Vec<PagePlacement>,
    /// How pages are placed by locality, balance and mix
    #[arg(long, value_name = "WAY", value_enum, default_value_t = PageMaps::Auto)]
    page_maps: PageMaps,
    /// A function that counts as a parallel region, for programs without OpenMP: the main thread's calls of it are measured,
    /// and threads get places for it (repeatable)
    #[arg(long = "region", value_name = "FUNCTION")]
    regions: Vec<String>,
    /// What threads are kept on their nodes by
    #[arg(long, value_name = "WAY", value_enum, default_value_t = KeptBy::Affinity)]
    threads_by: KeptBy,
    /// How single regions are measured
    #[arg(long, value_name = "WAY", value_enum, default_value_t = Codelets::Auto)]
    codelets: Codelets,
    /// Where and by what trials are run
    #[command(flatten)]
    elsewhere: elsewhere::Arguments,
    /// What the program reads; nothing by default
    #[arg(long, value_name = "FILE")]
    stdin: Option<PathBuf>,
    /// Where the result goes [default: NAME.tandem.toml]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Where runs are kept [default: NAME.tandem.sqlite]
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// Its page and plots.
    #[command(flatten)]
    files: ReportFiles,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// How pages are placed by who uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PageMaps {
    /// Bound as they are allocated, by a map from one run that is sampled; moved while the program runs if there can be none
    Auto,
    /// Moved while the program runs
    Off,
}

/// What threads are kept on their nodes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KeptBy {
    /// Their affinity, under whatever scheduler there is
    Affinity,
    /// Assignments of a scx_tandem that is there for each run; needs root
    Assignments,
}

impl From<KeptBy> for ThreadsBy {
    fn from(by: KeptBy) -> Self {
        match by {
            KeptBy::Affinity => Self::Affinity,
            KeptBy::Assignments => Self::Assignments,
        }
    }
}

/// How single regions are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Codelets {
    /// In place if the region is entered often enough, by whole runs otherwise
    Auto,
    /// The same
    InPlace,
    /// From a checkpoint of one entry, by CRIU, or as before where that cannot be; needs root
    Criu,
    /// Not at all: one configuration for the whole program
    Off,
}

fn page_placement(text: &str) -> Result<PagePlacement, String> {
    let known = || ALL.map(PagePlacement::name).join(", ");
    PagePlacement::named(text).ok_or_else(|| format!("there is no such page placement; there are {}", known()))
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text} is no time, for example 90s, 30m or 2h");
    let (number, unit_s) = match text.chars().last() {
        Some('s') => (&text[..text.len() - 1], 1.0),
        Some('m') => (&text[..text.len() - 1], 60.0),
        Some('h') => (&text[..text.len() - 1], 3600.0),
        _ => (text, 1.0),
    };
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * unit_s;
    if seconds > 0.0 && seconds <= 1e8 { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
}

/// Tunes the program.
///
/// # Errors
/// The program cannot be tuned, or a file cannot be read or written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let started = Instant::now();
    let files = arguments.check()?;
    let stop = signals::stop()?;
    let executor = arguments.elsewhere.executor()?;
    let deadline = arguments.budget.map(|budget| started + budget);
    let machine = machine_of(executor.as_deref(), &stop, deadline)?;
    let Some(machine) = machine else { return Ok(ExitCode::from(INTERRUPTED)) };
    let work = Work::begin(arguments, &files, machine, executor.as_deref(), &stop, deadline)?;
    let outcome = work.search(started);
    work.leave_out()?;
    let outcome = outcome?;
    if outcome.is_none() && !stop.wished() {
        bail!("--budget was over before a machine had run the program once as it is: give it more time");
    }
    let result = outcome.map(|outcome| {
        let tuned = Tuned::new(work.subject.borrow().clone(), &outcome).under(work.machine.kernel.clone());
        (tuned, outcome)
    });
    let reached = result.as_ref().map(|(tuned, _)| tuned.reached());
    let stays = stop.wished() && files.have_more_than(reached)?;
    if let Some((tuned, outcome)) = result.filter(|_| !stays) {
        keep(arguments, &tuned, &outcome, &files.output)?;
    }
    work.check_program()?;
    if stop.wished() {
        let (output, store) = (files.output.display(), files.store.display());
        let stays = if stays { format!("; {output} stays what a whole search found") } else { String::new() };
        say(&format!("interrupted: every finished run is kept in {store}, the same command goes on{stays}"));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(ExitCode::SUCCESS)
}

fn say(sentence: &str) {
    say_line(format_args!("tune: {sentence}"));
}

/// The machine to tune for: where trials are run elsewhere, that of the first worker, and `None` if the user stopped asking it.
fn machine_of(executor: Option<&dyn Executor>, stop: &Stop, deadline: Option<Instant>) -> Result<Option<Description>> {
    match executor {
        Some(executor) => elsewhere::describe(executor, stop, deadline),
        None => trial::describe().map(Some),
    }
}

impl Arguments {
    /// The files that a session writes, if they can be, and nothing else forbids it.
    fn check(&self) -> Result<Files<'_>> {
        if self.threads_by == KeptBy::Assignments && matches!(self.codelets, Codelets::Criu | Codelets::InPlace) {
            bail!(
                "--threads-by assignments: single regions are measured with threads bound by their affinity: leave --codelets away"
            );
        }
        if self.codelets == Codelets::Criu
            && let Some(obstacle) = self.elsewhere.obstacle_to_checkpoints().or_else(checkpoints::obstacle)
        {
            bail!("--codelets criu: {obstacle}; regions can be measured in place (--codelets in-place)");
        }
        self.files.check()?;
        let (output, store) = self.output_and_store(&self.command[0]);
        let files = Files { output, store, page: self.files.page() };
        files.check(&self.command, self.stdin.as_deref())?;
        Ok(files)
    }

    /// Where the result and the runs of `program` go.
    fn output_and_store(&self, program: &str) -> (PathBuf, PathBuf) {
        let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
        let file = |given: &Option<PathBuf>, kind: &str| {
            given.clone().unwrap_or_else(|| format!("{name}.tandem.{kind}").into())
        };
        (file(&self.output, "toml"), file(&self.store, "sqlite"))
    }
}

/// Writes the result and its reports, and shows it.
fn keep(arguments: &Arguments, tuned: &Tuned, outcome: &Outcome, output: &Path) -> Result<()> {
    write_whole(output, tuned.text()?.as_bytes())?;
    arguments.files.write(|| report::page(tuned, outcome))?;
    show(arguments, tuned, output)
}

fn show(arguments: &Arguments, tuned: &Tuned, output: &Path) -> Result<()> {
    let text = if arguments.json {
        serde_json::to_string_pretty(tuned)? + "\n"
    } else {
        let notes: String = tuned.notes.iter().map(|note| format!("note: {note}\n")).collect();
        let file = shell::quoted(&output.display().to_string());
        let command = shell::in_words(arguments.command.iter().map(String::as_str));
        let so = if tuned.gains() { "apply it" } else { "no gain is sure; to apply it all the same" };
        let apply = format!("{so}: tandem run --tuned {file} -- {command}\n");
        let apply = if tuned.is_applied() { apply } else { String::new() };
        let regions = tuned.regions_in_words();
        let between = if regions.is_empty() { "" } else { "\n" };
        let table = report::table(&tuned.measured);
        let predictions =
            if tuned.predictions.is_empty() { String::new() } else { report::predictions(&tuned.predictions) + "\n" };
        format!("{table}\n{regions}{between}{predictions}{}\n{notes}{apply}", tuned.in_words())
    };
    std::io::stdout().write_all(text.as_bytes()).context("standard output cannot be written")
}
