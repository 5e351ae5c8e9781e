// SPDX-License-Identifier: GPL-2.0-only
//! Every workload, small, as users run it, on whatever machine this is.

mod common;

use common::tandem_load;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};

/// Small sizes of every workload, and its work in its own unit with these.
const SMALL: &[(&str, &[&str], u64)] = &[
    (
        "crossed",
        &["--threads", "4", "--private-mib", "1", "--shared-mib", "1", "--passes", "2"],
        4 * 2 * (16384 + 4096),
    ),
    ("pairs", &["--threads", "4", "--shared-mib", "1", "--passes", "2"], 4 * 2 * 16384),
    ("ring", &["--threads", "3", "--array-mib", "1", "--steps", "5"], 5 * 3 * (16384 / 3 / 64 * 64)),
    ("master-init", &["--threads", "3", "--array-mib", "1", "--passes", "2"], 2 * 3 * (16384 / 3 / 64 * 64)),
    (
        "phases",
        &["--threads", "4", "--private-mib", "1", "--shared-mib", "1", "--phases", "3", "--passes", "1"],
        4 * 3 * (16384 + 4096),
    ),
    ("all-shared", &["--threads", "3", "--shared-mib", "2", "--passes", "2"], 3 * 2 * 32768),
    ("hogs", &["--threads", "3", "--steps", "70000"], 3 * 70000),
    ("bandwidth", &["--threads", "3", "--array-mib", "2", "--passes", "2"], 3 * 2 * 32768),
    ("ping-pong", &["--private-mib", "1", "--turns", "5"], 2 * 5 * 4096 + 5 * 64),
    (
        "mixed",
        &["--threads", "4", "--private-mib", "1", "--passes", "3", "--additions", "5000", "--steps", "70000"],
        2 * 3 * 16384 + 5000 + 70000,
    ),
    ("hubench", &["--threads", "3", "--additions", "5000"], 3 * 5000),
    ("lubench", &["--threads", "3", "--additions", "5000"], 3 * 5000),
    ("membench", &["--threads", "3", "--private-mib", "1", "--passes", "3"], 3 * 3 * 16384),
    ("oltp", &["--threads", "3", "--heap-mib", "1", "--requests", "1000"], 3 * 1000),
    ("cg", &["--threads", "3", "--rows", "512", "--solves", "2"], 2 * 25 * 17 * 512),
    ("sp", &["--threads", "3", "--edge", "16", "--steps", "3"], 3 * 3 * 16 * 16 * 16),
    ("is", &["--threads", "3", "--array-mib", "1", "--sorts", "3"], 3 * 16384),
    (
        "migration",
        &["--pages", "64", "--operations", "3000", "--move-percent", "100", "--threads-per-group", "2"],
        4 * 3000,
    ),
];

/// Workloads whose threads follow from the machine's CPUs, and with them their work.
const SMALL_SCENARIOS: &[(&str, &[&str])] =
    &[("queue", &["--programs", "2", "--work", "1"]), ("interactive", &["--scale", "1", "--work", "1"])];

/// Loads on the scheduler alone, which place nothing, and their work.
const SMALL_LOADS: &[(&str, &[&str], u64)] = &[
    ("forks", &["--starters", "3", "--programs", "10", "--kib", "16"], 10),
    (
        "wake-ups",
        &["--messengers", "2", "--workers", "3", "--hogs", "1", "--rounds", "20", "--work", "100"],
        2 * 3 * 20,
    ),
];

fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(output.stdout.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()).unwrap()).unwrap()
}

fn run(name: &str, sizes: &[&str], placement: &str) -> Value {
    report(&tandem_load(&[name, "--placement", placement, "--seed", "5"]).args(sizes).output().unwrap())
}

/// What every report must have, whatever the workload.
fn check_report(report: &Value, name: &str, placement: &str) {
    assert_eq!(
        (&report["workload"], &report["placement"], &report["check"]),
        (&name.into(), &placement.into(), &"ok".into())
    );
    assert_eq!((&report["seed"], &report["better"]), (&5.into(), &"lower".into()));
    assert!(report["value"].as_f64().unwrap() > 0.0 && report["seconds"].as_f64().unwrap() > 0.0, "{report}");
    let threads = report["threads"].as_u64().unwrap();
    let numbers = |field: &str| -> Vec<u64> {
        report[field].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
    };
    assert_eq!(numbers("threads_per_node").iter().sum::<u64>(), threads);
    assert_eq!(numbers("pages_per_node").iter().sum::<u64>() > 0, name != "hogs", "only these have no memory");
    assert_eq!(numbers("pages_per_node").len(), report["node_ids"].as_array().unwrap().len());
    assert_eq!(report["run_delay_ns"].as_array().unwrap().len() as u64, threads);
    assert_eq!(report["p99_ns"].is_u64(), name == "oltp");
}

#[test]
fn every_workload_does_exactly_its_work_under_every_placement() {
    for (name, sizes, work) in SMALL {
        for placement in ["none", "oracle", "worst"] {
            let report = run(name, sizes, placement);
            check_report(&report, name, placement);
            assert_eq!(report["work"].as_u64(), Some(*work), "{name}");
        }
    }
}

