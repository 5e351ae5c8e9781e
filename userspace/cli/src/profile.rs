// SPDX-License-Identifier: GPL-2.0-only
//! `tandem profile`: who shares with whom and who uses which pages, by samples of a program that runs or by running it in an
//! emulator.

mod homes;
mod sampled;
mod source;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use tandem_ab::say::say_line;
use tandem_ab::stop::{self, Stop};
use tandem_ab::store::{check_writable, write_whole};
use tandem_config::SamplerName;
use tandem_machine::read_running;
use tandem_policies::foreign::{printable, printable_lines};
use tandem_profile::emulator::{self, Emulator};
use tandem_profile::machine::Machine;
use tandem_profile::profile::Profile;
use tandem_profile::trace::Trace;
use tandem_profile::{report, table};
use tandem_sense::{SamplerChoice, SamplerKind};
use tandem_trace::Recorder;

use sampled::Watch;

use crate::machines;
use crate::observe::can_be_observed;
use crate::report_files::ReportFiles;
use crate::signals;

/// What to run, for which machine, and what to do with the result.
#[derive(Args)]
#[command(after_help = "\
Without --exact, accesses of the program are sampled while it runs on this machine at its own speed; with it, the program runs in
qemu-x86_64, about 50 times slower, with as many threads as it starts itself, and time is counted in instructions. Ctrl-C ends
the profile (and the program, if it was started here), and what was seen until then is shown. docs/profile.md explains method, metrics
and fields.

Exit codes: that of the program, 128 + signal if it was killed; 2 bad input, or no profile of a program that succeeded.")]
pub struct Arguments {
    /// See every access of the program: it runs in an emulator
    #[arg(long, conflicts_with = "pid")]
    exact: bool,
    /// Profile this process and its descendants, which run already
    #[arg(short, long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// Time after which the profile of a process ends [s]
    #[arg(long, value_name = "SECONDS", default_value_t = 10, requires = "pid", conflicts_with_all = ["exact", "command"], value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// What sees the accesses of a program that runs
    #[arg(long, value_name = "NAME", value_enum, default_value_t = SamplerName::Lookahead, conflicts_with = "exact")]
    sampler: SamplerName,
    /// CPU time for sampling with lookahead, in percent of one CPU
    #[arg(long, value_name = "PERCENT", default_value_t = 10, conflicts_with = "exact", value_parser = clap::value_parser!(u32).range(1..=100))]
    sampler_budget: u32,
    /// With --exact: place threads on the nodes of this machine, a name of those shipped or a machine file, not of the running one
    #[arg(long, value_name = "NAME|FILE", requires = "exact", conflicts_with = "pid")]
    machine: Option<PathBuf>,
    /// Write the profile as JSON, to standard output if FILE is `-` (what the program prints goes to standard error then)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write down what policies would see of the program, for `tandem replay FILE --policy NAMES`; there must be no such file
    #[arg(long, value_name = "FILE", conflicts_with = "exact")]
    record: Option<PathBuf>,
    /// Its page and plots.
    #[command(flatten)]
    files: ReportFiles,
    /// Length of a slice: two threads meet if they touch the same in the same one [default: 1000, 10 with --exact]
    #[arg(long, value_name = "MS", value_parser = slice_ms)]
    slice_ms: Option<f64>,
    /// With --exact: instructions of the farthest thread that count as a millisecond
    #[arg(long, value_name = "N", default_value_t = 1_000_000, requires = "exact", conflicts_with = "pid", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    instructions_per_ms: u64,
    /// With --exact: the emulator; by default one that is fetched from Debian, or qemu-x86_64 in PATH
    #[arg(long, value_name = "FILE", requires = "exact", conflicts_with = "pid")]
    qemu: Option<PathBuf>,
    /// With --exact: the trace plugin; by default vm/trace.so in the build folder
    #[arg(long, value_name = "FILE", requires = "exact", conflicts_with = "pid")]
    plugin: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

fn slice_ms(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.001..=60_000.0).contains(value));
    value.ok_or_else(|| "give a number of milliseconds from 0.001 to 60000".to_owned())
}

