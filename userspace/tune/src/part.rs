// SPDX-License-Identifier: GPL-2.0-only
//! Programs that run for hours: tuned on the beginning of their runs.
//!
//! Problem: a search needs tens of runs, and has minutes. Mechanism: most such programs do the same again and again, and how
//! far one is, the number of entries of its parallel regions tells, whatever it is run under. So if the runs that the
//! search is expected to need one after the other (with several machines fewer) do not fit the budget, the program as it is runs
//! for its share of that once; each trial ends at the entry it came to then, and its time until there counts. Where that run shows
//! regions that are tuned one by one after the search, the runs for these share the budget too. A program without regions, or with
//! few entries by then, is run to its end.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use crate::apart;
use crate::one_by_one::effort;
use crate::plan::{Plan, RegionSeats};
use crate::regions::Region;
use crate::search::{FEWEST, Reading, expected_runs};
use crate::session::{Session, in_words};
use crate::space::Space;

/// Starting a program would be much of less.
const SHORTEST: Duration = Duration::from_millis(250);

/// What a number of entries is between in names of runs.
const FIRST: &str = ", first ";
const ENTRIES: &str = " entries";

/// One entry more or less should not matter.
const FEWEST_ENTRIES: u64 = 20;

impl<'a> Session<'a> {
    /// The same session, or the one that measures beginnings if whole runs would not fit its budget; `None`: the user stopped.
    ///
    /// # Errors
    /// The program cannot be run, or the store not be used.
    pub(crate) fn within_budget(&self) -> Result<Option<Session<'a>>> {
        let whole = Some(*self);
        let Some(budget) = self.budget.filter(|_| !self.only_whole_runs && !self.settings.exhaustive) else {
            return Ok(whole);
        };
        let space = Space::of(self.topology, self.cores, self.page_placements);
        let searched = expected_runs(space.configurations(self.topology).len() + 1, &self.settings, self.machines);
        let share_s = |runs: usize| budget.div_f64(runs as f64).max(SHORTEST).min(budget).as_secs_f64();
        let Some(row) = self.row(None, 0, Some(share_s(searched)))? else { return Ok(None) };
        if !matches!(row.reading, Reading::SlowerThan(_)) {
            // Whole runs are as hopeless, and the first one would be made once more.
            self.judge_first(&row)?;
        }
        let entered: u64 = row.regions.iter().map(|region| region.entries).sum();
        // The store may have a run of a larger share, or a whole one.
        let (Reading::SlowerThan(seconds) | Reading::Seconds(seconds)) = row.reading else { return Ok(whole) };
        // What was seen of them in the share of the search alone, however long the run was that there is.
        let part = (share_s(searched) / seconds).min(1.0);
        let by_region = if self.one_by_one { self.runs_by_region(&space, &row.regions, seconds, part) } else { 0 };
        let entries_in =
            |share_s: f64| if seconds > share_s { (entered as f64 * share_s / seconds) as u64 } else { entered };
        // The regions' share is taken from the search only as far as that can still be told by entries.
        let fewest = FEWEST_ENTRIES.min(entries_in(share_s(searched)));
        let share_s = share_s(searched + by_region);
        let entries = entries_in(share_s).max(fewest);
        match row.reading {
            Reading::Seconds(_) if seconds <= share_s => Ok(whole),
            _ if entries >= FEWEST_ENTRIES => {
                let session = Session { first_entries: Some(entries), ..*self };
                session.note_of_part().iter().for_each(|note| (self.say)(note));
                session.say_other_parts(entries)?;
                Ok(Some(session))
            }
            _ => {
                let seldom = match entered {
                    0 => "it has no parallel regions that were seen, or they are too short to be told apart".to_owned(),
                    _ => format!(
                        "it entered parallel regions {entered} times in {}, too seldom to tell by that how far it is",
                        in_words(seconds)
                    ),
                };
                (self.say)(&format!("{seldom}: each run is a whole one"));
                Ok(whole)
            }
        }
    }

    /// About how many runs one after the other tuning its regions one by one takes, of a program that was in these in a run of so many
    /// seconds, of which this `part` counts: those in which they take turns, or one for each choice and more, and four of each plan,
    /// which is what it takes to tell them apart.
    pub(crate) fn runs_by_region(&self, space: &Space, regions: &[Region], seconds: f64, part: f64) -> usize {
        let matter: Vec<&Region> = regions
            .iter()
            .filter(|region| {
                apart::is_large(region.seconds, seconds) && effort::is_long(region.seconds, region.entries)
            })
            .collect();
        if matter.len() < 2 {
            return 0;
        }
        let choices = RegionSeats::all(&space.threads, self.topology).len();
        let whole = || expected_runs(choices, &effort::of_whole_runs(self.settings), self.machines);
        let entries = |region: &Region| (part * region.entries as f64) as u64;
        let turns = |region: &&Region| effort::runs_in_place(choices, entries(region)).unwrap_or_else(whole);
        let of_plans = (effort::RUN + 1) * FEWEST.min(self.settings.repeats);
        matter.iter().map(turns).sum::<usize>() + of_plans.div_ceil(self.machines.max(1))
    }

    /// What is to be said of times that are those of beginnings.
    pub(crate) fn note_of_part(&self) -> Option<String> {
        let entries = self.first_entries?;
        Some(format!(
            "whole runs would not fit --budget: each is ended after {entries} entries of its parallel regions, and times are \
             those until then"
        ))
    }

    /// Says how many runs are known that were ended after other numbers of entries, for another budget.
    fn say_other_parts(&self, entries: u64) -> Result<()> {
        let mut runs: BTreeMap<u64, usize> = BTreeMap::new();
        for name in self.store.names()? {
            let words = name.rsplit_once(FIRST).and_then(|(_, words)| words.strip_suffix(ENTRIES));
            *runs.entry(words.and_then(|number| number.parse().ok()).unwrap_or(entries)).or_default() += 1;
        }
        for (others, runs) in runs.into_iter().filter(|&(others, _)| others != entries) {
            (self.say)(&format!(
                "{runs} runs of the first {others} entries, of another --budget, --codelets, --repeats or other --hosts, are known and say nothing of these"
            ));
        }
        Ok(())
    }

    /// What names in the store have besides if runs are ended after so many entries.
    pub(crate) fn name_of_part(&self, plan: Option<&Plan>) -> String {
        self.entries_of(plan).map_or(String::new(), |entries| format!("{FIRST}{entries}{ENTRIES}"))
    }

    /// After how many entries of regions a run is ended.
    pub(crate) fn entries_of(&self, plan: Option<&Plan>) -> Option<u64> {
        // What takes turns ends when each was measured often enough.
        self.first_entries.filter(|_| plan.is_none_or(|plan| plan.turns.is_none()))
    }
}
