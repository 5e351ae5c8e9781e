// SPDX-License-Identifier: GPL-2.0-only
//! Scenarios: who computes what on which memory, in TOML; docs/machine-model.md explains every key.
//!
//! A scenario names no node and no CPU, so that it fits every machine. Lengths are *ideal seconds*: the time that the
//! work takes a thread which has a CPU and all its memory to itself and local, its lines never with another thread.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

mod builtin;
mod check;

pub use builtin::{builtin, builtins};

/// Why a scenario cannot be used.
#[derive(Debug, Error)]
pub enum ScenarioError {
    /// It cannot be read.
    #[error("{}: cannot be read: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// It is no TOML, or has an unknown key or a value of the wrong type.
    #[error("{origin}: line {line}: {message}")]
    Syntax {
        /// The file.
        origin: String,
        /// Line of the mistake, from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// A value is out of range or contradicts another.
    #[error("{origin}: {place}: {message}")]
    Value {
        /// The file.
        origin: String,
        /// Where in it.
        place: String,
        /// What is wrong, and what would be right.
        message: String,
    },
}

/// What is compared between arms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Time until the last program has ended.
    #[default]
    Makespan,
    /// Sum of the programs' times from when they were due to when they ended.
    Accumulated,
}

/// Where threads are when they start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// In blocks along the tour of the nodes, each node getting its share.
    #[default]
    Blocks,
    /// In turn on the nodes of the tour.
    Scatter,
    /// On the first node until its CPUs are taken, then on the next.
    Fill,
    /// All on the first node.
    First,
    /// Pairs (0, 1), (2, 3), ... in turn on the nodes; with more than two nodes partners are on successive ones.
    PairsApart,
    /// The first half in blocks, each of the second half far from its partner in the first.
    HalvesApart,
    /// The first half on the first node, the second half on the node farthest from it.
    TwoBlocks,
    /// Where the scheduler puts them: the node with most idle CPUs.
    Free,
}

/// For whom there is a region of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Per {
    /// Every thread.
    #[default]
    Thread,
    /// Threads 2j and 2j+1, after `shift`.
    Pair,
    /// Threads j and j + half of them.
    HalfPair,
    /// Each half of the threads.
    Half,
    /// The program.
    Program,
}

/// Where a region's pages are when its program starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Home {
    /// With the first thread that it is for.
    #[default]
    Local,
    /// On the node farthest from that thread.
    Far,
    /// With the program's first thread.
    First,
    /// On the node after that of the second thread of its first thread's pair.
    Next,
    /// One node further on.
    NextButOne,
    /// With the thread before its first one, cyclic.
    Before,
    /// Evenly on all nodes with memory.
    Interleaved,
    /// Every other region as `local`, the others as `next`.
    HalfAway,
}

/// Whose region of that name is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Of {
    /// The thread's own.
    #[default]
    Own,
    /// All of the program, evenly.
    All,
    /// Those of the threads before and after it, cyclic.
    Neighbours,
    /// Those of the four neighbours on a grid of about square shape, cyclic.
    Grid,
    /// That of the thread half of the threads away.
    Opposite,
}

/// Memory, or a set of lines, of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// Name within the program.
    pub name: String,
    /// For whom there is one.
    #[serde(default)]
    pub per: Per,
    /// Pairs begin at this thread: 0 or 1.
    #[serde(default)]
    pub shift: usize,
    /// Size of each in MiB; 0 only with `lines`.
    #[serde(default)]
    pub mb: f64,
    /// Where it is at first.
    #[serde(default)]
    pub home: Home,
    /// Not memory but lines that stay in caches and are written by all their users.
    #[serde(default)]
    pub lines: bool,
}

/// A share of a thread's accesses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Use {
    /// Name of the region.
    pub region: String,
    /// Weight among the uses of its list.
    pub share: f64,
    /// Whose.
    #[serde(default)]
    pub of: Of,
    /// Share of them that no cache holds.
    #[serde(default = "one")]
    pub miss: f64,
    /// Share of the missing lines that are written back later.
    #[serde(default)]
    pub write: f64,
}

/// What threads do for a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Ideal length in seconds.
    pub seconds: f64,
    /// Where accesses go.
    pub uses: Vec<Use>,
}

