// SPDX-License-Identifier: GPL-2.0-only
//! What decided can be replayed: the same policies, parameters and seed decide the same, byte for byte.

use tandem_policies::decider::PolicyChoice;
use tandem_policies::model::Plan;
use tandem_policies::registry::{Kind, policies};
use tandem_trace::testing::{Shape, choices, recording};
use tandem_trace::{Answer, Difference, Entry, Policies, Replay, Replayed, TraceReader};

const INTERVALS: usize = 12;

/// Replays a recording from its bytes.
fn replay(bytes: &[u8], with: Policies, seed: Option<u64>) -> Vec<Replayed> {
    let mut replay = Replay::new(with, seed);
    let mut decisions = Vec::new();
    for entry in TraceReader::new(bytes).unwrap() {
        match entry.unwrap() {
            Entry::Settings(settings) => drop(replay.begin(&settings).unwrap()),
            Entry::Interval(interval) => decisions.extend(replay.decide(&interval)),
        }
    }
    decisions
}

fn moves(decisions: &[Replayed]) -> usize {
    decisions.iter().filter_map(|replayed| replayed.decision.plan()).map(|plan| plan.moves.len()).sum()
}

/// Threads are where they are, so that policies find something to move.
fn is_same_for(policies: &[PolicyChoice]) -> usize {
    let (bytes, intervals) = recording(Shape { nodes: 3, threads: 6, ..Shape::SMALL }, policies, 5, INTERVALS);
    let decisions = replay(&bytes, Policies::Recorded, None);
    assert_eq!(decisions.len(), INTERVALS);
    for (replayed, interval) in decisions.iter().zip(&intervals) {
        let recorded = interval.decision.as_ref().unwrap();
        assert!(replayed.same, "{policies:?}");
        assert_eq!(format!("{:?}", replayed.decision.answers), format!("{:?}", recorded.answers));
        assert_eq!(replayed.decision.taken, recorded.taken);
        assert!(replayed.differences.is_empty());
    }
    moves(&decisions)
}

#[test]
fn every_policy_decides_again_as_recorded() {
    let mut moves = 0;
    for policy in policies() {
        moves += match policy.kind {
            Kind::Thread => is_same_for(&choices(policy.name, "tmma")),
            Kind::Page => is_same_for(&choices("none", policy.name)),
            Kind::Joint => is_same_for(&[PolicyChoice::new(Kind::Joint, policy.name).unwrap()]),
        };
    }
    assert!(moves > 100, "{moves} moves in all");
}

#[test]
fn parameters_are_those_of_the_recording() {
    let mut policies = choices("sma", "tmma");
    policies[0].set("gate_percent_per_thread", 50.0).unwrap();
    is_same_for(&policies);
}

/// Whether forgetting what was before changes what `policy` decides in the second half.
fn remembers(thread: &str, page: &str) -> bool {
    let policies = choices(thread, page);
    let (bytes, _) = recording(Shape { nodes: 3, threads: 6, ..Shape::SMALL }, &policies, 5, INTERVALS);
    let mut forgetful = Replay::new(Policies::Recorded, None);
    let (mut at, mut same) = (0, true);
    let mut settings = None;
    for entry in TraceReader::new(&bytes[..]).unwrap() {
        match entry.unwrap() {
            Entry::Settings(found) => {
                forgetful.begin(&found).unwrap();
                settings = Some(found);
            }
            Entry::Interval(interval) => {
                forgetful.begin(settings.as_ref().unwrap()).unwrap();
                same &= forgetful.decide(&interval).unwrap().same;
                at += 1;
            }
        }
    }
    assert_eq!(at, INTERVALS);
    !same
}

#[test]
fn memory_between_decisions_matters_and_is_built_up_again() {
    let remembering: Vec<&str> =
        policies().iter().filter(|policy| policy.kind == Kind::Thread).map(|policy| policy.name).collect();
    let remembering: Vec<&&str> = remembering.iter().filter(|name| remembers(name, "none")).collect();
    assert!(remembering.len() >= 2, "else the replays above prove nothing about memory: {remembering:?}");
}

