// SPDX-License-Identifier: GPL-2.0-only
//! `tandem run --tuned`: a program under the configuration that `tandem tune` found.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tandem_ab::say::say_line;
use tandem_ab::stop::Stop;
use tandem_machine::read_running;
use tandem_tune::births;
use tandem_tune::chance::main_cpus;
use tandem_tune::launch::{End, Limit, Program, Streams};
use tandem_tune::places::Places;
use tandem_tune::subject::Subject;
use tandem_tune::tuned::Tuned;

use super::signals;
use crate::tune::movers;

/// Runs `command` as `file` says; the exit code is the program's.
///
/// # Errors
/// The file is no result, or the program cannot be started.
pub fn run(file: &Path, command: &[OsString]) -> Result<ExitCode> {
    let tuned = Tuned::read(file)?;
    let topology = read_running().context("the machine's topology cannot be read")?.topology;
    let words: Vec<String> = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let differences = tuned.subject.differences(&Subject::of(&words, input(), &topology)?);
    for difference in &differences {
        say_line(format_args!("tandem: warning: {}: {difference}", file.display()));
    }
    if !differences.is_empty() {
        say_line(format_args!(
            "tandem: warning: {}: it may not be the fastest any more: `tandem tune` finds out",
            file.display()
        ));
    }
    let plan = tuned.plan();
    if plan.is_none() {
        say_line(format_args!("tandem: {}: {}", file.display(), tuned.in_words()));
    }
    let as_it_is =
        || Places { main: tuned.main_node().and_then(|node| main_cpus(&topology, node)), ..Places::default() };
    let mut places = plan.as_ref().map_or_else(as_it_is, |plan| Places::of(plan, &topology));
    let mut base = plan.as_ref().map(|plan| plan.base);
    if let Some(map) = tuned.page_map.clone() {
        let has_node = |run: &births::Run| topology.nodes.values().any(|node| node.id.0 == run.node);
        let by_name = map.by_name().with_context(|| format!("{}: is no result of tandem tune", file.display()))?;
        if by_name.values().flat_map(|one| &one.1).all(has_node) {
            places.page_map = Some(Arc::new(map));
        } else {
            say_line(format_args!(
                "tandem: warning: {}: its map of pages names nodes that are not here: pages are where they are touched first",
                file.display()
            ));
            base = None;
        }
    }
    let command = crate::tune::trial::words(&words, plan.as_ref());
    let program = Program { command, streams: Streams::Ours, functions: tuned.subject.functions.clone() };
    let caught = signals::catch()?;
    let handle = caught.handle();
    let started = |pid: i32| signals::forward(caught, pid);
    let ran = movers::run(&program, base.as_ref(), &places, Limit::default(), &Stop::default(), started)?;
    handle.close();
    if let Some(Err(why)) = &ran.moved_pages {
        say_line(format_args!("tandem: warning: {}: its pages were not moved to the end: {why}", file.display()));
    }
    if let Some(misfit) = ran.seen.map_use.as_ref().and_then(births::MapUse::in_words) {
        say_line(format_args!("tandem: warning: {}: {misfit}", file.display()));
    }
    let code = match ran.seen.end {
        End::Code(code) => code,
        End::Signal(signal) => 128 + signal,
        End::TooLong | End::Stopped | End::Measured => 1,
    };
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Where `tandem tune` puts what it finds about this program, if that is there.
///
/// # Errors
/// It is not.
pub fn result_here(command: &[OsString]) -> Result<PathBuf> {
    let name = Path::new(command.first().context("there is no program to run")?).file_name().unwrap_or_default();
    let file = PathBuf::from(format!("{}.tandem.toml", name.to_string_lossy()));
    if !file.is_file() {
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        bail!(
            "--tuned: there is no {} here: make it with `tandem tune -- {}`, or name a file",
            file.display(),
            words.join(" ")
        );
    }
    Ok(file)
}

/// What the program will read, if that is a file: a terminal or a pipe cannot be looked at beforehand.
fn input() -> Option<&'static Path> {
    let path = Path::new("/proc/self/fd/0");
    std::fs::metadata(path).is_ok_and(|file| file.is_file()).then_some(path)
}
