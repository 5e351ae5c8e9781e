// SPDX-License-Identifier: GPL-2.0-only
//! `tandem ab`, as its users call it, with a program that plays the lab's part.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A tree like that of the repository: build/bin with the programs, vm with the lab.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        for folder in ["vm/machines", "build/bin"] {
            fs::create_dir_all(tree.path(folder)).unwrap();
        }
        // A program finds its folder by its own path, so a symbolic link would not do.
        if fs::hard_link(env!("CARGO_BIN_EXE_tandem"), tree.path("build/bin/tandem")).is_err() {
            fs::copy(env!("CARGO_BIN_EXE_tandem"), tree.path("build/bin/tandem")).unwrap();
        }
        let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ab/tests/fake_lab.py");
        fs::copy(fake, tree.path("vm/lab.py")).unwrap();
        fs::set_permissions(tree.path("vm/lab.py"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(tree.path("vm/kernels.list"), "7.3.4\n").unwrap();
        fs::write(tree.path("vm/machines/2node.toml"), "nodes = 2\ncpus_per_node = 4\n").unwrap();
        fs::write(
            tree.path("build/bin/tandem-load"),
            r#"#!/bin/sh
echo '[{"name":"crossed","sizes":[{"name":"passes"}],"best":"near","needs":[]},{"name":"ring","sizes":[],"best":"near","needs":[]},
{"name":"hackbench","sizes":[{"name":"groups"}],"best":null,"needs":["hackbench"]}]'
"#,
        )
        .unwrap();
        fs::set_permissions(tree.path("build/bin/tandem-load"), fs::Permissions::from_mode(0o755)).unwrap();
        tree.behave(4.9);
        tree
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(below)
    }

    fn behave(&self, stock_nb1_s: f64) {
        let behaviour = serde_json::json!({
            "seconds": {"stock-nb0": 8.0, "stock-nb1": stock_nb1_s, "stock-nb0-thp": 7.9, "stock-nb1-thp": 5.5, "oracle": 4.0,
                "scx_other": 6.0},
            "crash": ["worst"],
            "walks": [{"from": 0, "to": 0, "ns": 90.0, "file_ns": 90.0}, {"from": 0, "to": 1, "ns": 180.0, "file_ns": 180.0}],
        });
        fs::write(self.path("vm/behaviour.json"), behaviour.to_string()).unwrap();
    }

    fn ab(&self, words: &str) -> Output {
        self.command(words).output().unwrap()
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(self.path("build/bin/tandem"));
        let path = format!("{}:{}", self.path("schedulers").display(), std::env::var("PATH").unwrap());
        command.arg("ab").args(words.split_whitespace()).env("PATH", path).current_dir(self.0.path());
        command
    }

    fn json(&self, file: &str) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path(file)).unwrap()).unwrap()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether `value` is of the kind that docs/ab.md states.
fn is_kind(value: &Value, kind: &str) -> bool {
    if let Some(inner) = kind.strip_suffix(" or null") {
        return value.is_null() || is_kind(value, inner);
    }
    match kind {
        "number" => value.is_number(),
        "text" => value.is_string(),
        "truth value" => value.is_boolean(),
        "list of numbers" => value.as_array().is_some_and(|list| list.iter().all(Value::is_number)),
        "two numbers" => value.as_array().is_some_and(|list| list.len() == 2 && list.iter().all(Value::is_number)),
        "list of texts" => value.as_array().is_some_and(|list| list.iter().all(Value::is_string)),
        "list of objects" => value.as_array().is_some_and(|list| list.iter().all(Value::is_object)),
        "object" => value.is_object(),
        other => panic!("docs/ab.md states an unknown kind: {other}"),
    }
}

/// Rows `| key | kind | ... |` of the table below this heading of docs/ab.md.
fn documented(heading: &str) -> Vec<(String, String)> {
    let docs = include_str!("../../../docs/ab.md");
    let section = docs.split(heading).nth(1).unwrap_or_else(|| panic!("docs/ab.md has no {heading}"));
    let rows = section.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect::<Vec<_>>());
    cells.map(|cells| (cells[1].clone(), cells[2].clone())).collect()
}

fn assert_as_documented(object: &Value, heading: &str) {
    let rows = documented(heading);
    let object = object.as_object().unwrap();
    for (key, kind) in &rows {
        let value = object.get(key).unwrap_or_else(|| panic!("{heading}: {key} is missing"));
        assert!(is_kind(value, kind), "{heading}: {key} is {value}, not {kind}");
    }
    let undocumented: Vec<_> = object.keys().filter(|key| !rows.iter().any(|(known, _)| known == *key)).collect();
    assert!(undocumented.is_empty(), "{heading}: not in docs/ab.md: {undocumented:?}");
}

