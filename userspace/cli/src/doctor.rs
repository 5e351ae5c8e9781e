// SPDX-License-Identifier: GPL-2.0-only
//! `tandem doctor`: what works on this machine, and why the rest does not.

mod calibrate;
mod checks;
mod coherence;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tandem_config::SamplerName;
use tandem_sense::doctor::{CounterPmu, Examination, SamplerState, examine};

use checks::{Check, Verdict};

/// Exit code where scx_tandem would refuse to run.
const CANNOT_RUN: u8 = 1;

/// How to show what was found.
#[derive(Args)]
#[command(after_help = "Exit codes: 0 scx_tandem can run here (there may be warnings), 1 it cannot, 2 bad input.")]
pub struct Arguments {
    /// Print JSON
    #[arg(long, conflicts_with = "calibrate")]
    json: bool,
    /// Measure this machine instead, for a minute at most, and write what scx_tandem's --calibration reads; wants an idle machine
    #[arg(long, value_name = "FILE")]
    calibrate: Option<PathBuf>,
}

/// Examines this machine and prints what was found. The exit code says whether scx_tandem can run here.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(file) = &arguments.calibrate {
        calibrate::run(file)?;
        return Ok(ExitCode::SUCCESS);
    }
    let examination = examine();
    let mut checks = checks::checks(Path::new("/"));
    checks.extend(default_sampler(&examination.samplers));
    let found = Found { checks, examination };
    let text = if arguments.json {
        serde_json::to_string_pretty(&found)? + "\n"
    } else {
        check_words(&found.checks)? + "\n" + &words(&found.examination)?
    };
    std::io::stdout().write_all(text.as_bytes()).context("standard output cannot be written")?;
    Ok(if checks::refused(&found.checks) { ExitCode::from(CANNOT_RUN) } else { ExitCode::SUCCESS })
}

/// How it is with the sampler that scx_tandem takes unless told otherwise.
fn default_sampler(samplers: &[SamplerState]) -> Option<Check> {
    let default = SamplerName::default().to_possible_value()?;
    let state = samplers.iter().find(|sampler| sampler.traits.name == default.get_name())?;
    Some(checks::sampler(state.traits.name, state.why_not.as_deref(), samplers.iter().any(|sampler| sampler.works)))
}

/// Everything that was looked at.
#[derive(Serialize)]
struct Found {
    checks: Vec<Check>,
    #[serde(flatten)]
    examination: Examination,
}

fn check_words(checks: &[Check]) -> Result<String> {
    let mut text = "scx_tandem on this machine\n".to_owned();
    for check in checks {
        let verdict = match check.verdict {
            Verdict::Good => "good",
            Verdict::Warning => "WARNING",
            Verdict::Bad => "BAD",
        };
        writeln!(text, "    {verdict:<8} {}: {}", check.name, check.found)?;
        if let Some(remedy) = &check.remedy {
            writeln!(text, "             remedy: {remedy}")?;
        }
    }
    Ok(text)
}

fn words(found: &Examination) -> Result<String> {
    let mut text = String::new();
    let (cpu, below) = (&found.cpu, if found.virtual_machine { ", in a virtual machine" } else { "" });
    writeln!(text, "CPU {cpu}{below}\n\nsamplers")?;
    for sampler in &found.samplers {
        write_sampler(&mut text, sampler)?;
    }
    writeln!(text, "\ncounters per thread")?;
    if let Some(why_not) = &found.counters.why_not {
        writeln!(text, "    none: {why_not}")?;
    }
    for pmu in found.counters.pmus.iter().filter(|pmu| pmu.core.is_some()) {
        write_counters(&mut text, pmu)?;
    }
    Ok(text)
}

fn write_sampler(text: &mut String, sampler: &SamplerState) -> Result<()> {
    let name = sampler.traits.name;
    match (&sampler.why_not, sampler.hardware) {
        (Some(why_not), _) => writeln!(text, "    {name:<10} does not work: {why_not}")?,
        (None, Some(hardware)) => writeln!(text, "    {name:<10} works, by {hardware}")?,
        (None, None) => writeln!(text, "    {name:<10} works")?,
    }
    for (what, said) in
        [("sees", sampler.traits.coverage), ("bias", sampler.traits.bias), ("cost", sampler.traits.cost)]
    {
        writeln!(text, "        {what}: {said}")?;
    }
    Ok(())
}

fn write_counters(text: &mut String, pmu: &CounterPmu) -> Result<()> {
    writeln!(text, "    PMU {}, core {}", pmu.pmu, pmu.core.as_deref().unwrap_or("unknown"))?;
    for (counter, events) in &pmu.counters {
        let events = events.as_ref().map_or_else(|| "none on this core".to_owned(), |events| events.join(", "));
        writeln!(text, "        {counter}: {events}")?;
    }
    Ok(())
}
