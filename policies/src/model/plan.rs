// SPDX-License-Identifier: GPL-2.0-only
//! What is to be done: an ordered list of moves, each with its price and its reason.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{CpuId, GroupId, NodeIndex, ThreadId, Topology};

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

impl Move {
    /// One line for people, with the kernel's node ids.
    pub fn in_words(&self, topology: &Topology) -> String {
        let id = |node: NodeIndex| topology.nodes.get(node).map_or("?".to_owned(), |node| node.id.to_string());
        let what = match self.action {
            Action::MoveThread { thread, from, to, .. } => format!("thread {thread}: node {} -> {}", id(from), id(to)),
            Action::Interchange { first, second, first_node, second_node } => {
                format!("threads {first} and {second}: nodes {} <-> {}", id(first_node), id(second_node))
            }
            Action::MovePages { group, bytes, to } => {
                let (start, process) = (group.start, group.process.0);
                format!("pages at {start:#x} of process {process} ({} KiB) -> node {}", bytes / 1024, id(to))
            }
        };
        let gain = self.gain_ns_per_s.map_or(String::new(), |ns| format!(" (saves {:.3} s/s)", ns / 1e9));
        format!("{what}: {}{gain}", self.reason)
    }
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

    /// The nodes to which threads go. Of several moves of a thread the last counts.
    pub fn thread_nodes(&self) -> BTreeMap<ThreadId, NodeIndex> {
        let mut nodes = BTreeMap::new();
        for planned in &self.moves {
            match planned.action {
                Action::MoveThread { thread, to, .. } => {
                    nodes.insert(thread, to);
                }
                Action::Interchange { first, second, first_node, second_node } => {
                    nodes.insert(first, second_node);
                    nodes.insert(second, first_node);
                }
                Action::MovePages { .. } => {}
            }
        }
        nodes
    }
}
