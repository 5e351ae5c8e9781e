// SPDX-License-Identifier: GPL-2.0-only
//! `tandem sim`, as its users call it.

use std::process::{Command, Output};

use serde_json::Value;

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tandem")).arg("sim").args(arguments).output().unwrap()
}

fn machine(name: &str) -> String {
    format!("{}/../../vm/machines/{name}.toml", env!("CARGO_MANIFEST_DIR"))
}

fn json(arguments: &[&str]) -> Value {
    let output = sim(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "no bar where there is no terminal: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refusal(arguments: &[&str]) -> String {
    let output = sim(arguments);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]), "{output:?}");
    let sentence = String::from_utf8(output.stderr).unwrap();
    assert_eq!(sentence.lines().count(), 1, "{sentence}");
    sentence
}

#[test]
fn arms_are_compared_with_the_oracle() {
    let report =
        json(&["--machine", &machine("2node"), "--scenario", "crossed", "--policies", "eevdf,oracle,sma+tmma"]);
    let arms = report["arms"].as_array().unwrap();
    let names: Vec<&str> = arms.iter().map(|arm| arm["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["eevdf", "oracle", "sma+tmma"]);
    let ratio = |at: usize| arms[at]["ratio_to_oracle"].as_f64().unwrap();
    assert!(ratio(0) > ratio(2) && ratio(2) > ratio(1) && ratio(1) == 1.0, "{report}");
    assert!(arms[2]["policy_ms"].as_f64().unwrap() > 0.0 && arms[2]["plans"].as_f64().unwrap() >= 1.0, "{report}");
}

#[test]
fn several_scenarios_are_a_list_and_seconds_set_their_length() {
    let two = ["--machine", &machine("2node"), "--scenario", "pairs,ring", "--policies", "eevdf", "--seconds", "0.5"];
    let reports = json(&two);
    let names: Vec<&str> = reports.as_array().unwrap().iter().map(|one| one["scenario"].as_str().unwrap()).collect();
    assert_eq!(names, ["pairs", "ring"]);
    assert_eq!(reports[0]["ideal_seconds"], 0.5);
}

#[test]
fn a_report_has_a_section_a_scenario_with_all_arms() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("sim.html");
    let machine = machine("2node");
    let two = ["--machine", &machine, "--scenario", "crossed,ring", "--policies", "eevdf,oracle,sma+tmma"];
    let plots = folder.path().join("plots");
    let files = ["--html", page.to_str().unwrap(), "--plots", plots.to_str().unwrap()];
    let output = sim(&[&two[..], &["--seconds", "1", "--seeds", "2"], &files].concat());
    assert!(output.status.success(), "{output:?}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains(String::from_utf8(output.stdout).unwrap().lines().next().unwrap()), "the table is in it");
    // Seconds and remote share of both, moved memory of the second; two seeds of three arms, else a mean of each.
    assert_eq!((html.matches("<svg").count(), html.matches("<circle").count()), (5, 2 * (6 + 3) + 3), "{html}");
    assert!(html.matches("sma+tmma").count() >= 6 && !html.contains("<script"), "{html}");
    assert_eq!(std::fs::read_dir(&plots).unwrap().count(), 2 * 5);
    for name in ["crossed-on-2node-seconds-per-arm.svg", "ring-on-2node-moved-memory.png"] {
        assert!(plots.join(name).exists(), "{name}");
    }
    let nowhere = folder.path().join("none/sim.html");
    assert!(
        refusal(&[&two[..], &["--html", nowhere.to_str().unwrap()]].concat()).contains("sim.html cannot be written")
    );
}

#[test]
fn phases_change_in_a_shorter_run_only_if_times_are_scaled() {
    let machine = machine("2node");
    let run = ["--machine", &machine, "--scenario", "phases", "--policies", "eevdf,oracle", "--seconds", "0.9"];
    let ratio = |report: Value| report["arms"][0]["ratio_to_oracle"].as_f64().unwrap();
    let (fixed, scaled) = (ratio(json(&run)), ratio(json(&[&run[..], &["--scale-times"]].concat())));
    assert!(fixed < 1.05 && scaled > 1.2, "{fixed} {scaled}");
}

#[test]
fn what_is_shown_is_a_scenario_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    std::fs::write(&path, sim(&["--show", "phases"]).stdout).unwrap();
    let of = |scenario: &str| {
        let machine = machine("2node");
        json(&["--machine", &machine, "--scenario", scenario, "--policies", "eevdf", "--seconds", "0.2"])["arms"]
            .clone()
    };
    assert_eq!(of(path.to_str().unwrap()), of("phases"));
}

/// On two nodes the first program has no copy.
#[test]
fn a_program_after_one_that_this_machine_has_no_node_for_begins_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    let kind = |name: &str, more: &str| {
        format!("[[program]]\nname = '{name}'\nthreads = 1\nwork = 1.0\ncompute_ns = 100.0\n{more}\n")
    };
    let (far, next) = (kind("far", "copies = 0\ncopies_per_node = 1\nfirst_node = 2"), kind("next", "after = 'far'"));
    std::fs::write(&path, format!("name = 'x'\nsummary = 'x'\nseconds = 0.1\n{far}{next}")).unwrap();
    let report = json(&["--machine", &machine("2node"), "--scenario", path.to_str().unwrap(), "--policies", "eevdf"]);
    assert!(report["arms"][0]["gave_up"].as_bool() != Some(true), "{report}");
}

