// SPDX-License-Identifier: GPL-2.0-only
//! Names of things, each a type of its own: a node is not a CPU, an id is not an index.

use std::fmt;
use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// A node as the kernel numbers it. Ids may be sparse (0, 2, 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// Position of a node in [`super::Topology::nodes`], dense from 0. Per-node rows are indexed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeIndex(pub usize);

/// A logical CPU as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CpuId(pub u32);

/// A process (thread group), by its id in the initial pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProcessId(pub u32);

/// A thread: its id in the initial pid namespace and its start time, since ids are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ThreadId {
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Start time on CLOCK_BOOTTIME.
    pub start_boottime_ns: u64,
}

/// A group of contiguous pages of one address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId {
    /// Process whose address space it is.
    pub process: ProcessId,
    /// Virtual address of its first byte.
    pub start: u64,
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tid)
    }
}

/// One value per node, in the order of [`super::Topology::nodes`].
///
/// Those of two nodes lie in it: there may be very many rows, and most machines with several nodes have two.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent, bound(serialize = "T: Serialize", deserialize = "T: Deserialize<'de>"))]
pub struct PerNode<T>(SmallVec<[T; 2]>);

impl<T> PerNode<T> {
    /// A row with `value(node)` for each of `nodes` nodes.
    pub fn from_fn(nodes: usize, value: impl FnMut(NodeIndex) -> T) -> Self {
        Self((0..nodes).map(NodeIndex).map(value).collect())
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The values with their nodes, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (NodeIndex, &T)> + DoubleEndedIterator {
        self.0.iter().enumerate().map(|(index, value)| (NodeIndex(index), value))
    }

    /// The values alone, in order.
    pub fn values(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// The same to be changed.
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.0.iter_mut()
    }

    /// The value of a node, or `None` for an index outside the machine.
    pub fn get(&self, node: NodeIndex) -> Option<&T> {
        self.0.get(node.0)
    }
}

impl<T: Clone> PerNode<T> {
    /// A row with the same value for each of `nodes` nodes.
    pub fn filled(nodes: usize, value: T) -> Self {
        Self(SmallVec::from_elem(value, nodes))
    }
}

impl PerNode<f64> {
    /// Sum over all nodes.
    pub fn total(&self) -> f64 {
        // Most values of most rows are 0, and a test takes less time than an addition.
        self.0.iter().filter(|&&value| value != 0.0).fold(0.0, |sum, value| sum + value)
    }

    /// The node with the largest value, the lower index on a tie; `None` if nothing is above zero.
    pub fn argmax(&self) -> Option<NodeIndex> {
        let mut best: Option<(NodeIndex, f64)> = None;
        for (node, &value) in self.iter() {
            if value > best.map_or(0.0, |(_, most)| most) {
                best = Some((node, value));
            }
        }
        best.map(|(node, _)| node)
    }
}

impl<T> From<Vec<T>> for PerNode<T> {
    fn from(values: Vec<T>) -> Self {
        Self(values.into())
    }
}

impl<T> Index<NodeIndex> for PerNode<T> {
    type Output = T;

    fn index(&self, node: NodeIndex) -> &T {
        &self.0[node.0]
    }
}

impl<T> IndexMut<NodeIndex> for PerNode<T> {
    fn index_mut(&mut self, node: NodeIndex) -> &mut T {
        &mut self.0[node.0]
    }
}