#[test]
fn the_json_is_as_documented() {
    let tree = Tree::new();
    let output = tree.ab("--machine 2node --workload crossed --arms stock,oracle,worst --boots 2 --json out.json");
    assert_eq!(output.status.code(), Some(1), "an arm crashed: {}", said(&output));
    let result = tree.json("out.json");
    assert_as_documented(&result, "### The experiment");
    for arm in result["arms"].as_array().unwrap() {
        assert_as_documented(arm, "### An arm");
        for boot in arm["boots"].as_array().unwrap() {
            assert_as_documented(boot, "### A boot");
            assert!(boot["report"]["work_per_s"].is_f64() && boot["report"]["p99_ns"].is_null(), "{}", boot["report"]);
        }
    }
    assert_as_documented(&result["calibration"], "### The calibration");
    let names: Vec<&str> = result["arms"].as_array().unwrap().iter().map(|arm| arm["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["stock-nb0", "stock-nb1", "stock-nb0-thp", "stock-nb1-thp", "oracle", "worst"]);
    assert_eq!(
        (&result["machine"], &result["kernel"], &result["better"]),
        (&"2node".into(), &"7.3.4".into(), &"lower".into())
    );
    assert_eq!(result["arms"][4]["valid"], true);
    assert_eq!(result["arms"][5]["valid"], false);
}

#[test]
fn a_table_and_a_report_are_written_and_several_workloads_are_a_list() {
    let tree = Tree::new();
    let output = tree
        .ab("--machine vm/machines/2node.toml --workload crossed,ring --arms oracle --boots 1 --html r.html --json -");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        list.as_array().unwrap().iter().map(|one| one["workload"].as_str().unwrap()).collect::<Vec<_>>(),
        ["crossed", "ring"]
    );
    assert!(fs::read_to_string(tree.path("r.html")).unwrap().contains("ring on 2node"));
    let output = tree.ab("--machine 2node --workload crossed --arms oracle --boots 1");
    assert!(String::from_utf8_lossy(&output.stdout).contains("calibration: node 0 to node 1: 180.00 ns"), "{output:?}");
    assert!(said(&output).contains("1 of 1 runs are in the store already"), "{}", said(&output));
}

#[test]
fn a_scheduler_on_the_path_goes_by_its_name() {
    let tree = Tree::new();
    let words = "--machine 2node --workload crossed --arms oracle,scx_other:-v --boots 1 --json out.json";
    let refused = tree.ab(words);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).starts_with("tandem: the arm 'scx_other' is unknown"), "{}", said(&refused));
    fs::create_dir(tree.path("schedulers")).unwrap();
    fs::write(tree.path("schedulers/scx_other"), "program").unwrap();
    fs::set_permissions(tree.path("schedulers/scx_other"), fs::Permissions::from_mode(0o755)).unwrap();
    let output = tree.ab(words);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(tree.json("out.json")["arms"][1]["runs"], serde_json::json!([6.001]));
}

#[test]
fn guests_that_memory_has_no_room_for_side_by_side_run_one_at_a_time() {
    let tree = Tree::new();
    fs::write(tree.path("huge.toml"), "name = \"huge\"\nnodes = 2\ncpus_per_node = 4\nmemory_mb = 1000000000\n")
        .unwrap();
    let cpus = std::thread::available_parallelism().unwrap().get();
    for (asked, lowered) in [("", cpus > 1), (" --side-by-side 2", false)] {
        let output = tree.ab(&format!("--machine huge.toml --workload crossed --arms oracle --boots 2{asked}"));
        assert!(output.status.success(), "{}", said(&output));
        let sentence =
            format!("ab: 1 at a time, although there are {cpus} CPUs: a guest of huge takes 2250000256 MB, ");
        assert_eq!(said(&output).contains(&sentence), lowered, "{}", said(&output));
    }
}

#[test]
fn two_saved_results_are_compared() {
    let tree = Tree::new();
    let measure = "--machine 2node --workload crossed --arms stock-nb1,oracle --boots 4";
    assert!(tree.ab(&format!("{measure} --save before.json")).status.success());
    tree.behave(4.2);
    assert!(tree.ab(&format!("{measure} --again --save after.json")).status.success());
    let output = tree.ab("--compare before.json after.json");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.lines().any(|line| line.starts_with("stock-nb1") && line.ends_with("better")), "{text}");
    assert!(text.lines().any(|line| line.starts_with("oracle") && line.ends_with("no difference")), "{text}");
    fs::write(tree.path("other.json"), "{}").unwrap();
    let output = tree.ab("--compare before.json other.json");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).starts_with("tandem: other.json is no result of tandem ab"), "{}", said(&output));
}

