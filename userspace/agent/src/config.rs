// SPDX-License-Identifier: GPL-2.0-only
//! What the agent is told.

use std::time::Duration;

use tandem_act::MoverConfig;
use tandem_policies::decider::PolicyChoice;
use tandem_policies::model::PAGE_BYTES;
use tandem_trace::Recorder;
use tandem_view::Board;

use crate::managed::ManagedSet;

/// Who moves pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoverKind {
    /// The agent, by move_pages.
    MovePages,
    /// The kernel's NUMA balancing. In partial mode, with balancing on.
    Kernel,
}

/// Everything that can be chosen about an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Time between decisions.
    pub interval: Duration,
    /// How long assignments outlive their last renewal.
    pub lease: Duration,
    /// How long a thread or page that was moved stays where it is, at most.
    pub cooldown: Duration,
    /// The policies in the order in which they are asked: one of threads and one of pages, or a joint one.
    pub policies: Vec<PolicyChoice>,
    /// What is managed.
    pub managed: ManagedSet,
    /// CPU time for sampling with `lookahead`, as a share of one CPU.
    pub sampler_budget: f64,
    /// Who moves pages.
    pub mover: MoverKind,
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
    /// Called about once a second while the agent is alive.
    pub alive: fn(),
    /// Where the state is shown after each interval.
    pub board: Option<Board>,
    /// Takes down what is seen and decided.
    pub recorder: Option<Recorder>,
}

impl AgentConfig {
    /// What of it is about moving pages.
    pub(crate) fn mover_config(&self) -> MoverConfig {
        MoverConfig {
            pages_per_s: self.page_rate_bytes_per_s / PAGE_BYTES,
            call_ns_per_s: (self.mover_budget * 1e9) as u64,
            ..MoverConfig::default()
        }
    }
}
