// SPDX-License-Identifier: GPL-2.0-only
//! Page groups: nearly all of an interval.

use tandem_policies::model::{GroupUsers, PageGroup, ThreadId, Unmovable};

use super::threads::by_node;
use super::{People, choice, floats_per_node, numbers_per_node};
use crate::blank;
use crate::coder::{Coder, Malformed};
use crate::columns::Column;
use crate::scales::{Scale, scales};

/// In the order of their numbers in the file.
const UNMOVABLE: [Option<Unmovable>; 8] = [
    None,
    Some(Unmovable::Cooldown),
    Some(Unmovable::Shared),
    Some(Unmovable::Pinned),
    Some(Unmovable::Bound),
    Some(Unmovable::HugeTlb),
    Some(Unmovable::MemoryPressure),
    Some(Unmovable::Contested),
];

/// The rules that values of this interval follow.
pub(super) struct Rules<'a> {
    pub(super) people: &'a People,
    users: Vec<Scale>,
    samples: Scale,
}

impl Rules<'_> {
    /// How accesses of the thread at this place go on.
    pub(super) fn scale(&self, place: Option<usize>) -> Scale {
        place.and_then(|place| self.users.get(place)).copied().unwrap_or(Scale::STILL)
    }
}

/// Passes all groups; returns the rules that were found.
pub(super) fn groups<'a>(
    coder: &mut impl Coder,
    now: &mut Vec<PageGroup>,
    before: &[PageGroup],
    people: &'a People,
) -> Result<Rules<'a>, Malformed> {
    let rules = rules(coder, now, before, people)?;
    let count = coder.count::<PageGroup>(Column::GroupCount, now.len(), before.len())?;
    now.resize_with(count, blank::group);
    let nothing = blank::group();
    let mut expected = 0;
    let mut last = nothing.id;
    for group in now.iter_mut() {
        let found = match before.get(expected) {
            Some(old) if old.id == group.id => Some(expected),
            _ => before.binary_search_by_key(&group.id, |old| old.id).ok(),
        };
        let row = coder.row(Column::GroupRow, found, expected, before.len())?;
        match row {
            Some(row) => {
                group.id = before[row].id;
                expected = row + 1;
            }
            None => {
                coder.number(Column::GroupProcess, &mut group.id.process, last.process)?;
                coder.number(Column::GroupStart, &mut group.id.start, last.start)?;
            }
        }
        last = group.id;
        fields(coder, group, row.map_or(&nothing, |row| &before[row]), &rules)?;
    }
    Ok(rules)
}

/// Passes the rules. Reading, what is estimated from the blank groups is replaced.
fn rules<'a>(
    coder: &mut impl Coder,
    now: &[PageGroup],
    before: &[PageGroup],
    people: &'a People,
) -> Result<Rules<'a>, Malformed> {
    let (mut users, mut samples) = scales(&people.ids, before, now);
    for scale in users.iter_mut().chain([&mut samples]) {
        coder.float(Column::ScaleRatio, &mut scale.ratio, 1.0)?;
        coder.float(Column::ScaleUnit, &mut scale.unit, 0.0)?;
    }
    Ok(Rules { people, users, samples })
}

fn fields(coder: &mut impl Coder, now: &mut PageGroup, before: &PageGroup, rules: &Rules) -> Result<(), Malformed> {
    coder.number(Column::GroupBytes, &mut now.bytes, before.bytes)?;
    let (count, column) = (Column::GroupResidentCount, Column::GroupResident);
    numbers_per_node(coder, count, column, &mut now.resident_pages, &before.resident_pages)?;
    let new_samples = users(coder, &mut now.users, &before.users, rules)?;
    let predicted = by_node(&now.users, now.resident_pages.len(), rules.people);
    let (count, column) = (Column::GroupAccessesCount, Column::GroupAccesses);
    floats_per_node(coder, count, column, &mut now.accesses_per_s, &predicted)?;
    let columns = (Column::GroupSamples, Column::GroupSamplesNew);
    aged(coder, columns, &mut now.samples, before.samples, rules.samples, new_samples)?;
    coder.optional(Column::GroupLatency, &mut now.latency_ns, before.latency_ns)?;
    choice(coder, Column::GroupUnmovable, &mut now.unmovable, before.unmovable, &UNMOVABLE)?;
    coder.flag(Column::GroupHuge, &mut now.huge, before.huge)
}

/// Passes the users of a group; returns how many new samples they make together.
fn users(
    coder: &mut impl Coder,
    now: &mut GroupUsers,
    before: &[(ThreadId, f64)],
    rules: &Rules,
) -> Result<i64, Malformed> {
    let count = coder.count::<(ThreadId, f64)>(Column::GroupUserCount, now.len(), before.len())?;
    now.resize(count, (blank::THREAD_ID, 0.0));
    let (mut expected, mut next, mut all_new) = (0, 0, 0_i64);
    for (user, value) in now.iter_mut() {
        let found = before.binary_search_by_key(user, |old| old.0).ok();
        let row = coder.row(Column::GroupUserRow, found, expected, before.len())?;
        match row {
            Some(row) => (*user, expected) = (before[row].0, row + 1),
            None => rules.people.pass(coder, Column::GroupUser, user, next)?,
        }
        let place = rules.people.place(*user);
        next = place.map_or(next, |place| place + 1);
        let scale = rules.scale(place);
        let old = row.map_or(0.0, |row| before[row].1);
        let new = aged(coder, (Column::GroupUserAccesses, Column::GroupUserNew), value, old, scale, 0)?;
        all_new = all_new.wrapping_add(new);
    }
    Ok(all_new)
}

/// Passes a value that ages and grows by samples, probably by `expected` of them; returns by how many.
pub(super) fn aged(
    coder: &mut impl Coder,
    columns: (Column, Column),
    value: &mut f64,
    before: f64,
    scale: Scale,
    expected: i64,
) -> Result<i64, Malformed> {
    let mut new = scale.new_samples(before, *value);
    coder.aged(columns, value, &mut new, expected, |new| scale.after(before, new))?;
    Ok(new)
}