#[test]
fn what_cannot_be_compared_is_told_beside_what_can() {
    let tree = Tree::new();
    let measure = "--machine 2node --arms oracle --boots 2";
    assert!(tree.ab(&format!("{measure} --workload crossed,ring --save before.json")).status.success());
    assert!(tree.ab(&format!("{measure} --workload crossed --save after.json")).status.success());
    let output = tree.ab("--compare before.json after.json");
    assert!(output.status.success() && said(&output) == "ab: ring on 2node is in A only\n", "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("crossed (seconds) on 2node\n"), "{output:?}");
    assert!(tree.ab(&format!("{measure} --workload ring --save other.json")).status.success());
    let output = tree.ab("--compare after.json other.json");
    let refusal = "tandem: after.json and other.json have nothing that can be compared: crossed on 2node is in A only; \
        ring on 2node is in B only\n";
    assert_eq!((output.status.code(), said(&output).as_str()), (Some(2), refusal));
}

#[test]
fn files_are_written_though_nobody_reads_standard_output() {
    let tree = Tree::new();
    let mut command =
        tree.command("--machine 2node --workload crossed --arms oracle --boots 2 --save s.json --html h.html");
    let output = command.stdout(fs::File::options().write(true).open("/dev/full").unwrap()).output().unwrap();
    assert!(output.status.code() == Some(2) && said(&output).contains("standard output cannot be written"));
    assert!(tree.path("s.json").is_file() && tree.path("h.html").is_file(), "{}", said(&output));
}

#[test]
fn a_saved_result_is_shown_with_verdicts_and_notes_of_today() {
    let tree = Tree::new();
    let measure = "--machine 2node --workload crossed --arms stock-nb1,oracle --boots 2";
    assert!(tree.ab(&format!("{measure} --save saved.json")).status.success());
    let mut old = tree.json("saved.json");
    let notes = old["notes"].clone();
    let arms = old["arms"].clone();
    old["notes"] = serde_json::json!(["of an older version"]);
    old["arms"][1]["verdict"] = "worse".into();
    fs::write(tree.path("saved.json"), old.to_string()).unwrap();
    fs::remove_file(tree.path("vm/calls.log")).unwrap();
    assert!(tree.ab("--show saved.json --json shown.json --html shown.html").status.success());
    let shown = tree.json("shown.json");
    assert_eq!((&shown["notes"], &shown["arms"]), (&notes, &arms));
    assert!(fs::read_to_string(tree.path("shown.html")).unwrap().contains("crossed on 2node"));
    assert!(!tree.path("vm/calls.log").exists(), "nothing ran");
}

#[test]
fn a_saved_result_is_refused_if_it_is_of_another_version_or_holds_nothing_and_shown_without_orders_to_the_terminal() {
    let tree = Tree::new();
    assert!(tree.ab("--machine 2node --workload crossed --arms oracle --boots 1 --save saved.json").status.success());
    let mut result = tree.json("saved.json");
    result["workload"] = "x\u{1b}[31m".into();
    fs::write(tree.path("other.json"), result.to_string()).unwrap();
    let shown = String::from_utf8(tree.ab("--show other.json").stdout).unwrap();
    assert!(shown.starts_with("x?[31m on 2node") && !shown.contains('\u{1b}'), "{shown:?}");
    result["schema"] = 2.into();
    result.as_object_mut().unwrap().remove("arms");
    fs::write(tree.path("other.json"), result.to_string()).unwrap();
    fs::write(tree.path("empty.json"), "[]\n").unwrap();
    for (words, sentence) in [
        ("--show other.json", "other.json is of version 2 of the document, and this tandem reads version 1: "),
        ("--compare saved.json other.json", "other.json is of version 2 of the document"),
        ("--show empty.json", "empty.json holds no result"),
    ] {
        assert_refused(&tree.ab(words), sentence);
    }
    for more in ["--again", "--timeout 5", "--kernel 7.3.4", "--boots 2", "--store s"] {
        let output = tree.ab(&format!("--show saved.json {more}"));
        assert!(output.status.code() == Some(2) && said(&output).contains("cannot be used with"), "{more}: {output:?}");
    }
}

#[test]
fn a_saved_result_is_lengthened_where_its_store_is_not() {
    let tree = Tree::new();
    let measure = "--machine 2node --workload crossed --save saved.json --arms";
    assert!(tree.ab(&format!("{measure} oracle --boots 1")).status.success());
    let first = tree.json("saved.json")["arms"][0]["boots"][0].clone();
    tree.behave(4.2);
    let output = tree.ab(&format!("{measure} oracle,stock-nb1 --boots 2 --store elsewhere --resume saved.json"));
    assert!(said(&output).contains("1 of 4 runs are in the store already"), "{}", said(&output));
    assert_eq!(tree.json("saved.json")["arms"][0]["boots"][0], first);
    assert_eq!(tree.json("saved.json")["arms"][1]["median"], serde_json::json!(4.2015));
}

fn assert_refused(output: &Output, sentence: &str) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(2), "{sentence}: {said}");
    assert!(said.contains(sentence) && said.lines().count() == 1, "{sentence}: {said}");
}