#[test]
fn a_parameter_is_set_in_every_arm_that_has_the_policy_and_in_no_other() {
    let machine = machine("2node");
    let base = ["--machine", &machine, "--scenario", "crossed", "--policies", "sma,sma+tmma,dyrmma"];
    let moves = |report: &Value| -> Vec<bool> {
        let arms = report["arms"].as_array().unwrap();
        arms.iter().map(|arm| arm["thread_moves"].as_f64().unwrap() > 0.0).collect()
    };
    let plain = json(&base);
    assert_eq!((moves(&plain), plain["parameters"].is_null()), (vec![true; 3], true));
    let gate = "sma.gate_percent_per_thread=100";
    let gated = json(&[&base[..], &["--parameter", gate]].concat());
    assert_eq!((moves(&gated), &gated["parameters"][0]), (vec![false, false, true], &Value::from(gate)));
}

#[test]
fn scenarios_are_listed() {
    let output = sim(&["--list"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(["crossed", "sam-26", "single-lu", "thanos-queue"].iter().all(|name| text.contains(name)), "{text}");
}

#[test]
fn what_says_something_of_runs_is_refused_where_nothing_runs() {
    for words in [
        &["--list", "--policies", "tandem"][..],
        &["--show", "crossed", "--json"],
        &["--show", "crossed", "--seeds", "2"],
    ] {
        let output = sim(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains("cannot be used with"), "{words:?}: {output:?}");
    }
}

#[test]
fn what_is_wrong_is_said_in_one_sentence() {
    let machine = machine("2node");
    let refused = |more: &[&str]| refusal(&[&["--machine", &machine][..], more].concat());
    assert!(refused(&["--scenario", "crosed"]).contains("crosed"));
    assert!(refused(&["--scenario", "crossed", "--policies", "smb"]).contains("smb"));
    let parameter = |given| refused(&["--scenario", "crossed", "--policies", "none+opt,tmma", "--parameter", given]);
    assert!(parameter("sma.cooling=0.9").contains("\"sma\" is not in use"));
    assert!(parameter("tmma.delta=1").contains("tmma has no parameter \"delta\""));
    assert!(parameter("opt.min_interval_s=-1").contains("-1 is not allowed"));
    assert!(parameter("tmma").contains("POLICY.NAME=VALUE"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.toml");
    std::fs::write(&path, "name = 'x'\nsummary = 'x'\nseconds = 0\nprogram = []").unwrap();
    let sentence = refused(&["--scenario", path.to_str().unwrap()]);
    assert!(sentence.contains("bad.toml") && sentence.contains("seconds"), "{sentence}");
    let of_program = |program: &str| {
        let text = format!("name = 'x'\nsummary = 'x'\nseconds = 1\n[[program]]\nname = 'p'\nwork = 1\n{program}");
        std::fs::write(&path, text).unwrap();
        refused(&["--scenario", path.to_str().unwrap()])
    };
    let many = of_program("threads = 4611686018427387904\ncompute_ns = 1.0");
    assert!(many.contains("program p: threads: is 4611686018427388000, may be 65536 at most"), "{many}");
    let nothing = of_program("threads = 1\n[[program.phase]]\nseconds = 1.0\nuses = []");
    assert!(nothing.contains("program p: phase.uses: is empty, with compute_ns 0"), "{nothing}");
    let late = of_program("threads = 1\ncompute_ns = 1.0\nstart_s = 1e7");
    assert!(late.contains("program p: start_s: is 10000000, may be 100000 at most"), "{late}");
    let long = of_program("threads = 1\n[[program.phase]]\nseconds = 1e9\nuses = []");
    assert!(long.contains("program p: phase.seconds: is 1000000000, may be 100000 at most"), "{long}");
    let region = |mb| {
        format!("threads = 1\nuses = [{{ region = 'own', share = 1 }}]\n[[program.region]]\nname = 'own'\nmb = {mb}")
    };
    let large = of_program(&region("1e6"));
    assert!(large.contains("x on 2node: program p has 1000000 MiB of memory, and all nodes together have "), "{large}");
    let larger = of_program(&region("1e30"));
    assert!(
        larger.contains("region own: mb: is 1000000000000000000000000000000, may be 100000000 at most"),
        "{larger}"
    );
    std::fs::write(&path, "name = 'x'\nsummary = 'x'\nseconds = 1e9\nprogram = []").unwrap();
    let endless = refused(&["--scenario", path.to_str().unwrap()]);
    assert!(endless.contains("bad.toml: seconds: is 1000000000, may be 100000 at most"), "{endless}");
    std::fs::write(&path, "name = 'x'\nsumary = 'x'").unwrap();
    assert!(refused(&["--scenario", path.to_str().unwrap()]).contains("line 2"));
}