/// Runs the program and shows its profile.
///
/// # Errors
/// Bad input, or a file that cannot be read or written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(file) = arguments.json.as_deref().filter(|file| *file != Path::new("-")) {
        check_writable(file)?;
    }
    arguments.files.check()?;
    let stop = signals::stop()?;
    let recorder = arguments.record.as_deref().map(Recorder::create).transpose()?;
    let profiled = match arguments.pid {
        Some(pid) => running(arguments, pid, &stop, recorder.as_ref()).map(|profile| (Ok(profile), 0)),
        None if arguments.exact => exact(arguments, &stop),
        None => started(arguments, &stop, recorder.as_ref()),
    };
    let recorded = recorder.map_or(Ok(()), |recorder| end_recording(&recorder));
    let (profile, code) = profiled?;
    let shown = profile.and_then(|profile| show(arguments, &profile)).and(recorded);
    match shown {
        // How the program failed is what its caller must know.
        Err(error) if code != 0 => say_line(format_args!("tandem: {}", printable_lines(&format!("{error:#}")))),
        shown => shown?,
    }
    Ok(ExitCode::from(code))
}

/// A program's profile if there is something to tell, and its exit code.
type Profiled = (Result<Profile>, u8);

/// Says what was recorded.
///
/// # Errors
/// The recording ended before the profile did, or the profile before the first slice.
fn end_recording(recorder: &Recorder) -> Result<()> {
    let recording = recorder.finish();
    let file = recording.file.display();
    if let Some(why) = &recording.ended_early {
        bail!("{file}: the recording ended early, after {} slices: {why}", recording.intervals);
    }
    if recording.intervals == 0 {
        bail!(
            "{file}: nothing was recorded: no slice was over when the profile ended; give shorter ones with --slice-ms"
        );
    }
    say_line(format_args!("recorded {} slices in {} bytes: {file}", recording.intervals, recording.bytes));
    Ok(())
}

/// The first word of the command.
fn program(arguments: &Arguments) -> Result<&OsString> {
    let Some(name) = arguments.command.first() else {
        bail!("no command: name the program to profile after --, or a process with --pid");
    };
    Ok(name)
}

fn words(command: &[OsString]) -> Vec<String> {
    command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The profile of a program that runs in the emulator.
fn exact(arguments: &Arguments, stop: &Stop) -> Result<Profiled> {
    emulator::program(program(arguments)?)?;
    let machine = match &arguments.machine {
        Some(asked) => Machine::of_file(&machines::load(asked)?)?,
        None => Machine::running()?,
    };
    let emulator = find_emulator(arguments)?;
    let folder = tempfile::tempdir().context("there is no folder for the trace")?;
    let slice = (arguments.slice_ms.unwrap_or(10.0) * arguments.instructions_per_ms as f64).max(1.0) as u64;
    let status = emulator.run(&arguments.command, slice, folder.path(), json_to_stdout(arguments), stop)?;
    let trace = Trace::read(folder.path())?;
    let profile = Profile::of(&trace, &words(&arguments.command), &machine, arguments.instructions_per_ms);
    Ok((profile, exit_code(status)))
}

/// The profile of a process that runs already.
fn running(arguments: &Arguments, pid: u32, stop: &Stop, recorder: Option<&Recorder>) -> Result<Profile> {
    can_be_observed(pid)?;
    let command = std::fs::read(format!("/proc/{pid}/cmdline"));
    let command = command.with_context(|| format!("the command line of process {pid} cannot be read"))?;
    let command: Vec<String> = command
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| printable(&String::from_utf8_lossy(word)))
        .collect();
    let mut watch = Watch::open(pid, &settings(arguments), recorder)?;
    let end = Instant::now() + Duration::from_secs(arguments.seconds);
    watch.run(|| Ok(stop.wished() || Instant::now() >= end))?;
    watch.profile(&command)
}

