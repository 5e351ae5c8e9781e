// SPDX-License-Identifier: GPL-2.0-only
//! `tandem map`, as its users call it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Scotch's program, if it is in the path.
fn scotch() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join("scotch_gmap")).find(|program| program.is_file())
}

fn map(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tandem")).arg("map").args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = map(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refusal(arguments: &[&str]) -> String {
    let output = map(arguments);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{output:?}");
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert_eq!(sentence.lines().count(), 1, "{sentence}");
    sentence
}

/// Four nodes with two CPUs each on a ring, 14 to a neighbour and 20 across.
fn ring() -> String {
    format!("{}/../../vm/machines/ring4.toml", env!("CARGO_MANIFEST_DIR"))
}

fn file(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Pairs (0, 4), (1, 5), (2, 6), (3, 7) that share 9, in a ring that shares 1.
const PAIRS: &str = r#"{"threads": 8, "weights": [[0,4,9],[1,5,9],[2,6,9],[3,7,9],[0,1,1],[1,2,1],[2,3,1],[3,0,1]]}"#;

#[test]
fn threads_that_share_most_run_on_one_node_and_the_next_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let graph = file(folder.path(), "pairs.json", PAIRS);
    let answer = json(&["--graph", graph.to_str().unwrap(), "--machine", &ring()]);
    let at = |thread: usize| answer["assignment"][thread].as_u64().unwrap();
    assert!((0..4).all(|thread| at(thread) == at(thread + 4)), "{answer}");
    // Four edges of weight 1, each to a neighbour: 14 - 10.
    assert_eq!((&answer["cost"], &answer["optimal"]), (&16.0.into(), &true.into()));
    assert_eq!(answer["node_ids"], serde_json::json!([0, 1, 2, 3]));
    let latency = json(&["--graph", graph.to_str().unwrap(), "--machine", &ring(), "--cost", "latency"]);
    assert_eq!(latency["cost"], 4.0 * 40.0);
}

#[test]
fn the_table_lists_threads_by_node() {
    let folder = tempfile::tempdir().unwrap();
    let graph = file(folder.path(), "pair.csv", "0,1\n1,0\n");
    let output = map(&["--graph", graph.to_str().unwrap(), "--machine", &ring(), "--steps", "100"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().any(|line| line.ends_with("  0-1")) && text.contains("cost 0 (the optimum)"), "{text}");
}

/// A ring of 40 threads on a machine of 40 CPUs or more.
fn ring_of_forty(folder: &Path) -> [PathBuf; 2] {
    let edges: String = (0..40).map(|at| format!("{at} {} {}\n", (at + 1) % 40, at + 1)).collect();
    let machine = "name = 'wide'\nnodes = 4\ncpus_per_node = 10\nmemory_mb = 64\n\
                   distance = [[10,14,20,14],[14,10,14,20],[20,14,10,14],[14,20,14,10]]\n";
    [file(folder, "forty.edges", &edges), file(folder, "wide.toml", machine)]
}

#[test]
fn the_time_limit_is_kept_and_its_steps_repeat_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let [graph, machine] = ring_of_forty(folder.path());
    let common = ["--graph", graph.to_str().unwrap(), "--machine", machine.to_str().unwrap(), "--seed", "5"];
    let timed = json(&[&common[..], &["--time", "0.4"]].concat());
    let time_ms = timed["time_ms"].as_f64().unwrap();
    // The lower bound always holds; the upper one is missed if the machine gives its CPU to others.
    assert!(time_ms >= 0.95 * 400.0, "{time_ms}");
    let counted = json(&[&common[..], &["--steps", &timed["steps"].to_string()]].concat());
    for key in ["assignment", "cost", "steps", "method", "bound"] {
        assert_eq!(counted[key], timed[key], "{key}");
    }
}

