// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::testing::{SnapshotBuilder, decided, two_nodes};

fn refused(policy: &Policy, name: &str, value: f64) -> String {
    policy.parameters(&BTreeMap::from([(name.to_owned(), value)])).unwrap_err().to_string()
}

#[test]
fn kind_and_name_find_a_policy() {
    for &policy in policies() {
        assert!(std::ptr::eq(find(policy.kind, policy.name).unwrap(), policy));
    }
}

#[test]
fn an_unknown_policy_is_answered_with_the_names_of_its_kind() {
    let sentence = |kind, name| find(kind, name).unwrap_err().to_string();
    let names = |kind| {
        let of_kind = policies().iter().filter(|policy| policy.kind == kind).map(|policy| policy.name);
        of_kind.collect::<Vec<_>>().join(", ")
    };
    for kind in [Kind::Thread, Kind::Page, Kind::Joint] {
        let expected = format!("there is no {kind} policy 'smb'; choose one of {}", names(kind));
        assert_eq!(sentence(kind, "smb"), expected);
    }
    let expected =
        format!("there is no joint policy 'sma' (it is a thread policy); choose one of {}", names(Kind::Joint));
    assert_eq!(sentence(Kind::Joint, "sma"), expected);
    assert!(names(Kind::Thread).contains("sma") && names(Kind::Page).contains("tmma"));
}

#[test]
fn an_unknown_parameter_is_answered_with_the_names_there_are() {
    let sentence = "tmma has no parameter 'delta'; it has preload_groups, min_samples, home_share, reserve_percent, min_gain_percent";
    assert_eq!(refused(&tmma::POLICY, "delta", 1.0), sentence);
    assert_eq!(refused(&NO_PAGES, "delta", 1.0), "none has no parameter 'delta'; it has none");
}

#[test]
fn a_value_out_of_range_is_answered_with_what_is_allowed() {
    let sentence = "sma: cooling = 1.5 is not allowed; give a number from 0.5 to 1 (factor per step)";
    assert_eq!(refused(&sma::POLICY, "cooling", 1.5), sentence);
    let sentence = "sma: restarts = 2.5 is not allowed; give a whole number from 0 to 1000 (starts after the first)";
    assert_eq!(refused(&sma::POLICY, "restarts", 2.5), sentence);
    let sentence = "sma: cooling = NaN is not allowed; give a number from 0.5 to 1 (factor per step)";
    assert_eq!(refused(&sma::POLICY, "cooling", f64::NAN), sentence);
}

#[test]
fn both_ends_of_a_range_are_allowed_and_the_rest_stays_at_its_default() {
    let values = BTreeMap::from([("cooling".to_owned(), 1.0), ("restarts".to_owned(), 0.0)]);
    let parameters = sma::POLICY.parameters(&values).unwrap();
    assert_eq!((parameters.get("cooling"), parameters.get("restarts")), (1.0, 0.0));
    assert_eq!(parameters.get("start_temperature"), 0.3);
}

#[test]
fn defaults_are_allowed_and_names_are_unique() {
    for policy in policies() {
        let defaults = policy.defaults().iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(policy.parameters(&defaults).unwrap(), policy.defaults());
        assert_eq!(defaults.len(), policy.parameters.len());
    }
}

#[test]
fn a_missing_signal_is_one_sentence() {
    let snapshot = SnapshotBuilder::new(two_nodes(1)).thread(1, 0, None).build();
    let error = decided(&sma::POLICY, &snapshot, 1, u64::MAX).unwrap_err();
    let sentence = "policy sma needs accesses per second of threads by memory node, which no sampler gives; \
                    choose another sampler or policy";
    assert_eq!(error.to_string(), sentence);
}

#[test]
fn policy_none_decides_nothing() {
    let snapshot = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1).group(&[1, 0], &[0.0, 1.0]);
    let snapshot = snapshot.build();
    for policy in [&NO_THREADS, &NO_PAGES] {
        assert!(decided(policy, &snapshot, 1, u64::MAX).unwrap().is_empty());
    }
}

#[test]
fn a_policy_decides_by_the_algorithm_of_its_name() {
    let snapshot = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 1).group(&[1, 0], &[0.0, 1.0]);
    let snapshot = snapshot.build();
    let plan = |policy: &Policy| decided(policy, &snapshot, 7, 10_000).unwrap();
    assert_eq!(plan(&sma::POLICY), sma::decide(&snapshot, &sma::POLICY.defaults(), 7, 10_000).unwrap());
    assert_eq!(plan(&tmma::POLICY), tmma::decide(&snapshot, &tmma::POLICY.defaults()));
    assert!(!plan(&sma::POLICY).is_empty() && !plan(&tmma::POLICY).is_empty());
}