#[test]
fn loads_on_the_scheduler_alone_do_exactly_their_work() {
    for (name, sizes, work) in SMALL_LOADS {
        let report = run(name, sizes, "none");
        assert_eq!((&report["workload"], &report["check"]), (&(*name).into(), &"ok".into()));
        assert_eq!(report["work"].as_u64(), Some(*work), "{name}");
        assert!(report["value"].as_f64().unwrap() > 0.0, "{report}");
        assert_eq!(report["p99_ns"].is_u64(), *name == "wake-ups");
    }
}

#[test]
fn scenarios_run_all_of_their_programs_under_every_placement() {
    for (name, sizes) in SMALL_SCENARIOS {
        let mut works = BTreeSet::new();
        for placement in ["none", "oracle", "worst"] {
            let report = run(name, sizes, placement);
            check_report(&report, name, placement);
            works.insert(report["work"].as_u64().unwrap());
        }
        assert_eq!(works.len(), 1, "{name}: the same work under every placement");
    }
}

#[test]
fn interactive_lasts_at_least_to_its_last_start() {
    let report = run("interactive", &["--scale", "3", "--work", "1"], "none");
    assert!(report["seconds"].as_f64().unwrap() > 0.003 * 316.0, "{report}");
    assert_eq!((&report["metric"], &report["unit"]), (&"accumulated_seconds".into(), &"s".into()));
}

#[test]
fn the_list_has_every_workload_with_its_sizes_and_bounds() {
    let output = tandem_load(&["list", "--json"]).output().unwrap();
    let list: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    // Those of other projects start programs that need not be here; guests try them (tests/boot_external.py).
    let own = |workload: &&Value| workload["needs"].as_array().unwrap().is_empty();
    let listed: BTreeSet<&str> = list.iter().filter(own).map(|workload| workload["name"].as_str().unwrap()).collect();
    let tested = SMALL.iter().map(|(name, ..)| *name).chain(SMALL_SCENARIOS.iter().map(|(name, _)| *name));
    assert_eq!(listed, tested.chain(SMALL_LOADS.iter().map(|(name, ..)| *name)).collect());
    let places = |workload: &Value| own(&workload) && SMALL_LOADS.iter().all(|(name, ..)| workload["name"] != *name);
    for workload in &list {
        for field in ["summary", "metric", "unit", "better"] {
            assert!(!workload[field].as_str().unwrap().is_empty(), "{workload}");
        }
        for bound in ["best", "worst"] {
            assert_eq!(workload[bound].is_string(), places(workload), "only what places itself has bounds: {workload}");
        }
        for size in workload["sizes"].as_array().unwrap() {
            assert!(size["default"].is_u64() && size["unit"].is_string() && size["help"].is_string(), "{workload}");
        }
    }
    let plain = tandem_load(&["list"]).output().unwrap();
    assert_eq!(String::from_utf8(plain.stdout).unwrap().lines().count(), list.len());
}

#[test]
fn a_workload_leaves_the_affinity_of_its_starter_alone_and_obeys_it() {
    let cpu = std::fs::read_to_string("/proc/self/status").unwrap();
    let cpus = cpu.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned();
    let first = cpus.split([',', '-']).next().unwrap();
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", first, env!("CARGO_BIN_EXE_tandem-load"), "master-init", "--array-mib", "1"]);
    let report = report(&command.args(["--passes", "1"]).stdout(Stdio::piped()).output().unwrap());
    assert_eq!(report["threads"], 1, "one thread for the one CPU that may be used");
}

#[test]
fn sigterm_ends_a_workload_of_fixed_work_as_a_failure_and_leaves_no_process() {
    let mut child = tandem_load(&["hubench", "--threads", "1", "--additions", "100000000000"]).spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let worker = loop {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        if let Some(pid) = std::fs::read_to_string(&children).unwrap().split_whitespace().next() {
            break pid.to_owned();
        }
        std::thread::yield_now();
    };
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert!(!child.wait().unwrap().success());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while std::path::Path::new(&format!("/proc/{worker}")).exists() {
        assert!(std::time::Instant::now() < deadline, "process {worker} is still there");
        std::thread::yield_now();
    }
}

#[test]
fn more_memory_than_there_is_is_refused_before_anything_is_touched() {
    let output = tandem_load(&["pairs", "--shared-mib", "99999999"]).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("MiB available") && text.lines().count() == 1, "{text}");
}

#[test]
fn the_whole_machine_counts_although_a_part_of_it_may_be_used() {
    let work = |words: &[&str]| {
        let mut command = Command::new("taskset");
        command.args([
            "--cpu-list",
            "0",
            env!("CARGO_BIN_EXE_tandem-load"),
            "all-shared",
            "--shared-mib",
            "1",
            "--passes",
            "1",
        ]);
        report(&command.args(words).output().unwrap())["work"].as_u64().unwrap()
    };
    let cpus = std::thread::available_parallelism().unwrap().get() as u64;
    assert_eq!(work(&["--whole-machine"]), cpus * work(&[]));
}