#[test]
fn a_quadratic_assignment_problem_is_solved() {
    let folder = tempfile::tempdir().unwrap();
    // A path 0 - 1 - 2 on the path 1 - 0 - 2: the middle goes to the middle.
    let path = file(folder.path(), "path.dat", "3\n0 1 0 1 0 1 0 1 0\n0 1 1 1 0 2 1 2 0\n");
    let answer = json(&["--qap", path.to_str().unwrap()]);
    assert_eq!((&answer["cost"], &answer["assignment"][1], &answer["optimal"]), (&4.0.into(), &0.into(), &true.into()));
    assert!(answer.get("node_ids").is_none());
}

#[test]
fn bad_input_is_one_sentence_and_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let graph = |name: &str, text: &str| file(folder.path(), name, text).to_str().unwrap().to_owned();
    let sentence = |name: &str, text: &str| refusal(&["--graph", &graph(name, text), "--machine", &ring()]);
    assert!(sentence("a.csv", "0,1\n1\n").contains("line 2: 1 entries in a matrix of 2 rows; it must be square"));
    assert!(sentence("a.json", "{\"threads\": 2}").contains("a.json: this is no {\"threads\": T"));
    assert!(sentence("b.json", "{\"threads\": 2, \"weights\": [[0, 9, 1]]}").contains("threads are 0 to 1"));
    assert!(sentence("c.csv", "0,NaN\n1,0\n").contains("line 1: the weight is NaN; give a number of at least 0"));
    assert!(sentence("d.json", r#"{"threads": 2, "weights": [[0, 1, -1]]}"#).contains("threads 0 and 1 is -1; give"));
    assert!(sentence("self", "0 0 1").contains("line 1: thread 0 cannot share with itself"));
    assert!(sentence("twice", "0 1 1\n1 0 1").contains("line 2: threads 1 and 0 are in line 1 already"));
    for (name, text) in [("empty", ""), ("empty.json", r#"{"threads": 0, "weights": []}"#), ("empty.graph", "0 0\n")] {
        assert!(sentence(name, text).contains("it says nothing of any thread"), "{name}");
    }
    let bytes = folder.path().join("bytes");
    std::fs::write(&bytes, [0xff, 0xfe, 0]).unwrap();
    assert!(refusal(&["--graph", bytes.to_str().unwrap(), "--machine", &ring()]).contains("bytes cannot be read"));
    assert!(sentence("many.json", "{\"threads\": 9, \"weights\": []}").contains("add up to 8"));
    assert!(refusal(&["--graph", "/nowhere/g", "--machine", &ring()]).contains("/nowhere/g cannot be read"));
    assert!(refusal(&["--qap", &graph("q.dat", "2 1 1")]).contains("the matrices have 2 entries"));
}

#[test]
fn what_says_something_of_graphs_only_is_refused_beside_a_quadratic_problem() {
    for more in [["--machine", "m.toml"], ["--format", "csv"], ["--cost", "latency"]] {
        let output = map(&[&["--qap", "q.dat"], &more[..]].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be used with"), "{output:?}");
    }
}

#[test]
fn without_scotch_a_second_opinion_is_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let graph = file(folder.path(), "pairs.json", PAIRS);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.args(["map", "--with", "scotch", "--steps", "10", "--machine", &ring(), "--graph"]).arg(&graph);
    let output = command.env("PATH", folder.path()).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{output:?}");
    let sentence = String::from_utf8(output.stderr).unwrap();
    let expected = "tandem: Scotch is not installed: install Debian's package scotch, or leave --with scotch out\n";
    assert_eq!(sentence, expected);
}

#[test]
fn scotch_answers_the_same_request() {
    if scotch().is_none() {
        return eprintln!(
            "skipped: Scotch is not installed (vm/setup/programs.sh build/cache scotch_gmap installs it)"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let graph = file(folder.path(), "pairs.json", PAIRS);
    let answer = json(&["--graph", graph.to_str().unwrap(), "--machine", &ring(), "--with", "scotch"]);
    let scotch = &answer["scotch"];
    let at = |thread: usize| scotch["assignment"][thread].as_u64().unwrap();
    assert!((0..4).all(|thread| at(thread) == at(thread + 4)), "{answer}");
    assert!(scotch["cost"].as_f64() >= answer["cost"].as_f64(), "{answer}");
}
