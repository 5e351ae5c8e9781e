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
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::first_touch::FirstTouch;
use crate::page_use::PageUse;
use crate::regions::Region;
use crate::search::Reading;

/// Version of the tables.
const VERSION: i64 = 5;

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
	file TEXT PRIMARY KEY -- as an argument names it: the program writes it, so it is no input
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

/// Of version 2, which did not know where memory was; version 3 did not know which files are written, version 4 which are code. Tables that it did not have are made as in a new file.
const FROM_VERSION_2: &str = "ALTER TABLE run ADD COLUMN first_touch TEXT;";

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
}

impl Row {
    /// One that did not take place.
    pub fn failed(why: String) -> Self {
        let reading = Reading::Failed(why);
        Self { reading, seconds: 0.0, threads: 0, processes: 0, regions: Vec::new(), first_touch: None }
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
        let connection = Connection::open(path)?;
        connection.busy_timeout(PATIENCE)?;
        let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        let (all, ours) = tables(&connection)?;
        match version {
            // Other programs have version 0 as well, and those of small numbers.
            0 if all > 0 => bail!("it is of another program: name another file with --store"),
            2..=VERSION if ours < OURS.len() => bail!("it is of another program: name another file with --store"),
            0 | 3 | 4 => connection
                .execute_batch(&format!("BEGIN IMMEDIATE; {TABLES} PRAGMA user_version = {VERSION}; COMMIT"))?,
            2 => connection.execute_batch(&format!(
                "BEGIN IMMEDIATE; {FROM_VERSION_2} {TABLES} PRAGMA user_version = {VERSION}; COMMIT"
            ))?,
            VERSION => {}
            other => bail!("it is of version {other}, this is version {VERSION}: name another file with --store"),
        }
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

    /// Files that programs of this store are known to write.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn written(&self) -> Result<BTreeSet<String>> {
        let all = || {
            let mut query = self.connection.prepare("SELECT file FROM written")?;
            query.query_map([], |record| record.get(0))?.collect()
        };
        let all: rusqlite::Result<BTreeSet<String>> = all();
        all.context("the store of runs cannot be read")
    }

    /// Keeps that the program writes these files. Its runs so far are of the experiment `what`, that without them, from now on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep_written(&self, files: &BTreeSet<String>, what: &impl Serialize) -> Result<()> {
        self.move_to(what, |all| {
            let insert = "INSERT OR IGNORE INTO written (file) VALUES (?1)";
            files.iter().try_for_each(|file| all.execute(insert, [file]).map(drop))
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
        let query = "SELECT outcome, seconds, threads, processes, words, regions, first_touch FROM run \
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
                let (regions, first_touch) = (Vec::new(), None);
                let row = Row { reading, seconds, threads: count(2)?, processes: count(3)?, regions, first_touch };
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
            (experiment, configuration, attempt, outcome, seconds, threads, processes, words, regions, first_touch) \
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        let [attempt, threads, processes] = [attempt, row.threads, row.processes].map(|count| count as i64);
        let seconds = row.seconds;
        let regions = serde_json::to_string(&row.regions)?;
        let first_touch = row.first_touch.as_ref().map(serde_json::to_string).transpose()?;
        let experiment = self.experiment.borrow();
        let what = (&*experiment, configuration, attempt);
        let values = params![what.0, what.1, what.2, outcome, seconds, threads, processes, words, regions, first_touch];
        self.connection.execute(insert, values).context("the store of runs cannot be written")?;
        Ok(())
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
mod tests {
    use super::*;
    use crate::page_use::{Name, Used};

    fn ended(seconds: f64) -> Row {
        let regions = vec![Region { name: "main._omp_fn.0".into(), entries: 3, seconds: 0.5, ..Region::default() }];
        let first_touch = Some(FirstTouch { main_cpu: 5, pages: [(1, 300)].into() });
        Row { reading: Reading::Seconds(seconds), seconds, threads: 8, processes: 1, regions, first_touch }
    }

    #[test]
    fn a_run_is_found_by_experiment_configuration_and_attempt_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("runs.sqlite");
        let store = Store::open(&path, &"one").unwrap();
        assert!(store.is_empty().unwrap());
        let failed = Row { reading: Reading::Failed("exit code 3".into()), ..ended(0.5) };
        let stopped = Row { reading: Reading::SlowerThan(7.0), ..ended(7.0) };
        for (attempt, row) in [ended(1.25), failed, stopped].iter().enumerate() {
            store.keep("8 threads", attempt, row).unwrap();
            assert_eq!(store.run("8 threads", attempt).unwrap().as_ref(), Some(row));
        }
        drop(store);
        let again = Store::open(&path, &"one").unwrap();
        assert_eq!((again.run("8 threads", 0).unwrap(), again.len().unwrap()), (Some(ended(1.25)), 3));
        assert_eq!(again.run("8 threads", 3).unwrap(), None);
        assert_eq!(again.run("4 threads", 0).unwrap(), None);
        assert_eq!(Store::open(&path, &"other").unwrap().run("8 threads", 0).unwrap(), None);
    }

    #[test]
    fn what_is_no_store_is_refused_with_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes");
        std::fs::write(&path, "no database, but more than enough text to be none: ".repeat(20)).unwrap();
        let said = format!("{:#}", Store::open(&path, &"one").unwrap_err());
        assert!(said.contains("notes: cannot be used as a store of runs"), "{said}");
        let newer = directory.path().join("newer");
        Connection::open(&newer).unwrap().execute_batch("PRAGMA user_version = 7").unwrap();
        let said = format!("{:#}", Store::open(&newer, &"one").unwrap_err());
        assert!(said.contains("version 7") && said.contains("--store"), "{said}");
    }

    #[test]
    fn a_database_of_another_program_is_refused_and_stays_what_it_is() {
        let directory = tempfile::tempdir().unwrap();
        for version in [0, 3, VERSION] {
            let path = directory.path().join(format!("{version}"));
            let setup = format!("CREATE TABLE run (id TEXT); PRAGMA user_version = {version}");
            Connection::open(&path).unwrap().execute_batch(&setup).unwrap();
            let before = std::fs::read(&path).unwrap();
            let said = format!("{:#}", Store::open(&path, &"one").unwrap_err());
            assert!(said.contains("is of another program: name another file with --store"), "{version}: {said}");
            assert!(std::fs::read(&path).unwrap() == before, "{version}");
        }
    }

    #[test]
    fn a_store_of_version_2_is_gone_on_with() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("old");
        let store = Store::open(&path, &"one").unwrap();
        let old = Row { first_touch: None, ..ended(1.0) };
        store.keep("8", 0, &old).unwrap();
        store
            .connection
            .execute_batch("ALTER TABLE run DROP COLUMN first_touch; DROP TABLE page_use; DROP TABLE written; PRAGMA user_version = 2")
            .unwrap();
        drop(store);
        let store = Store::open(&path, &"one").unwrap();
        assert_eq!(store.run("8", 0).unwrap(), Some(old));
        store.keep("8", 1, &ended(2.0)).unwrap();
        assert_eq!(store.run("8", 1).unwrap(), Some(ended(2.0)));
        assert_eq!(store.page_use(8).unwrap(), None);
    }

