// SPDX-License-Identifier: GPL-2.0-only
//! Runs of a program on other machines, by whatever hands work to these.
//!
//! Problem: a search takes hours on one machine, and there are many of the same kind. Mechanism: a *worker* (`tandem trial`) on
//! another machine is asked one thing, a [`Request`], and gives one [`Reply`]. An [`Executor`] carries requests to
//! workers, many at once, and hands replies back as soon as they are there, so that whatever happens afterwards, none is
//! lost. A worker that ends without a reply, or with its machine, is asked again elsewhere, [`TRIES`] times in all.
//! Program, input and the directory they are started in are at the same paths everywhere.

pub mod slurm;
pub mod ssh;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tandem_ab::stop::Stop;
use tandem_machine::RunningMachine;
use tandem_policies::model::Topology;

use crate::mapping::Profiled;
use crate::page_map::PageMap;
use crate::plan::Plan;
use crate::seat::CpuSet;
use crate::session::Trial;
use crate::subject::Subject;
use crate::surroundings::{cpu_model, kernel_release};

/// How often a request is carried out until one that is lost again ends the session.
pub const TRIES: u32 = 3;

/// What a worker is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// On what machine it is.
    Describe,
    /// To run a program once.
    Run(Box<Job>),
    /// To run a program once, and to look who uses which of its pages.
    Profile(Box<Job>),
}

impl Request {
    /// The run that is asked for, if any.
    pub(crate) fn job(&self) -> Option<&Job> {
        match self {
            Self::Run(job) | Self::Profile(job) => Some(job),
            Self::Describe => None,
        }
    }
}

/// One run of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Where it is started.
    pub directory: PathBuf,
    /// The program and its arguments; `{threads}` stands for the number of threads.
    pub command: Vec<String>,
    /// What it reads.
    pub input: Option<PathBuf>,
    /// Under what; as it is if none.
    pub plan: Option<Plan>,
    /// Where its pages go, if a map says that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_map: Option<PageMap>,
    /// Where its main thread alone is put, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub main: Option<CpuSet>,
    /// After how long it is stopped, in s.
    pub limit_s: Option<f64>,
    /// After how many entries of its parallel regions.
    pub last_entry: Option<u64>,
    /// What worker and asker must agree about: other machines and programs are not comparable.
    pub subject: Subject,
    /// Files that its arguments name, as the asker finds them. Workers need not find them so; but where one of them is another
    /// file, the run is another trial.
    pub files: Option<Vec<String>>,
}

/// What a worker answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// Its machine.
    Machine(Box<Description>),
    /// The run.
    Trial(Box<Trial>),
    /// Who uses which page.
    Profiled(Box<Profiled>),
    /// Why the run could not be set up: that says nothing of the machine, nor of the next run.
    NotSetUp(String),
    /// Why this machine runs nothing of what it was asked for, and would not the next time.
    Refused(String),
}

/// Why a worker makes no map of pages that does not say whether it can.
#[expect(clippy::unnecessary_wraps, reason = "it stands for a value that is missing")]
fn made_by_nobody() -> Option<String> {
    Some("tandem there is of an earlier version".to_owned())
}

/// A worker's machine, as far as it may use it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Its nodes.
    pub topology: Topology,
    /// Its cores, whatever their hardware threads.
    pub cores: usize,
    /// Why scx_tandem cannot move pages there, if that is known.
    pub obstacle: Option<String>,
    /// Why no map of pages can be made there, if that is known.
    #[serde(default = "made_by_nobody")]
    pub map_obstacle: Option<String>,
    /// What its CPUs are called, if that is known.
    #[serde(default)]
    pub cpu: Option<String>,
    /// The release of its kernel, if that is known.
    #[serde(default)]
    pub kernel: Option<String>,
}