#[test]
fn other_policies_differ_move_by_move() {
    let (bytes, _) = recording(Shape::SMALL, &choices("sma", "tmma"), 5, INTERVALS);
    let recorded = moves(&replay(&bytes, Policies::Recorded, None));
    assert!(recorded > 0);
    let nothing = replay(&bytes, Policies::Only(choices("none", "none")), None);
    let gone = nothing.iter().flat_map(|replayed| &replayed.differences);
    assert!(gone.clone().all(|difference| matches!(difference, Difference::Gone(_))));
    assert_eq!(gone.count(), recorded);
    let pages = PolicyChoice::new(Kind::Page, "none").unwrap();
    let mixed = replay(&bytes, Policies::Instead(vec![pages]), None);
    assert!(mixed.iter().all(|replayed| replayed.decision.answers.len() <= 2));
    let same_thread_plans = mixed.iter().filter(|replayed| replayed.decision.taken == Some(0)).all(|mixed| mixed.same);
    assert!(same_thread_plans, "the thread policy is still the recorded one");
}

#[test]
fn another_seed_counts_up_as_the_agent_does() {
    let (bytes, intervals) = recording(Shape::SMALL, &choices("sma", "tmma"), 5, 3);
    let seeds = |decisions: Vec<Replayed>| decisions.iter().map(|replayed| replayed.decision.seed).collect::<Vec<_>>();
    assert_eq!(seeds(replay(&bytes, Policies::Recorded, None)), [5, 6, 7]);
    assert_eq!(seeds(replay(&bytes, Policies::Recorded, Some(100))), [100, 101, 102]);
    assert_eq!(intervals[2].decision.as_ref().unwrap().seed, 7);
}

#[test]
fn a_gain_that_is_no_number_is_the_same_as_itself_and_not_as_another() {
    let (bytes, _) = recording(Shape::SMALL, &choices("sma", "tmma"), 5, INTERVALS);
    let mut replay = Replay::new(Policies::Recorded, None);
    let mut seen = false;
    for entry in TraceReader::new(&bytes[..]).unwrap() {
        match entry.unwrap() {
            Entry::Settings(settings) => drop(replay.begin(&settings).unwrap()),
            Entry::Interval(mut interval) => {
                let answers = &mut interval.decision.as_mut().unwrap().answers;
                let plan = answers.iter_mut().find_map(|answer| match answer {
                    Answer::Plan(plan) if !plan.is_empty() => Some(plan),
                    _ => None,
                });
                let changed = plan.map(|plan| plan.moves[0].gain_ns_per_s = Some(f64::NAN)).is_some();
                assert_eq!(replay.decide(&interval).unwrap().same, !changed);
                seen |= changed;
            }
        }
    }
    assert!(seen);
}

#[test]
fn a_missing_signal_is_the_same_in_another_versions_words_and_another_answer_than_a_plan() {
    let (bytes, _) = recording(Shape { samples: 1, ..Shape::SMALL }, &choices("sma", "tmma"), 5, 1);
    let mut replay = Replay::new(Policies::Recorded, None);
    for entry in TraceReader::new(&bytes[..]).unwrap() {
        match entry.unwrap() {
            Entry::Settings(settings) => drop(replay.begin(&settings).unwrap()),
            Entry::Interval(mut interval) => {
                let answers = &mut interval.decision.as_mut().unwrap().answers;
                assert!(matches!(answers[..], [Answer::Missing(_), ..]), "{answers:?}");
                answers[0] = Answer::Missing("policy sma cannot go on".to_owned());
                assert!(replay.decide(&interval).unwrap().same);
                interval.decision.as_mut().unwrap().answers[0] = Answer::Plan(Plan::default());
                assert!(!replay.decide(&interval).unwrap().same);
            }
        }
    }
}
