// SPDX-License-Identifier: GPL-2.0-only
//! A value that may be unknown. `Option` itself cannot be described to scx_stats.

use scx_stats::{Meta, StatsMeta, StatsStructAttrs};
use serde::{Deserialize, Serialize};

/// In JSON the value, or null if it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Maybe<T>(pub Option<T>);

impl<T> From<Option<T>> for Maybe<T> {
    fn from(value: Option<T>) -> Self {
        Self(value)
    }
}

impl<T> Meta for Maybe<T> {
    fn meta() -> StatsMeta {
        let attrs =
            StatsStructAttrs { desc: Some("a value, or null if it is unknown".to_owned()), ..Default::default() };
        StatsMeta { name: "Maybe".to_owned(), attrs, fields: Default::default() }
    }
}
