// SPDX-License-Identifier: GPL-2.0-only

use proptest::prelude::*;

use super::*;

/// A page of process 0, first touched by thread 0.
fn page(page: u64, accesses: &[(usize, u64)]) -> PageUse {
    PageUse { process: 0, page, first: Some(0), accesses: accesses.to_vec() }
}

/// `pages` pages that thread 0 initialises; then each of `threads` threads uses its own part.
fn partitioned(pages: u64, threads: usize) -> Vec<PageUse> {
    (0..pages).map(|number| page(number, &[(number as usize * threads / pages as usize, 100)])).collect()
}

#[test]
fn exclusivity_goes_from_one_nth_to_one() {
    assert_eq!(exclusivity(&[5, 5, 5, 5]), Some(0.25));
    assert_eq!(exclusivity(&[0, 7, 0, 0]), Some(1.0));
    assert_eq!(exclusivity(&[3, 1]), Some(0.75));
    assert_eq!(exclusivity(&[0, 0]), None);
}

#[test]
fn the_mean_exclusivity_is_weighted_by_accesses() {
    let pages = [page(0, &[(0, 90)]), page(1, &[(0, 5), (1, 5)])];
    assert_eq!(Pages::by_node(&pages, PageSize::Base, &[0, 1], 2).exclusivity(), Some(0.95));
}

#[test]
fn larger_pages_are_as_exclusive_as_what_lies_in_them() {
    // Two threads use every other page; 2 MiB hold both.
    let pages: Vec<PageUse> = (0..1024).map(|number| page(number, &[(number as usize % 2, 10)])).collect();
    let at = |size| Pages::by_node(&pages, size, &[0, 1], 2);
    assert_eq!(PageSize::ALL.map(|size| at(size).rows().len()), [1024, 2, 1]);
    assert_eq!(PageSize::ALL.map(|size| at(size).exclusivity()), [Some(1.0), Some(0.5), Some(0.5)]);
    // Each uses 64 MiB of its own.
    let pages: Vec<PageUse> = (0..32768).map(|number| page(number, &[(number as usize / 16384, 1)])).collect();
    assert_eq!(Pages::by_node(&pages, PageSize::Giant, &[0, 1], 2).exclusivity(), Some(1.0));
}

#[test]
fn exclusivity_depends_on_where_threads_run() {
    let pages = [page(0, &[(0, 5), (1, 5)])];
    assert_eq!(Pages::by_node(&pages, PageSize::Base, &[0, 1], 2).exclusivity(), Some(0.5));
    assert_eq!(Pages::by_node(&pages, PageSize::Base, &[1, 1], 2).exclusivity(), Some(1.0));
}

#[test]
fn processes_have_pages_of_their_own() {
    let pages = [page(3, &[(0, 5)]), PageUse { process: 1, page: 3, first: None, accesses: vec![(1, 5)] }];
    let pages = Pages::by_node(&pages, PageSize::Giant, &[0, 1], 2);
    assert_eq!((pages.rows().len(), pages.exclusivity()), (2, Some(1.0)));
}

/// The source's known answer: first touch by one thread, then each thread uses its own part.
#[test]
fn after_first_touch_by_one_thread_accuracy_is_the_share_of_its_node_and_1_once_mapped() {
    let node_of = [0, 0, 1, 1, 2, 2, 3, 3];
    let pages = Pages::by_node(&partitioned(800, 8), PageSize::Base, &node_of, 4);
    let first_touch = vec![node_of[0]; 800];
    assert_eq!(pages.accuracy(&first_touch), Some(0.25));
    assert_eq!(pages.local_share(&first_touch), Some(0.25));
    assert_eq!(pages.misplaced(&first_touch), Some((0.75, 0.75)));
    assert_eq!(pages.accuracy(&pages.best_homes()), Some(1.0));
    assert_eq!(balance(&pages.served(&first_touch)), Some(0.25));
    assert_eq!(balance(&pages.served(&pages.best_homes())), Some(1.0));
}

#[test]
fn accuracy_is_weighted_by_accesses_and_a_tie_is_right_on_either_node() {
    let pages = [page(0, &[(0, 90)]), page(1, &[(1, 10)])];
    let pages = Pages::by_node(&pages, PageSize::Base, &[0, 1], 2);
    assert_eq!((pages.accuracy(&[0, 0]), pages.misplaced(&[0, 0])), (Some(0.9), Some((0.5, 1.0 - 0.9))));
    assert_eq!((accuracy(&[4, 4, 1], 0), accuracy(&[4, 4, 1], 1)), (Some(true), Some(true)));
    assert_eq!((accuracy(&[4, 4, 1], 2), accuracy(&[0, 0], 1)), (Some(false), None));
}

#[test]
fn without_accesses_there_is_no_number() {
    let pages = Pages::by_node(&[page(1, &[(0, 0)])], PageSize::Base, &[0], 2);
    assert_eq!((pages.rows().len(), pages.exclusivity(), pages.accuracy(&[])), (0, None, None));
    assert_eq!((pages.misplaced(&[]), balance(&[0, 0])), (None, None));
}

proptest! {
    #[test]
    fn shares_keep_their_bounds(rows in prop::collection::vec(prop::collection::vec(0u64..1000, 4), 1..50), home in 0usize..4) {
        let uses: Vec<PageUse> =
            (0..).zip(&rows).map(|(number, row)| page(number, &row.iter().copied().enumerate().collect::<Vec<_>>())).collect();
        let pages = Pages::by_node(&uses, PageSize::Base, &[0, 1, 2, 3], 4);
        let homes = vec![home; pages.rows().len()];
        if let (Some(exclusivity), Some(local)) = (pages.exclusivity(), pages.local_share(&homes)) {
            prop_assert!((0.25..=1.0).contains(&exclusivity) && local <= exclusivity);
            prop_assert_eq!(pages.local_share(&pages.best_homes()), Some(exclusivity));
            prop_assert!((0.25..=1.0).contains(&balance(&pages.served(&homes)).unwrap()));
            prop_assert!(pages.accuracy(&homes).unwrap() >= 0.0);
        }
    }
}
