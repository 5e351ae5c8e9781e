// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::page_use::{Name, Used};

fn ended(seconds: f64) -> Row {
    let regions = vec![Region { name: "main._omp_fn.0".into(), entries: 3, seconds: 0.5, ..Region::default() }];
    let first_touch = Some(FirstTouch { main_cpu: 5, pages: [(1, 300)].into() });
    Row {
        reading: Reading::Seconds(seconds),
        seconds,
        threads: 8,
        processes: 1,
        regions,
        first_touch,
        host: Some("here".into()),
    }
}

/// The same on a machine of which nothing is known.
fn nowhere(seconds: f64) -> Row {
    Row { host: None, ..ended(seconds) }
}

#[test]
fn a_store_of_version_5_is_gone_on_with_and_knows_from_then_on_which_machine_ran_what() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("old");
    let store = Store::open(&path, &"one").unwrap();
    store.keep("8", 0, &ended(1.0)).unwrap();
    store.connection.execute_batch("ALTER TABLE run DROP COLUMN host; PRAGMA user_version = 5").unwrap();
    drop(store);
    let store = Store::open(&path, &"one").unwrap();
    assert_eq!(store.run("8", 0).unwrap(), Some(nowhere(1.0)));
    store.keep("8", 1, &ended(2.0)).unwrap();
    store.keep("8; by_rows in turns from 0: 4 | 8", 0, &ended(2.0)).unwrap();
    store.keep("4", 0, &Row { reading: Reading::Failed("exit code 3".into()), ..ended(2.0) }).unwrap();
    let known = HostRun { configuration: "8".into(), host: "here".into(), seconds: 2.0 };
    assert_eq!(store.host_runs().unwrap(), [known]);
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
    Connection::open(&newer).unwrap().execute_batch(&format!("PRAGMA user_version = {}", VERSION + 1)).unwrap();
    let said = format!("{:#}", Store::open(&newer, &"one").unwrap_err());
    assert!(said.contains(&format!("version {}", VERSION + 1)) && said.contains("--store"), "{said}");
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
    let old = Row { first_touch: None, host: None, ..ended(1.0) };
    store.keep("8", 0, &old).unwrap();
    store
        .connection
        .execute_batch("ALTER TABLE run DROP COLUMN first_touch; ALTER TABLE run DROP COLUMN host; DROP TABLE page_use; DROP TABLE written; PRAGMA user_version = 2")
        .unwrap();
    drop(store);
    let store = Store::open(&path, &"one").unwrap();
    assert_eq!(store.run("8", 0).unwrap(), Some(old));
    store.keep("8", 1, &ended(2.0)).unwrap();
    assert_eq!(store.run("8", 1).unwrap(), Some(ended(2.0)));
    assert_eq!(store.page_use(8).unwrap(), None);
}

#[test]
fn those_who_open_a_new_or_an_older_store_at_the_same_moment_all_go_on_with_it() {
    const AT_ONCE: usize = 8;
    let directory = tempfile::tempdir().unwrap();
    for attempt in 0..20 {
        let path = directory.path().join(format!("{attempt}"));
        if attempt % 2 == 0 {
            drop(Store::open(&path, &"x").unwrap());
            let older = "ALTER TABLE run DROP COLUMN host; PRAGMA user_version = 5";
            Connection::open(&path).unwrap().execute_batch(older).unwrap();
        }
        let start = std::sync::Barrier::new(AT_ONCE);
        let open = || {
            start.wait();
            Store::open(&path, &"x").map(drop)
        };
        let opened: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(open)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        opened.into_iter().for_each(|one| one.unwrap());
    }
}

/// A store with one run, opened again after this change.
fn reopened_after(change: &str) -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("old");
    let store = Store::open(&path, &"one").unwrap();
    store.keep("8", 0, &ended(1.0)).unwrap();
    store.connection.execute_batch(change).unwrap();
    drop(store);
    let store = Store::open(&path, &"one").unwrap();
    (directory, store)
}

#[test]
fn a_store_of_version_3_is_gone_on_with() {
    let older = "ALTER TABLE run DROP COLUMN host; DROP TABLE written; PRAGMA user_version = 3";
    let (_directory, store) = reopened_after(older);
    assert_eq!((store.run("8", 0).unwrap(), store.written(&"p").unwrap()), (Some(nowhere(1.0)), BTreeSet::new()));
}

#[test]
fn a_store_of_version_4_is_gone_on_with() {
    let older = "ALTER TABLE run DROP COLUMN host; DROP TABLE code; PRAGMA user_version = 4";
    let (_directory, store) = reopened_after(older);
    assert_eq!((store.run("8", 0).unwrap(), store.code(&"p").unwrap()), (Some(nowhere(1.0)), BTreeMap::new()));
}

#[test]
fn a_store_of_version_6_is_gone_on_with_but_for_files_that_one_of_its_programs_writes() {
    let older = "DROP TABLE written; CREATE TABLE written (file TEXT PRIMARY KEY) STRICT; \
        INSERT INTO written VALUES ('out'); PRAGMA user_version = 6";
    let (_directory, store) = reopened_after(older);
    assert_eq!((store.run("8", 0).unwrap(), store.written(&"p").unwrap()), (Some(ended(1.0)), BTreeSet::new()));
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
    store.keep_written(&"p", &["out".to_owned()].into(), &["p"]).unwrap();
    store.keep("8", 1, &ended(2.0)).unwrap();
    let again = Store::open(&path, &["p", "out 34"]).unwrap();
    assert_eq!((again.written(&"p").unwrap(), again.len().unwrap()), (["out".to_owned()].into(), 0));
    assert_eq!(again.written(&"q").unwrap(), BTreeSet::new(), "another program may read it");
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
