// SPDX-License-Identifier: GPL-2.0-only
//! Ranges of the address spaces of processes that do not overlap each other, each with something that is known of it.

use std::collections::BTreeMap;

use tandem_policies::model::GroupId;

/// Of `len` ranges each is found in O(log `len`).
#[derive(Debug)]
pub(crate) struct Ranges<V>(BTreeMap<GroupId, (u64, V)>);

impl<V> Default for Ranges<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<V: Copy> Ranges<V> {
    /// Adds [group.start, end), which must not overlap another one.
    pub(crate) fn insert(&mut self, group: GroupId, end: u64, value: V) {
        debug_assert!(self.last_overlapping(group, end).is_none(), "{group:?} overlaps another range");
        self.0.insert(group, (end, value));
    }

    /// Removes the range that starts there, if one does.
    pub(crate) fn remove(&mut self, group: GroupId) {
        self.0.remove(&group);
    }

    /// The last range of the process that overlaps [group.start, end): its start, end and value.
    pub(crate) fn last_overlapping(&self, group: GroupId, end: u64) -> Option<(GroupId, u64, V)> {
        let from = GroupId { start: 0, ..group };
        // As they do not overlap each other, the last one that starts below `end` ends last.
        let (id, &(its_end, value)) = self.0.range(from..GroupId { start: end, ..group }).next_back()?;
        (its_end > group.start).then_some((*id, its_end, value))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
