// SPDX-License-Identifier: GPL-2.0-only
//! `tandem ab`: fair A/B experiments, the comparison of two saved ones, and one saved one shown anew.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use tandem_ab::arm::{Arm, Program};
use tandem_ab::compare;
use tandem_ab::experiment::{Experiment, SCHEMA};
use tandem_ab::lab::Lab;
use tandem_ab::plan::Plan;
use tandem_ab::programs::Places;
use tandem_ab::room::SideBySide;
use tandem_ab::runner::Runner;
use tandem_ab::say::say_line;
use tandem_ab::store::{Store, check_writable, write_whole};
use tandem_ab::{arm, in_lab, native, report, table, workload};
use tandem_machine::MachineFile;
use tandem_policies::foreign::printable_lines;

use crate::report_files::ReportFiles;
use crate::signals;

/// Names the lab's build folder if it is not the one beside it.
const BUILD: &str = "TANDEM_BUILD";
/// What says something of runs only.
const OF_RUNS: [&str; 13] = [
    "machine",
    "workload",
    "arms",
    "boots",
    "kernel",
    "seed",
    "native",
    "again",
    "side_by_side",
    "timeout",
    "resume",
    "store",
    "lab",
];

/// Exit codes besides 0 and that of bad input.
const NOT_VALID: u8 = 1;
const INTERRUPTED: u8 = 130;

/// What to compare, where, and what to do with the result.
#[derive(Args)]
#[command(after_help = "\
Arms: stock (= stock-nb0, stock-nb1, stock-nb0-thp, stock-nb1-thp), direct, interleave, oracle, worst,
scx_tandem[:OPTIONS], scx_rusty[:OPTIONS], scx_bpfland[:OPTIONS], /PATH/TO/SCHED_EXT_SCHEDULER[:OPTIONS], and
scx_NAME[:OPTIONS] if it is on PATH.
Options are separated by spaces, a comma in them is written \\,: --arms 'stock,scx_tandem:--manage uid=0\\,pid=1'.
Workloads: `tandem-load list`; sizes likewise: --workload 'crossed:--threads 4'. docs/ab.md explains method, output
and files.

