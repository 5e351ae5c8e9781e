// SPDX-License-Identifier: GPL-2.0-only
//! Feeds recorded snapshots to policies, those of the recording or others, and compares.
//!
//! Policies are asked at the intervals at which the agent asked, with what they remember, and the same rule says which
//! answer is taken ([`tandem_policies::decider`]). A replay is open: what another policy would have moved does not change
//! the snapshots that follow.

use std::collections::BTreeMap;

use tandem_policies::decider::{Decider, PolicyChoice};
use tandem_policies::model::{Move, Plan};
use tandem_policies::registry::{ParameterError, UnknownPolicy};
use thiserror::Error;

use crate::columns::Sink;
use crate::interval::{Answer, Decision, Interval};
use crate::settings::{PolicySettings, Settings, kind_of};
use crate::walk;

/// The policies to replay with.
#[derive(Clone, Debug)]
pub enum Policies {
    /// Those of the recording.
    Recorded,
    /// Those of the recording, but these for those of the same kind.
    Instead(Vec<PolicyChoice>),
    /// These.
    Only(Vec<PolicyChoice>),
}

/// Why a recording cannot be replayed. What others said is part of the sentence and no source: whoever prints both would say it
/// twice.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// A policy of the recording is not there any more.
    #[error("the recording was made with a policy that is not known here: {0}; replay it with --policy")]
    Unknown(UnknownPolicy),
    /// There is no such kind of policy.
    #[error("the recording was made with a {0} policy, a kind that is not known here; replay it with --policy")]
    UnknownKind(String),
    /// A policy of the recording has other parameters now.
    #[error("the recording was made with parameters that are not known here: {0}; replay it with --policy")]
    Parameter(ParameterError),
    /// It was made by somebody who only watched.
    #[error("the recording was made without policies: say with --policy which are to decide")]
    NoPolicies,
    /// There is nothing to put another policy in place of.
    #[error("the recording was made without a {0} policy: give all policies with --policy")]
    NoSuchKind(String),
}

impl From<UnknownPolicy> for ReplayError {
    fn from(error: UnknownPolicy) -> Self {
        Self::Unknown(error)
    }
}

impl From<ParameterError> for ReplayError {
    fn from(error: ParameterError) -> Self {
        Self::Parameter(error)
    }
}

/// A replay under way.
#[derive(Debug)]
pub struct Replay {
    policies: Policies,
    seed: Option<u64>,
    session: Option<Session>,
}

/// One agent's time.
#[derive(Debug)]
struct Session {
    decider: Decider,
    steps: u64,
    recorded_seed: u64,
}

/// A decision made again.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// What was decided now.
    pub decision: Decision,
    /// Whether every answer is, byte for byte, the recorded one.
    pub same: bool,
    /// Where the plan that is taken differs from the one that was; empty if only answers differ that were not taken.
    pub differences: Vec<Difference>,
}

/// One difference between two plans.
#[derive(Clone, Debug, PartialEq)]
pub enum Difference {
    /// A move of the recorded plan only.
    Gone(Move),
    /// A move of the new plan only.
    New(Move),
    /// The same move at another place in the plan, or with another gain or reason.
    Changed {
        /// As it was.
        recorded: Move,
        /// As it is now.
        now: Move,
    },
}

impl Replay {
    /// With these policies, and with `seed` instead of the recorded one.
    pub fn new(policies: Policies, seed: Option<u64>) -> Self {
        Self { policies, seed, session: None }
    }

    /// Begins anew as the agent did. Returns the policies that are asked.
    ///
    /// # Errors
    /// [`ReplayError`] if the policies of the recording are needed and not known.
    pub fn begin(&mut self, settings: &Settings) -> Result<Vec<PolicySettings>, ReplayError> {
        let choices = match &self.policies {
            Policies::Recorded if settings.policies.is_empty() => return Err(ReplayError::NoPolicies),
            Policies::Recorded => settings.policies.iter().map(recorded).collect::<Result<_, _>>()?,
            Policies::Instead(others) => instead(settings, others)?,
            Policies::Only(choices) => {
                choices.iter().map(|choice| as_recorded(settings, choice)).collect::<Result<_, _>>()?
            }
        };
        let decider = Decider::new(choices);
        let asked = decider.choices().iter().map(PolicySettings::from).collect();
        self.session = Some(Session { decider, steps: settings.steps, recorded_seed: settings.seed });
        Ok(asked)
    }

