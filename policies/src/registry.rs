// SPDX-License-Identifier: GPL-2.0-only
//! The policies by kind and name, with what they need, their parameters and their source.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use thiserror::Error;

use crate::model::{Plan, Snapshot};
use crate::{sma, tmma};

/// What a policy decides about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Nodes of threads.
    Thread,
    /// Nodes of page groups.
    Page,
    /// Both at once.
    Joint,
}

/// A signal that a policy cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Signal {
    /// Accesses per second of threads by node of the memory.
    #[serde(rename = "thread.accesses_per_s")]
    ThreadAccesses,
    /// Accesses per second of page groups by node of the accessor.
    #[serde(rename = "group.accesses_per_s")]
    GroupAccesses,
    /// Resident pages of page groups by node.
    #[serde(rename = "group.resident_pages")]
    GroupResidency,
}

/// A number that can be set.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its value if not set.
    pub default: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Least and greatest value, both allowed.
    pub range: [f64; 2],
    /// Whether it must be a whole number.
    #[serde(skip)]
    pub whole: bool,
}

impl Parameter {
    pub(crate) const fn real(name: &'static str, default: f64, unit: &'static str, least: f64, most: f64) -> Self {
        Self { name, default, unit, range: [least, most], whole: false }
    }

    pub(crate) const fn whole(name: &'static str, default: f64, unit: &'static str, least: f64, most: f64) -> Self {
        Self { name, default, unit, range: [least, most], whole: true }
    }
}

/// Values of all parameters of one policy; made by [`Policy::parameters`] or [`Policy::defaults`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Parameters(BTreeMap<&'static str, f64>);

impl Parameters {
    /// The value of a parameter.
    ///
    /// # Panics
    /// If the policy these were made for has no such parameter.
    pub fn get(&self, name: &str) -> f64 {
        self.0[name]
    }

    /// All names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        self.0.iter().map(|(&name, &value)| (name, value))
    }
}

/// Why values are not parameters of a policy.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ParameterError {
    /// No parameter has this name.
    #[error("{policy} has no parameter '{name}'; it has {allowed}")]
    Unknown {
        /// The policy.
        policy: &'static str,
        /// The name given.
        name: String,
        /// Names there are.
        allowed: String,
    },
    /// The value is out of range, not whole, or not a number.
    #[error("{policy}: {name} = {value} is not allowed; give {allowed}")]
    Value {
        /// The policy.
        policy: &'static str,
        /// The parameter.
        name: &'static str,
        /// The value given.
        value: f64,
        /// What is allowed.
        allowed: String,
    },
}

/// No policy has this kind and name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no {kind} policy '{name}'; choose one of {allowed}")]
pub struct UnknownPolicy {
    /// The kind asked for.
    pub kind: Kind,
    /// The name asked for.
    pub name: String,
    /// Names of that kind.
    pub allowed: String,
}

/// The snapshot lacks a signal that the policy needs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("policy {policy} needs {signal}, which no sampler gives; choose another sampler or policy")]
pub struct MissingSignal {
    /// The policy.
    pub policy: &'static str,
    /// The signal.
    pub signal: Signal,
}

/// One policy.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Its name, unique within its kind.
    pub name: &'static str,
    /// What it decides about.
    pub kind: Kind,
    /// Signals it cannot do without.
    pub needs: &'static [Signal],
    /// What can be set.
    pub parameters: &'static [Parameter],
    /// Paper, algorithm, equations.
    pub source: &'static str,
    /// The algorithm, as [`Policy::decide`] calls it.
    pub decide: fn(&mut Inputs) -> Result<Plan, MissingSignal>,
}

/// What a decision is made from.
pub struct Inputs<'a> {
    /// What was seen.
    pub snapshot: &'a Snapshot,
    /// Values of the policy's parameters.
    pub parameters: &'a Parameters,
    /// What the policy remembers.
    pub memory: &'a mut Memory,
    /// Of random choices.
    pub seed: u64,
    /// Bounds the search of policies that search.
    pub steps: u64,
}

/// What a policy remembers from one decision to the next. Empty at first; each policy keeps a type of its own in it.
#[derive(Default)]
pub struct Memory(Option<Box<dyn Any + Send>>);

impl Memory {
    /// What was kept as a `T`, or the default of `T` if nothing was or another policy's type.
    pub fn of<T: Default + Send + 'static>(&mut self) -> &mut T {
        if !self.0.as_ref().is_some_and(|kept| kept.is::<T>()) {
            self.0 = Some(Box::<T>::default());
        }
        self.0.as_mut().and_then(|kept| kept.downcast_mut()).expect("made of this type above")
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Memory(..)" } else { "Memory(empty)" })
    }
}

/// A policy in words, as `tandem policies --json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyDescription {
    /// Its name, unique within its kind.
    pub name: &'static str,
    /// What it decides about.
    pub kind: Kind,
    /// Signals it cannot do without.
    pub needs: &'static [Signal],
    /// What can be set.
    pub parameters: &'static [Parameter],
    /// Paper, algorithm, equations.
    pub source: &'static str,
}