Exit codes: 0 all valid, 1 an arm failed or the experiment is void, 2 bad input, 130 interrupted (what is
done is kept; the same command goes on).")]
pub struct Arguments {
    /// Machine: the name of one that is shipped (vm/machines), or a machine file
    #[arg(long, value_name = "NAME|FILE", required_unless_present_any = ["compare", "show", "native"], conflicts_with = "native")]
    machine: Option<PathBuf>,
    /// Workloads, comma-separated (repeatable); each is an experiment of its own
    #[arg(long, value_name = "NAME[:OPTIONS],...", required_unless_present_any = ["compare", "show"])]
    workload: Vec<String>,
    /// Arms, comma-separated (repeatable)
    #[arg(long, value_name = "ARM,...", required_unless_present_any = ["compare", "show"])]
    arms: Vec<String>,
    /// Boots of each arm (with --native: runs)
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    boots: u64,
    /// Kernel of vm/kernels.list; by default its first
    #[arg(long, value_name = "RELEASE", conflicts_with = "native")]
    kernel: Option<String>,
    /// Seed of the first boot; each further boot has the next
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the result as JSON, to standard output if FILE is `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Its page and plots.
    #[command(flatten)]
    files: ReportFiles,
    /// Save the result for --compare; the same document as --json
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Compare two saved results instead of measuring
    #[arg(long, value_names = ["A", "B"], num_args = 2, conflicts_with_all = ["save", "html", "plots"], conflicts_with_all = OF_RUNS)]
    compare: Option<Vec<PathBuf>>,
    /// Show a saved result instead of measuring, its verdicts and notes as this version has them
    #[arg(long, value_name = "FILE", conflicts_with = "compare", conflicts_with_all = OF_RUNS)]
    show: Option<PathBuf>,
    /// Measure on this machine instead of in the lab; needs root
    #[arg(long)]
    native: bool,
    /// Measure runs that the store has, too
    #[arg(long)]
    again: bool,
    /// Runs side by side in the lab; by default one per CPU, as far as memory suffices
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), conflicts_with = "native")]
    side_by_side: Option<u16>,
    /// Limit of one run, in time of this machine
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "native")]
    timeout: u64,
    /// Take up finished runs from a saved result: those of the same programs, machine and kernel are not measured again
    #[arg(long, value_name = "FILE", conflicts_with = "again")]
    resume: Option<PathBuf>,
    /// Where finished runs are kept; by default ab/ in the build folder
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// The lab; by default vm/lab.py beside the build folder
    #[arg(long, value_name = "FILE")]
    lab: Option<PathBuf>,
}

/// Runs the experiments or the comparison, or shows a result.
///
/// # Errors
/// Bad input, or a file that cannot be read or written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(files) = &arguments.compare {
        return compare_saved(&files[0], &files[1], arguments.json.as_deref());
    }
    arguments.files.check()?;
    for file in [&arguments.json, &arguments.save].into_iter().flatten().filter(|file| *file != Path::new("-")) {
        check_writable(file)?;
    }
    if let Some(file) = &arguments.show {
        let mut experiments = saved(file)?;
        experiments.iter_mut().for_each(Experiment::renew);
        show(arguments, &experiments)?;
        return Ok(ExitCode::SUCCESS);
    }
    measure(arguments)
}

/// Runs the experiments.
fn measure(arguments: &Arguments) -> Result<ExitCode> {
    let arms = arm::parse_lists(&arguments.arms)?;
    arms.iter().try_for_each(check_options)?;
    let mut workloads = workload::parse_lists(&arguments.workload);
    let build = build_folder()?;
    let lab_program = arguments.lab.clone().unwrap_or_else(|| build.join("../vm/lab.py"));
    let vm = lab_program.parent().unwrap_or(Path::new("/")).to_owned();
    let places = Places { binaries: build.join("bin"), vm, cache: build.join("cache") };
    workload::look_up(&mut workloads, &arms, &places.load()?)?;
    let booted = if arguments.native { None } else { Some(booted(arguments, &lab_program)?) };
    let store = Store::open(&arguments.store.clone().unwrap_or_else(|| build.join("ab")))?;
    if let Some(file) = &arguments.resume {
        store.take_up(saved(file)?.iter().flat_map(Experiment::runs))?;
    }
    let stop = signals::stop()?;
    let say = |line: &str| say_line(format_args!("ab: {line}"));
    let runner = Runner { store: &store, again: arguments.again, side_by_side: 1, stop: &stop, say: &say };
    let plan = Plan { workloads, arms, boots: arguments.boots, first_seed: arguments.seed };
    let limit = Duration::from_secs(arguments.timeout);
    let experiments = if let Some((lab, machine, kernel)) = booted {
        let runner = Runner { side_by_side: side_by_side(arguments.side_by_side, &machine, &say)?, ..runner };
        let request = in_lab::Request { machine, kernel, plan, limit };
        in_lab::run(&request, &lab, &places, &runner)?
    } else {
        native::run(&plan, &places, &runner)?
    };
    show(arguments, &experiments)?;
    if stop.wished() {
        say_line(format_args!("ab: interrupted: what is done is kept in the store, the same command goes on"));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let valid = experiments.iter().all(Experiment::is_valid);
    Ok(if valid { ExitCode::SUCCESS } else { ExitCode::from(NOT_VALID) })
}

/// The lab, and the machine file and the kernel that it is to boot.
fn booted(arguments: &Arguments, program: &Path) -> Result<(Lab, PathBuf, String)> {
    // The lab reads it; without its kernels every run would fail.
    if let Some(build) = std::env::var_os(BUILD).filter(|build| !Path::new(build).is_dir()) {
        bail!(
            "{BUILD} in the environment is {}, which is no folder: unset it, or name a build folder",
            build.display()
        );
    }
    let lab = Lab::at(program)?;
    let machine = in_lab::machine_file(arguments.machine.as_deref().unwrap_or(Path::new("")), &lab)?;
    let kernel = lab.kernel(arguments.kernel.as_deref())?;
    Ok((lab, machine, kernel))
}

/// Refuses options of an arm that scx_tandem would refuse, or with which it would schedule nothing.
fn check_options(arm: &Arm) -> Result<()> {
    let ours = arm.scheduler.as_ref().filter(|scheduler| scheduler.program == Program::Tandem);
    ours.map_or(Ok(()), |scheduler| tandem_config::check_flags(&scheduler.options))
        .with_context(|| format!("the arm {arm}"))
}

/// How many guests like `machine` run at a time: as `asked` for, else as this machine has room for.
fn side_by_side(asked: Option<u16>, machine: &Path, say: &dyn Fn(&str)) -> Result<usize> {
    if let Some(asked) = asked {
        return Ok(asked.into());
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let meminfo = std::fs::read_to_string("/proc/meminfo").context("/proc/meminfo cannot be read")?;
    let room = SideBySide::of(&MachineFile::load(machine)?, cpus, &meminfo)?;
    room.lowered.iter().for_each(|sentence| say(sentence));
    Ok(room.guests)
}

/// The folder that holds bin/ with this program.
///
/// # Errors
/// This program does not know where it is.
pub fn build_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let folder = program.parent().and_then(Path::parent);
    Ok(folder.context("this program is not in a folder bin/")?.to_owned())
}

/// Writes the files that were asked for and prints the tables, which somebody may have stopped reading.
fn show(arguments: &Arguments, experiments: &[Experiment]) -> Result<()> {
    let json = match experiments {
        // Several workloads are a list; one is the document itself.
        [one] => serde_json::to_string_pretty(one)?,
        several => serde_json::to_string_pretty(several)?,
    } + "\n";
    // A saved result may be anybody's.
    let table = |experiment| printable_lines(&table::experiment(experiment));
    let tables: Vec<String> = experiments.iter().map(table).collect();
    for file in [&arguments.json, &arguments.save].into_iter().flatten() {
        if file != Path::new("-") {
            write_whole(file, json.as_bytes())?;
        }
    }
    arguments.files.write(|| report::page(experiments))?;
    let to_stdout = arguments.json.as_deref() == Some(Path::new("-"));
    print(if to_stdout { json } else { tables.join("\n\n") })
}

fn compare_saved(first: &Path, second: &Path, json: Option<&Path>) -> Result<ExitCode> {
    let (before, after) = (saved(first)?, saved(second)?);
    let (compared, notes) = compare::all(&before, &after);
    if compared.is_empty() {
        let why = printable_lines(&notes.join("; "));
        bail!("{} and {} have nothing that can be compared: {why}", first.display(), second.display());
    }
    let document = pretty(&compared)?;
    match json {
        Some(file) if file == Path::new("-") => print(document)?,
        Some(file) => write_whole(file, document.as_bytes())?,
        None => print(printable_lines(&compared.iter().map(table::comparison).collect::<Vec<_>>().join("\n")))?,
    }
    // They belong to no comparison, and the document is a list of these.
    notes.iter().for_each(|note| say_line(format_args!("ab: {}", printable_lines(note))));
    Ok(ExitCode::SUCCESS)
}

/// The experiments of a saved result: one, or a list of them.
fn saved(path: &Path) -> Result<Vec<Experiment>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let none = || format!("{} is no result of tandem ab", path.display());
    let documents = match serde_json::from_str(&text).with_context(none)? {
        Value::Array(several) => several,
        one => vec![one],
    };
    if documents.is_empty() {
        bail!("{} holds no result: its list is empty", path.display());
    }
    let read = |document: Value| match document.get("schema").and_then(Value::as_u64) {
        Some(schema) if schema != u64::from(SCHEMA) => bail!(
            "{} is of version {schema} of the document, and this tandem reads version {SCHEMA}: use the one that wrote it",
            path.display()
        ),
        _ => serde_json::from_value(document).with_context(none),
    };
    documents.into_iter().map(read).collect()
}

fn pretty(document: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(document)? + "\n")
}

fn print(text: String) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("standard output cannot be written")
}
