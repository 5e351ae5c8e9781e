// SPDX-License-Identifier: GPL-2.0-only
//! Recorded tables: all runs of every configuration of a program, and what a search makes of them.
//!
//! Problem: whether the search finds what an exhaustive one finds, in how much less time, is known only where both were
//! done. Mechanism: a program is run exhaustively once (`tandem tune --exhaustive`); then the search reads these runs instead
//! of running it. `tests/tuning.py` records the tables in docs/tuning, and makes a page of what is said of them here.
//!
//! Terms: *threads only*: pages are where they are touched first; *pages only*: as many threads as CPUs, round robin over all
//! nodes; *exhaustive*: one run to warm up and ten measured ones of each, as the source does it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tandem_ab::statistics::median;
use tandem_machine::MachineFile;
use tandem_policies::model::Topology;

use crate::plan::RegionSeats;
use crate::search::{Reading, Settings, search};
use crate::session::{AS_IT_IS, BY_A_MAP};
use crate::space::{ALL, Configuration, PagePlacement, Space, ThreadPlacement};

/// Runs of each configuration when one searches exhaustively, the first to warm up included.
const EXHAUSTIVE_RUNS: f64 = 11.0;

/// Configurations within this share of each other are equal.
const EQUAL: f64 = 0.02;

/// Runs of one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name, as the store has it.
    pub configuration: String,
    /// Its runs, in their order.
    pub seconds: Vec<f64>,
}

/// A table as it is recorded; what else the file says is for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The program.
    pub program: String,
    /// The machine file's name, without its ending.
    pub machine: String,
    /// By configuration.
    pub rows: Vec<Row>,
}

/// A configuration and its median.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timed {
    /// Its name.
    pub configuration: String,
    /// Median of its runs.
    pub seconds: f64,
}

/// What a search makes of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// The program.
    pub program: String,
    /// The machine.
    pub machine: String,
    /// Number of configurations, the program as it is not counted.
    pub configurations: usize,
    /// Median of the program as it is.
    pub as_it_is_s: f64,
    /// The best of all.
    pub best: Timed,
    /// What the search chose.
    pub chosen: Timed,
    /// Time of the search's runs and of those that tell who uses which page, as a share of the exhaustive time.
    pub share: f64,
    /// The same if every run took a hundred times as long: runs that are worse than others can be stopped then.
    pub share_of_long_runs: f64,
    /// The best with pages where they are touched first.
    pub threads_only: Timed,
    /// The best with one thread a CPU, round robin over all nodes.
    pub pages_only: Timed,
}

impl Judged {
    /// Whether neither threads alone nor pages alone come near the best.
    pub fn is_joint(&self) -> bool {
        let near = |other: &Timed| other.seconds <= self.best.seconds * (1.0 + EQUAL);
        !near(&self.threads_only) && !near(&self.pages_only)
    }
}

