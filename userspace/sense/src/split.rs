// SPDX-License-Identifier: GPL-2.0-only
//! Where to cut a page group: between parts that have different users.
//!
//! Problem: memory that one thread uses may lie beside memory of another, in the same 2 MiB; moved as one, it is wrong for one
//! of them. Mechanism: the parts of a group (halves first, then quarters side by side) are compared by their *overlap*: the sum
//! over all threads of the lesser of its shares in the looks that showed either part, 1 for the same users in the same
//! proportion and 0 for none in common. Few looks say little, so that the overlap of parts that are to be cut must
//! be below [`DIFFERENT`] by `1/sqrt(n)`, `n` being the looks at the part with fewer. Parts with an overlap of
//! [`ALIKE`] at least are one again, and so are those of which one was hardly seen.

use std::ops::Range;

use crate::thread_numbers::ThreadNumber;
use crate::touches::Record;

/// Parts with a larger overlap are not cut.
const DIFFERENT: f32 = 0.5;
/// Parts with a smaller overlap are not joined.
const ALIKE: f32 = 0.75;
/// Looks at a part below which it counts as one that nobody uses.
const HARDLY_SEEN: f32 = 1.0;
/// Parts into which a group is cut at most at once.
const PARTS: u64 = 4;

/// Who touched a part of a group, in aged looks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Part(Vec<(ThreadNumber, f32)>);

impl Part {
    /// The users of a whole record.
    pub(crate) fn of(record: Record<'_>) -> Self {
        Self(record.users().map(|(number, user)| (number, user.looks)).collect())
    }

    /// `looks` more at a thread that touched it.
    pub(crate) fn add(&mut self, thread: ThreadNumber, looks: f32) {
        match self.0.iter_mut().find(|(user, _)| *user == thread) {
            Some((_, sum)) => *sum += looks,
            None => self.0.push((thread, looks)),
        }
    }

    fn looks(&self) -> f32 {
        self.0.iter().map(|(_, looks)| looks).sum()
    }

    fn looks_of(&self, thread: ThreadNumber) -> f32 {
        self.0.iter().find(|(user, _)| *user == thread).map_or(0.0, |(_, looks)| *looks)
    }
}

/// Whether a group has enough users and looks that its parts could turn out to be different.
pub(crate) fn may_split(record: Record<'_>) -> bool {
    let least = 2.0 / (DIFFERENT * DIFFERENT);
    let pages = record.pages();
    let (users, looks) = record.users().fold((0, 0.0), |(users, looks), (_, user)| (users + 1, looks + user.looks));
    pages.end - pages.start > 1 && users > 1 && looks >= least
}

/// The page at which to cut a group of these pages, if at any; `users` tells who touched a part of it.
pub(crate) fn cut(pages: &Range<u64>, mut users: impl FnMut(Range<u64>) -> Part) -> Option<u64> {
    let middle = middle(pages);
    if different(&users(pages.start..middle), &users(middle..pages.end)) {
        return Some(middle);
    }
    let size = (pages.end - pages.start).next_power_of_two() / PARTS;
    if size == 0 {
        return None;
    }
    let mut bounds = vec![pages.start];
    bounds.extend((pages.start / size + 1..).map(|at| at * size).take_while(|&bound| bound < pages.end));
    bounds.push(pages.end);
    let parts: Vec<Part> = bounds.windows(2).map(|ends| users(ends[0]..ends[1])).collect();
    (1..parts.len()).find(|&at| different(&parts[at - 1], &parts[at])).map(|at| bounds[at])
}

/// Whether two groups side by side are as well one.
pub(crate) fn alike(one: &Part, other: &Part) -> bool {
    one.looks().min(other.looks()) < HARDLY_SEEN || overlap(one, other) >= ALIKE
}

/// The share of what `thread` did in both parts that it did in the lower one.
pub(crate) fn low_share(low: &Part, high: &Part, thread: ThreadNumber) -> f32 {
    let (low, high) = (low.looks_of(thread), high.looks_of(thread));
    if low + high > 0.0 { low / (low + high) } else { 0.5 }
}

fn different(one: &Part, other: &Part) -> bool {
    let fewest = one.looks().min(other.looks());
    fewest >= HARDLY_SEEN && overlap(one, other) + 1.0 / fewest.sqrt() < DIFFERENT
}

