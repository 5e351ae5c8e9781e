// SPDX-License-Identifier: GPL-2.0-only
//! What the user should know of a search besides what it found.

use std::collections::BTreeMap;

use anyhow::Result;

use super::{Session, name};
use crate::hosts;
use crate::plan::Plan;
use crate::search::{self, Found, Reading};
use crate::space::Configuration;

impl Session<'_> {
    /// What is to be said when runs of the program as it is differ much.
    pub(crate) fn note_of_chance(&self, found: &Found) -> Option<String> {
        let varies = |(least, greatest): (f64, f64)| greatest > tandem_ab::statistics::BAD_BOOT_FACTOR * least;
        let (least, greatest) = found.runs[0].sample()?.range();
        if !varies((least, greatest)) {
            return None;
        }
        let as_it_is = format!("as it is, its runs take {least:.3} to {greatest:.3} s");
        let best =
            found.best.filter(|&best| best != 0).and_then(|best| found.runs[best].sample()).map(|best| best.range());
        Some(match best.filter(|&best| self.topology.len() > 1 && !varies(best)) {
            Some((least, greatest)) => format!(
                "{as_it_is}, with every thread in its place before the program initialises {least:.3} to {greatest:.3} s: \
                 placement by chance is what differs"
            ),
            None => format!("{as_it_is}: more of them (--repeats), or a machine with less other work, would tell more"),
        })
    }

    /// What became of configurations besides their times, and of the search.
    pub(super) fn notes_of(&self, candidates: &[Option<Configuration>], found: &Found) -> Result<Vec<String>> {
        let mut notes = self.notes_of_threads(candidates)?;
        notes.extend(hosts::notes(&self.store.host_runs()?));
        for (one, runs) in candidates.iter().zip(&found.runs) {
            notes.extend(runs.failure.as_ref().map(|why| format!("{}: it failed: {why}", name(one.as_ref()))));
        }
        let waiting = found.runs.iter().filter(|runs| **runs == search::Runs::default()).count();
        if waiting > 0 {
            notes.push(format!("{waiting} configurations were not measured yet: the same command goes on"));
        }
        if found.end == search::End::Stopped {
            let regions = if self.one_by_one { ", and single regions were not tuned" } else { "" };
            notes.push(format!(
                "the search was cut off before its end: more runs may find another one the best{regions}; the same command goes on"
            ));
        }
        Ok(notes)
    }

    /// Which numbers of threads the program was asked for and never had.
    fn notes_of_threads(&self, candidates: &[Option<Configuration>]) -> Result<Vec<String>> {
        let mut most: BTreeMap<usize, usize> = BTreeMap::new();
        for one in candidates.iter().flatten() {
            let row = self.store.run(&self.key(Some(&Plan::from(*one))), 0)?;
            if let Some(row) = row.filter(|row| matches!(row.reading, Reading::Seconds(_))) {
                let most = most.entry(one.threads).or_default();
                *most = row.threads.max(*most);
            }
        }
        let note = |(asked, had): (usize, usize)| {
            format!(
                "asked for {asked} threads the program has {had} at a time: what is said of {asked} threads is of these"
            )
        };
        Ok(most.into_iter().filter(|(asked, had)| had < asked).map(note).collect())
    }
}