/// A program: a process, or several alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Its name, unique within the scenario.
    pub name: String,
    /// Processes of this kind.
    #[serde(default = "one_copy")]
    pub copies: usize,
    /// As many copies for each node with CPUs instead.
    #[serde(default)]
    pub copies_per_node: usize,
    /// Of the nodes with CPUs only every so many-th gets copies.
    #[serde(default = "one_copy")]
    pub node_step: usize,
    /// The first of them that does, from 0.
    #[serde(default)]
    pub first_node: usize,
    /// Threads of each; 0: as `cpus` says.
    #[serde(default)]
    pub threads: usize,
    /// Threads of each as a share of the machine's CPUs.
    #[serde(default)]
    pub cpus: f64,
    /// Threads of each as a share of a node's CPUs.
    #[serde(default)]
    pub node_cpus: f64,
    /// Threads are rounded down to a multiple of this, but to no less than it.
    #[serde(default = "one_copy")]
    pub multiple: usize,
    /// Whether shares of CPUs are rounded up to whole threads instead of down.
    #[serde(default)]
    pub round_up: bool,
    /// Work of each thread, 1 being the scenario's `seconds`.
    #[serde(default = "one")]
    pub work: f64,
    /// Time of computing between two accesses, in ns.
    #[serde(default)]
    pub compute_ns: f64,
    /// Misses that it has in flight; the machine's limit if it has less.
    #[serde(default = "one")]
    pub overlap: f64,
    /// Whether threads wait for each other all the time.
    #[serde(default)]
    pub barrier: bool,
    /// Whether its main thread fills its memory within its time; else it was filled before.
    #[serde(default)]
    pub fills: bool,
    /// Where threads start.
    #[serde(default)]
    pub place: Place,
    /// When it starts, in seconds; scaled with the scenario.
    #[serde(default)]
    pub start_s: f64,
    /// Its n-th copy starts when the n-th copy of this program has ended.
    #[serde(default)]
    pub after: Option<String>,
    /// What it uses.
    #[serde(default, rename = "region")]
    pub regions: Vec<Region>,
    /// Where accesses go, when it has no phases.
    #[serde(default)]
    pub uses: Vec<Use>,
    /// Phases, from the first again after the last.
    #[serde(default, rename = "phase")]
    pub phases: Vec<Phase>,
}

/// A checked scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// One line for people.
    pub summary: String,
    /// After whom or what it is made.
    #[serde(default)]
    pub source: String,
    /// Ideal length of work 1, in seconds.
    pub seconds: f64,
    /// What counts.
    #[serde(default)]
    pub metric: Metric,
    /// Share of every node's memory that others hold.
    #[serde(default)]
    pub occupied: f64,
    /// The programs.
    #[serde(rename = "program")]
    pub programs: Vec<Program>,
}

fn one() -> f64 {
    1.0
}

fn one_copy() -> usize {
    1
}

impl Scenario {
    /// Reads and checks the scenario file at `path`.
    ///
    /// # Errors
    /// It cannot be read, is no TOML, has an unknown key, or a value that makes no sense.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ScenarioError> {
        let path = path.as_ref();
        let text =
            std::fs::read_to_string(path).map_err(|cause| ScenarioError::Read { path: path.to_owned(), cause })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Checks a scenario's text; `origin` names it in errors.
    ///
    /// # Errors
    /// As [`Scenario::load`], but for reading.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start.min(text.len()));
            ScenarioError::Syntax {
                origin: origin.to_owned(),
                line: text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count() + 1,
                message: error.message().replace('\n', " "),
            }
        })?;
        scenario.checked(origin)
    }

    /// Checks values.
    ///
    /// # Errors
    /// [`ScenarioError::Value`] for the first one that makes no sense.
    pub fn checked(self, origin: &str) -> Result<Self, ScenarioError> {
        match check::wrong(&self) {
            None => Ok(self),
            Some((place, message)) => Err(ScenarioError::Value { origin: origin.to_owned(), place, message }),
        }
    }

    /// The same with another length of work 1; phases and starts are scaled along with `scale_times`.
    pub fn lasting(mut self, seconds: f64, scale_times: bool) -> Self {
        let factor = if scale_times { seconds / self.seconds } else { 1.0 };
        for program in &mut self.programs {
            program.start_s *= factor;
            program.phases.iter_mut().for_each(|phase| phase.seconds *= factor);
        }
        self.seconds = seconds;
        self
    }
}
