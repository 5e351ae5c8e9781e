// SPDX-License-Identifier: GPL-2.0-only
//! `tandem sim`: placement policies judged on the machine model.

mod page;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tandem_config::set_parameter;
use tandem_model::arm::Arm;
use tandem_model::machine::Machine;
use tandem_model::run::{self, Outcome, Settings};
use tandem_model::scenario::{Metric, Scenario, builtin, builtins};
use tandem_model::world::World;
use tandem_policies::decider::PolicyChoice;
use tandem_policies::foreign::quoted;
use tandem_policies::model::PAGE_BYTES;
use tandem_policies::registry::Policy;

use crate::machines;
use crate::report_files::ReportFiles;

/// Marks of the progress bar for one run.
const MARKS: u64 = 1000;

/// What says something of runs only.
const OF_A_RUN: [&str; 11] = [
    "machine",
    "scenario",
    "policies",
    "parameters",
    "seconds",
    "scale_times",
    "seeds",
    "step_ms",
    "samples",
    "html",
    "plots",
];

/// What to judge, on which machine, with what.
#[derive(Args)]
pub struct Arguments {
    /// List the built-in scenarios
    #[arg(long, conflicts_with_all = OF_A_RUN)]
    list: bool,
    /// Print a built-in scenario as a file, to be changed and given to --scenario
    #[arg(long, value_name = "NAME", conflicts_with_all = ["list", "json"], conflicts_with_all = OF_A_RUN)]
    show: Option<String>,
    /// The machine: the name of one that is shipped, or a machine file
    #[arg(long, value_name = "NAME|FILE", required_unless_present_any = ["list", "show"])]
    machine: Option<PathBuf>,
    /// A built-in scenario or a file; several separated by commas
    #[arg(long, value_name = "FILE|NAME", required_unless_present_any = ["list", "show"])]
    scenario: Option<String>,
    /// Arms separated by commas: eevdf, autonuma, eevdf-llc, autonuma-llc, direct, interleave, oracle, worst (together: baselines), THREAD+PAGE
    /// with policies of `tandem policies`, one policy alone, or all
    #[arg(long, value_name = "LIST", default_value = "baselines,tandem")]
    policies: String,
    /// Set a policy's parameter, in every arm that has the policy (repeatable)
    #[arg(long = "parameter", value_name = "POLICY.NAME=VALUE", value_delimiter = ',')]
    parameters: Vec<String>,
    /// Ideal length of the work: all memory local, nobody else there [s; by default the scenario's]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
    /// With --seconds: starts and phases are made longer or shorter along with the work
    #[arg(long, requires = "seconds")]
    scale_times: bool,
    /// Runs of each arm, with seeds 1, 2, ...
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Longest step of the model
    #[arg(long, value_name = "MS", default_value_t = 10.0, value_parser = milliseconds)]
    step_ms: f64,
    /// Samples that a thread gives in a second of its CPU time; 0: every access is seen
    #[arg(long, value_name = "N", default_value_t = 1000.0, value_parser = samples)]
    samples: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Its page and plots.
    #[command(flatten)]
    files: ReportFiles,
}

fn number(text: &str, least: f64, most: f64, what: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (least..=most).contains(value));
    value.ok_or_else(|| format!("give a number of {what} from {least} to {most}"))
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, 0.001, 1e5, "seconds")
}

fn milliseconds(text: &str) -> Result<f64, String> {
    number(text, 0.1, 1000.0, "milliseconds")
}

fn samples(text: &str) -> Result<f64, String> {
    number(text, 0.0, 1e6, "samples")
}

/// One scenario's results.
#[derive(Serialize)]
struct Report {
    machine: String,
    scenario: String,
    metric: Metric,
    ideal_seconds: f64,
    threads: usize,
    seeds: u64,
    /// Parameters that were set, as they were given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parameters: Vec<String>,
    arms: Vec<ArmReport>,
}

/// One arm's results, means over its seeds but for `times_s`.
#[derive(Serialize)]
struct ArmReport {
    name: String,
    /// Mean of the metric; `None` if a run did not end.
    time_s: Option<f64>,
    times_s: Vec<Option<f64>>,
    /// Time / that of the oracle.
    ratio_to_oracle: Option<f64>,
    remote_share: f64,
    thread_moves: f64,
    page_moves: f64,
    overhead_s: f64,
    decisions: f64,
    plans: f64,
    steps: f64,
    /// Time of this computer for one decision.
    policy_ms: f64,
    longest_policy_ms: f64,
    missing: Option<String>,
}

