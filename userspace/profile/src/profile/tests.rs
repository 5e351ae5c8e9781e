// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::table;
use crate::testing::{profile, running, running_at};

fn value(profile: &Profile, name: &str) -> f64 {
    let metric = profile.metrics.iter().find(|metric| metric.name == name);
    metric.and_then(|metric| metric.value).unwrap_or_else(|| panic!("no value of {name}"))
}

#[test]
fn pairs_are_pairs_and_are_placed_together() {
    let profile = profile(&[1], 40);
    assert_eq!(profile.events, [(1, 2, 40_000), (3, 4, 40_000), (5, 6, 40_000), (7, 8, 40_000)]);
    assert!((value(&profile, "C_H") - 7500.0 / 7.0).abs() < 1e-9);
    assert_eq!(profile.threads.iter().filter(|thread| thread.busy).count(), 8);
    let [scattered, _, recommended] = &profile.placements[..] else { panic!("three placements") };
    assert_eq!((scattered.across_nodes, recommended.across_nodes), (Some(1.0), Some(0.0)));
    assert!(scattered.transfer_ms_per_s > 0.0 && recommended.transfer_ms_per_s == 0.0);
    assert_eq!((profile.seconds, profile.slices.len(), profile.slices[1].at_ms), (0.4, 40, 10.0));
}

/// The main thread touches everything first, and runs on node 0: only that node's threads find their pages there.
#[test]
fn first_touch_by_one_thread_is_right_for_its_node_only() {
    let profile = profile(&[1], 40);
    let touch = &profile.recommended().first_touch;
    assert!((touch.accuracy.unwrap() - 0.25).abs() < 1e-3 && (touch.balance.unwrap() - 0.25).abs() < 1e-3);
    assert!(profile.recommended().best_homes.accuracy == Some(1.0));
    let last = |course: &LocalCourse| course.points.last().unwrap().1;
    assert_eq!(profile.local.iter().map(last).collect::<Vec<_>>(), [0.25, 0.25, 1.0]);
    assert_eq!(profile.footprint.unwrap().touched_bytes, 90 * 4096);
}

#[test]
fn memory_grows_on_the_node_whose_threads_touch_it_first() {
    let profile = profile(&[1], 40);
    let last = |course: &LocalCourse| course.points.last().unwrap().1;
    // The main thread is on node 0, and touches 90 pages.
    assert_eq!(profile.memory.iter().map(last).collect::<Vec<_>>(), [90.0 / 256.0, 0.0, 0.0, 0.0]);
    assert_eq!(profile.memory[0].name, "node 0");
}

#[test]
fn a_program_that_runs_is_judged_as_it_is_and_as_it_should_be() {
    let profile = running();
    let [present, _, recommended] = &profile.placements[..] else { panic!("three placements") };
    assert_eq!((present.across_nodes, present.first_touch.local_share), (Some(1.0), Some(0.5)));
    assert_eq!((recommended.across_nodes, recommended.best_homes.local_share), (Some(0.0), Some(1.0)));
    assert_eq!((profile.seconds, profile.slices.len(), value(&profile, "local, pages as they are")), (3.0, 3, 0.0));
    assert_eq!(profile.events, [(0, 1, 6)]);
    assert_eq!(profile.local[0].name, "present threads, pages where they are");
    assert!(table::profile(&profile).contains("thread 1: 41 (a <b>)") && profile.notes[0].contains("samples"));
}

#[test]
fn accesses_to_pages_whose_place_is_not_known_are_told_and_are_in_no_share() {
    assert_eq!(running().notes.len(), 1);
    let profile = running_at(None);
    assert!(profile.notes[1].starts_with("100.0 % of the accesses went to pages whose place is not known"));
    let value = |name: &str| profile.metrics.iter().find(|metric| metric.name == name).unwrap().value;
    assert_eq!((value("local, pages as they are"), value("Acc_app of pages as they are")), (None, None));
    assert_eq!(profile.local.iter().map(|course| course.points.len()).collect::<Vec<_>>(), [0, 0, 4]);
    assert!(table::profile(&profile).contains("- / 1.000") && crate::report::page(&profile).is_ok());
}

/// The blind spot of C_H, and what closes it.
#[test]
fn new_partners_are_one_phase_but_the_sharing_does_not_stay() {
    let profile = profile(&[1, 4], 200);
    assert_eq!(profile.phases.len(), 1);
    assert_eq!(value(&profile, "sharing that stays"), 0.0);
    assert_eq!(value(&crate::testing::profile(&[1], 400), "sharing that stays"), 1.0);
}

#[test]
fn a_profile_survives_json() {
    let profile = profile(&[1, 2], 3);
    let read: Profile = serde_json::from_str(&serde_json::to_string(&profile).unwrap()).unwrap();
    assert_eq!((&read.events, &read.pages, &read.threads), (&profile.events, &profile.pages, &profile.threads));
    assert_eq!((&read.clock, &read.footprint, &read.command), (&profile.clock, &profile.footprint, &profile.command));
    assert_eq!(read.recommended().nodes, profile.recommended().nodes);
}

#[test]
fn the_table_has_every_metric_and_every_placement() {
    let profile = profile(&[1], 20);
    let text = table::profile(&profile);
    for metric in &profile.metrics {
        assert!(text.contains(&metric.name) && text.contains(&metric.meaning), "{}", metric.name);
    }
    assert!(text.contains("scattered") && text.contains("compact") && text.contains("recommended"));
    assert!(text.contains("8 busy threads of 9"), "{text}");
}
