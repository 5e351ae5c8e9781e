// SPDX-License-Identifier: GPL-2.0-only
//! How much pairs of threads use the same pages, from few samples.
//!
//! Problem: what two threads share is the sum over all 4 KiB pages of the lesser of their rates on it. Samplers that see some
//! hundred places a second hardly ever catch two threads at one page of a large array, so that the sum over the pages that
//! were seen (the *floor*) is mostly chance. Page groups are seen often, but two threads that use a group may use
//! different pages of it.
//!
//! Mechanism: in each page group, the lesser of the two threads' rates is an upper bound. How much of it is real is told by
//! coincidences. With `x` and `y` looks at the two threads on a page, and `X` and `Y` in the group,
//!
//! - `C = Σ xy` pairs of looks met on a page;
//! - `E = XY (Dx + Dy)/2` would have met, if both used the pages in the same proportions: `D = Σ x(x-1) / X(X-1)` is how often
//!   two looks at one thread meet.
//!
//! C/E is Morisita's index of overlap, which does not depend on how many samples there are. Where a group alone has
//! too few, all groups of the pair together stand in for what it lacks: its share is `(C + kρ)/(E + k)` with
//! `ρ = (ΣC + 1)/(ΣE + 1)` and `k` = [`USUAL`]. So two that use the same groups are taken to share them until they should have
//! met and did not; and none shares less than its floor.

use hashbrown::HashMap;

use crate::thread_numbers::ThreadNumber;

/// Users of a group that are compared with each other at most, those with the most accesses: the cost is the square of this.
const COMPARED: usize = 9;

/// Coincidences, as usual for the pair, that are put beside those of a group. Fewer would leave shares to chance, of which
/// what exceeds 1 is cut off.
const USUAL: f64 = 8.0;

/// What was seen of one thread on a page, or in a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) thread: ThreadNumber,
    pub(crate) accesses_per_s: f64,
    pub(crate) looks: f64,
}

/// A page group with those of its pages that were seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenGroup {
    pub(crate) users: Vec<Use>,
    /// Users of pages, page after page.
    on_pages: Vec<Use>,
    /// Where each page's users end.
    ends: Vec<usize>,
}

impl SeenGroup {
    /// Nothing was seen; what it held stays allocated.
    pub(crate) fn clear(&mut self) {
        self.users.clear();
        self.on_pages.clear();
        self.ends.clear();
    }

    /// Adds a page with those who were seen on it.
    pub(crate) fn add_page(&mut self, users: impl Iterator<Item = Use>) {
        self.on_pages.extend(users);
        self.ends.push(self.on_pages.len());
    }

    fn pages(&self) -> impl Iterator<Item = &[Use]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.on_pages[start..end])
    }
}

/// A pair of threads; the first is the lesser.
type Pair = (ThreadNumber, ThreadNumber);

/// What a group tells of a pair.
#[derive(Clone, Copy, Debug, Default)]
struct Meetings {
    seen: f64,
    expected: f64,
    floor_per_s: f64,
    most_per_s: f64,
}

/// Accesses per second of each pair to pages that both use; pairs with none are left out. `each_group` shows all groups, and is
/// asked to twice.
pub(crate) fn between_threads(each_group: impl Fn(&mut dyn FnMut(&SeenGroup))) -> HashMap<Pair, f64> {
    let mut compared = Compared::default();
    let mut all: HashMap<Pair, (f64, f64)> = HashMap::new();
    each_group(&mut |group| {
        compared.take_in(group);
        compared.each_pair(|pair, meetings| {
            let (seen, expected) = all.entry(pair).or_default();
            (*seen, *expected) = (*seen + meetings.seen, *expected + meetings.expected);
        });
    });
    let mut shared = HashMap::new();
    each_group(&mut |group| {
        compared.take_in(group);
        compared.each_pair(|pair, meetings| {
            let (seen, expected) = all[&pair];
            let usual = (seen + 1.0) / (expected + 1.0);
            let share = ((meetings.seen + USUAL * usual) / (meetings.expected + USUAL)).min(1.0);
            let per_s = (share * meetings.most_per_s).max(meetings.floor_per_s);
            if per_s > 0.0 {
                *shared.entry(pair).or_default() += per_s;
            }
        });
    });
    shared
}

