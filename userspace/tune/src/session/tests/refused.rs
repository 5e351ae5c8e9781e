// SPDX-License-Identifier: GPL-2.0-only
//! Programs that cannot be tuned.

use super::*;

#[test]
fn programs_that_cannot_be_tuned_are_refused_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let said = |program: Program, store: &str| {
        session(&directory.path().join(store), program, 10_000).outcome.unwrap_err().to_string()
    };
    let at_once = said(&|_| (End::Code(0), 0.003, 1), "at once");
    assert!(at_once.contains("ends after 3.0 ms: too short"), "{at_once}");
    let fails = said(&|_| (End::Code(1), 1.0, 1), "fails");
    assert!(
        fails.contains("fails as it is: exit code 1, its last words: oh no") && fails.contains("--stdin"),
        "{fails}"
    );
}

#[test]
fn a_program_that_cannot_be_tuned_within_a_budget_runs_once() {
    let directory = tempfile::tempdir().unwrap();
    for (store, run) in [("fails", (End::Code(1), 1.0, 1)), ("at once", (End::Code(0), 0.003, 1))] {
        BUDGET.set(Some(Duration::from_secs(100)));
        let session = session(&directory.path().join(store), &|_| run.clone(), 10_000);
        BUDGET.set(None);
        assert!(session.outcome.is_err(), "{store}");
        assert_eq!(session.ran, [(name(None), 1)].into(), "{store}");
    }
}

#[test]
fn a_program_that_was_too_short_runs_again_with_the_next_session() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("s");
    assert!(session(&store, &|_| (End::Code(0), 0.003, 1), 10_000).outcome.is_err());
    assert!(session(&store, &four_are_best, 10_000).outcome.unwrap().is_some());
}
