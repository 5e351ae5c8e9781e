// SPDX-License-Identifier: GPL-2.0-only
//! The options of scx_tandem. The name of a field is its name in a configuration file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tandem_policies::decider::PolicyChoice;
use tandem_policies::foreign::quoted;
use tandem_policies::registry::{Kind, ParameterError};
use thiserror::Error;

use crate::selector::Selector;

/// Intervals that an assignment outlives its last renewal.
const LEASE_INTERVALS: u32 = 3;
/// Bounds of a budget, in percent of one CPU.
const BUDGET_PERCENT: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// Which CPUs share a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum)]
pub enum QueueSharing {
    /// Those below one last-level cache
    #[default]
    Auto,
    /// Those of a node
    Node,
    /// Those below one last-level cache
    Llc,
}

/// What a line of the log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum)]
pub enum LogFormat {
    /// A sentence, for people
    #[default]
    Text,
    /// A JSON object with time, level, message and what it is about in fields of their own, for programs
    Json,
}

/// What memory accesses are seen with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum)]
pub enum SamplerName {
    /// The best that works: pmu, device, lookahead, fault
    Auto,
    /// Runs code ahead, needs no hardware
    #[default]
    Lookahead,
    /// The CPU's own sampling, with latencies
    Pmu,
    /// The timing lab's stand-in for that
    Device,
    /// Page faults: first touches, writes where the kernel tracks them, hint faults in partial mode
    Fault,
}

/// Who moves pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum)]
pub enum MoverName {
    /// scx_tandem itself, to where the plan says
    #[default]
    MovePages,
    /// The kernel's NUMA balancing, to where the threads are that use them: with --partial, and kernel.numa_balancing on
    Kernel,
}

/// Policy if none is given, and the other one if one of threads or of pages is.
const USUAL_POLICY: &str = "tandem";
const USUAL_THREADS: &str = "sma";
const USUAL_PAGES: &str = "tmma";

/// Everything that can be chosen about scx_tandem.
#[derive(Args, Clone, Debug, PartialEq)]
pub struct Options {
    /// Length of an interval: observe, decide, act [ms, at least 100]
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    pub interval_ms: u64,

    /// Policy of threads and pages (tandem, auto), or one for each as THREAD+PAGE [default: tandem]
    #[arg(long, value_name = "NAME|THREAD+PAGE", conflicts_with_all = ["thread_policy", "page_policy"])]
    pub policy: Option<String>,

    /// Policy that places threads (`tandem policies` lists them) [default beside --page-policy: sma]
    #[arg(long, value_name = "NAME")]
    pub thread_policy: Option<String>,

    /// Policy that places pages [default beside --thread-policy: tmma]
    #[arg(long, value_name = "NAME")]
    pub page_policy: Option<String>,

    /// Set a policy's parameter (repeatable)
    #[arg(long = "parameter", value_name = "POLICY.NAME=VALUE", value_delimiter = ',')]
    pub parameters: Vec<String>,

    /// What to manage: comm=NAME, pid=PID (with its descendants), uid=UID, cgroup=/PATH (with those below), pidns=NUMBER,
    /// container=NAME, container=all, vm=NAME, vm=all, or all (repeatable); nothing else is assigned or moved
    #[arg(long, value_name = "WHAT", default_value = "all", value_delimiter = ',')]
    pub manage: Vec<Selector>,

    /// What not to manage though --manage chooses it, in the same words (repeatable)
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    pub exclude: Vec<Selector>,

    /// What memory accesses are seen with (`tandem doctor` says which work here)
    #[arg(long, value_name = "NAME", value_enum, default_value_t = SamplerName::Lookahead)]
    pub sampler: SamplerName,

    /// CPU time for sampling with lookahead or fault, in percent of one CPU [default: 1 per 8 CPUs]
    #[arg(long, value_name = "PERCENT", value_parser = percent_of_a_cpu)]
    pub sampler_budget: Option<f64>,

