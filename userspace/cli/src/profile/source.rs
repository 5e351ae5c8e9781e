// SPDX-License-Identifier: GPL-2.0-only
//! Where a profile's accesses come from: a sampler alone, or one whose accesses become snapshots for a recording as well.

use std::collections::BTreeSet;

use anyhow::Result;
use tandem_machine::RunningMachine;
use tandem_policies::model::{CpuId, ProcessId};
use tandem_sense::{Access, FaultConfig, LookaheadConfig, Sampler, SensorConfig, monotonic_ns, samplers};
use tandem_trace::{Decision, Interval, Recorder};

use super::sampled::Settings;
use crate::observe::Observer;

/// What sees the accesses of a process and its descendants.
pub enum Source {
    /// A sampler.
    Alone(Box<dyn Sampler>),
    /// What makes snapshots, and where they go.
    Recorded(Box<Observer>, Recorder),
}

/// Refuses a sampler that cannot be had here, by opening it: for what must not begin without.
///
/// # Errors
/// It cannot be used.
pub fn check(settings: &Settings, machine: &RunningMachine) -> Result<()> {
    open_sampler(settings, machine).map(drop)
}

fn open_sampler(settings: &Settings, machine: &RunningMachine) -> Result<Box<dyn Sampler>> {
    let cpus: Vec<CpuId> = machine.topology.nodes.values().flat_map(|node| node.cpus.iter().copied()).collect();
    let lookahead = LookaheadConfig { budget_fraction: Some(settings.budget), ..LookaheadConfig::default() };
    let fault = FaultConfig { budget_fraction: settings.budget, hints: false };
    Ok(samplers::open(settings.sampler, lookahead, fault, &cpus)?)
}

impl Source {
    /// Begins to sample the process `root` and its descendants, and to record if there is a recorder.
    ///
    /// # Errors
    /// There is no such process, or the sampler cannot be used.
    pub fn open(root: u32, settings: &Settings, machine: &RunningMachine, recorder: Option<&Recorder>) -> Result<Self> {
        let Some(recorder) = recorder else {
            return Ok(Self::Alone(open_sampler(settings, machine)?));
        };
        let config = SensorConfig { budget: settings.budget, sampler: settings.sampler, ..SensorConfig::default() };
        let observer = Observer::open_with(Some(root), config)?;
        recorder.settings(tandem_trace::Settings {
            program: format!("tandem profile {}", env!("CARGO_PKG_VERSION")),
            sampler: observer.sampler().to_owned(),
            interval_ns: settings.slice.as_nanos() as u64,
            seed: 0,
            steps: u64::MAX,
            dry_run: true,
            policies: Vec::new(),
        });
        Ok(Self::Recorded(Box::new(observer), recorder.clone()))
    }

    /// The sampler's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Alone(sampler) => sampler.traits().name,
            Self::Recorded(observer, _) => observer.sampler(),
        }
    }

    /// The accesses that were seen since the last call.
    ///
    /// # Errors
    /// The sampler cannot go on.
    pub fn sample(&mut self) -> Result<Vec<Access>> {
        Ok(match self {
            Self::Alone(sampler) => sampler.drain(monotonic_ns())?.accesses,
            Self::Recorded(observer, _) => observer.sample()?.to_vec(),
        })
    }

    /// These are the processes now. A slice is over, unless they are the `first` ones.
    ///
    /// # Errors
    /// What the kernel tells of the processes cannot be read.
    pub fn look(&mut self, processes: &BTreeSet<ProcessId>, first: bool) -> Result<()> {
        match self {
            Self::Alone(sampler) => sampler.set_managed(processes),
            Self::Recorded(..) if first => {}
            Self::Recorded(observer, recorder) => {
                let snapshot = observer.snapshot()?;
                // Nobody was asked; whoever is asked by a replay is asked here.
                let decision = Decision { seed: 0, answers: Vec::new(), taken: None, generation: None };
                recorder.interval(Interval { snapshot, outcomes: Vec::new(), decision: Some(decision) });
            }
        }
        Ok(())
    }
}