impl Table {
    /// Reads a table.
    ///
    /// # Errors
    /// The file cannot be read, or is no table.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{}: is no recorded table", path.display()))
    }

    /// What a search makes of it; machine files are in the directory `machines`.
    ///
    /// # Errors
    /// The machine is not known, or a row is none of its configurations.
    pub fn judge(&self, machines: &Path, settings: &Settings) -> Result<Judged> {
        let topology = MachineFile::load(machines.join(format!("{}.toml", self.machine)))?.topology()?;
        let rows = self.with_configurations(&topology)?;
        let as_it_is = rows.iter().position(|row| row.0.is_none()).context("the program as it is did not run")?;
        let timed = |at: usize| Timed { configuration: self.rows[at].configuration.clone(), seconds: rows[at].1 };
        let best_of = |wanted: &dyn Fn(&Configuration) -> bool| {
            let among = (0..rows.len()).filter(|&at| rows[at].0.as_ref().is_some_and(wanted));
            among.min_by(|&one, &other| rows[one].1.total_cmp(&rows[other].1)).context("a part of the table is empty")
        };
        let cpus: usize = topology.nodes.values().map(|node| node.cpus.len()).sum();
        let nodes = topology.nodes_with_cpus().count();
        let usual = |one: &Configuration| {
            let round_robin = one.thread_placement == ThreadPlacement::Scatter || cpus == nodes;
            one.threads == cpus && one.thread_nodes == nodes && round_robin
        };
        let profiles_s = self.profiles_s(&rows, rows[as_it_is].1);
        let (chosen, share) = self.replay(as_it_is, 1.0, profiles_s, settings)?;
        let (_, share_of_long_runs) = self.replay(as_it_is, 100.0, profiles_s, settings)?;
        Ok(Judged {
            program: self.program.clone(),
            machine: self.machine.clone(),
            configurations: rows.len() - 1,
            as_it_is_s: rows[as_it_is].1,
            best: timed(best_of(&|_| true)?),
            chosen: timed(chosen),
            share,
            share_of_long_runs,
            threads_only: timed(best_of(&|one| one.page_placement == PagePlacement::FirstTouch)?),
            pages_only: timed(best_of(&usual)?),
        })
    }

    /// By row its configuration and its median.
    fn with_configurations(&self, topology: &Topology) -> Result<Vec<(Option<Configuration>, f64)>> {
        let cpus: usize = topology.nodes.values().map(|node| node.cpus.len()).sum();
        let all = Space::of(topology, cpus, &ALL).configurations(topology);
        let find = |row: &Row| {
            let seconds =
                median(row.seconds.iter().copied()).with_context(|| format!("{}: no run", row.configuration))?;
            if row.configuration == AS_IT_IS {
                return Ok((None, seconds));
            }
            // It is the same configuration, however its pages come to where they belong.
            let of = row.configuration.strip_suffix(BY_A_MAP).unwrap_or(&row.configuration);
            match all.iter().find(|one| one.to_string() == of) {
                Some(one) => Ok((Some(*one), seconds)),
                None => bail!("{}: {} has no such configuration", row.configuration, self.machine),
            }
        };
        self.rows.iter().map(find).collect()
    }

    /// Time of the runs that tell who uses which page, one for each number of threads that has a map: each is under the seats of the
    /// first one that needs it, with pages where they are touched first. Where that did not run it counts as the program as it is.
    fn profiles_s(&self, rows: &[(Option<Configuration>, f64)], as_it_is_s: f64) -> f64 {
        let mapped = self.rows.iter().zip(rows).filter(|(row, _)| row.configuration.ends_with(BY_A_MAP));
        let mut first: BTreeMap<usize, RegionSeats> = BTreeMap::new();
        for one in mapped.filter_map(|(_, (one, _))| *one) {
            first.entry(one.threads).or_insert(one.into());
        }
        let is_with = |one: &Configuration, seats: RegionSeats| {
            one.page_placement == PagePlacement::FirstTouch && RegionSeats::from(*one) == seats
        };
        let time_s = |seats: RegionSeats| rows.iter().find(|(one, _)| one.is_some_and(|one| is_with(&one, seats)));
        first.into_values().map(|seats| time_s(seats).map_or(as_it_is_s, |(_, seconds)| *seconds)).sum()
    }

    /// Searches it with all times multiplied by `factor`: the row that is chosen, and what that took of the exhaustive time, with
    /// `profiles_s` besides. Who is asked to run more often than he did does so again from the first.
    fn replay(&self, reference: usize, factor: f64, profiles_s: f64, settings: &Settings) -> Result<(usize, f64)> {
        let mut spent_s = factor * profiles_s;
        let read = |candidate: usize, attempt: usize, limit_s: Option<f64>| {
            let runs = &self.rows[candidate].seconds;
            let seconds = factor * runs[attempt % runs.len()];
            let stopped = limit_s.filter(|&limit| limit < seconds);
            spent_s += stopped.unwrap_or(seconds);
            Ok(stopped.map_or(Reading::Seconds(seconds), Reading::SlowerThan))
        };
        let found = search(self.rows.len(), Some(reference), settings, read)?;
        let mean = |row: &Row| row.seconds.iter().sum::<f64>() / row.seconds.len() as f64;
        let exhaustive_s = self.rows.iter().map(mean).sum::<f64>() * factor * EXHAUSTIVE_RUNS;
        Ok((found.best.context("no configuration works")?, spent_s / exhaustive_s))
    }
}

#[cfg(test)]
mod tests {
    use rand_core::{Rng as _, SeedableRng as _};
    use rand_pcg::Pcg64;

    use super::*;
    use crate::session::{AT_BIRTH, name};

