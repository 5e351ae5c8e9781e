// SPDX-License-Identifier: GPL-2.0-only
//! `tandem profile`: who shares with whom and who uses which pages, by running a program in an emulator.

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result, bail};
use clap::Args;
use tandem_ab::stop::Stop;
use tandem_ab::store::write_whole;
use tandem_machine::MachineFile;
use tandem_profile::emulator::{self, Emulator};
use tandem_profile::machine::Machine;
use tandem_profile::profile::Profile;
use tandem_profile::trace::Trace;
use tandem_profile::{report, table};

/// What to run, for which machine, and what to do with the result.
#[derive(Args)]
#[command(after_help = "\
The program runs in qemu-x86_64, about 50 times slower than without, with as many threads as it starts itself. Time is
counted in instructions. Ctrl-C ends the program, and what it did until then is shown. docs/profile.md explains method,
metrics and fields.

Exit codes: that of the program, 128 + signal if it was killed, 2 bad input.")]
pub struct Arguments {
    /// See every access of the program: it runs in an emulator
    #[arg(long, required = true)]
    exact: bool,
    /// Place threads on the nodes of this machine file instead of those of the running machine
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Write the profile as JSON, to standard output if FILE is `-` (what the program prints goes to standard error then)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as one HTML file with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Length of a slice: two threads meet on a line if they touch it in the same one
    #[arg(long, value_name = "MS", default_value_t = 10.0, value_parser = slice_ms)]
    slice_ms: f64,
    /// Instructions of the farthest thread that count as a millisecond
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    instructions_per_ms: u64,
    /// The emulator; by default one that is fetched from Debian, or qemu-x86_64 in PATH
    #[arg(long, value_name = "FILE")]
    qemu: Option<PathBuf>,
    /// The trace plugin; by default vm/trace.so in the build folder
    #[arg(long, value_name = "FILE")]
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
    let Some(name) = arguments.command.first() else { bail!("no command: name the program to profile after --") };
    emulator::program(name)?;
    let machine = match &arguments.machine {
        Some(path) => Machine::of_file(&MachineFile::load(path)?)?,
        None => Machine::running()?,
    };
    for file in [&arguments.json, &arguments.html].into_iter().flatten().filter(|file| *file != Path::new("-")) {
        check_writable(file)?;
    }
    let emulator = find_emulator(arguments)?;
    let folder = tempfile::tempdir().context("there is no folder for the trace")?;
    let stop = Stop::default();
    let wish = stop.clone();
    ctrlc::set_handler(move || wish.wish()).context("signals cannot be handled")?;
    let slice = (arguments.slice_ms * arguments.instructions_per_ms as f64).max(1.0) as u64;
    let to_stdout = arguments.json.as_deref() == Some(Path::new("-"));
    let status = emulator.run(&arguments.command, slice, folder.path(), to_stdout, &stop)?;
    let command: Vec<String> = arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let trace = Trace::read(folder.path())?;
    let profile = Profile::of(&trace, &command, &machine, arguments.instructions_per_ms)?;
    show(arguments, &profile)?;
    Ok(exit_code(status))
}

/// Before the program runs, which may take long.
fn check_writable(file: &Path) -> Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::tempfile_in(folder).map(drop).with_context(|| format!("{} cannot be written", file.display()))
}

fn show(arguments: &Arguments, profile: &Profile) -> Result<()> {
    let json = || anyhow::Ok(serde_json::to_string(profile)? + "\n");
    let (print, file) = match arguments.json.as_deref() {
        Some(path) if path == Path::new("-") => (json()?, None),
        file => (table::profile(profile), file),
    };
    std::io::stdout().write_all(print.as_bytes()).context("standard output cannot be written")?;
    if let Some(file) = file {
        write_whole(file, json()?.as_bytes())?;
    }
    if let Some(file) = &arguments.html {
        write_whole(file, report::html(profile)?.as_bytes())?;
    }
    Ok(())
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

/// The emulator that was named, else one from beside the build folder, which is fetched if need be, else one in PATH.
fn find_emulator(arguments: &Arguments) -> Result<Emulator> {
    let build = crate::ab::build_folder()?;
    let plugin = arguments.plugin.clone().unwrap_or_else(|| build.join("vm/trace.so"));
    let set_up = build.join("../vm/setup/qemu-user.sh");
    let qemu = match &arguments.qemu {
        Some(qemu) => qemu.clone(),
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
