// SPDX-License-Identifier: GPL-2.0-only
//! The policies by kind and name, with what they need, their parameters and their source.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use thiserror::Error;

use crate::auto;
use crate::foreign::quoted;
use crate::model::{Plan, Snapshot};
use crate::stay::Stay;
use crate::{
    autopin, cimar, compact, contiguous, cra, direct, dyrmma, imar2, kmaf, lbma, nimar, opt, sam, scatter, sma,
};
use crate::{balance, dataset, interleave, kmaf_pages, lmma, locality, mix, next_touch, opt_pages, rmma, tandem, tmma};

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
    /// Operations per second of threads.
    #[serde(rename = "thread.operations_per_s")]
    ThreadOperations,
    /// Cycles per second of threads.
    #[serde(rename = "thread.cycles_per_s")]
    ThreadCycles,
    /// Performance of threads: operations, accesses and latency of this interval, or what is remembered of their node.
    #[serde(rename = "thread.performance")]
    ThreadPerformance,
    /// Lines per second that threads get from other cores' caches.
    #[serde(rename = "thread.transfers_per_s")]
    ThreadTransfers,
    /// What threads share with each other.
    #[serde(rename = "thread.sharing")]
    ThreadSharing,
    /// Accesses per second of page groups by node of the accessor.
    #[serde(rename = "group.accesses_per_s")]
    GroupAccesses,
    /// Resident pages of page groups by node.
    #[serde(rename = "group.resident_pages")]
    GroupResidency,
    /// Accesses per second of page groups by thread.
    #[serde(rename = "group.users")]
    GroupUsers,
    /// Mean latency of the accesses to page groups.
    #[serde(rename = "group.latency_ns")]
    GroupLatency,
    /// Mean latency of the accesses of threads.
    #[serde(rename = "thread.latency_ns")]
    ThreadLatency,
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
    #[error("{policy} has no parameter {}; it has {allowed}", quoted(name))]
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
#[error("there is no {kind} policy {}{elsewhere}; choose one of {allowed}", quoted(name))]
pub struct UnknownPolicy {
    /// The kind asked for.
    pub kind: Kind,
    /// The name asked for.
    pub name: String,
    /// Of which kind there is one of this name, in words; empty if there is none at all.
    pub elsewhere: String,
    /// Names of that kind.
    pub allowed: String,
}

/// The snapshot lacks a signal that the policy needs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("policy {policy} needs {signal}: not seen yet, or not to be had of this sampler or recording")]
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
    /// Sets of signals of which it needs a whole one besides; none if `needs` are enough.
    pub needs_one_of: &'static [&'static [Signal]],
    /// What can be set.
    pub parameters: &'static [Parameter],
    /// Paper, algorithm, equations.
    pub source: &'static str,
    /// The algorithm, as [`Policy::decide`] calls it.
    pub decide: fn(&mut Inputs) -> Result<Plan, MissingSignal>,
    /// Whether its moves are trials: random ones, or such as it judges and takes back itself. Who carries them out must
    /// not undo them for what they brought.
    pub explores: bool,
    /// Whether the gain that it states counts CPUs as well as memory, so that a plan of it may well expect accesses to take longer.
    pub weighs_cpus: bool,
    /// Whether it may be asked after an interval of a tenth of a second: it weighs how much it knows.
    pub quick: bool,
    /// What it is doing, by what it remembers, in one line; `None` if there is nothing to say but its plans.
    pub statement: fn(&Memory) -> Option<String>,
    /// Threads that its last decision left away from the memory that they use most, with why, as far as it can tell.
    pub stays: fn(&Memory) -> &[Stay],
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
pub struct Memory {
    kept: Option<Box<dyn Any + Send>>,
    /// When it last decided.
    decided_ns: u64,
}

impl Memory {
    /// What was kept as a `T`, or the default of `T` if nothing was or another policy's type.
    pub fn of<T: Default + Send + 'static>(&mut self) -> &mut T {
        if !self.kept.as_ref().is_some_and(|kept| kept.is::<T>()) {
            self.kept = Some(Box::<T>::default());
        }
        self.kept.as_mut().and_then(|kept| kept.downcast_mut()).expect("made of this type above")
    }

    /// What was kept as a `T`; `None` if nothing was or another policy's type.
    pub fn peek<T: 'static>(&self) -> Option<&T> {
        self.kept.as_ref()?.downcast_ref()
    }

    /// Forgets everything if the clock went back: that is another recording.
    fn follow_clock(&mut self, time_ns: u64) {
        if time_ns < self.decided_ns {
            *self = Self::default();
        }
        self.decided_ns = time_ns;
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.kept.is_some() { "Memory(..)" } else { "Memory(empty)" })
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
    /// Sets of signals of which it needs a whole one besides; none if `needs` are enough.
    pub needs_one_of: &'static [&'static [Signal]],
    /// What can be set.
    pub parameters: &'static [Parameter],
    /// Paper, algorithm, equations.
    pub source: &'static str,
}