/// The users of a group that are compared, and what its pages tell of them. A page with one user, as nearly all are where
/// samples are few, costs one step.
#[derive(Default)]
struct Compared {
    users: Vec<Use>,
    /// Looks at each user, and pairs of looks at it on the same page.
    looks: [f64; COMPARED],
    itself: [f64; COMPARED],
    /// Of two users, the one with the lesser place first: pairs of looks on the same page, and the floor.
    seen: [[f64; COMPARED]; COMPARED],
    floor_per_s: [[f64; COMPARED]; COMPARED],
}

impl Compared {
    fn take_in(&mut self, group: &SeenGroup) {
        self.users.clear();
        self.users.extend(&group.users);
        self.users.sort_unstable_by(|one, other| other.accesses_per_s.total_cmp(&one.accesses_per_s));
        self.users.truncate(COMPARED);
        (self.looks, self.itself) = Default::default();
        (self.seen, self.floor_per_s) = Default::default();
        group.pages().for_each(|page| self.add_page(page));
    }

    fn add_page(&mut self, page: &[Use]) {
        let mut before: [Option<(usize, &Use)>; COMPARED] = [None; COMPARED];
        for user in page {
            let Some(at) = self.users.iter().position(|compared| compared.thread == user.thread) else { continue };
            self.looks[at] += user.looks;
            self.itself[at] += (user.looks * (user.looks - 1.0)).max(0.0);
            let mut met = 0;
            for (with, other) in before.iter().map_while(|other| *other) {
                let (first, second) = (at.min(with), at.max(with));
                self.seen[first][second] += user.looks * other.looks;
                self.floor_per_s[first][second] += user.accesses_per_s.min(other.accesses_per_s);
                met += 1;
            }
            before[met] = Some((at, user));
        }
    }

    /// How often two looks at a user are at the same page; `None` with fewer than two looks.
    fn meets_itself(&self, at: usize) -> Option<f64> {
        let all = self.looks[at];
        (all > 1.0).then(|| (self.itself[at] / (all * (all - 1.0))).min(1.0))
    }

