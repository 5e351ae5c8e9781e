// SPDX-License-Identifier: GPL-2.0-only
//! What answered a memory access, in one vocabulary for all hardware.

use serde::Serialize;

/// The place that an access was served from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The hardware did not say.
    #[default]
    Unknown,
    /// The core's first-level cache, or what lies before it.
    L1,
    /// A line that was already under way to the first-level cache: another access paid for it.
    LineFillBuffer,
    /// The core's second-level cache.
    L2,
    /// The last-level cache that the core belongs to.
    L3,
    /// The cache of another core, cluster or socket.
    PeerCache,
    /// Memory: DRAM, persistent or behind a link such as CXL, or a cache on the memory's side.
    Memory,
    /// A device or memory that is not cached.
    Uncached,
}

/// What other caches had of the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Snoop {
    /// The hardware did not say.
    #[default]
    Unknown,
    /// Nobody was asked.
    None,
    /// Another cache had the line unmodified.
    Hit,
    /// Others were asked and had nothing.
    Miss,
    /// Another cache had the line modified ("HITM"): two threads share it and one writes.
    Modified,
}

/// What answered an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DataSource {
    /// The place.
    pub level: Level,
    /// Whether that place belongs to another node than the core's; `None`: not said.
    pub remote: Option<bool>,
    /// What other caches had of the line.
    pub snoop: Snoop,
}

impl DataSource {
    /// Nothing known.
    pub const UNKNOWN: Self = Self { level: Level::Unknown, remote: None, snoop: Snoop::Unknown };

    /// Whether the access may say where its page should be: it went past the caches of its core and cluster, or
    /// nobody knows where it went.
    pub fn may_leave_caches(self) -> bool {
        match self.level {
            Level::Memory | Level::PeerCache | Level::Unknown => true,
            Level::L1 | Level::LineFillBuffer | Level::L2 | Level::L3 | Level::Uncached => false,
        }
    }
}
