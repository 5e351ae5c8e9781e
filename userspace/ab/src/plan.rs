// SPDX-License-Identifier: GPL-2.0-only
//! From what is asked to jobs, and from what became of them to experiments.

use anyhow::Result;

use crate::arm::Arm;
use crate::calibration::Calibration;
use crate::experiment::{Experiment, Frame};
use crate::native::Conditions;
use crate::programs::{Places, Programs};
use crate::run::Identity;
use crate::runner::{Job, Outcome, interleaved};
use crate::workload::Workload;

/// Workloads x arms x boots.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Workloads, each an experiment of its own.
    pub workloads: Vec<Workload>,
    /// Arms.
    pub arms: Vec<Arm>,
    /// Boots of each arm.
    pub boots: u64,
    /// Seed of the first boot; each further boot has the next.
    pub first_seed: u64,
}

/// Where a plan is carried out.
pub struct Scene {
    /// Name of the machine.
    pub machine: String,
    /// Kernel release.
    pub kernel: String,
    /// Whether times mean anything.
    pub calibration: Calibration,
    /// The real machine's state.
    pub native: Option<Conditions>,
}

impl Plan {
    /// All jobs, in the order in which they are to run. `identify` fills in what only the place knows: machine, kernel,
    /// and a hash of all programs and words of the run.
    ///
    /// # Errors
    /// A program is missing, or `identify` fails.
    pub fn jobs(
        &self,
        places: &Places,
        identify: &dyn Fn(&Arm, &Workload, &Programs, u64) -> Result<Identity>,
    ) -> Result<Vec<Job>> {
        let programs = self.arms.iter().map(|arm| places.of(arm)).collect::<Result<Vec<Programs>>>()?;
        let mut jobs = Vec::new();
        for workload in &self.workloads {
            let tools = places.tools(workload)?;
            for (index, boot) in interleaved(self.arms.len(), self.boots) {
                let arm = self.arms[index].clone();
                let programs = Programs { tools: tools.clone(), ..programs[index].clone() };
                let identity = identify(&arm, workload, &programs, self.first_seed + boot - 1)?;
                jobs.push(Job { identity, arm, workload: workload.clone(), programs, boot });
            }
        }
        Ok(jobs)
    }

    /// One experiment per workload.
    pub fn experiments(&self, scene: &Scene, jobs: &[Job], outcomes: &[Outcome]) -> Vec<Experiment> {
        let names: Vec<String> = self.arms.iter().map(|arm| arm.name.clone()).collect();
        let experiment = |workload: &Workload| {
            let frame = Frame {
                machine: scene.machine.clone(),
                kernel: scene.kernel.clone(),
                workload: workload.text.clone(),
                boots_per_arm: self.boots,
                calibration: scene.calibration.clone(),
                native: scene.native.clone(),
            };
            let of_workload = jobs.iter().zip(outcomes).filter(|(job, _)| job.workload == *workload);
            Experiment::of(frame, &names, &of_workload.collect::<Vec<_>>())
        };
        self.workloads.iter().map(experiment).collect()
    }
}