    /// Count operations and lines from other caches of managed threads with the CPUs' counters, beside what the sampler sees
    /// (`tandem doctor` says which there are)
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true, hide_possible_values = true, value_name = "BOOL")]
    pub counters: bool,

    /// What `tandem doctor --calibrate` measured here: latencies between nodes, and parameters of the policies in use
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,

    /// Page groups kept at most, at 64 bytes each; the coldest are forgotten first. A group of more than three threads counts
    /// as several, and as many pages of 4 KiB are kept to see which threads share
    #[arg(long, value_name = "NUMBER", default_value_t = 131_072, value_parser = clap::value_parser!(u64).range(1024..=1 << 28))]
    pub page_groups: u64,

    /// Who moves pages
    #[arg(long, value_name = "WHO", value_enum, default_value_t = MoverName::MovePages)]
    pub mover: MoverName,

    /// Memory moved per second at most
    #[arg(long, value_name = "MIB_PER_S", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub page_rate: u64,

    /// Time in system calls that move pages, in percent of one CPU
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = percent_of_a_cpu)]
    pub mover_budget: f64,

    /// How long a thread or page that was moved stays where it is, at most; under the policy `tandem` a tenth of it at
    /// first, and twice as long each time that it moves again as soon as it may
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub cooldown_s: u64,

    /// Which CPUs share a queue
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = QueueSharing::Auto)]
    pub queue: QueueSharing,

    /// Ignore cpu.weight of control groups: tasks are ordered by their nice levels alone
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true, hide_possible_values = true, value_name = "BOOL")]
    pub no_cgroup_weight: bool,

    /// Observe and decide, but assign and move nothing (all tasks are scheduled by it all the same)
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true, hide_possible_values = true, value_name = "BOOL")]
    pub dry_run: bool,

    /// Schedule only tasks of the class SCHED_EXT. They starve beside normal tasks: for dedicated CPUs only
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true, hide_possible_values = true, value_name = "BOOL")]
    pub partial: bool,

    /// Print a line of statistics every SECONDS
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub stats: Option<u64>,

    /// What a line of the log is
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Offer metrics for Prometheus at PORT of this machine alone (127.0.0.1), or at ADDRESS:PORT
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = local_address)]
    pub metrics: Option<SocketAddr>,

    /// Write what was seen and done to FILE on exit, as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Record what is seen and decided to FILE, which must not exist yet, or to a new file in a folder; `tandem replay` reads it
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Seed of the policies' random choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// An option that does not go with the others, or names what there is not.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{option}: {what}")]
pub struct Mistake {
    /// The option, by its name in a configuration file.
    pub option: &'static str,
    /// What is wrong with it, and what would be right.
    pub what: String,
}

impl Mistake {
    fn new(option: &'static str, what: impl ToString) -> Self {
        Self { option, what: what.to_string() }
    }
}

/// An address; of this machine alone if only a port is given.
fn local_address(text: &str) -> Result<SocketAddr, String> {
    let local = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let address = text.parse().or_else(|_| text.parse().map(local));
    address.map_err(|_| "expected a port, or an address and a port, for example 127.0.0.1:9090".to_owned())
}

fn percent_of_a_cpu(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|_| "is no number".to_owned())?;
    if BUDGET_PERCENT.contains(&percent) {
        Ok(percent)
    } else {
        let (least, most) = (BUDGET_PERCENT.start(), BUDGET_PERCENT.end());
        Err(format!("must be between {least} and {most} percent of one CPU"))
    }
}

impl Options {
    /// Length of an interval.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }

    /// Length of an assignment's lease.
    pub fn lease(&self) -> Duration {
        self.interval() * LEASE_INTERVALS
    }