/// Thread policy `none`.
///
/// ```
/// use tandem_policies::{example, registry};
///
/// assert!(example::decided(&registry::NO_THREADS, &example::crossed())?.is_empty());
/// # Ok::<(), registry::MissingSignal>(())
/// ```
pub static NO_THREADS: Policy = Policy { kind: Kind::Thread, ..NOTHING };
/// Page policy `none`.
///
/// ```
/// use tandem_policies::{example, registry};
///
/// assert!(example::decided(&registry::NO_PAGES, &example::crossed())?.is_empty());
/// # Ok::<(), registry::MissingSignal>(())
/// ```
pub static NO_PAGES: Policy = Policy { kind: Kind::Page, ..NOTHING };

const NOTHING: Policy = Policy { name: "none", source: "control: decides nothing", ..Policy::PLAIN };

/// All policies, by kind and name.
static POLICIES: &[&Policy] = &[
    &autopin::POLICY,
    &cimar::POLICY,
    &compact::POLICY,
    &contiguous::POLICY,
    &cra::POLICY,
    &direct::POLICY,
    &dyrmma::POLICY,
    &imar2::POLICY,
    &kmaf::POLICY,
    &lbma::POLICY,
    &nimar::POLICY,
    &NO_THREADS,
    &opt::POLICY,
    &sam::POLICY,
    &scatter::POLICY,
    &sma::POLICY,
    // Pages.
    &balance::POLICY,
    &dataset::POLICY,
    &interleave::POLICY,
    &kmaf_pages::POLICY,
    &lmma::POLICY,
    &locality::POLICY,
    &mix::POLICY,
    &next_touch::POLICY,
    &NO_PAGES,
    &opt_pages::POLICY,
    &rmma::POLICY,
    &tmma::POLICY,
    // Both.
    &auto::POLICY,
    &tandem::POLICY,
];

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
        let other = policies().iter().find(|policy| policy.name == name);
        let elsewhere = other.map_or(String::new(), |other| format!(" (it is a {} policy)", other.kind));
        UnknownPolicy { kind, name: name.to_owned(), elsewhere, allowed: names.join(", ") }
    })
}

/// All policies in words.
pub fn describe() -> Vec<PolicyDescription> {
    let describe = |policy: &Policy| PolicyDescription {
        name: policy.name,
        kind: policy.kind,
        needs: policy.needs,
        needs_one_of: policy.needs_one_of,
        parameters: policy.parameters,
        source: policy.source,
    };
    policies().iter().copied().map(describe).collect()
}

impl Policy {
    /// A thread policy that needs nothing and decides nothing: what others say only where they differ.
    pub(crate) const PLAIN: Self = Self {
        name: "",
        kind: Kind::Thread,
        needs: &[],
        needs_one_of: &[],
        parameters: &[],
        source: "",
        decide: |_| Ok(Plan::default()),
        explores: false,
        weighs_cpus: false,
        quick: false,
        statement: |_| None,
        stays: |_| &[],
    };

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

    /// What to do about a snapshot. The same inputs, the memory among them, give the same plan on every machine. A snapshot
    /// earlier than that of the last decision starts anew.
    ///
    /// # Errors
    /// [`MissingSignal`] if a signal in `needs` is absent, or one in each set of `needs_one_of`.
    pub fn decide(&self, inputs: &mut Inputs) -> Result<Plan, MissingSignal> {
        inputs.memory.follow_clock(inputs.snapshot.time_ns);
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
            Signal::ThreadOperations => "operations per second of threads",
            Signal::ThreadCycles => "cycles per second of threads",
            Signal::ThreadPerformance => "performance of threads",
            Signal::ThreadTransfers => "lines per second that threads get from other caches",
            Signal::ThreadSharing => "sharing between threads",
            Signal::GroupAccesses => "accesses per second of page groups by accessor node",
            Signal::GroupResidency => "resident pages of page groups by node",
            Signal::GroupUsers => "accesses per second of page groups by thread",
            Signal::GroupLatency => "mean latency of the accesses to page groups",
            Signal::ThreadLatency => "mean latency of the accesses of threads",
        })
    }
}

#[cfg(test)]
mod tests;