#[test]
fn memory_keeps_what_one_policy_put_there_and_is_empty_for_another() {
    let mut memory = Memory::default();
    *memory.of::<u32>() = 7;
    assert_eq!(*memory.of::<u32>(), 7);
    assert_eq!((memory.peek::<u32>(), memory.peek::<String>()), (Some(&7), None));
    assert_eq!(memory.of::<String>(), "");
}

#[test]
fn the_description_has_exactly_the_keys_promised() {
    let json = serde_json::to_value(describe()).unwrap();
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let list = json.as_array().unwrap();
    assert_eq!(list.len(), policies().len());
    for policy in list {
        assert_eq!(keys(policy), ["kind", "name", "needs", "needs_one_of", "parameters", "source"]);
        for parameter in policy["parameters"].as_array().unwrap() {
            assert_eq!(keys(parameter), ["default", "name", "range", "unit"]);
        }
    }
}

#[test]
fn the_description_of_tmma_is_what_tools_read() {
    let json = serde_json::to_value(describe()).unwrap();
    let tmma = json.as_array().unwrap().iter().find(|policy| policy["name"] == "tmma").unwrap();
    assert_eq!(tmma["kind"], "page");
    assert_eq!(tmma["needs"], serde_json::json!(["group.accesses_per_s", "group.resident_pages"]));
    let first = serde_json::json!(
        {"name": "preload_groups", "default": 8.0, "unit": "page groups", "range": [0.0, 512.0]}
    );
    assert_eq!(tmma["parameters"][0], first);
}

/// Every parameter is a row `| name | default | unit | ...` of the policy's page.
#[test]
fn the_pages_name_every_parameter_with_its_default_and_unit() {
    let pages = [
        (&autopin::POLICY, include_str!("../../../docs/policies/autopin.md")),
        (&cimar::POLICY, include_str!("../../../docs/policies/cimar.md")),
        (&cra::POLICY, include_str!("../../../docs/policies/cra.md")),
        (&dyrmma::POLICY, include_str!("../../../docs/policies/dyrmma.md")),
        (&imar2::POLICY, include_str!("../../../docs/policies/imar2.md")),
        (&lbma::POLICY, include_str!("../../../docs/policies/lbma.md")),
        (&nimar::POLICY, include_str!("../../../docs/policies/nimar.md")),
        (&placement::COMPACT, include_str!("../../../docs/policies/compact.md")),
        (&placement::CONTIGUOUS, include_str!("../../../docs/policies/contiguous.md")),
        (&placement::DIRECT, include_str!("../../../docs/policies/direct.md")),
        (&kmaf::POLICY, include_str!("../../../docs/policies/kmaf.md")),
        (&opt::POLICY, include_str!("../../../docs/policies/opt.md")),
        (&sam::POLICY, include_str!("../../../docs/policies/sam.md")),
        (&placement::SCATTER, include_str!("../../../docs/policies/scatter.md")),
        (&sma::POLICY, include_str!("../../../docs/policies/sma.md")),
        (&balance::POLICY, include_str!("../../../docs/policies/balance.md")),
        (&dataset::POLICY, include_str!("../../../docs/policies/dataset.md")),
        (&interleave::POLICY, include_str!("../../../docs/policies/interleave.md")),
        (&kmaf_pages::POLICY, include_str!("../../../docs/policies/kmaf-pages.md")),
        (&lmma::POLICY, include_str!("../../../docs/policies/lmma.md")),
        (&locality::POLICY, include_str!("../../../docs/policies/locality.md")),
        (&mix::POLICY, include_str!("../../../docs/policies/mix.md")),
        (&next_touch::POLICY, include_str!("../../../docs/policies/next-touch.md")),
        (&opt_pages::POLICY, include_str!("../../../docs/policies/opt-pages.md")),
        (&rmma::POLICY, include_str!("../../../docs/policies/rmma.md")),
        (&tandem::POLICY, include_str!("../../../docs/policies/tandem.md")),
        (&tmma::POLICY, include_str!("../../../docs/policies/tmma.md")),
    ];
    for (policy, page) in pages {
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        let of =
            |parameter: &Parameter| format!("| `{}` | {} | {} |", parameter.name, parameter.default, parameter.unit);
        let expected: Vec<String> = policy.parameters.iter().map(of).collect();
        assert_eq!(rows.len(), expected.len(), "{}: rows of parameters", policy.name);
        for (row, expected) in rows.iter().zip(expected) {
            assert!(row.starts_with(&expected), "{}: '{row}' should start with '{expected}'", policy.name);
        }
    }
}

#[test]
fn policies_that_move_at_random_or_judge_themselves_explore() {
    let exploring: Vec<&str> = policies().iter().filter(|policy| policy.explores).map(|policy| policy.name).collect();
    assert_eq!(exploring, ["autopin", "cra", "imar2", "lbma", "rmma"]);
}