/// Prints what was asked for.
///
/// # Errors
/// A file cannot be read, or a name is unknown.
pub fn run(arguments: &Arguments) -> Result<()> {
    let text = if arguments.list {
        list(arguments.json)?
    } else if let Some(name) = &arguments.show {
        toml::to_string(&named(name)?).context("the scenario cannot be written as TOML")?
    } else {
        let (Some(machine), Some(scenario)) = (&arguments.machine, &arguments.scenario) else {
            bail!("give --machine NAME|FILE and --scenario FILE|NAME");
        };
        compare(arguments, machine, scenario)?
    };
    std::io::stdout().write_all(text.as_bytes()).context("standard output cannot be written")
}

fn list(json: bool) -> Result<String> {
    #[derive(Serialize)]
    struct Listed {
        name: String,
        seconds: f64,
        summary: String,
        source: String,
    }
    let all = builtins().into_iter().map(|scenario| {
        let Scenario { name, seconds, summary, source, .. } = scenario;
        Listed { name, seconds, summary, source }
    });
    let all: Vec<Listed> = all.collect();
    if json {
        return Ok(serde_json::to_string_pretty(&all)? + "\n");
    }
    let width = all.iter().map(|one| one.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for one in all {
        writeln!(text, "{:<width$}  {:>5} s  {}  [{}]", one.name, one.seconds, one.summary, one.source)?;
    }
    Ok(text)
}

/// The built-in scenario of this name.
fn named(name: &str) -> Result<Scenario> {
    builtin(name)
        .with_context(|| format!("there is no scenario {}; see tandem sim --list, or give a file", quoted(name)))
}

fn scenario(text: &str) -> Result<Scenario> {
    let is_file = text.contains('/') || text.ends_with(".toml");
    if is_file { Ok(Scenario::load(text)?) } else { named(text) }
}

fn compare(arguments: &Arguments, machine: &Path, names: &str) -> Result<String> {
    arguments.files.check()?;
    let machine = Machine::new(&machines::load(machine)?)?;
    let arms = Arm::parse_list(&arguments.policies)?;
    let choices = choices(&arms, &arguments.parameters)?;
    let scenarios = names.split(',').map(|name| scenario(name.trim())).collect::<Result<Vec<_>>>()?;
    scenarios.iter().try_for_each(|scenario| fits(scenario, &machine))?;
    let runs = (scenarios.len() * arms.len()) as u64 * arguments.seeds;
    // Drawn on standard error, and only if that is a terminal.
    let bar = ProgressBar::new(runs * MARKS);
    bar.set_style(ProgressStyle::with_template("{bar:30} {percent:>3} %  {eta:>4} left  {msg}")?);
    let mut reports = Vec::new();
    for scenario in scenarios {
        let scenario = match arguments.seconds {
            Some(seconds) => scenario.lasting(seconds, arguments.scale_times),
            None => scenario,
        };
        reports.push(report(arguments, &machine, &scenario, (&arms, &choices), &bar));
    }
    bar.finish_and_clear();
    arguments.files.write(|| page::page(&reports))?;
    if !arguments.json {
        return reports.iter().map(table).collect();
    }
    Ok(match &reports[..] {
        [only] => serde_json::to_string_pretty(only)?,
        all => serde_json::to_string_pretty(all)?,
    } + "\n")
}

/// Refuses a scenario with more memory than the machine has.
fn fits(scenario: &Scenario, machine: &Machine) -> Result<()> {
    let mib = |pages: u64| (pages * PAGE_BYTES) >> 20;
    match World::new(machine, scenario, 0).too_large(machine) {
        None => Ok(()),
        Some((program, pages, free)) => bail!(
            "{} on {}: program {program} has {} MiB of memory, and all nodes together have {} for it: make mb smaller, or give \
             another machine",
            scenario.name,
            machine.name,
            mib(pages),
            mib(free)
        ),
    }
}

/// Every policy of `arms` once, with the parameters `given`.
fn choices(arms: &[Arm], given: &[String]) -> Result<Vec<PolicyChoice>> {
    let policies: BTreeSet<_> = arms.iter().flat_map(Arm::policies).map(|policy| (policy.kind, policy.name)).collect();
    let mut choices =
        policies.into_iter().map(|(kind, name)| Ok(PolicyChoice::new(kind, name)?)).collect::<Result<Vec<_>>>()?;
    for text in given {
        set_parameter(&mut choices, text).map_err(|why| anyhow!("parameter {}: {why}", quoted(text)))?;
    }
    Ok(choices)
}

fn report(
    arguments: &Arguments,
    machine: &Machine,
    scenario: &Scenario,
    (arms, choices): (&[Arm], &[PolicyChoice]),
    bar: &ProgressBar,
) -> Report {
    let parameters = |policy: &'static Policy| {
        let chosen = choices.iter().find(|choice| (choice.kind(), choice.name()) == (policy.kind, policy.name));
        chosen.map_or_else(|| policy.defaults(), PolicyChoice::parameters)
    };
    let mut settings = Settings { step_ns: arguments.step_ms * 1e6, ..Settings::default() };
    settings.sense.samples_per_s = arguments.samples;
    let mut threads = 0;
    let mut reports: Vec<ArmReport> = arms
        .iter()
        .map(|&arm| {
            let outcomes = (1..=arguments.seeds).map(|seed| {
                bar.set_message(format!("{} {arm} {seed}", scenario.name));
                let before = bar.position();
                let mut progress = |share: f64| bar.set_position(before + (share * MARKS as f64) as u64);
                let outcome = run::run_with(machine, scenario, arm, &parameters, &settings, seed, &mut progress);
                threads = outcome.threads;
                outcome
            });
            arm_report(arm, &outcomes.collect::<Vec<_>>())
        })
        .collect();
    let oracle_s = reports.iter().find(|report| report.name == "oracle").and_then(|report| report.time_s);
    for report in &mut reports {
        report.ratio_to_oracle = report.time_s.zip(oracle_s).map(|(time_s, oracle_s)| time_s / oracle_s);
    }
    Report {
        machine: machine.name.clone(),
        scenario: scenario.name.clone(),
        metric: scenario.metric,
        ideal_seconds: scenario.seconds,
        threads,
        seeds: arguments.seeds,
        parameters: arguments.parameters.clone(),
        arms: reports,
    }
}