    /// Whether the options go together.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), Mistake> {
        if self.mover == MoverName::Kernel && !self.partial {
            let what = "kernel needs partial mode (--partial, or partial = true): the kernel looks at the memory of tasks only \
                        that it schedules itself, and otherwise there are none";
            return Err(Mistake::new("mover", what));
        }
        self.policies().map(|_| ())
    }

    /// The policies with their parameters, in the order in which they are asked: one of threads and one of pages, or a
    /// joint one.
    ///
    /// # Errors
    /// No such policy, no such parameter, or a value that it does not take.
    pub fn policies(&self) -> Result<Vec<PolicyChoice>, Mistake> {
        self.policies_on(&BTreeMap::new())
    }

    /// The same on a machine for which other values were `calibrated`, by `POLICY.NAME`. They count for policies in use, and
    /// less than those that are given.
    ///
    /// # Errors
    /// As for [`Options::policies`].
    pub fn policies_on(&self, calibrated: &BTreeMap<String, f64>) -> Result<Vec<PolicyChoice>, Mistake> {
        let choice = |option, kind, name: &Option<String>, usual| {
            PolicyChoice::new(kind, name.as_deref().unwrap_or(usual)).map_err(|error| Mistake::new(option, error))
        };
        let of_both = |both: &str| {
            PolicyChoice::of_both(both)
                .map_err(|error| Mistake::new("policy", format!("{error}, or give THREAD+PAGE, for example sma+tmma")))
        };
        let mut choices = match (&self.policy, &self.thread_policy, &self.page_policy) {
            (Some(both), ..) => of_both(both)?,
            (None, None, None) => of_both(USUAL_POLICY)?,
            (None, thread, page) => {
                let thread = choice("thread_policy", Kind::Thread, thread, USUAL_THREADS)?;
                vec![thread, choice("page_policy", Kind::Page, page, USUAL_PAGES)?]
            }
        };
        for (parameter, value) in calibrated {
            let policy = parameter.split_once('.').map(|(policy, _)| policy);
            if choices.iter().any(|choice| Some(choice.name()) == policy) {
                set_parameter(&mut choices, &format!("{parameter}={value}"))
                    .map_err(|why| Mistake::new("calibration", format!("{parameter}: {why}")))?;
            }
        }
        for given in &self.parameters {
            set_parameter(&mut choices, given)
                .map_err(|why| Mistake::new("parameters", format!("{}: {why}", quoted(given))))?;
        }
        Ok(choices)
    }

    /// The first option that differs from `running` and takes effect only when scx_tandem starts.
    pub fn needs_restart(&self, running: &Self) -> Option<&'static str> {
        [
            ("interval_ms", self.interval_ms != running.interval_ms),
            ("queue", self.queue != running.queue),
            ("partial", self.partial != running.partial),
            ("no_cgroup_weight", self.no_cgroup_weight != running.no_cgroup_weight),
            ("log_format", self.log_format != running.log_format),
            ("metrics", self.metrics != running.metrics),
            ("report", self.report != running.report),
            ("record", self.record != running.record),
        ]
        .into_iter()
        .find_map(|(name, differs)| differs.then_some(name))
    }
}