    /// Decides about an interval; `None` if the agent did not.
    ///
    /// # Panics
    /// If nothing has begun: a recording has settings before its first interval.
    pub fn decide(&mut self, interval: &Interval) -> Option<Replayed> {
        let recorded = interval.decision.as_ref()?;
        let session = self.session.as_mut().expect("settings come first");
        // The agent counts up from its seed: so does another one.
        let seed = self
            .seed
            .map_or(recorded.seed, |seed| seed.wrapping_add(recorded.seed.wrapping_sub(session.recorded_seed)));
        let decision = Decision::new(seed, session.decider.decide(&interval.snapshot, seed, session.steps));
        let same = recorded.taken == decision.taken
            && recorded.answers.len() == decision.answers.len()
            && recorded.answers.iter().zip(&decision.answers).all(|(old, new)| is_same(old, new));
        let differences = if same { Vec::new() } else { differences(recorded.plan(), decision.plan()) };
        Some(Replayed { decision, same, differences })
    }
}

fn recorded(policy: &PolicySettings) -> Result<PolicyChoice, ReplayError> {
    let kind = kind_of(&policy.kind).ok_or_else(|| ReplayError::UnknownKind(policy.kind.clone()))?;
    let mut choice = PolicyChoice::new(kind, &policy.name)?;
    for (name, &value) in &policy.parameters {
        choice.set(name, value)?;
    }
    Ok(choice)
}

/// `choice` with the parameters of the recording, if it is a policy of it.
fn as_recorded(settings: &Settings, choice: &PolicyChoice) -> Result<PolicyChoice, ReplayError> {
    let is_it = |policy: &&PolicySettings| policy.kind == choice.kind().to_string() && policy.name == choice.name();
    settings.policies.iter().find(is_it).map_or_else(|| Ok(choice.clone()), recorded)
}

fn instead(settings: &Settings, others: &[PolicyChoice]) -> Result<Vec<PolicyChoice>, ReplayError> {
    let kind = |choice: &PolicyChoice| choice.kind().to_string();
    for other in others {
        if settings.policies.iter().all(|policy| policy.kind != kind(other)) {
            return Err(ReplayError::NoSuchKind(kind(other)));
        }
    }
    let of = |policy: &PolicySettings| match others.iter().find(|other| kind(other) == policy.kind) {
        Some(other) => as_recorded(settings, other),
        None => recorded(policy),
    };
    settings.policies.iter().map(of).collect()
}

/// Byte for byte: a gain that is no number is the same as itself, and 0 is not -0. Only how it is said that a signal is missing
/// may be another version's.
fn is_same(one: &Answer, other: &Answer) -> bool {
    if let (Answer::Missing(_), Answer::Missing(_)) = (one, other) {
        return true;
    }
    let taken_down = |answer: &Answer| {
        let mut sink = Sink::new();
        walk::answer(&mut sink, &mut answer.clone()).map(|()| sink)
    };
    matches!((taken_down(one), taken_down(other)), (Ok(one), Ok(other)) if one.holds_the_same(&other))
}

fn differences(recorded: Option<&Plan>, now: Option<&Plan>) -> Vec<Difference> {
    let moves = |plan: Option<&Plan>| plan.map(|plan| plan.moves.clone()).unwrap_or_default();
    let mut by_action: BTreeMap<String, Vec<(usize, Move)>> = BTreeMap::new();
    for (place, planned) in moves(recorded).into_iter().enumerate().rev() {
        by_action.entry(format!("{:?}", planned.action)).or_default().push((place, planned));
    }
    let mut differences = Vec::new();
    for (place, now) in moves(now).into_iter().enumerate() {
        match by_action.get_mut(&format!("{:?}", now.action)).and_then(Vec::pop) {
            None => differences.push(Difference::New(now)),
            Some((same_place, recorded)) if same_place == place && recorded == now => {}
            Some((_, recorded)) => differences.push(Difference::Changed { recorded, now }),
        }
    }
    let mut gone: Vec<(usize, Move)> = by_action.into_values().flatten().collect();
    gone.sort_by_key(|(place, _)| *place);
    differences.extend(gone.into_iter().map(|(_, planned)| Difference::Gone(planned)));
    differences
}
