// SPDX-License-Identifier: GPL-2.0-only
//! What stays the same while an agent runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tandem_policies::decider::PolicyChoice;
use tandem_policies::registry::Kind;

/// Everything but the snapshots that decisions were made from. Stored as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Which program recorded, with its version.
    pub program: String,
    /// Where the signals came from.
    pub sampler: String,
    /// Time between decisions.
    pub interval_ns: u64,
    /// Of the policies' random choices; each decision notes the one it was made with.
    pub seed: u64,
    /// Bounds the search of policies that search.
    pub steps: u64,
    /// Nothing was changed.
    pub dry_run: bool,
    /// The policies in the order in which they were asked.
    pub policies: Vec<PolicySettings>,
}

/// One policy with all its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicySettings {
    /// `thread`, `page` or `joint`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The values of all its parameters.
    pub parameters: BTreeMap<String, f64>,
}

impl From<&PolicyChoice> for PolicySettings {
    fn from(choice: &PolicyChoice) -> Self {
        Self {
            kind: choice.kind().to_string(),
            name: choice.name().to_owned(),
            parameters: choice.parameters().iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        }
    }
}

/// The kind of this name.
pub(crate) fn kind_of(name: &str) -> Option<Kind> {
    [Kind::Thread, Kind::Page, Kind::Joint].into_iter().find(|kind| kind.to_string() == name)
}