/// Sets what `given`, POLICY.NAME=VALUE, says of one of `choices`.
///
/// # Errors
/// Words: no such form, no such policy among `choices`, no such parameter, or a value that it does not take.
pub fn set_parameter(choices: &mut [PolicyChoice], given: &str) -> Result<(), String> {
    let (policy, name, value) = given
        .split_once('=')
        .and_then(|(key, value)| key.split_once('.').map(|(policy, name)| (policy, name, value)))
        .ok_or("expected POLICY.NAME=VALUE, for example tandem.errors=4")?;
    let value: f64 = value.parse().map_err(|_| format!("{} is no number", quoted(value)))?;
    // A thread and a page policy may have the same name.
    let mut refusals = Vec::new();
    for choice in choices.iter_mut().filter(|choice| choice.name() == policy) {
        match choice.set(name, value) {
            Err(error @ ParameterError::Unknown { .. }) => refusals.push(error.to_string()),
            answer => return answer.map_err(|error| error.to_string()),
        }
    }
    if refusals.is_empty() {
        return Err(format!("the policy {} is not in use; `tandem policies` lists them all", quoted(policy)));
    }
    Err(refusals.join("; "))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        options: Options,
    }

    fn options(arguments: &[&str]) -> Result<Options, clap::Error> {
        Program::try_parse_from(["test"].iter().chain(arguments)).map(|program| program.options)
    }

    #[test]
    fn a_switch_may_be_turned_off_again() {
        assert!(!options(&[]).unwrap().dry_run);
        assert!(options(&["--dry-run"]).unwrap().dry_run);
        assert!(!options(&["--dry-run=false"]).unwrap().dry_run);
    }

    #[test]
    fn budgets_outside_their_range_are_refused() {
        for bad in ["0", "101", "NaN", "much"] {
            assert!(options(&["--mover-budget", bad]).is_err(), "{bad}");
        }
        assert_eq!(options(&["--sampler-budget", "2.5"]).unwrap().sampler_budget, Some(2.5));
    }

    #[test]
    fn metrics_are_for_this_machine_unless_an_address_is_given() {
        let metrics = |text: &str| options(&["--metrics", text]).map(|options| options.metrics.unwrap().to_string());
        assert_eq!(metrics("9090").unwrap(), "127.0.0.1:9090");
        assert_eq!(metrics("[::]:9090").unwrap(), "[::]:9090");
        assert!(metrics("example.org:80").is_err() && metrics("70000").is_err());
    }

    #[test]
    fn policies_come_with_their_parameters_or_a_sentence() {
        let asked = |arguments: &[&str]| -> Vec<_> {
            let choices = options(arguments).unwrap().policies().unwrap();
            choices.iter().map(|choice| (choice.kind(), choice.name())).collect()
        };
        assert_eq!(asked(&[]), [(Kind::Joint, "tandem")]);
        assert_eq!(asked(&["--thread-policy", "nimar"]), [(Kind::Thread, "nimar"), (Kind::Page, "tmma")]);
        assert_eq!(asked(&["--page-policy", "none"]), [(Kind::Thread, "sma"), (Kind::Page, "none")]);
        assert_eq!(asked(&["--policy", "sam+none"]), [(Kind::Thread, "sam"), (Kind::Page, "none")]);
        assert_eq!(asked(&["--policy", "auto", "--parameter", "auto.near_percent=5"]), [(Kind::Joint, "auto")]);
        for (arguments, expected) in [
            (
                &["--policy", "sma"][..],
                "no joint policy \"sma\" (it is a thread policy); choose one of auto, tandem, or give THREAD+PAGE",
            ),
            (&["--policy", "tmma+sma"], "no thread policy \"tmma\" (it is a page policy)"),
            (&["--thread-policy", "auto"], "no thread policy \"auto\" (it is a joint policy)"),
            (&["--policy", "auto", "--parameter", "sma.cooling=0.9"], "\"sma\" is not in use"),
            (&["--thread-policy", "smb"], "smb"),
            (&["--parameter", "tandem.erors=1"], "erors"),
            (&["--parameter", "tandem.errors=seven"], "seven"),
            (&["--parameter", "lmma.x=1"], "\"lmma\" is not in use"),
        ] {
            let error = options(arguments).unwrap().policies().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_calibration_counts_for_policies_in_use_and_less_than_what_is_given() {
        let calibrated =
            [("sam.clock_ghz", 3.0), ("sam.retry_s", 7.0)].map(|(name, value)| (name.to_owned(), value)).into();
        let chosen = |arguments: &[&str]| options(arguments).unwrap().policies_on(&calibrated);
        let sam = chosen(&["--policy", "sam+tmma", "--parameter", "sam.retry_s=9"]).unwrap().remove(0);
        assert_eq!(["clock_ghz", "retry_s"].map(|name| sam.parameters().get(name)), [3.0, 9.0]);
        assert_eq!(chosen(&[]).unwrap()[0].name(), "tandem");
        let wrong = [("sam.clock".to_owned(), 3.0)].into();
        let error = options(&["--policy", "sam+tmma"]).unwrap().policies_on(&wrong).unwrap_err().to_string();
        assert!(error.starts_with("calibration: sam.clock: "), "{error}");
    }

    #[test]
    fn a_parameter_is_found_in_either_of_two_policies_of_one_name() {
        for (name, thread, page) in
            [("kmaf", "kmaf.period_ms", "kmaf.wait_decisions"), ("opt", "opt.min_between_s", "opt.min_interval_s")]
        {
            let given = [thread, page].map(|parameter| format!("--parameter={parameter}=7"));
            let choices = options(&["--policy", &format!("{name}+{name}"), &given[0], &given[1]]).unwrap().policies();
            for (choice, parameter) in choices.unwrap().iter().zip([thread, page]) {
                assert_eq!(choice.parameters().get(parameter.split_once('.').unwrap().1), 7.0, "{parameter}");
            }
        }
        let refused = |parameter: &str| {
            let options = options(&["--policy", "opt+opt", "--parameter", parameter]).unwrap();
            options.policies().unwrap_err().to_string()
        };
        let unknown = refused("opt.delta=1");
        assert!(unknown.contains("it has window_ms") && unknown.contains("it has min_interval_s"), "{unknown}");
        assert!(refused("opt.min_interval_s=-1").contains("-1 is not allowed"));
    }

    #[test]
    fn a_policy_of_both_beside_one_of_a_kind_is_refused() {
        for other in ["--thread-policy", "--page-policy"] {
            let error = options(&["--policy", "auto", other, "none"]).unwrap_err().to_string();
            assert!(error.contains("cannot be used with") && error.contains("--policy"), "{error}");
        }
    }

    #[test]
    fn what_the_loaded_scheduler_was_made_from_needs_a_restart() {
        let running = options(&[]).unwrap();
        assert_eq!(options(&["--page-rate", "1", "--manage", "uid=0"]).unwrap().needs_restart(&running), None);
        assert_eq!(options(&["--queue", "node"]).unwrap().needs_restart(&running), Some("queue"));
    }
}