/// Thread policy `none`.
pub static NO_THREADS: Policy = Policy { kind: Kind::Thread, ..NOTHING };
/// Page policy `none`.
pub static NO_PAGES: Policy = Policy { kind: Kind::Page, ..NOTHING };

const NOTHING: Policy = Policy {
    name: "none",
    kind: Kind::Thread,
    needs: &[],
    parameters: &[],
    source: "control: decides nothing",
    decide: |_| Ok(Plan::default()),
};

/// All policies, by kind and name.
static POLICIES: &[&Policy] = &[&NO_THREADS, &sma::POLICY, &NO_PAGES, &tmma::POLICY];

/// All policies, by kind and name.
pub fn policies() -> &'static [&'static Policy] {
    POLICIES
}

/// The policy of this kind and name.
///
/// # Errors
/// [`UnknownPolicy`], which lists the names there are.
pub fn find(kind: Kind, name: &str) -> Result<&'static Policy, UnknownPolicy> {
    let of_kind = || policies().iter().copied().filter(move |policy| policy.kind == kind);
    of_kind().find(|policy| policy.name == name).ok_or_else(|| {
        let names: Vec<&str> = of_kind().map(|policy| policy.name).collect();
        let allowed = if names.is_empty() { "none, there is no such policy yet".to_owned() } else { names.join(", ") };
        UnknownPolicy { kind, name: name.to_owned(), allowed }
    })
}

/// All policies in words.
pub fn describe() -> Vec<PolicyDescription> {
    let describe = |policy: &Policy| PolicyDescription {
        name: policy.name,
        kind: policy.kind,
        needs: policy.needs,
        parameters: policy.parameters,
        source: policy.source,
    };
    policies().iter().copied().map(describe).collect()
}

impl Policy {
    /// Every parameter at its default.
    pub fn defaults(&self) -> Parameters {
        Parameters(self.parameters.iter().map(|parameter| (parameter.name, parameter.default)).collect())
    }

    /// The defaults with `values` put over them.
    ///
    /// # Errors
    /// [`ParameterError`] for an unknown name or a value out of range.
    pub fn parameters(&self, values: &BTreeMap<String, f64>) -> Result<Parameters, ParameterError> {
        let mut all = self.defaults();
        for (name, &value) in values {
            let Some(parameter) = self.parameters.iter().find(|parameter| parameter.name == name) else {
                let names: Vec<&str> = self.parameters.iter().map(|parameter| parameter.name).collect();
                let allowed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                return Err(ParameterError::Unknown { policy: self.name, name: name.clone(), allowed });
            };
            let [least, most] = parameter.range;
            if !(least..=most).contains(&value) || (parameter.whole && value.fract() != 0.0) {
                let what = if parameter.whole { "a whole number" } else { "a number" };
                let allowed = format!("{what} from {least} to {most} ({})", parameter.unit);
                return Err(ParameterError::Value { policy: self.name, name: parameter.name, value, allowed });
            }
            all.0.insert(parameter.name, value);
        }
        Ok(all)
    }