fn arm_report(arm: Arm, outcomes: &[Outcome]) -> ArmReport {
    let runs = outcomes.len() as f64;
    let mean = |of: &dyn Fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / runs;
    let times_s: Vec<Option<f64>> = outcomes.iter().map(|outcome| outcome.time_s).collect();
    let policy_s: f64 = outcomes.iter().map(|outcome| outcome.policy_time.as_secs_f64()).sum();
    let decisions: u64 = outcomes.iter().map(|outcome| outcome.decisions).sum();
    let longest = outcomes.iter().map(|outcome| outcome.longest_decision).max().unwrap_or(Duration::ZERO);
    ArmReport {
        name: arm.to_string(),
        time_s: times_s.iter().copied().sum::<Option<f64>>().map(|sum| sum / runs),
        times_s,
        ratio_to_oracle: None,
        remote_share: mean(&|outcome| outcome.remote_share),
        thread_moves: mean(&|outcome| outcome.thread_moves as f64),
        page_moves: mean(&|outcome| outcome.page_moves as f64),
        overhead_s: mean(&|outcome| outcome.overhead_s),
        decisions: decisions as f64 / runs,
        plans: mean(&|outcome| outcome.plans as f64),
        steps: mean(&|outcome| outcome.steps as f64),
        policy_ms: if decisions > 0 { policy_s * 1e3 / decisions as f64 } else { 0.0 },
        longest_policy_ms: longest.as_secs_f64() * 1e3,
        missing: outcomes.iter().find_map(|outcome| outcome.missing.clone()),
    }
}

fn metric_in_words(metric: Metric) -> &'static str {
    match metric {
        Metric::Makespan => "time until all have ended",
        Metric::Accumulated => "sum of the programs' times",
    }
}

fn table(report: &Report) -> Result<String> {
    let mut text = String::new();
    let what = metric_in_words(report.metric);
    let Report { machine, scenario, threads, ideal_seconds, seeds, .. } = report;
    writeln!(text, "{scenario} on {machine}: {threads} threads, ideally {ideal_seconds} s; {what}, mean of {seeds}\n")?;
    if !report.parameters.is_empty() {
        writeln!(text, "with {}\n", report.parameters.join(", "))?;
    }
    writeln!(
        text,
        "{:<22} {:>9} {:>9} {:>8} {:>8} {:>9} {:>10} {:>11}",
        "arm", "time s", "of oracle", "remote", "threads", "pages", "overhead s", "ms/decision"
    )?;
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
    for arm in &report.arms {
        writeln!(
            text,
            "{:<22} {:>9} {:>9} {:>6.1} % {:>8.1} {:>9.0} {:>10.3} {:>11.3}",
            arm.name,
            or_dash(arm.time_s),
            or_dash(arm.ratio_to_oracle),
            arm.remote_share * 100.0,
            arm.thread_moves,
            arm.page_moves,
            arm.overhead_s,
            arm.policy_ms,
        )?;
        if let Some(missing) = &arm.missing {
            writeln!(text, "    {missing}")?;
        }
    }
    text.push('\n');
    Ok(text)
}
