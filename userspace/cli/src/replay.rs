// SPDX-License-Identifier: GPL-2.0-only
//! `tandem replay`: decides again from a recording and compares with what was decided then.

mod page;
mod report;

use std::fs::File;
use std::io::{BufReader, Read, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use tandem_ab::say::say_line;
use tandem_policies::decider::PolicyChoice;
use tandem_policies::registry::{self, Kind};
use tandem_trace::{Entry, Policies, Replay, TraceReader};

use page::Courses;
use report::{Report, Words};

use crate::report_files::ReportFiles;

/// What to replay, and with which policies.
#[derive(Args)]
pub struct Arguments {
    /// What `scx_tandem --record` or `tandem profile --record` wrote; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Policies to decide with instead of the recorded ones: THREAD+PAGE, or one that places both
    #[arg(long, value_name = "NAMES", conflicts_with_all = ["thread_policy", "page_policy"])]
    policy: Option<String>,
    /// Policy to place threads with instead of the recorded one
    #[arg(long, value_name = "NAME")]
    thread_policy: Option<String>,
    /// Policy to place pages with instead of the recorded one
    #[arg(long, value_name = "NAME")]
    page_policy: Option<String>,
    /// Seed of random choices instead of the recorded one; counted up by plans as the agent does
    #[arg(long)]
    seed: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Its page and plots.
    #[command(flatten)]
    files: ReportFiles,
}

/// Exit code when the recorded policies did not decide as they had.
const DIFFERENT: u8 = 1;

/// Prints every decision made again, where it differs, and the totals.
///
/// The exit code says whether the recorded policies decided as recorded; with others that is not expected.
///
/// # Errors
/// The recording cannot be read at all, or policies are not known.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let policies = policies(arguments)?;
    arguments.files.check()?;
    let other = arguments.seed.is_some() || !matches!(policies, Policies::Recorded);
    let mut replay = Replay::new(policies, arguments.seed);
    let input: Box<dyn Read> = match arguments.file.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => {
            let open = File::open(&arguments.file);
            Box::new(open.with_context(|| format!("{}: cannot be opened", arguments.file.display()))?)
        }
    };
    let name = || arguments.file.display().to_string();
    let reader = TraceReader::new(BufReader::new(input)).with_context(name)?;
    let mut report = Report::new(name());
    let mut words = Words::new(!arguments.json, arguments.files.wanted());
    let mut courses = Courses::default();
    for entry in reader {
        match entry {
            Ok(Entry::Settings(settings)) => {
                let asked = replay.begin(&settings).with_context(name)?;
                words.begin(&settings, &asked)?;
                report.begin(&settings, asked);
            }
            Ok(Entry::Interval(interval)) => {
                let replayed = replay.decide(&interval);
                courses.add(&interval, replayed.as_ref());
                let number = report.interval(&interval, replayed.as_ref());
                let Some(replayed) = replayed else { continue };
                words.decision(number, &interval, &replayed, report.replayed_with())?;
                if arguments.json {
                    report.keep(number, &interval, replayed);
                }
            }
            Err(damage) => report.warning = Some(damage.to_string()),
        }
    }
    if report.sessions.is_empty() {
        bail!("{}: {}", name(), report.warning.as_deref().unwrap_or("the recording is empty"));
    }
    if let Some(warning) = &report.warning {
        say_line(format_args!("tandem: warning: {}: {warning}", name()));
    }
    words.totals(&report.totals)?;
    arguments.files.write(|| page::page(&report, &courses, words.kept()))?;
    if arguments.json {
        let json = serde_json::to_string_pretty(&report)? + "\n";
        std::io::stdout().write_all(json.as_bytes()).context("standard output cannot be written")?;
    }
    Ok(if report.totals.different > 0 && !other { ExitCode::from(DIFFERENT) } else { ExitCode::SUCCESS })
}

fn policies(arguments: &Arguments) -> Result<Policies> {
    if let Some(names) = &arguments.policy {
        let alone = if names.contains('+') { None } else { Some(one_policy(names)?) };
        return Ok(Policies::Only(match alone {
            Some(choice) => vec![choice],
            None => PolicyChoice::of_both(names)?,
        }));
    }
    let given = [(Kind::Thread, &arguments.thread_policy), (Kind::Page, &arguments.page_policy)];
    let given = given.into_iter().filter_map(|(kind, name)| Some(PolicyChoice::new(kind, name.as_deref()?)));
    let choices: Vec<PolicyChoice> = given.collect::<Result<_, _>>()?;
    Ok(if choices.is_empty() { Policies::Recorded } else { Policies::Instead(choices) })
}

/// The policy of this name that is asked alone: a joint one, or else one of threads or pages.
fn one_policy(name: &str) -> Result<PolicyChoice> {
    let kinds = [Kind::Joint, Kind::Thread, Kind::Page];
    let found = kinds.into_iter().find(|&kind| registry::find(kind, name).is_ok());
    let kind = found.with_context(|| {
        format!("--policy {name}: no policy has this name; give THREAD+PAGE, for example sma+tmma (`tandem policies` lists them)")
    })?;
    Ok(PolicyChoice::new(kind, name)?)
}
