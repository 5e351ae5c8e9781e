// SPDX-License-Identifier: GPL-2.0-only
//! One decision made by several policies: they are asked in order, and the first plan that is worth a trial is taken.
//!
//! Usually threads come first, and pages only once there is no thread to move: they would run after threads that leave.
//! What nodes are found to get done ([`NodeSpeeds`]) goes into the capacities that policies see.
//! The agent and the replay of a recording decide through this same code, so that one is what the other was.

use std::collections::BTreeMap;

use crate::model::{Plan, Snapshot, Topology};
use crate::registry::{self, Inputs, Kind, Memory, MissingSignal, ParameterError, Parameters, Policy, UnknownPolicy};
use crate::shares::speeds::NodeSpeeds;
use crate::stall::is_worth_a_trial;
use crate::stay::Stay;

/// A policy with its parameters.
#[derive(Clone, Debug)]
pub struct PolicyChoice {
    policy: &'static Policy,
    given: BTreeMap<String, f64>,
}

impl PolicyChoice {
    /// The policy of this kind and name with its defaults.
    ///
    /// # Errors
    /// [`UnknownPolicy`], which lists the names there are.
    pub fn new(kind: Kind, name: &str) -> Result<Self, UnknownPolicy> {
        Ok(Self { policy: registry::find(kind, name)?, given: BTreeMap::new() })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.policy.name
    }

    /// What it decides about.
    pub fn kind(&self) -> Kind {
        self.policy.kind
    }

    /// Whether its moves are trials that must not be undone for what they brought.
    pub fn explores(&self) -> bool {
        self.policy.explores
    }

    /// Whether the gain that it states counts CPUs as well as memory.
    pub fn weighs_cpus(&self) -> bool {
        self.policy.weighs_cpus
    }

    /// Whether it may be asked after a short interval.
    pub fn is_quick(&self) -> bool {
        self.policy.quick
    }

    /// The policies that `names` stands for: THREAD+PAGE, or a joint policy.
    ///
    /// # Errors
    /// [`UnknownPolicy`] for a name that is none of its kind.
    pub fn of_both(names: &str) -> Result<Vec<Self>, UnknownPolicy> {
        Ok(match names.split_once('+') {
            Some((thread, page)) => vec![Self::new(Kind::Thread, thread)?, Self::new(Kind::Page, page)?],
            None => vec![Self::new(Kind::Joint, names)?],
        })
    }

    /// Sets a parameter.
    ///
    /// # Errors
    /// [`ParameterError`] for an unknown name or a value out of range; then nothing is set.
    pub fn set(&mut self, name: &str, value: f64) -> Result<(), ParameterError> {
        let mut given = self.given.clone();
        given.insert(name.to_owned(), value);
        self.policy.parameters(&given)?;
        self.given = given;
        Ok(())
    }

    /// All its parameters.
    pub fn parameters(&self) -> Parameters {
        self.policy.parameters(&self.given).expect("checked when they were set")
    }
}

/// Policies with what they remember.
#[derive(Debug)]
pub struct Decider {
    choices: Vec<PolicyChoice>,
    memories: Vec<Memory>,
    speeds: NodeSpeeds,
    /// Whether what the last decision said of threads that stay still holds.
    stays_hold: bool,
}

/// What a [`Decider`] came to.
#[derive(Clone, Debug)]
pub struct Decision {
    /// What each policy answered, in the order in which they were asked. Those that were not asked are absent.
    pub answers: Vec<Result<Plan, MissingSignal>>,
    /// The answer that was taken; none if no policy had a plan that is worth a trial.
    pub taken: Option<usize>,
}

impl Decision {
    /// The plan that was taken.
    pub fn plan(&self) -> Option<&Plan> {
        self.answers.get(self.taken?)?.as_ref().ok()
    }
}

impl Decider {
    /// Asks `choices` in this order; they remember nothing yet.
    pub fn new(choices: Vec<PolicyChoice>) -> Self {
        let memories = choices.iter().map(|_| Memory::default()).collect();
        Self { memories, choices, speeds: NodeSpeeds::default(), stays_hold: false }
    }

    /// The policies, in the order in which they are asked.
    pub fn choices(&self) -> &[PolicyChoice] {
        &self.choices
    }

    /// What each policy is doing, in its own words; `None` of those that have nothing to say.
    pub fn statements(&self) -> Vec<Option<String>> {
        self.choices.iter().zip(&self.memories).map(|(choice, memory)| (choice.policy.statement)(memory)).collect()
    }

    /// Threads that the last decision left away from the memory that they use most, with why, by policies that tell.
    pub fn stays(&self) -> impl Iterator<Item = &Stay> {
        let of = |(choice, memory): (&PolicyChoice, _)| (choice.policy.stays)(memory);
        let holds = self.stays_hold;
        self.choices.iter().zip(&self.memories).map(of).filter(move |_| holds).flatten()
    }

    /// If its last plan was taken back, why threads stay is not what was told any more.
    pub fn note_undone_if(&mut self, undone: bool) {
        self.stays_hold &= !undone;
    }

