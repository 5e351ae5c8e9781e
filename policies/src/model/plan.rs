// SPDX-License-Identifier: GPL-2.0-only
//! What is to be done: an ordered list of moves, each with its price and its reason.

use serde::{Deserialize, Serialize};

use super::{CpuId, GroupId, NodeIndex, ThreadId};

/// One change of the placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A thread goes to another node.
    MoveThread {
        /// The thread.
        thread: ThreadId,
        /// Its node now.
        from: NodeIndex,
        /// Its node then; that of now if only the CPU changes.
        to: NodeIndex,
        /// The CPU of that node it is to run on, if the policy places threads on CPUs. A hint: a scheduler that places
        /// threads on nodes passes over it.
        cpu: Option<CpuId>,
    },
    /// Two threads change places: nodes, and CPUs where the policy places threads on those.
    Interchange {
        /// One thread.
        first: ThreadId,
        /// The other.
        second: ThreadId,
        /// Node of `first` now, of `second` then.
        first_node: NodeIndex,
        /// Node of `second` now, of `first` then.
        second_node: NodeIndex,
    },
    /// The pages of a group go to one node.
    MovePages {
        /// The group.
        group: GroupId,
        /// Its bytes from the first page on that go.
        bytes: u64,
        /// Their node then.
        to: NodeIndex,
    },
}

/// An action with what it should bring and what it costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Move {
    /// What to do.
    pub action: Action,
    /// Stall saved, in ns per second; `None` when the signals do not tell.
    pub gain_ns_per_s: Option<f64>,
    /// One line for people: why.
    pub reason: String,
}

/// Moves in the order in which they are to be made. Empty: nothing pays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The moves.
    pub moves: Vec<Move>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }
}