impl Description {
    /// The part of `machine`, this one, whose CPUs are `allowed`. All memory may be used, and nothing is known to stand in the way
    /// of placing pages.
    pub fn of(machine: RunningMachine, allowed: &CpuSet) -> Self {
        let mut topology = machine.topology;
        for node in topology.nodes.values_mut() {
            node.cpus.retain(|&cpu| allowed.has(cpu));
            node.slow_cpus.retain(|&cpu, _| allowed.has(cpu));
            for cache in &mut node.llcs {
                cache.retain(|&cpu| allowed.has(cpu));
            }
            node.llcs.retain(|cache| !cache.is_empty());
        }
        let cores = machine.cores.iter().filter(|core| core.iter().any(|&cpu| allowed.has(cpu))).count();
        let (obstacle, map_obstacle) = (None, None);
        Self { topology, cores, obstacle, map_obstacle, cpu: cpu_model(), kernel: kernel_release() }
    }
}

/// Hands requests to workers.
pub trait Executor {
    /// Carries out all of `requests`, and calls `replied` with the index and the reply of each as soon as it is there. When
    /// a stop is wished, what is under way is given up. From `deadline` on nothing is handed out any more, and what came until then is kept.
    ///
    /// # Errors
    /// There is nobody to hand them to, one was lost [`TRIES`] times, or `replied` failed; in one sentence.
    fn carry_out(
        &self,
        requests: &[Request],
        stop: &Stop,
        deadline: Option<Instant>,
        replied: &mut dyn FnMut(usize, Reply) -> Result<()>,
    ) -> Result<()>;

    /// How many requests it carries out at a time, as far as that is known; else 1.
    fn machines(&self) -> usize {
        1
    }
}

/// The last line of a text, cut if it is long.
pub(crate) fn last_line(text: &str) -> String {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing").trim().chars().take(200).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Of a program as it is.
    pub fn job() -> Job {
        Job {
            directory: "/anywhere".into(),
            command: vec!["sh".into()],
            input: None,
            plan: None,
            page_map: None,
            main: None,
            limit_s: None,
            last_entry: None,
            subject: crate::subject::tests::subject(),
            files: None,
        }
    }

    #[test]
    fn a_worker_of_an_earlier_version_makes_no_maps_and_is_asked_for_none() {
        let machine = tandem_machine::read_running().unwrap();
        let described = Description::of(machine, &CpuSet::of(&[]));
        let mut json = serde_json::to_value(&described).unwrap();
        assert_eq!(serde_json::from_value::<Description>(json.clone()).unwrap().map_obstacle, None);
        json.as_object_mut().unwrap().remove("map_obstacle");
        let earlier: Description = serde_json::from_value(json).unwrap();
        assert!(earlier.map_obstacle.unwrap().contains("earlier version"));
        let asked = serde_json::to_value(job()).unwrap();
        assert!(asked.get("page_map").is_none() && asked.get("main").is_none(), "{asked}");
    }

    #[test]
    fn cpus_that_may_not_be_used_are_in_no_list_of_a_description() {
        let mut machine = tandem_machine::read_running().unwrap();
        for node in machine.topology.nodes.values_mut() {
            node.slow_cpus = node.cpus.iter().map(|&cpu| (cpu, 512)).collect();
        }
        let all: Vec<_> = machine.topology.nodes.values().flat_map(|node| node.cpus.clone()).collect();
        assert!(all.len() > 1, "one of two CPUs is taken away");
        let described = Description::of(machine, &CpuSet::of(&all[..1]));
        let nodes = || described.topology.nodes.values();
        let cpus: Vec<_> = nodes().flat_map(|node| &node.cpus).collect();
        let slow: Vec<_> = nodes().flat_map(|node| node.slow_cpus.keys()).collect();
        let caches: Vec<_> = nodes().flat_map(|node| &node.llcs).collect();
        assert_eq!((cpus, slow), (vec![&all[0]], vec![&all[0]]));
        assert_eq!(caches, [&all[..1]]);
        assert_eq!(described.cores, 1);
    }
}
