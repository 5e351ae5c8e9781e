// SPDX-License-Identifier: GPL-2.0-only
//! The store of runs: an SQLite file in which each run is a row of its own as soon as it has ended.
//!
//! Problem: a search takes long, and may be interrupted at any moment. Mechanism: a run is found again by its
//! experiment, its configuration and its attempt, so the same command goes on where it was, whatever ended it, and what
//! was measured is never measured twice. An experiment is what makes runs comparable: machine, program, arguments.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::first_touch::FirstTouch;
use crate::hosts::HostRun;
use crate::page_use::PageUse;
use crate::regions::Region;
use crate::search::Reading;

/// Version of the tables.
const VERSION: i64 = 7;

/// How long another process may hold the file.
const PATIENCE: Duration = Duration::from_secs(10);

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS experiment (
	id TEXT PRIMARY KEY, -- hash of what
	what TEXT NOT NULL   -- JSON: machine, program, arguments
) STRICT;
CREATE TABLE IF NOT EXISTS run (
	experiment TEXT NOT NULL REFERENCES experiment (id),
	configuration TEXT NOT NULL,
	attempt INTEGER NOT NULL,
	outcome TEXT NOT NULL CHECK (outcome IN ('ended', 'stopped', 'failed')),
	seconds REAL NOT NULL, -- until the end, or until it was stopped
	threads INTEGER NOT NULL, -- most threads of one process at a time
	processes INTEGER NOT NULL,
	regions TEXT NOT NULL, -- JSON: name, entries and seconds of each
	first_touch TEXT, -- JSON: where its memory was when its first region or thread began
	words TEXT NOT NULL, -- why it failed
	host TEXT, -- name of the machine that ran it
	finished TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
	PRIMARY KEY (experiment, configuration, attempt)
) STRICT;
CREATE TABLE IF NOT EXISTS page_use (
	experiment TEXT NOT NULL REFERENCES experiment (id),
	threads INTEGER NOT NULL,
	what TEXT NOT NULL, -- JSON: by allocation, who uses which page
	PRIMARY KEY (experiment, threads)
) STRICT;
CREATE TABLE IF NOT EXISTS written (
	program TEXT NOT NULL, -- JSON: its path, arguments, directory
	file TEXT NOT NULL, -- as an argument names it: the program writes it, so it is no input
	PRIMARY KEY (program, file)
) STRICT;
CREATE TABLE IF NOT EXISTS code (
	program TEXT NOT NULL, -- JSON: hash of its file, arguments
	file TEXT NOT NULL, -- one that its processes had mapped as code in a run
	sha256 TEXT NOT NULL, -- of that file then
	PRIMARY KEY (program, file)
) STRICT;
";

/// Tables that stores of all versions have.
const OURS: [&str; 2] = ["experiment", "run"];

/// Columns that tables of older versions did not have: version 2 did not know where memory was, 5 not which machine ran what. What
/// version 3 did not know, which files are written, and version 4, which are code, is in tables that are made as in a new file.
const FROM_VERSION_2: &str = "ALTER TABLE run ADD COLUMN first_touch TEXT;";
const FROM_VERSION_5: &str = "ALTER TABLE run ADD COLUMN host TEXT;";
/// Until version 6 it was not known which program writes a file: its next run tells.
const FROM_VERSION_6: &str = "DROP TABLE IF EXISTS written;";

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it gave; never [`Reading::Stop`].
    pub reading: Reading,
    /// From start to end, or until it was stopped or failed.
    pub seconds: f64,
    /// Most threads that one of its processes had at a time.
    pub threads: usize,
    /// Number of its processes.
    pub processes: usize,
    /// Its parallel regions.
    pub regions: Vec<Region>,
    /// Where its memory was when the first of them, or its first thread, began.
    pub first_touch: Option<FirstTouch>,
    /// Name of the machine that ran it, if that is known.
    pub host: Option<String>,
}

