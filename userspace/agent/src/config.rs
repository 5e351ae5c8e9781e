// SPDX-License-Identifier: GPL-2.0-only
//! What the agent is told.

use std::collections::BTreeMap;
use std::time::Duration;

use tandem_policies::model::{Plan, Snapshot};
use tandem_policies::registry::{self, Inputs, Kind, Memory, MissingSignal, ParameterError, Policy, UnknownPolicy};

use crate::managed::Selector;

/// Everything that can be chosen about an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Time between decisions.
    pub interval: Duration,
    /// How long assignments outlive their last renewal.
    pub lease: Duration,
    /// How long a thread or page that was moved stays where it is.
    pub cooldown: Duration,
    /// Places threads.
    pub thread_policy: PolicyChoice,
    /// Places pages.
    pub page_policy: PolicyChoice,
    /// What is managed; a thread is if any selector matches it.
    pub managed: Vec<Selector>,
    /// CPU time for sampling, as a share of one CPU.
    pub sampler_budget: f64,
    /// Memory moved per second at most.
    pub page_rate_bytes_per_s: u64,
    /// Time in system calls that move pages, as a share of one CPU.
    pub mover_budget: f64,
    /// Decide, but change nothing.
    pub dry_run: bool,
    /// Of the policies' random choices.
    pub seed: u64,
    /// Time between lines of statistics.
    pub stats_interval: Option<Duration>,
}

/// A policy with its parameters.
#[derive(Clone, Debug)]
pub struct PolicyChoice {
    policy: &'static Policy,
    given: BTreeMap<String, f64>,
}

impl PolicyChoice {
    /// The policy of this kind and name with its defaults.
    pub fn new(kind: Kind, name: &str) -> Result<Self, UnknownPolicy> {
        Ok(Self { policy: registry::find(kind, name)?, given: BTreeMap::new() })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.policy.name
    }

    /// Sets a parameter.
    pub fn set(&mut self, name: &str, value: f64) -> Result<(), ParameterError> {
        let mut given = self.given.clone();
        given.insert(name.to_owned(), value);
        self.policy.parameters(&given)?;
        self.given = given;
        Ok(())
    }

    /// Asks the policy for a plan.
    pub(crate) fn decide(&self, snapshot: &Snapshot, memory: &mut Memory, seed: u64) -> Result<Plan, MissingSignal> {
        let parameters = &self.policy.parameters(&self.given).expect("checked when they were set");
        self.policy.decide(&mut Inputs { snapshot, parameters, memory, seed, steps: u64::MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_policies_and_parameters_are_refused_with_what_there_is() {
        let error = PolicyChoice::new(Kind::Thread, "smb").unwrap_err().to_string();
        assert!(error.contains("smb") && error.contains("sma"), "{error}");
        let mut sma = PolicyChoice::new(Kind::Thread, "sma").unwrap();
        let error = sma.set("colling", 0.5).unwrap_err().to_string();
        assert!(error.contains("colling") && error.contains("cooling"), "{error}");
        assert!(sma.set("cooling", 7.0).is_err(), "out of range");
        assert!(sma.given.is_empty(), "what is refused is not kept");
    }
}