    /// What to do about a snapshot. The same inputs, the memory among them, give the same plan on every machine.
    ///
    /// # Errors
    /// [`MissingSignal`] if a signal in `needs` is absent.
    pub fn decide(&self, inputs: &mut Inputs) -> Result<Plan, MissingSignal> {
        (self.decide)(inputs)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Thread => "thread",
            Kind::Page => "page",
            Kind::Joint => "joint",
        })
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Signal::ThreadAccesses => "accesses per second of threads by memory node",
            Signal::GroupAccesses => "accesses per second of page groups by accessor node",
            Signal::GroupResidency => "resident pages of page groups by node",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SnapshotBuilder, decided, two_nodes};

    fn refused(policy: &Policy, name: &str, value: f64) -> String {
        policy.parameters(&BTreeMap::from([(name.to_owned(), value)])).unwrap_err().to_string()
    }

    #[test]
    fn kind_and_name_find_a_policy() {
        for &policy in policies() {
            assert!(std::ptr::eq(find(policy.kind, policy.name).unwrap(), policy));
        }
    }

    #[test]
    fn an_unknown_policy_is_answered_with_the_names_of_its_kind() {
        let sentence = |kind, name| find(kind, name).unwrap_err().to_string();
        assert_eq!(sentence(Kind::Thread, "tmma"), "there is no thread policy 'tmma'; choose one of none, sma");
        assert_eq!(sentence(Kind::Page, "sma"), "there is no page policy 'sma'; choose one of none, tmma");
    }

    #[test]
    fn an_unknown_parameter_is_answered_with_the_names_there_are() {
        let sentence = "tmma has no parameter 'delta'; it has preload_groups, min_samples, home_share, reserve_percent, min_gain_percent";
        assert_eq!(refused(&tmma::POLICY, "delta", 1.0), sentence);
        assert_eq!(refused(&NO_PAGES, "delta", 1.0), "none has no parameter 'delta'; it has none");
    }

    #[test]
    fn a_value_out_of_range_is_answered_with_what_is_allowed() {
        let sentence = "sma: cooling = 1.5 is not allowed; give a number from 0.5 to 1 (factor per step)";
        assert_eq!(refused(&sma::POLICY, "cooling", 1.5), sentence);
        let sentence =
            "sma: restarts = 2.5 is not allowed; give a whole number from 0 to 1000 (starts after the first)";
        assert_eq!(refused(&sma::POLICY, "restarts", 2.5), sentence);
        let sentence = "sma: cooling = NaN is not allowed; give a number from 0.5 to 1 (factor per step)";
        assert_eq!(refused(&sma::POLICY, "cooling", f64::NAN), sentence);
    }

    #[test]
    fn both_ends_of_a_range_are_allowed_and_the_rest_stays_at_its_default() {
        let values = BTreeMap::from([("cooling".to_owned(), 1.0), ("restarts".to_owned(), 0.0)]);
        let parameters = sma::POLICY.parameters(&values).unwrap();
        assert_eq!((parameters.get("cooling"), parameters.get("restarts")), (1.0, 0.0));
        assert_eq!(parameters.get("start_temperature"), 0.3);
    }

    #[test]
    fn defaults_are_allowed_and_names_are_unique() {
        for policy in policies() {
            let defaults = policy.defaults().iter().map(|(name, value)| (name.to_owned(), value)).collect();
            assert_eq!(policy.parameters(&defaults).unwrap(), policy.defaults());
            assert_eq!(defaults.len(), policy.parameters.len());
        }
    }

    #[test]
    fn a_missing_signal_is_one_sentence() {
        let snapshot = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, None).build();
        let error = decided(&sma::POLICY, &snapshot, 1, u64::MAX).unwrap_err();
        let sentence = "policy sma needs accesses per second of threads by memory node, which no sampler gives; \
                        choose another sampler or policy";
        assert_eq!(error.to_string(), sentence);
    }

    #[test]
    fn policy_none_decides_nothing() {
        let snapshot = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1).group(&[1, 0], &[0.0, 1.0]);
        let snapshot = snapshot.build();
        for policy in [&NO_THREADS, &NO_PAGES] {
            assert!(decided(policy, &snapshot, 1, u64::MAX).unwrap().is_empty());
        }
    }

    #[test]
    fn a_policy_decides_by_the_algorithm_of_its_name() {
        let snapshot = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1).group(&[1, 0], &[0.0, 1.0]);
        let snapshot = snapshot.build();
        let plan = |policy: &Policy| decided(policy, &snapshot, 7, 10_000).unwrap();
        assert_eq!(plan(&sma::POLICY), sma::decide(&snapshot, &sma::POLICY.defaults(), 7, 10_000).unwrap());
        assert_eq!(plan(&tmma::POLICY), tmma::decide(&snapshot, &tmma::POLICY.defaults()));
        assert!(!plan(&sma::POLICY).is_empty() && !plan(&tmma::POLICY).is_empty());
    }

    #[test]
    fn memory_keeps_what_one_policy_put_there_and_is_empty_for_another() {
        let mut memory = Memory::default();
        *memory.of::<u32>() = 7;
        assert_eq!(*memory.of::<u32>(), 7);
        assert_eq!(memory.of::<String>(), "");
    }

    #[test]
    fn the_description_has_exactly_the_keys_promised() {
        let json = serde_json::to_value(describe()).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let list = json.as_array().unwrap();
        assert_eq!(list.len(), policies().len());
        for policy in list {
            assert_eq!(keys(policy), ["kind", "name", "needs", "parameters", "source"]);
            for parameter in policy["parameters"].as_array().unwrap() {
                assert_eq!(keys(parameter), ["default", "name", "range", "unit"]);
            }
        }
    }

    #[test]
    fn the_description_of_tmma_is_what_tools_read() {
        let json = serde_json::to_value(describe()).unwrap();
        let tmma = json.as_array().unwrap().iter().find(|policy| policy["name"] == "tmma").unwrap();
        assert_eq!(tmma["kind"], "page");
        assert_eq!(tmma["needs"], serde_json::json!(["group.accesses_per_s", "group.resident_pages"]));
        let first = serde_json::json!(
            {"name": "preload_groups", "default": 8.0, "unit": "page groups", "range": [0.0, 512.0]}
        );
        assert_eq!(tmma["parameters"][0], first);
    }

    /// Every parameter is a row `| name | default | unit | ...` of the policy's page.
    #[test]
    fn the_pages_name_every_parameter_with_its_default_and_unit() {
        let pages = [
            (&sma::POLICY, include_str!("../../docs/policies/sma.md")),
            (&tmma::POLICY, include_str!("../../docs/policies/tmma.md")),
        ];
        for (policy, page) in pages {
            let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
            let of = |parameter: &Parameter| {
                format!("| `{}` | {} | {} |", parameter.name, parameter.default, parameter.unit)
            };
            let expected: Vec<String> = policy.parameters.iter().map(of).collect();
            assert_eq!(rows.len(), expected.len(), "{}: rows of parameters", policy.name);
            for (row, expected) in rows.iter().zip(expected) {
                assert!(row.starts_with(&expected), "{}: '{row}' should start with '{expected}'", policy.name);
            }
        }
    }
}