/// The profile of a program that is started here and runs on this machine.
fn started(arguments: &Arguments, stop: &Stop, recorder: Option<&Recorder>) -> Result<Profiled> {
    let name = program(arguments)?;
    let mut command = Command::new(name);
    command.args(&arguments.command[1..]);
    if json_to_stdout(arguments) {
        command.stdout(std::io::stderr());
    }
    source::check(&settings(arguments), &read_running().context("the machine's topology cannot be read")?)?;
    let mut child = stop::start(&mut command).with_context(|| format!("{} does not start", name.to_string_lossy()))?;
    let mut watched = Watch::open(child.id(), &settings(arguments), recorder);
    let ended = child.try_wait()?.is_some();
    match &mut watched {
        Ok(watch) => watch.run(|| Ok(stop.wished() || child.try_wait()?.is_some()))?,
        Err(_) if ended => {}
        Err(_) => stop.wish(),
    }
    let status = stop::wait(child, stop)?;
    let profile = match watched {
        Ok(watch) => watch.profile(&words(&arguments.command)),
        // It was over before it could be watched.
        Err(error) if ended => Err(error),
        Err(error) => return Err(error),
    };
    Ok((profile, exit_code(status)))
}

fn settings(arguments: &Arguments) -> sampled::Settings {
    let sampler = match arguments.sampler {
        SamplerName::Auto => SamplerChoice::Auto,
        SamplerName::Lookahead => SamplerChoice::Named(SamplerKind::Lookahead),
        SamplerName::Pmu => SamplerChoice::Named(SamplerKind::Pmu),
        SamplerName::Device => SamplerChoice::Named(SamplerKind::Device),
        SamplerName::Fault => SamplerChoice::Named(SamplerKind::Fault),
    };
    let slice = Duration::from_secs_f64(arguments.slice_ms.unwrap_or(1000.0) / 1e3);
    sampled::Settings { sampler, budget: f64::from(arguments.sampler_budget) / 100.0, slice }
}

fn json_to_stdout(arguments: &Arguments) -> bool {
    arguments.json.as_deref() == Some(Path::new("-"))
}

fn show(arguments: &Arguments, profile: &Profile) -> Result<()> {
    let json = || anyhow::Ok(serde_json::to_string(profile)? + "\n");
    let (print, file) = match arguments.json.as_deref() {
        Some(path) if path == Path::new("-") => (json()?, None),
        file => (table::profile(profile), file),
    };
    if let Some(file) = file {
        write_whole(file, json()?.as_bytes())?;
    }
    arguments.files.write(|| report::page(profile))?;
    // At last: what was asked for as files is there even if nobody reads this any more.
    std::io::stdout().write_all(print.as_bytes()).context("standard output cannot be written")
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// The emulator that was named, else one from beside the build folder, which is fetched if need be, else one in PATH.
fn find_emulator(arguments: &Arguments) -> Result<Emulator> {
    let build = crate::ab::build_folder()?;
    let plugin = arguments.plugin.clone().unwrap_or_else(|| build.join("vm/trace.so"));
    let set_up = build.join("../vm/setup/qemu-user.sh");
    let qemu = match &arguments.qemu {
        // A name alone would be looked for in PATH.
        Some(qemu) => std::path::absolute(qemu).with_context(|| format!("--qemu {}", qemu.display()))?,
        None if set_up.exists() => fetched(&set_up, &build.join("cache"))?,
        None => in_path().context(
            "qemu-x86_64 is missing: give one that takes plugins with --qemu (Debian 12 has it in its package qemu-user)",
        )?,
    };
    Ok(Emulator { qemu, plugin })
}

fn fetched(set_up: &Path, cache: &Path) -> Result<PathBuf> {
    let output = Command::new(set_up).arg(cache).output();
    let output = output.with_context(|| format!("{} cannot be started", set_up.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("qemu-x86_64 is missing: {}", said.trim().lines().last().unwrap_or("its set-up failed without a word"));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

fn in_path() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join("qemu-x86_64")).find(|file| file.is_file())
}
