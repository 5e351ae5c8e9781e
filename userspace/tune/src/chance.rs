// SPDX-License-Identifier: GPL-2.0-only
//! Programs whose main thread is placed by chance: told by the runs as they are, and what is done about it.
//!
//! The search compares medians, so of a program that takes one of two times it may find that it is fastest as it is, which
//! nobody can have again. So the main thread alone is bound then, and that is measured.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::first_touch::{Bimodal, MATTERS, Remedy};
use crate::places::Places;
use crate::search::{self, Reading};
use crate::seat::CpuSet;
use crate::session::{Outcome, Session};
use crate::store::Row;

impl Session<'_> {
    /// The same with whether the main thread is placed by chance, and what helps.
    pub(crate) fn with_chance(&self, mut outcome: Outcome, deadline: Option<Instant>) -> Result<Outcome> {
        let mut runs = self.first_nodes(&outcome)?;
        let known = runs.len();
        let late = |seconds: f64| deadline.is_some_and(|end| Instant::now() + Duration::from_secs_f64(seconds) > end);
        // How many more is not decided by what they show, or chance would be taken for a rule more often.
        let mut is_cut_off = false;
        while runs.len() < self.settings.repeats && is_doubtful(&runs) {
            let next = outcome.found.runs[0].seconds.len();
            let row = if late(runs[0].0) { None } else { self.row(None, next, None)? };
            is_cut_off = row.is_none();
            let Some(row) = row else { break };
            let Reading::Seconds(seconds) = row.reading else { break };
            outcome.found.runs[0].seconds.push(seconds);
            outcome.regions[0].push(row.regions.clone());
            let Some(node) = self.first_node(&row) else { break };
            runs.push((seconds, node));
        }
        if runs.len() > known {
            choose_again(&mut outcome);
        }
        outcome.bimodal = Bimodal::of(&runs);
        if let Some(mut bimodal) = outcome.bimodal.take() {
            is_cut_off |= self.remedy(&mut bimodal, &outcome, &late)?;
            outcome.notes.push(bimodal.in_words());
            outcome.bimodal = Some(bimodal);
        } else {
            outcome.notes.extend(self.note_of_chance(&outcome.found));
        }
        outcome.is_complete &= !is_cut_off;
        Ok(outcome)
    }

    /// Seconds and first node of the runs as it is.
    fn first_nodes(&self, outcome: &Outcome) -> Result<Vec<(f64, u32)>> {
        let mut runs = Vec::new();
        for (attempt, &seconds) in outcome.found.runs[0].seconds.iter().enumerate() {
            let row = self.store.run(&self.key(None), attempt)?;
            runs.extend(row.and_then(|row| self.first_node(&row)).map(|node| (seconds, node)));
        }
        Ok(runs)
    }

    fn first_node(&self, row: &Row) -> Option<u32> {
        row.first_touch.as_ref()?.node(self.topology)
    }

    /// Finds out what helps; whether the time was over before that was known.
    fn remedy(&self, bimodal: &mut Bimodal, outcome: &Outcome, late: &dyn Fn(f64) -> bool) -> Result<bool> {
        if let Some((plan, _)) = outcome.plan() {
            let main = plan.base.seats(self.topology).first().copied();
            bimodal.remedy = Remedy::Configuration;
            bimodal.node = main.map_or(bimodal.node, |node| self.topology.nodes[node].id.0);
            return Ok(false);
        }
        let usual_s = mean(&outcome.found.runs[0].seconds);
        let (mut bound, mut failed) = (search::Runs::default(), false);
        let name = format!("{}, main thread first on node {}", self.key(None), bimodal.node);
        while !failed && bound.seconds.len() < self.settings.repeats && !late(usual_s) {
            let Some(row) = self.main_bound(&name, bimodal.node, bound.seconds.len(), usual_s)? else { break };
            match row.reading {
                // What was stopped took longer than that.
                Reading::Seconds(seconds) | Reading::SlowerThan(seconds) => bound.seconds.push(seconds),
                Reading::Failed(_) => failed = true,
                Reading::Stop => break,
            }
        }
        bimodal.bound_s = bound.median();
        let helps = !failed && !bound.seconds.is_empty() && mean(&bound.seconds) <= usual_s;
        bimodal.remedy = if helps { Remedy::MainThread } else { Remedy::None };
        let is_short = !failed && bound.seconds.len() < self.settings.repeats;
        Ok(is_short && (self.stop.wished() || late(usual_s)))
    }

    /// A run with the main thread alone bound, from the store or else of the program.
    fn main_bound(&self, name: &str, node: u32, attempt: usize, usual_s: f64) -> Result<Option<Row>> {
        let limit_s = self.settings.limit_s(usual_s);
        // What was missing may be there now, as for the program as it is.
        let says_enough = |row: &Row| row.is_known_until(Some(limit_s)) && !matches!(row.reading, Reading::Failed(_));
        if let Some(row) = self.store.run(name, attempt)?.filter(says_enough) {
            return Ok(Some(row));
        }
        if self.stop.wished() {
            return Ok(None);
        }
        let places = Places { main: main_cpus(self.topology, node), ..Places::default() };
        match self.run_within(self.left(), name, None, &places, Some(limit_s))? {
            None => Ok(None),
            Some(Ok(trial)) => self.keep(name, attempt, Some(limit_s), trial, ""),
            Some(Err(why)) => {
                (self.say)(&format!("{name}: it could not be run: {why}"));
                Ok(None)
            }
        }
    }
}

/// Of the program as it is, of which more is known now, and what is best besides, the one with the lesser median. A plan for single
/// regions was compared with what is best besides when it ran: runs of another time say nothing of it.
fn choose_again(outcome: &mut Outcome) {
    if outcome.one_by_one.as_ref().is_some_and(|all| all.chosen.is_some()) {
        return;
    }
    let found = &outcome.found;
    let Some(as_it_is_s) = found.runs[0].median() else { return };
    if let Some(best_s) = outcome.plan().and_then(|(_, runs)| runs.median()) {
        if as_it_is_s < best_s {
            outcome.found.best = Some(0);
        }
        return;
    }
    let known = (1..found.runs.len()).filter_map(|one| Some((one, found.runs[one].median()?)));
    // Who went further was better when both had as many.
    let many = |one: usize| found.runs[one].seconds.len();
    let most = known.clone().map(|(one, _)| many(one)).max();
    let other = known.filter(|&(one, _)| Some(many(one)) == most).min_by(|one, other| one.1.total_cmp(&other.1));
    outcome.found.best = other.filter(|&(_, seconds)| seconds < as_it_is_s).map(|(one, _)| one).or(found.best);
}

/// The CPUs of the node with this id; `None` if it is not there, or has none that may be used.
pub fn main_cpus(topology: &tandem_policies::model::Topology, node: u32) -> Option<CpuSet> {
    let index = topology.nodes.iter().find(|(_, known)| known.id.0 == node && !known.cpus.is_empty())?.0;
    Some(CpuSet::of_node(topology, index))
}

/// Whether runs that differ began on different nodes.
fn is_doubtful(runs: &[(f64, u32)]) -> bool {
    let nodes: BTreeSet<u32> = runs.iter().map(|run| run.1).collect();
    let least = runs.iter().map(|run| run.0).fold(f64::INFINITY, f64::min);
    nodes.len() > 1 && runs.iter().any(|run| run.0 > MATTERS * least)
}

fn mean(seconds: &[f64]) -> f64 {
    seconds.iter().sum::<f64>() / seconds.len().max(1) as f64
}
