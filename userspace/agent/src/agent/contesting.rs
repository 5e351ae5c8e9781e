// SPDX-License-Identifier: GPL-2.0-only
//! Pages that something else moves as well: they rest, and it is said.

use std::os::unix::process::parent_id;
use std::path::Path;

use tandem_act::Found;
use tandem_policies::model::{NodeId, PageGroup, Snapshot, Unmovable};
use tracing::warn;

use super::Agent;
use crate::config::MoverKind;
use crate::contests;

impl Agent {
    /// Finds groups that something else moved from where a plan had put them, given how many pages we moved so far. They are not
    /// to be moved, in this snapshot either.
    pub(super) fn find_contested(&mut self, snapshot: &mut Snapshot, own_pages: u64) {
        // The kernel's mover puts pages where their users run, also where that is not what a plan says.
        if self.config.mover == MoverKind::Kernel {
            self.sensor.doubt_homes();
            return;
        }
        // While moves of ours are under way nobody tells them from others'.
        if self.mover.queued_groups() > 0 {
            return;
        }
        let Some(migrated_pages) = self.migrations.by_others(own_pages) else { return };
        if migrated_pages > self.contested.migrated_pages() {
            self.sensor.doubt_homes();
        }
        let found: Vec<Found> = snapshot.groups.iter().filter_map(|group| self.found(group, snapshot)).collect();
        let contests = self.contested.look(&found, migrated_pages, snapshot.time_ns);
        if contests.is_empty() {
            return;
        }
        for group in &mut snapshot.groups {
            if self.contested.is_resting(group.id, group.bytes, snapshot.time_ns) {
                group.unmovable.get_or_insert(Unmovable::Contested);
            }
        }
        if let Some(words) = self.contest_talk.words(&contests, snapshot) {
            let rivals = tandem_machine::rivals(Path::new("/"), parent_id());
            warn!(event = "contested_pages", "{words}: {}", contests::culprit(&rivals));
        }
    }

    /// How a group is found, if a plan put it where it should be.
    fn found(&self, group: &PageGroup, snapshot: &Snapshot) -> Option<Found> {
        let PageGroup { id, bytes, .. } = *group;
        let (to, since_ns) = self.contested.watched(id, bytes)?;
        let is_known_since = |since_ns| self.sensor.knows_home_since(id, since_ns, snapshot.time_ns);
        let places = is_known_since(since_ns).then(|| places(group, to, snapshot));
        Some(Found { group: id, bytes, places, is_new: is_known_since(self.contested.looked_ns()) })
    }
}

/// A group's resident pages on a node, and on all others.
fn places(group: &PageGroup, node: NodeId, snapshot: &Snapshot) -> (u64, u64) {
    let all: u64 = group.resident_pages.values().sum();
    let there = snapshot.topology.index_of(node).map_or(0, |node| group.resident_pages[node]);
    (there, all - there)
}