    fn machines() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vm/machines")
    }

    /// All tables that were recorded.
    fn recorded() -> Vec<Table> {
        let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tuning");
        let files = std::fs::read_dir(results).unwrap().flatten().map(|entry| entry.path());
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        let mut files: Vec<_> = files.filter(|path| name(path).ends_with(".json")).collect();
        files.sort();
        files.iter().map(|path| Table::read(path).unwrap()).collect()
    }

    /// A program that takes so long under each configuration of the 2-node machine.
    fn made_up(seconds: impl Fn(Option<&Configuration>) -> f64) -> Table {
        let topology = crate::testing::lab_machine("2node");
        let all = Space::of(&topology, 8, AT_BIRTH).configurations(&topology);
        let row = |one: Option<&Configuration>| Row { configuration: name(one), seconds: vec![seconds(one); 3] };
        let rows = std::iter::once(row(None)).chain(all.iter().map(|one| row(Some(one)))).collect();
        Table { program: "made-up".into(), machine: "2node".into(), rows }
    }

    #[test]
    fn on_every_recorded_table_the_search_is_within_two_percent_of_the_best_in_an_eighth_of_the_time() {
        let tables = recorded();
        assert!(!tables.is_empty());
        for table in tables {
            let judged = table.judge(&machines(), &Settings::default()).unwrap();
            assert!(judged.chosen.seconds <= judged.best.seconds * (1.0 + EQUAL), "{judged:?}");
            assert!(judged.share <= 0.125 && judged.share_of_long_runs <= 0.125, "{judged:?}");
        }
    }

    /// The tables themselves have one run of many configurations, and read it again and again.
    #[test]
    fn where_runs_of_the_recorded_tables_differ_by_three_percent_the_search_is_as_good() {
        for table in recorded() {
            let mut shares = vec![];
            for seed in 0..5 {
                let mut rng = Pcg64::seed_from_u64(seed);
                let mut chance = || 0.985 + 0.03 * (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
                let mut rows = table.rows.clone();
                for row in &mut rows {
                    let median = median(row.seconds.iter().copied()).unwrap();
                    row.seconds = (0..11).map(|_| median * chance()).collect();
                }
                let judged = Table { rows, ..table.clone() }.judge(&machines(), &Settings::default()).unwrap();
                assert!(judged.chosen.seconds <= judged.best.seconds * (1.0 + EQUAL), "seed {seed}: {judged:?}");
                shares.push(judged.share);
            }
            let mean = shares.iter().sum::<f64>() / shares.len() as f64;
            assert!(mean <= 0.126 && shares.iter().all(|&share| share <= 0.135), "{}: {shares:?}", table.program);
        }
    }

    #[test]
    fn what_only_both_together_reach_is_told_from_what_either_reaches() {
        let both = |one: Option<&Configuration>| match one {
            Some(one) if one.thread_nodes == 1 && one.page_placement == PagePlacement::Interleave => 1.0,
            _ => 2.0,
        };
        let judged = made_up(both).judge(&machines(), &Settings::default()).unwrap();
        assert!(judged.is_joint(), "{judged:?}");
        assert_eq!((judged.best.seconds, judged.threads_only.seconds, judged.pages_only.seconds), (1.0, 2.0, 2.0));
        let pages = |one: Option<&Configuration>| match one {
            Some(one) if one.page_placement == PagePlacement::Interleave => 1.0,
            _ => 2.0,
        };
        assert!(!made_up(pages).judge(&machines(), &Settings::default()).unwrap().is_joint());
    }

    #[test]
    fn runs_that_are_stopped_cost_what_they_took() {
        // One good configuration, the first; all others are ten times slower.
        let first = std::cell::Cell::new(0);
        let judged = made_up(|_| {
            first.set(first.get() + 1);
            if first.get() == 2 { 0.1 } else { 1.0 }
        });
        let judged = judged.judge(&machines(), &Settings::default()).unwrap();
        assert!(judged.share_of_long_runs < judged.share, "{judged:?}");
        assert_eq!(judged.chosen, judged.best);
    }

    #[test]
    fn a_placement_by_a_map_is_a_row_of_its_own_with_the_name_that_the_store_has() {
        let mut table = made_up(|_| 2.0);
        let moved = "4 threads scatter on 2 nodes, pages locality on 2 nodes";
        let by_map = format!("{moved}, by a map");
        let row = |configuration: &str, seconds| Row { configuration: configuration.into(), seconds: vec![seconds; 3] };
        table.rows.extend([row(moved, 3.0), row(&by_map, 1.0)]);
        let judged = table.judge(&machines(), &Settings::default()).unwrap();
        assert_eq!((&judged.best.configuration, &judged.chosen.configuration), (&by_map, &by_map));
    }

    #[test]
    fn a_row_that_is_none_of_the_machine_is_named() {
        let mut table = made_up(|_| 1.0);
        table.rows[3].configuration = "9 threads".into();
        let said = table.judge(&machines(), &Settings::default()).unwrap_err().to_string();
        assert_eq!(said, "9 threads: 2node has no such configuration");
    }
}