impl Row {
    /// Whether it was not stopped sooner than it would be now, after `limit_s` or not at all.
    pub fn is_known_until(&self, limit_s: Option<f64>) -> bool {
        match self.reading {
            Reading::SlowerThan(at) => limit_s.is_some_and(|limit| limit <= at * 1.001),
            _ => true,
        }
    }

    /// One that did not take place.
    pub fn failed(why: String) -> Self {
        let reading = Reading::Failed(why);
        Self { reading, seconds: 0.0, threads: 0, processes: 0, regions: Vec::new(), first_touch: None, host: None }
    }
}

fn version(connection: &Connection) -> Result<i64> {
    Ok(connection.query_row("PRAGMA user_version", [], |row| row.get(0))?)
}

/// The version of a store that nobody else makes or changes meanwhile, 0 of a new file.
///
/// # Errors
/// It is none, or of a version that is not known.
fn known_version(connection: &Connection) -> Result<i64> {
    let version = version(connection)?;
    let (all, ours) = tables(connection)?;
    match version {
        // Other programs have version 0 as well, and those of small numbers.
        0 if all > 0 => bail!("it is of another program: name another file with --store"),
        2..=VERSION if ours < OURS.len() => bail!("it is of another program: name another file with --store"),
        0 | 2..=VERSION => Ok(version),
        other => bail!("it is of version {other}, this is version {VERSION}: name another file with --store"),
    }
}

/// The runs of one experiment in an SQLite file.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    experiment: RefCell<String>,
}

impl Store {
    /// The runs of the experiment `what` in the file at `path`, which is made when it is not there.
    ///
    /// # Errors
    /// The file cannot be opened or made, or is no store of this version.
    pub fn open(path: &Path, what: &impl Serialize) -> Result<Self> {
        Self::try_open(path, what).with_context(|| format!("{}: cannot be used as a store of runs", path.display()))
    }

    fn try_open(path: &Path, what: &impl Serialize) -> Result<Self> {
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(PATIENCE)?;
        if version(&connection)? != VERSION {
            let change = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let columns = match known_version(&change)? {
                2 => format!("{FROM_VERSION_2} {FROM_VERSION_5} {FROM_VERSION_6}"),
                3..=5 => format!("{FROM_VERSION_5} {FROM_VERSION_6}"),
                6 => FROM_VERSION_6.to_owned(),
                _ => String::new(),
            };
            change.execute_batch(&format!("{columns} {TABLES} PRAGMA user_version = {VERSION};"))?;
            change.commit()?;
        }
        known_version(&connection)?;
        let experiment = experiment(&connection, what)?;
        Ok(Self { connection, experiment: RefCell::new(experiment) })
    }