    #[test]
    fn a_store_of_version_3_is_gone_on_with() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("old");
        let store = Store::open(&path, &"one").unwrap();
        store.keep("8", 0, &ended(1.0)).unwrap();
        store.connection.execute_batch("DROP TABLE written; PRAGMA user_version = 3").unwrap();
        drop(store);
        let store = Store::open(&path, &"one").unwrap();
        assert_eq!((store.run("8", 0).unwrap(), store.written().unwrap()), (Some(ended(1.0)), BTreeSet::new()));
    }

    #[test]
    fn a_store_of_version_4_is_gone_on_with() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("old");
        let store = Store::open(&path, &"one").unwrap();
        store.keep("8", 0, &ended(1.0)).unwrap();
        store.connection.execute_batch("DROP TABLE code; PRAGMA user_version = 4").unwrap();
        drop(store);
        let store = Store::open(&path, &"one").unwrap();
        assert_eq!((store.run("8", 0).unwrap(), store.code(&"p").unwrap()), (Some(ended(1.0)), BTreeMap::new()));
    }

    #[test]
    fn code_is_kept_by_program_and_runs_of_before_it_was_known_are_of_the_program_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("runs"), &"p").unwrap();
        store.keep("8", 0, &ended(1.0)).unwrap();
        store.keep_code(&"p", &[("a", "12"), ("b", "34")].into(), &"p with a, b").unwrap();
        assert_eq!(store.run("8", 0).unwrap(), Some(ended(1.0)));
        store.keep_code(&"p", &[("b", "56")].into(), &"p with b").unwrap();
        let known = [("b".to_owned(), "56".to_owned())].into();
        assert_eq!((store.code(&"p").unwrap(), store.code(&"q").unwrap()), (known, BTreeMap::new()));
        store.turn_to(&"p").unwrap();
        assert!(store.is_empty().unwrap());
    }

    #[test]
    fn who_uses_which_page_is_kept_by_experiment_and_number_of_threads() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("runs");
        let store = Store::open(&path, &"one").unwrap();
        let name = Name { site: "p+0x10".into(), order: 3 };
        let used = Used { name, pages: 64, uses: vec![(5, 1, 9)] };
        let page_use = PageUse { sampler: "pmu".into(), allocations: vec![used] };
        store.keep_page_use(4, &page_use).unwrap();
        let read = [4, 8, 2].map(|threads| store.page_use(threads).unwrap());
        assert_eq!(read, [Some(page_use), None, None]);
        assert_eq!(Store::open(&path, &"other").unwrap().page_use(4).unwrap(), None);
    }

    #[test]
    fn runs_stay_those_of_a_program_that_is_found_to_write_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("runs");
        let store = Store::open(&path, &["p", "out 12"]).unwrap();
        store.keep("8", 0, &ended(1.0)).unwrap();
        store.keep_written(&["out".to_owned()].into(), &["p"]).unwrap();
        store.keep("8", 1, &ended(2.0)).unwrap();
        let again = Store::open(&path, &["p", "out 34"]).unwrap();
        assert_eq!((again.written().unwrap(), again.len().unwrap()), (["out".to_owned()].into(), 0));
        again.turn_to(&["p"]).unwrap();
        assert_eq!((again.run("8", 0).unwrap(), again.len().unwrap()), (Some(ended(1.0)), 2));
    }

    #[test]
    fn a_run_that_did_not_take_place_is_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("runs"), &"one").unwrap();
        assert!(store.keep("8", 0, &Row { reading: Reading::Stop, ..ended(1.0) }).is_err());
        assert!(store.is_empty().unwrap());
    }
}
