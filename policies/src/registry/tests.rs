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
        let expected = format!("there is no {kind} policy \"smb\"; choose one of {}", names(kind));
        assert_eq!(sentence(kind, "smb"), expected);
    }
    let expected =
        format!("there is no joint policy \"sma\" (it is a thread policy); choose one of {}", names(Kind::Joint));
    assert_eq!(sentence(Kind::Joint, "sma"), expected);
    assert!(names(Kind::Thread).contains("sma") && names(Kind::Page).contains("tmma"));
}

#[test]
fn an_unknown_parameter_is_answered_with_the_names_there_are() {
    let sentence = "tmma has no parameter \"delta\"; it has preload_groups, min_samples, home_share, reserve_percent, min_gain_percent";
    assert_eq!(refused(&tmma::POLICY, "delta", 1.0), sentence);
    assert_eq!(refused(&NO_PAGES, "delta", 1.0), "none has no parameter \"delta\"; it has none");
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
    let sentence = "policy sma needs accesses per second of threads by memory node: not seen yet, or not to be had of \
                    this sampler or recording";
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

/// The page of a policy below docs/policies. A page policy of the name of a thread policy has its own.
fn page(policy: &Policy) -> String {
    let has_namesake = policy.kind == Kind::Page && find(Kind::Thread, policy.name).is_ok();
    let name = if has_namesake { format!("{}-pages", policy.name) } else { policy.name.to_owned() };
    let path = format!("{}/../docs/policies/{name}.md", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All policies but those that decide nothing.
fn deciding() -> impl Iterator<Item = &'static Policy> {
    policies().iter().copied().filter(|policy| policy.name != "none")
}

/// Every parameter is a row `| name | default | unit | ...` of the policy's page.
#[test]
fn the_pages_name_every_parameter_with_its_default_and_unit() {
    for policy in deciding() {
        let page = page(policy);
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
fn the_pages_have_the_same_sections_in_the_same_order() {
    for policy in deciding() {
        let page = page(policy);
        let title = format!("# {} policy `{}`: ", policy.kind, policy.name);
        assert!(page.lines().any(|line| line.to_lowercase().starts_with(&title)), "{}: the title", policy.name);
        let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        let choices = ["Where the source is ", "What we chose"];
        let is_choice = |heading: &str| choices.iter().any(|choice| heading.starts_with(choice));
        let position = |wanted: &str| {
            let is_wanted = |heading: &&str| if wanted.is_empty() { is_choice(heading) } else { *heading == wanted };
            headings.iter().position(is_wanted).unwrap_or_else(|| panic!("{}: no section '{wanted}'", policy.name))
        };
        let found = ["Problem", "Mechanism", "Parameters", "", "When to use"].map(position);
        assert!(found.is_sorted(), "{}: {headings:?}", policy.name);
        assert!(page.contains("\nSource: "), "{}: where it is from", policy.name);
    }
}

#[test]
fn policies_that_move_at_random_or_judge_themselves_explore() {
    let exploring: Vec<&str> = policies().iter().filter(|policy| policy.explores).map(|policy| policy.name).collect();
    assert_eq!(exploring, ["autopin", "cra", "imar2", "lbma", "rmma"]);
}

/// Others state what accesses save by distance alone: that is no reason to bear that they take longer.
#[test]
fn only_the_joint_policy_counts_cpus_into_its_gain() {
    let weighing: Vec<&str> = policies().iter().filter(|policy| policy.weighs_cpus).map(|policy| policy.name).collect();
    assert_eq!(weighing, ["tandem"]);
}

/// The examples themselves are tests, which `cargo test` runs.
#[test]
fn every_policy_has_an_example_on_its_page() {
    let mut shown = 0;
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap() {
        let path = file.unwrap().path();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for (at, _) in text.match_indices("\npub static ") {
            let declared = text[at + 1..].lines().next().unwrap();
            if !declared.contains(": Policy = ") {
                continue;
            }
            let mut page = text[..at].lines().rev().take_while(|line| line.starts_with("///"));
            assert!(page.any(|line| line == "/// ```"), "{}: {declared}", path.display());
            shown += 1;
        }
    }
    assert_eq!(shown, policies().len());
}