    /// Goes on with the runs of the experiment `what` instead.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn turn_to(&self, what: &impl Serialize) -> Result<()> {
        let other = experiment(&self.connection, what).context("the store of runs cannot be written")?;
        self.experiment.replace(other);
        Ok(())
    }

    /// Files that this program is known to write.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn written(&self, program: &impl Serialize) -> Result<BTreeSet<String>> {
        let program = serde_json::to_string(program)?;
        let all = || {
            let mut query = self.connection.prepare("SELECT file FROM written WHERE program = ?1")?;
            query.query_map([program], |record| record.get(0))?.collect()
        };
        let all: rusqlite::Result<BTreeSet<String>> = all();
        all.context("the store of runs cannot be read")
    }

    /// Keeps that this program writes these files. Its runs so far are of the experiment `what`, that without them, from now on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep_written(
        &self,
        program: &impl Serialize,
        files: &BTreeSet<String>,
        what: &impl Serialize,
    ) -> Result<()> {
        let program = serde_json::to_string(program)?;
        self.move_to(what, |all| {
            let insert = "INSERT OR IGNORE INTO written (program, file) VALUES (?1, ?2)";
            files.iter().try_for_each(|file| all.execute(insert, [&program, file]).map(drop))
        })
    }

    /// Files that processes of this program are known to have mapped as code, with their hashes at that time.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn code(&self, program: &impl Serialize) -> Result<BTreeMap<String, String>> {
        let program = serde_json::to_string(program)?;
        let all = || {
            let mut query = self.connection.prepare("SELECT file, sha256 FROM code WHERE program = ?1")?;
            query.query_map([program], |record| Ok((record.get(0)?, record.get(1)?)))?.collect()
        };
        let all: rusqlite::Result<BTreeMap<String, String>> = all();
        all.context("the store of runs cannot be read")
    }

    /// Keeps that `files`, each with its hash, are the code of this program. Its runs so far are of the experiment `what` from now on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep_code(
        &self,
        program: &impl Serialize,
        files: &BTreeMap<&str, &str>,
        what: &impl Serialize,
    ) -> Result<()> {
        let program = serde_json::to_string(program)?;
        self.move_to(what, |all| {
            all.execute("DELETE FROM code WHERE program = ?1", [&program])?;
            let insert = "INSERT INTO code (program, file, sha256) VALUES (?1, ?2, ?3)";
            files.iter().try_for_each(|(file, sha256)| all.execute(insert, [&program, *file, *sha256]).map(drop))
        })
    }

    /// Makes a change, and has the runs of this experiment be of the experiment `what` from now on: both or neither.
    fn move_to(&self, what: &impl Serialize, change: impl Fn(&Transaction) -> rusqlite::Result<()>) -> Result<()> {
        let before = self.experiment.borrow().clone();
        self.turn_to(what)?;
        let moved = || {
            let all = self.connection.unchecked_transaction()?;
            change(&all)?;
            for table in ["run", "page_use"] {
                let change = format!("UPDATE OR REPLACE {table} SET experiment = ?1 WHERE experiment = ?2");
                all.execute(&change, [&*self.experiment.borrow(), &before])?;
            }
            all.commit()
        };
        moved().context("the store of runs cannot be written")
    }

    /// The names of what ran, one a run.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn names(&self) -> Result<Vec<String>> {
        let all = || {
            let mut query = self.connection.prepare("SELECT configuration FROM run WHERE experiment = ?1")?;
            query.query_map([&*self.experiment.borrow()], |record| record.get(0))?.collect()
        };
        let all: rusqlite::Result<Vec<String>> = all();
        all.context("the store of runs cannot be read")
    }

    /// A run, if it is there.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn run(&self, configuration: &str, attempt: usize) -> Result<Option<Row>> {
        let query = "SELECT outcome, seconds, threads, processes, words, regions, first_touch, host FROM run \
            WHERE experiment = ?1 AND configuration = ?2 AND attempt = ?3";
        let row = self.connection.query_row(
            query,
            params![&*self.experiment.borrow(), configuration, attempt as i64],
            |record| {
                let seconds: f64 = record.get(1)?;
                let reading = match record.get::<_, String>(0)?.as_str() {
                    "ended" => Reading::Seconds(seconds),
                    "stopped" => Reading::SlowerThan(seconds),
                    _ => Reading::Failed(record.get(4)?),
                };
                let count = |column: usize| record.get::<_, u32>(column).map(|count| count as usize);
                let (regions, first_touch, host) = (Vec::new(), None, record.get(7)?);
                let row =
                    Row { reading, seconds, threads: count(2)?, processes: count(3)?, regions, first_touch, host };
                Ok((row, record.get::<_, String>(5)?, record.get::<_, Option<String>>(6)?))
            },
        );
        let row = row.optional().context("the store of runs cannot be read")?;
        let Some((row, regions, first_touch)) = row else { return Ok(None) };
        let damaged = "the store of runs is damaged";
        let regions = serde_json::from_str(&regions).context(damaged)?;
        let first_touch = first_touch.map(|text| serde_json::from_str(&text)).transpose().context(damaged)?;
        Ok(Some(Row { regions, first_touch, ..row }))
    }

    /// Keeps a run, in place of an older one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&self, configuration: &str, attempt: usize, row: &Row) -> Result<()> {
        let (outcome, words) = match &row.reading {
            Reading::Seconds(_) => ("ended", ""),
            Reading::SlowerThan(_) => ("stopped", ""),
            Reading::Failed(words) => ("failed", words.as_str()),
            Reading::Stop => bail!("a run that did not take place is not kept"),
        };
        let insert = "INSERT OR REPLACE INTO run \
            (experiment, configuration, attempt, outcome, seconds, threads, processes, words, regions, first_touch, host) \
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
        let [attempt, threads, processes] = [attempt, row.threads, row.processes].map(|count| count as i64);
        let seconds = row.seconds;
        let regions = serde_json::to_string(&row.regions)?;
        let first_touch = row.first_touch.as_ref().map(serde_json::to_string).transpose()?;
        let experiment = self.experiment.borrow();
        let what = (&*experiment, configuration, attempt);
        let host = &row.host;
        let values =
            params![what.0, what.1, what.2, outcome, seconds, threads, processes, words, regions, first_touch, host];
        self.connection.execute(insert, values).context("the store of runs cannot be written")?;
        Ok(())
    }

    /// The runs of whole programs that came to their end, and on which machines, as far as that is known.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn host_runs(&self) -> Result<Vec<HostRun>> {
        let query = "SELECT configuration, host, seconds FROM run \
            WHERE experiment = ?1 AND outcome = 'ended' AND host IS NOT NULL AND configuration NOT LIKE '% in turns %'";
        let all = || {
            let mut query = self.connection.prepare(query)?;
            let run = |record: &rusqlite::Row| {
                Ok(HostRun { configuration: record.get(0)?, host: record.get(1)?, seconds: record.get(2)? })
            };
            query.query_map([&*self.experiment.borrow()], run)?.collect()
        };
        let all: rusqlite::Result<Vec<HostRun>> = all();
        all.context("the store of runs cannot be read")
    }

    /// Who uses which page with so many threads, if that was seen.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn page_use(&self, threads: usize) -> Result<Option<PageUse>> {
        let query = "SELECT what FROM page_use WHERE experiment = ?1 AND threads = ?2";
        let what = params![&*self.experiment.borrow(), threads as i64];
        let text = self.connection.query_row(query, what, |record| record.get::<_, String>(0)).optional();
        let text = text.context("the store of runs cannot be read")?;
        text.map(|text| serde_json::from_str(&text).context("the store of runs is damaged")).transpose()
    }

    /// Keeps who uses which page with so many threads.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep_page_use(&self, threads: usize, page_use: &PageUse) -> Result<()> {
        let insert = "INSERT OR REPLACE INTO page_use (experiment, threads, what) VALUES (?1, ?2, ?3)";
        let what = params![&*self.experiment.borrow(), threads as i64, serde_json::to_string(page_use)?];
        self.connection.execute(insert, what).context("the store of runs cannot be written")?;
        Ok(())
    }

    /// Number of runs of this experiment.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn len(&self) -> Result<usize> {
        let count = "SELECT count(*) FROM run WHERE experiment = ?1";
        let count = self.connection.query_row(count, [&*self.experiment.borrow()], |row| row.get::<_, u32>(0));
        Ok(count.context("the store of runs cannot be read")? as usize)
    }

    /// Whether this experiment has no run.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// How many tables the file has, and how many of [ours](OURS).
fn tables(connection: &Connection) -> rusqlite::Result<(usize, usize)> {
    let mut query = connection.prepare("SELECT name FROM sqlite_schema")?;
    let names: Vec<String> = query.query_map([], |record| record.get(0))?.collect::<rusqlite::Result<_>>()?;
    let ours = names.iter().filter(|name| OURS.contains(&name.as_str())).count();
    Ok((names.len(), ours))
}

/// What the file calls the experiment `what`, which it knows from now on.
fn experiment(connection: &Connection, what: &impl Serialize) -> Result<String> {
    let what = serde_json::to_string(what)?;
    let experiment: String = Sha256::digest(what.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    connection.execute("INSERT OR IGNORE INTO experiment (id, what) VALUES (?1, ?2)", params![experiment, what])?;
    Ok(experiment)
}

#[cfg(test)]
mod tests;