#[test]
fn what_no_run_could_use_is_refused_before_anything_runs() {
    let tree = Tree::new();
    for (words, sentence) in [
        (
            "--machine 2node --workload crossed --arms /etc/passwd",
            "the arm /etc/passwd: /etc/passwd is not executable: give",
        ),
        (
            "--machine 2node --workload crossed --arms oracle --kernel 1.2.3",
            "there is no kernel \"1.2.3\": choose of 7.3.4 (",
        ),
        (
            "--machine 2node --workload crossed --arms oracle --lab /etc/passwd",
            "the lab /etc/passwd is no program: give",
        ),
        ("--machine 2node --workload crossed --arms oracle --lab /bin/true", "has no machines: "),
        (
            "--machine 2node --workload crossed --arms scx_tandem:--nope",
            "the arm scx_tandem:--nope: unexpected argument '--nope'",
        ),
        ("--machine 2node --workload crossed --arms scx_tandem:--policy=nope", "there is no joint policy \"nope\""),
    ] {
        assert_refused(&tree.ab(words), sentence);
    }
    let nowhere =
        tree.command("--machine 2node --workload crossed --arms oracle").env("TANDEM_BUILD", "/nope").output().unwrap();
    let sentence =
        "tandem: TANDEM_BUILD in the environment is /nope, which is no folder: unset it, or name a build folder\n";
    assert_refused(&nowhere, sentence);
    assert!(!tree.path("vm/calls.log").exists(), "nothing ran");
}

#[test]
fn bad_input_is_refused_in_one_sentence_before_anything_runs() {
    let tree = Tree::new();
    fs::write(tree.path("bad.toml"), "nodes = 2\ncpus_per_node = [4]\n").unwrap();
    for (words, sentence) in [
        ("--machine 2node --workload crossed --arms fastest", "the arm 'fastest' is unknown"),
        (
            "--machine 2node --workload ring,crossed:--bad --arms stock",
            "the workload crossed has no option '--bad': choose of --passes, --page-size",
        ),
        (
            "--machine 2node --workload crossed:--passes=many --arms stock",
            "the workload 'crossed:--passes=many': --passes takes a whole number, not 'many'",
        ),
        (
            "--machine 2node --workload hackbench:--passes=3 --arms stock",
            "the workload hackbench has no option '--passes': choose of --groups",
        ),
        (
            "--machine 2node --workload nonsense --arms oracle",
            "the workload 'nonsense' is unknown: choose of crossed, ring",
        ),
        (
            "--machine 2node --workload crossed,hackbench --arms stock,worst",
            "hackbench does not place itself, as the arm worst asks it to: compare with direct and interleave",
        ),
        ("--machine 2node --workload hackbench --arms stock", "setup/programs.sh does not start"),
        ("--machine 7node --workload crossed --arms oracle", "the machine \"7node\" is neither a file"),
        ("--machine bad.toml --workload crossed --arms oracle", "bad.toml: cpus_per_node"),
        ("--machine 2node --workload crossed --arms oracle --lab /no/lab.py", "the lab /no/lab.py is not there"),
        ("--machine 2node --workload crossed --arms /no/scx", "the arm /no/scx: there is no file /no/scx: give"),
        ("--machine 2node --workload crossed --arms oracle --resume /no/file", "/no/file cannot be read"),
        ("--machine 2node --workload crossed --arms oracle --json /no/file", "/no/file"),
        ("--machine 2node --workload crossed --arms oracle --save /no/file", "/no/file"),
        ("--machine 2node --workload crossed --arms scx_tandem", "scx_tandem is missing: build it by ./run build"),
    ] {
        assert_refused(&tree.ab(words), sentence);
    }
    for words in
        ["", "--machine 2node --workload crossed", "--machine 2node --workload crossed --arms oracle --boots 0"]
    {
        assert_eq!(tree.ab(words).status.code(), Some(2), "{words}");
    }
    assert!(!tree.path("vm/calls.log").exists(), "nothing ran");
}