    /// Which nodes get more or less done than is stated of their CPUs, in words; `None` if there is none.
    pub fn speeds(&self, topology: &Topology) -> Option<String> {
        self.speeds.statement(topology)
    }

    /// What to do about a snapshot. `seed` is of the policies' random choices, `steps` bounds their search.
    pub fn decide(&mut self, snapshot: &Snapshot, seed: u64, steps: u64) -> Decision {
        self.speeds.observe(snapshot);
        let learnt = self.speeds.applied(&snapshot.topology).map(|topology| Snapshot { topology, ..snapshot.clone() });
        let snapshot = learnt.as_ref().unwrap_or(snapshot);
        let mut answers = Vec::new();
        let mut taken = None;
        for (choice, memory) in self.choices.iter().zip(&mut self.memories) {
            let parameters = &choice.parameters();
            let answer = choice.policy.decide(&mut Inputs { snapshot, parameters, memory, seed, steps });
            let worth = matches!(&answer, Ok(plan) if !plan.is_empty() && is_worth_a_trial(plan, snapshot));
            answers.push(answer);
            if worth {
                taken = Some(answers.len() - 1);
                break;
            }
        }
        self.stays_hold = true;
        Decision { answers, taken }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Action;
    use crate::testing::{SnapshotBuilder, hogs, two_nodes};

    fn decider(thread: &str, page: &str) -> Decider {
        Decider::new(vec![
            PolicyChoice::new(Kind::Thread, thread).unwrap(),
            PolicyChoice::new(Kind::Page, page).unwrap(),
        ])
    }

    /// A thread on node 0 whose memory is on node 1.
    fn remote() -> Snapshot {
        SnapshotBuilder::new(two_nodes(2)).thread_with_memory_on(1, 0, 1).group_used_by(&[0, 512], &[(1, 1e6)]).build()
    }

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

    #[test]
    fn both_kinds_are_chosen_as_a_pair_or_by_a_joint_policy() {
        let names = |text: &str| -> Result<Vec<_>, UnknownPolicy> {
            Ok(PolicyChoice::of_both(text)?.iter().map(|choice| (choice.kind(), choice.name())).collect())
        };
        assert_eq!(names("sma+tmma"), Ok(vec![(Kind::Thread, "sma"), (Kind::Page, "tmma")]));
        assert_eq!(names("auto"), Ok(vec![(Kind::Joint, "auto")]));
        assert!(names("sma").unwrap_err().to_string().contains("no joint policy \"sma\" (it is a thread policy)"));
        assert!(
            names("auto+tmma").unwrap_err().to_string().contains("no thread policy \"auto\" (it is a joint policy)")
        );
    }

    #[test]
    fn a_policy_says_what_it_is_doing_if_it_has_anything_to_say() {
        let mut decider = Decider::new(
            [&PolicyChoice::of_both("auto").unwrap()[..], &PolicyChoice::of_both("sma+tmma").unwrap()].concat(),
        );
        assert_eq!(decider.statements(), [None, None, None]);
        decider.decide(&remote(), 1, u64::MAX);
        let said = decider.statements();
        assert!(
            said[0].as_ref().is_some_and(|said| said.starts_with("tries sma+tmma")) && said[1..] == [None, None],
            "{said:?}"
        );
    }

    #[test]
    fn the_first_plan_that_is_worth_a_trial_is_taken_and_nobody_else_is_asked() {
        let decision = decider("sma", "tmma").decide(&remote(), 1, u64::MAX);
        assert_eq!((decision.answers.len(), decision.taken), (1, Some(0)));
        assert!(!decision.plan().unwrap().is_empty());
    }

    #[test]
    fn pages_are_asked_when_there_is_no_thread_to_move() {
        let decision = decider("none", "tmma").decide(&remote(), 1, u64::MAX);
        assert_eq!((decision.answers.len(), decision.taken), (2, Some(1)));
    }

    #[test]
    fn a_node_found_to_do_half_gets_half_as_many_threads() {
        let moved = |node_1_per_s: f64| {
            let mut decider = decider("contiguous", "none");
            let last =
                (0..6).map(|interval| decider.decide(&hogs(8, 6, &[2e9, node_1_per_s], interval), 1, u64::MAX)).last();
            let plan = last.unwrap().plan().cloned().unwrap_or_default();
            plan.moves.iter().filter(|its| matches!(its.action, Action::MoveThread { to, .. } if to.0 == 0)).count()
        };
        assert_eq!(moved(2e9), 0, "six and six are right for alike nodes");
        assert_eq!(moved(1e9), 2, "eight and four");
    }

    #[test]
    fn a_missing_signal_is_an_answer_and_the_next_is_asked() {
        let blind = SnapshotBuilder::new(two_nodes(2)).thread(1, 0, None).build();
        let decision = decider("sma", "none").decide(&blind, 1, u64::MAX);
        assert!(decision.answers[0].is_err() && decision.answers[1].is_ok());
        assert!(decision.plan().is_none());
    }
}
