// SPDX-License-Identifier: GPL-2.0-only
//! How much faster the best one is than the reference: by runs that did not choose it.
//!
//! Problem: the least of many medians is the least by luck as well, so the runs that chose it say too much: of equal candidates
//! whose runs differ by 6 % the best one seemed faster "with 95 % confidence" in every fifth search. Mechanism: only runs count
//! that were made after ranks last decided who goes on. They do choose among those that were left then, so the interval
//! holds for so many comparisons at once. Where the search needs fewer of these runs than tell anything, the best one and the
//! reference make them in turns.

use anyhow::Result;
use tandem_ab::statistics::{Comparison, Sample};

use super::{End, FEWEST, Found, Race, Readings, Settings};

/// As many candidates as took part may all be no better, and one of them beat the reference in every run, this often.
const BY_CHANCE: f64 = 0.05;

/// Who was left when ranks decided who goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// How many runs each one had then: they chose, and are no evidence.
    pub runs: usize,
    /// How many were left, the reference not counted.
    pub among: usize,
    /// The reference, and how many runs it had then.
    pub reference: Option<(usize, usize)>,
    /// After how many rounds the search may end, and does when one looks ahead: with ten runs each, after four, eight and ten.
    pub looks: usize,
}

impl Choice {
    /// Of these, who have so many runs each; the reference has as many as it says.
    pub(super) fn of(runs: usize, survivors: &[usize], reference: Option<(usize, usize)>, settings: &Settings) -> Self {
        let among = survivors.iter().filter(|&&one| reference.is_none_or(|reference| reference.0 != one)).count();
        let looks = settings.rounds().filter(|&goal| goal >= FEWEST).count();
        Self { runs, among: among.max(1), reference, looks: looks.max(1) }
    }

    /// The one of two that needs fewer runs: who is the best later on is one of both, as those are that were left last.
    pub(super) fn or(self, later: Self) -> Self {
        let all = |one: &Self| one.runs + one.needed();
        if all(&later) <= all(&self) { later } else { self }
    }

    /// For how many comparisons at once the interval of the gain has to hold: of all that were left, each time the search may end.
    pub fn comparisons(&self) -> usize {
        if self.runs > 0 { self.looks * self.among } else { self.among }
    }

    /// How many runs of this candidate are no evidence.
    fn runs_of(&self, candidate: usize) -> usize {
        self.reference.filter(|&(reference, _)| reference == candidate).map_or(self.runs, |(_, runs)| runs)
    }

    /// Runs of the best one and of the reference that are evidence, at least: with fewer, chance puts all of one of the
    /// candidates' runs before all of the reference's too often, whatever an interval says.
    pub fn needed(&self) -> usize {
        // So many ways there are to choose whose runs are the least.
        let ways = |runs: usize| (1..=runs).map(|one| (runs + one) as f64 / one as f64).product::<f64>();
        (FEWEST..).find(|&runs| self.among as f64 <= BY_CHANCE * ways(runs)).unwrap_or(FEWEST)
    }
}

impl Found {
    /// The runs of a candidate that did not choose it, if each of its runs ended; its last one if there are none, which is too few.
    pub fn evidence(&self, candidate: usize) -> Option<&[f64]> {
        let all = &self.runs[candidate];
        all.sample()?;
        Some(&all.seconds[self.choice.runs_of(candidate).min(all.seconds.len() - 1)..])
    }

    /// The best one's times as parts of the reference's, if there are runs enough of both.
    pub fn compared(&self, best: usize, reference: usize) -> Option<Comparison> {
        let [best, reference] = [best, reference].map(|one| self.evidence(one).and_then(Sample::new));
        let known = Comparison::among(&best?, &reference?, self.choice.comparisons());
        (known.runs >= self.choice.needed()).then_some(known)
    }
}

impl Race {
    /// What was found, when the best one and the reference have runs enough that tell how they compare.
    pub(super) fn confirmed(
        mut self,
        end: End,
        mut survivors: Vec<usize>,
        readings: &mut impl Readings,
    ) -> Result<Found> {
        // Whoever wants fewer wants no evidence.
        let (repeats, choice) = (self.settings.repeats, self.choice);
        let goal = |one: usize| if repeats < FEWEST { 0 } else { choice.runs_of(one) + choice.needed() };
        loop {
            let (best, reference) = (self.best(&survivors), self.reference);
            let pair = best.zip(reference.filter(|&one| self.runs[one].sample().is_some()));
            let Some((best, reference)) = pair.filter(|(best, reference)| best != reference) else {
                return Ok(self.found(end, &survivors));
            };
            let is_through = self.bring_to(&[reference, best].map(|one| (one, goal(one))), readings)?;
            // More runs may show that another one is ahead of the reference, and this one is not.
            let is_better = |one: usize| self.runs[one].median() < self.runs[reference].median();
            let has_rivals = || survivors.iter().any(|&one| one != best && is_better(one));
            if self.runs[best].sample().is_some() && (is_better(best) || !is_through || !has_rivals()) {
                let end = if is_through { end } else { End::Stopped };
                return Ok(self.found(end, &[reference, best]));
            }
            if self.runs[best].sample().is_none() {
                survivors.append(&mut self.aside);
            }
            survivors.retain(|&one| one != best);
        }
    }
}
