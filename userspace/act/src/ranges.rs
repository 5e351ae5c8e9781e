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

    /// Removes those that start elsewhere than a rule says.
    pub(crate) fn retain(&mut self, stays: impl Fn(GroupId) -> bool) {
        self.0.retain(|group, _| stays(*group));
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

#[cfg(test)]
mod tests {
    use tandem_policies::model::ProcessId;

    use super::*;

    fn at(process: u32, start: u64) -> GroupId {
        GroupId { process: ProcessId(process), start }
    }

    /// [10, 20) and [30, 40) of process 1, [15, 25) of process 2.
    fn three() -> Ranges<char> {
        let mut ranges = Ranges::default();
        ranges.insert(at(1, 10), 20, 'a');
        ranges.insert(at(1, 30), 40, 'b');
        ranges.insert(at(2, 15), 25, 'c');
        ranges
    }

    #[test]
    fn ranges_overlap_that_have_a_byte_in_common() {
        let ranges = three();
        for (start, end, expected) in [
            (0, 10, None),
            (0, 11, Some((at(1, 10), 20, 'a'))),
            (19, 20, Some((at(1, 10), 20, 'a'))),
            (20, 30, None),
            (39, 100, Some((at(1, 30), 40, 'b'))),
            (40, 100, None),
        ] {
            assert_eq!(ranges.last_overlapping(at(1, start), end), expected, "[{start}, {end})");
        }
    }

    #[test]
    fn of_several_the_last_one_is_told_and_none_of_another_process() {
        let ranges = three();
        assert_eq!(ranges.last_overlapping(at(1, 0), 100), Some((at(1, 30), 40, 'b')));
        assert_eq!(ranges.last_overlapping(at(2, 0), 100), Some((at(2, 15), 25, 'c')));
        assert_eq!(ranges.last_overlapping(at(3, 0), 100), None);
    }

    #[test]
    fn what_is_removed_makes_room() {
        let mut ranges = three();
        ranges.remove(at(1, 30));
        ranges.remove(at(1, 11));
        assert_eq!((ranges.last_overlapping(at(1, 0), 100), ranges.len()), (Some((at(1, 10), 20, 'a')), 2));
        ranges.insert(at(1, 25), 50, 'd');
        ranges.clear();
        assert_eq!((ranges.last_overlapping(at(1, 0), 100), ranges.len()), (None, 0));
    }
}