    fn each_pair(&self, mut tell: impl FnMut(Pair, Meetings)) {
        for (at, one) in self.users.iter().enumerate() {
            for (with, other) in self.users.iter().enumerate().skip(at + 1) {
                let known = [self.meets_itself(at), self.meets_itself(with)];
                let mean = known.iter().flatten().sum::<f64>() / known.iter().flatten().count().max(1) as f64;
                let meetings = Meetings {
                    seen: self.seen[at][with],
                    expected: self.looks[at] * self.looks[with] * mean,
                    floor_per_s: self.floor_per_s[at][with],
                    most_per_s: one.accesses_per_s.min(other.accesses_per_s),
                };
                tell((one.thread.min(other.thread), one.thread.max(other.thread)), meetings);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tandem_policies::model::ThreadId;

    use super::*;
    use crate::thread_numbers::ThreadNumbers;

    const PAGES: u64 = 512;

    fn number(at: u32) -> ThreadNumber {
        let mut numbers = ThreadNumbers::default();
        let thread = |tid| ThreadId { tid, start_boottime_ns: 1 };
        (0..=at).map(|tid| numbers.number(thread(tid)).unwrap()).last().unwrap()
    }

    /// A group in which thread `at` was looked at on `looks[at]`; each look stands for 1000 accesses a second.
    fn seen(looks: &[Vec<u64>]) -> SeenGroup {
        let of = |at: usize, looks: usize| Use {
            thread: number(at as u32),
            accesses_per_s: 1000.0 * looks as f64,
            looks: looks as f64,
        };
        let mut group = SeenGroup::default();
        for (at, pages) in looks.iter().enumerate() {
            group.users.push(of(at, pages.len()));
        }
        for page in 0..PAGES {
            let here = |at: usize| looks[at].iter().filter(|seen| **seen == page).count();
            group.add_page((0..looks.len()).filter(|&at| here(at) > 0).map(|at| of(at, here(at))));
        }
        group
    }

    /// `count` looks at random pages of a range, the same for the same `seed`.
    fn random(pages: std::ops::Range<u64>, count: usize, seed: u64) -> Vec<u64> {
        // SplitMix64: nearby seeds give unrelated numbers.
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        };
        (0..count).map(|_| pages.start + next() % (pages.end - pages.start)).collect()
    }

    fn shared(groups: &[SeenGroup]) -> f64 {
        between_threads(|tell| groups.iter().for_each(tell)).get(&(number(0), number(1))).copied().unwrap_or(0.0)
    }

    /// 40 groups with 20 looks at each of two threads, of which `same` in a hundred groups' looks are at the same pages.
    fn groups(of_second: std::ops::Range<u64>) -> Vec<SeenGroup> {
        let group = |seed: u64| {
            let second = random(of_second.clone(), 20, seed + 1000);
            seen(&[random(0..256, 20, seed), second])
        };
        (0..40).map(group).collect()
    }

    #[test]
    fn two_that_use_all_pages_alike_share_all_however_few_coincidences_were_seen() {
        let all = 40.0 * 20_000.0;
        let sparse = groups(0..256);
        let floor: f64 = sparse.iter().flat_map(|group| group.pages()).filter(|page| page.len() == 2).count() as f64;
        assert!(floor * 1000.0 < 0.15 * all, "pages alone would tell of a tenth: {floor}");
        assert!(shared(&sparse) > 0.8 * all, "{}", shared(&sparse) / all);
    }

    #[test]
    fn two_that_should_have_met_often_and_never_did_share_nearly_nothing() {
        let share = shared(&groups(256..512)) / (40.0 * 20_000.0);
        assert!(share < 0.02, "{share}");
    }

    #[test]
    fn half_of_the_pages_in_common_is_about_half_shared() {
        let share = shared(&groups(128..384)) / (40.0 * 20_000.0);
        assert!((0.35..0.65).contains(&share), "{share}");
    }

    #[test]
    fn what_was_seen_on_the_same_pages_is_the_least() {
        let once = seen(&[vec![3, 3, 7], vec![3, 9, 9, 9]]);
        assert!(shared(std::slice::from_ref(&once)) >= 1000.0);
        assert!(shared(&[seen(&[vec![3; 5], vec![9; 5]])]) < 0.01 * 5000.0);
    }

    #[test]
    fn a_group_that_tells_too_little_goes_by_the_others_of_the_pair() {
        let alone = seen(&[vec![1], vec![2]]);
        assert_eq!(shared(std::slice::from_ref(&alone)), 1000.0, "nothing speaks against it");
        for (of_second, expected) in [(0..256, 700.0..1000.1), (256..512, 0.0..20.0)] {
            let mut beside = groups(of_second);
            let before = shared(&beside);
            beside.push(alone.clone());
            let added = shared(&beside) - before;
            assert!(expected.contains(&added), "{added}");
        }
    }

    proptest! {
        #[test]
        fn no_pair_shares_more_than_the_lesser_of_its_rates_nor_less_than_its_floor(
            looks in prop::collection::vec(prop::collection::vec(0..16_u64, 0..30), 2..12),
        ) {
            let group = seen(&looks);
            let told = between_threads(|tell| tell(&group));
            for (&(one, other), &per_s) in &told {
                let rate = |thread| group.users.iter().find(|user| user.thread == thread).unwrap().accesses_per_s;
                prop_assert!(one < other && per_s <= rate(one).min(rate(other)) + 1e-6);
            }
            let compared: Vec<_> = looks.iter().enumerate().collect();
            for (at, first) in &compared {
                for (with, second) in compared.iter().skip(at + 1) {
                    let count = |pages: &[u64], page| pages.iter().filter(|seen| **seen == page).count();
                    let floor: usize = (0..16).map(|page| count(first, page).min(count(second, page))).sum();
                    let per_s = told.get(&(number(*at as u32), number(*with as u32))).copied().unwrap_or(0.0);
                    if looks.len() <= COMPARED {
                        prop_assert!(per_s >= 1000.0 * floor as f64 - 1e-6);
                    }
                }
            }
        }
    }
}