fn overlap(one: &Part, other: &Part) -> f32 {
    let (of_one, of_other) = (one.looks(), other.looks());
    one.0.iter().map(|&(user, looks)| (looks / of_one).min(other.looks_of(user) / of_other)).sum()
}

/// Of the multiples of the largest power of two that lie inside, the one in the middle.
fn middle(pages: &Range<u64>) -> u64 {
    let mut size = (pages.end - pages.start).next_power_of_two();
    loop {
        let (first, last) = (pages.start / size + 1, (pages.end - 1) / size);
        if first <= last {
            return first.midpoint(last) * size;
        }
        size /= 2;
    }
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::ThreadId;

    use super::*;
    use crate::thread_numbers::ThreadNumbers;

    fn number(tid: u32) -> ThreadNumber {
        let mut numbers = ThreadNumbers::default();
        let thread = |tid| ThreadId { tid, start_boottime_ns: 1 };
        (1..=tid).map(|tid| numbers.number(thread(tid)).unwrap()).last().unwrap()
    }

    fn part(users: &[(u32, f32)]) -> Part {
        Part(users.iter().map(|&(tid, looks)| (number(tid), looks)).collect())
    }

    /// Users of a range if page by page these threads looked at it so often each.
    fn users(by_page: &[(Range<u64>, u32)], looks_per_page: f32) -> impl FnMut(Range<u64>) -> Part {
        move |range| {
            let mut part = Part::default();
            for page in range {
                for (_, tid) in by_page.iter().filter(|(pages, _)| pages.contains(&page)) {
                    part.add(number(*tid), looks_per_page);
                }
            }
            part
        }
    }

    #[test]
    fn a_group_is_cut_between_halves_of_different_users() {
        assert_eq!(cut(&(512..1024), users(&[(512..768, 1), (768..1024, 2)], 0.1)), Some(768));
        assert_eq!(cut(&(512..1024), users(&[(512..1024, 1), (512..1024, 2)], 0.1)), None, "both use all of it");
        assert_eq!(cut(&(512..1024), users(&[(512..768, 1)], 0.1)), None, "nobody uses the other half");
    }

    #[test]
    fn quarters_that_take_turns_are_found_though_the_halves_are_alike() {
        let stripes = [(0..128, 1), (128..256, 2), (256..384, 1), (384..512, 2)];
        assert_eq!(cut(&(0..512), users(&stripes, 0.1)), Some(128));
        assert_eq!(cut(&(128..512), users(&stripes, 0.1)), Some(256));
    }

    #[test]
    fn few_looks_are_no_difference() {
        let halves = [(0..256, 1), (256..512, 2)];
        assert_eq!(cut(&(0..512), users(&halves, 4.0 / 256.0)), None);
        assert_eq!(cut(&(0..512), users(&halves, 4.1 / 256.0)), Some(256));
        let overlapping = |looks| different(&part(&[(1, 0.7 * looks), (2, 0.3 * looks)]), &part(&[(2, looks)]));
        assert!(!overlapping(20.0) && overlapping(30.0), "0.3 + 1/sqrt(n)");
    }

    #[test]
    fn the_middle_is_where_the_largest_units_meet() {
        let middles =
            [(0..512, 256), (0..384, 256), (128..512, 256), (3..5, 4), (6..8, 7), (500..512, 504), (100..104, 102)];
        for (pages, expected) in middles {
            assert_eq!(middle(&pages), expected, "{pages:?}");
        }
    }

    #[test]
    fn what_was_cut_is_joined_only_once_its_users_are_nearly_the_same() {
        assert!(!alike(&part(&[(1, 9.0)]), &part(&[(2, 9.0)])));
        assert!(!alike(&part(&[(1, 9.0)]), &part(&[(1, 6.0), (2, 3.0)])), "nor cut");
        assert!(alike(&part(&[(1, 9.0)]), &part(&[(1, 70.0), (2, 20.0)])));
        assert!(alike(&part(&[(1, 9.0)]), &part(&[(2, 0.9)])), "hardly seen");
    }

    #[test]
    fn a_thread_goes_with_the_part_where_it_was_seen() {
        let (low, high) = (part(&[(1, 9.0), (2, 1.0)]), part(&[(2, 3.0)]));
        assert_eq!([1, 2, 3].map(|tid| low_share(&low, &high, number(tid))), [1.0, 0.25, 0.5]);
    }
}
