// SPDX-License-Identifier: GPL-2.0-only
//! What the accesses of a thread to all its page groups have in common from one interval to the next.
//!
//! Accesses per second are counts of samples that age, times what one sample of that thread stands for. So with one
//! *ratio* and one *unit* for each thread, nearly every value is
//!
//! ```text
//! ratio * value before + new samples * unit
//! ```
//!
//! but for rounding: a number of samples and some bits instead of eight bytes. Both are found from the values alone, and
//! whatever does not follow the rule costs more room, no more. Units: accesses per second.

use tandem_policies::model::{PageGroup, ThreadId};

/// Ratios that differ by less are one and the same, rounded differently.
const ROUNDING: f64 = 1e-14;
/// How far a number of samples may be from a whole one.
const WHOLE: f64 = 1e-6;
/// Smallest differences that are tried as the unit.
const UNITS_TRIED: usize = 8;
/// More new samples than this are not a matter of samples.
const MOST_NEW: f64 = 65_536.0;

/// How values go on from one interval to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    pub(crate) ratio: f64,
    pub(crate) unit: f64,
}

impl Scale {
    /// Values stay as they are.
    pub(crate) const STILL: Scale = Scale { ratio: 1.0, unit: 0.0 };

    /// The number of samples that brings `before` nearest to `now`; 0 if none does.
    pub(crate) fn new_samples(self, before: f64, now: f64) -> i64 {
        let samples = ((now - self.ratio * before) / self.unit).round();
        if samples.abs() <= MOST_NEW { samples as i64 } else { 0 }
    }

    /// What `before` is after so many new samples.
    pub(crate) fn after(self, before: f64, new_samples: i64) -> f64 {
        self.ratio * before + new_samples as f64 * self.unit
    }

    /// The scale that explains most of `steps`, each a value before and now.
    fn of(steps: &[Step]) -> Self {
        let ratio = common_ratio(steps).unwrap_or(1.0);
        Self { ratio, unit: common_unit(steps, ratio).unwrap_or(0.0) }
    }
}

/// A value before (0 if it is new) and now.
#[derive(Clone, Copy, Debug)]
struct Step {
    before: f64,
    now: f64,
}

/// The scales of `threads`, and that of the numbers of samples behind groups.
pub(crate) fn scales(threads: &[ThreadId], before: &[PageGroup], now: &[PageGroup]) -> (Vec<Scale>, Scale) {
    let mut steps: Vec<Vec<Step>> = vec![Vec::new(); threads.len()];
    let mut samples = Vec::new();
    let mut rows = before.iter().peekable();
    for group in now {
        while rows.next_if(|row| row.id < group.id).is_some() {}
        let old = rows.next_if(|row| row.id == group.id);
        samples.push(Step { before: old.map_or(0.0, |old| old.samples), now: group.samples });
        for &(user, value) in &group.users {
            let Ok(at) = threads.binary_search(&user) else { continue };
            let earlier = old.and_then(|old| old.users.iter().find(|(known, _)| *known == user));
            steps[at].push(Step { before: earlier.map_or(0.0, |(_, value)| *value), now: value });
        }
    }
    let samples = Scale { ratio: common_ratio(&samples).unwrap_or(1.0), unit: 1.0 };
    (steps.iter().map(|steps| Scale::of(steps)).collect(), samples)
}

/// The ratio that most values changed by, if at least two did.
fn common_ratio(steps: &[Step]) -> Option<f64> {
    let grown = steps.iter().filter(|step| step.before > 0.0 && step.now > 0.0).map(|step| step.now / step.before);
    let mut ratios: Vec<f64> = grown.filter(|ratio| ratio.is_finite()).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let mut best = 0..1;
    let mut start = 0;
    for end in 1..ratios.len() {
        while ratios[end] > ratios[start] * (1.0 + ROUNDING) {
            start += 1;
        }
        if end + 1 - start > best.len() {
            best = start..end + 1;
        }
    }
    // Each is rounded in its own way: their mean is nearer to the truth than any of them. Sums of what they differ by from
    // the middle one lose nothing.
    let same = ratios.get(best).filter(|same| same.len() > 1)?;
    let middle = same[same.len() / 2];
    Some(middle + same.iter().map(|ratio| ratio - middle).sum::<f64>() / same.len() as f64)
}

/// What one sample stands for, if the values that did not follow `ratio` tell.
fn common_unit(steps: &[Step], ratio: f64) -> Option<f64> {
    let added = steps.iter().map(|step| (step.now - ratio * step.before, step.now));
    let mut added: Vec<(f64, f64)> = added.filter(|&(more, now)| more.is_finite() && more > now * 1e-9).collect();
    added.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let whole = |more: f64, unit: f64| {
        let count = more / unit;
        (count <= MOST_NEW && (count - count.round()).abs() < WHOLE).then(|| count.round())
    };
    let support = |unit: f64| added.iter().filter(|&&(more, _)| whole(more, unit).is_some()).count();
    let tried = added.iter().take(UNITS_TRIED).map(|&(more, _)| more);
    let unit = tried.max_by_key(|&unit| support(unit))?;
    // The value that holds the unit with the most digits.
    let shares = added.iter().filter_map(|&(more, now)| Some((more / now, more / whole(more, unit)?)));
    shares.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, exact)| exact)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(values: &[(f64, f64)]) -> Vec<Step> {
        values.iter().map(|&(before, now)| Step { before, now }).collect()
    }

    #[test]
    fn ratio_and_unit_are_found_among_values_that_follow_no_rule() {
        let (ratio, unit) = (0.793_700_526, 12_345.678_9);
        let mut values: Vec<(f64, f64)> =
            (1..40).map(|at| (f64::from(at) * 77.7, f64::from(at) * 77.7 * ratio)).collect();
        values.extend([1.0, 3.0, 2.0].map(|samples| (0.0, samples * unit)));
        values.extend([1.0, 2.0].map(|samples| (500.0, 500.0 * ratio + samples * unit)));
        values.extend([(3.0, 1e9), (4.0, 5e9), (1e5, 1.0)]);
        let scale = Scale::of(&steps(&values));
        assert!((scale.ratio / ratio - 1.0).abs() < 1e-15 && (scale.unit / unit - 1.0).abs() < 1e-15, "{scale:?}");
        assert_eq!(scale.new_samples(500.0, 500.0 * ratio + 2.0 * unit), 2);
        assert_eq!(scale.new_samples(500.0, f64::NAN), 0);
    }

    #[test]
    fn values_without_a_rule_stay_as_they_are() {
        assert_eq!(Scale::of(&[]), Scale::STILL);
        assert_eq!(Scale::of(&steps(&[(f64::NAN, 1.0), (1.0, f64::INFINITY), (0.0, 0.0)])), Scale::STILL);
    }
}
