// SPDX-License-Identifier: GPL-2.0-only
//! The workload and its observer as users run them, on whatever machine this is.

mod common;

use common::tandem_load;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

/// A small `crossed` in its measured phase, ended when dropped.
struct Crossed {
    child: Option<Child>,
    directory: tempfile::TempDir,
}

impl Crossed {
    fn start(seconds: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let truth = directory.path().join("truth.json");
        let size =
            ["--processes", "2", "--threads", "4", "--private-mib", "20", "--shared-mib", "2", "--page-size", "base"];
        let child =
            tandem_load(&["crossed", "--seconds", seconds, "--truth", truth.to_str().unwrap()]).args(size).spawn();
        let mut crossed = Self { child: Some(child.unwrap()), directory };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !truth.exists() {
            assert!(
                crossed.child.as_mut().unwrap().try_wait().unwrap().is_none(),
                "it ended before its measured phase"
            );
            assert!(Instant::now() < deadline, "no measured phase within 60 s");
            std::thread::sleep(Duration::from_millis(20));
        }
        crossed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn truth(&self) -> Value {
        read_json(&self.path("truth.json"))
    }

    fn end(mut self) -> Output {
        self.child.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Crossed {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            signal(child.id() as i64, "TERM");
            child.wait().unwrap();
        }
    }
}

fn signal(pid: i64, name: &str) {
    assert!(Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().unwrap().success());
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn has_one_node() -> bool {
    std::fs::read_to_string("/sys/devices/system/node/online").unwrap().trim() == "0"
}

#[test]
fn crossed_ends_by_itself_with_its_self_check_passed_and_its_work_as_json() {
    let output = Crossed::start("1").end();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["check"], "ok");
    assert_eq!(report["threads"], 4);
    assert!(report["work"].as_u64().unwrap() > 0);
    assert!((1.0..10.0).contains(&report["seconds"].as_f64().unwrap()), "{report}");
}

#[test]
fn truth_names_every_thread_of_every_process_and_pairs_them() {
    let crossed = Crossed::start("60");
    let truth = crossed.truth();
    assert_eq!(truth["processes"].as_array().unwrap().len(), 2);
    for thread in truth["threads"].as_array().unwrap() {
        let task = format!("/proc/{}/task/{}", thread["pid"], thread["tid"]);
        assert!(Path::new(&task).exists(), "{task}");
        let weights: f64 = thread["ranges"].as_array().unwrap().iter().map(|r| r["weight"].as_f64().unwrap()).sum();
        assert!((weights - 1.0).abs() < 1e-12);
    }
    assert_eq!(truth["pairs"].as_array().unwrap().len(), 2);
}

#[test]
fn sigterm_ends_all_processes_with_success() {
    let crossed = Crossed::start("600");
    let processes = crossed.truth()["processes"].clone();
    signal(processes[0].as_i64().unwrap(), "TERM");
    let output = crossed.end();
    assert!(output.status.success(), "{output:?}");
    for process in processes.as_array().unwrap() {
        assert!(!Path::new(&format!("/proc/{process}")).exists());
    }
}

#[test]
fn a_process_that_is_killed_fails_the_workload() {
    let crossed = Crossed::start("3");
    signal(crossed.truth()["processes"][1].as_i64().unwrap(), "KILL");
    let output = crossed.end();
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("ended without saying why"));
}

#[test]
fn the_observer_sees_every_thread_and_page_and_on_one_node_nothing_remote() {
    let crossed = Crossed::start("60");
    let (truth, json) = (crossed.path("truth.json"), crossed.path("observed.json"));
    let times = ["--seconds", "2", "--interval-ms", "200"];
    let output = tandem_load(&["observe", "--truth", truth.to_str().unwrap(), "--json", json.to_str().unwrap()])
        .args(times)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let observed = read_json(&json);
    let samples = observed["samples"].as_array().unwrap();
    // Ten intervals; a busy machine may skip some.
    assert!((3..=12).contains(&samples.len()), "{}", samples.len());
    let expected_pages = (4 * 20 + 2 * 2) << 8;
    for sample in samples {
        let pages: u64 =
            sample["pages_per_node"].as_object().unwrap().values().map(|pages| pages.as_u64().unwrap()).sum();
        assert!(pages.abs_diff(expected_pages) <= 6 * observed["stride_pages"].as_u64().unwrap(), "{pages}");
        assert_eq!(sample["thread_nodes"].as_array().unwrap().len(), 4);
    }
    let summary = &observed["summary"];
    assert!(summary["remote_share_start"].as_f64().is_some());
    if has_one_node() {
        assert_eq!(summary["remote_share_end"], 0.0);
        assert_eq!(summary["local_pages_share_end"], 1.0);
        assert_eq!(summary["time_to_90_percent_local_s"], 0.0);
        assert_eq!(summary["pairs_together_end"], 2);
    }
}

#[test]
fn an_observation_of_a_workload_that_ends_is_kept_and_fails() {
    let crossed = Crossed::start("1");
    let (truth, json) = (crossed.path("truth.json"), crossed.path("observed.json"));
    let output = tandem_load(&[
        "observe",
        "--truth",
        truth.to_str().unwrap(),
        "--json",
        json.to_str().unwrap(),
        "--seconds",
        "30",
    ])
    .output()
    .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("ended early"));
    assert!(read_json(&json)["ended_early"].as_str().unwrap().contains("has ended"));
    assert!(!read_json(&json)["samples"].as_array().unwrap().is_empty());
}

#[test]
fn truth_of_finds_the_threads_and_memory_of_another_program() {
    let crossed = Crossed::start("60");
    let truth = crossed.truth();
    let pids = format!("{},{}", truth["processes"][0], truth["processes"][1]);
    let json = crossed.path("found.json");
    let output = tandem_load(&["truth-of", "--pids", &pids, "--processes", "2", "--threads", "2"])
        .args(["--min-mib", "16", "--json", json.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let found = read_json(&json);
    assert_eq!(found["pairs"], truth["pairs"]);
    for (thread, true_thread) in
        std::iter::zip(found["threads"].as_array().unwrap(), truth["threads"].as_array().unwrap())
    {
        assert_eq!(thread["tid"], true_thread["tid"]);
        let private = true_thread["ranges"][0]["start"].as_u64().unwrap();
        let covers = |range: &Value| {
            let start = range["start"].as_u64().unwrap();
            (start..start + range["bytes"].as_u64().unwrap()).contains(&private)
        };
        assert!(thread["ranges"].as_array().unwrap().iter().any(covers), "{thread}");
    }
}

#[test]
fn truth_of_gives_up_after_its_time_limit_and_says_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("none.json");
    let output = tandem_load(&["truth-of", "--comm", "no such program", "--processes", "2", "--threads", "2"])
        .args(["--timeout-seconds", "1", "--json", json.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("0 instead of 2 processes"));
    assert!(!json.exists());
}

#[test]
fn wrong_or_contradictory_options_give_one_sentence_and_fail() {
    let cases: [&[&str]; 12] = [
        &["crossed", "--seconds", "1", "--truth", "/tmp/t", "--threads", "6", "--processes", "2"],
        &["crossed", "--seconds", "1", "--truth", "/tmp/t", "--private-mib", "999999999999"],
        &["crossed", "--seconds", "soon", "--truth", "/tmp/t"],
        &["crossed", "--seconds", "1", "--passes", "3"],
        &["pairs", "--threads", "3"],
        &["pairs", "--placement", "best"],
        &["ring", "--steps", "0"],
        &["ring", "--seconds", "1"],
        &["observe", "--truth", "/does/not/exist", "--seconds", "1", "--json", "/tmp/o"],
        &["truth-of", "--comm", "perf", "--pids", "1", "--processes", "1", "--threads", "1", "--json", "/tmp/o"],
        &["truth-of", "--processes", "1", "--threads", "1", "--json", "/tmp/o"],
        &["nonsense"],
    ];
    for arguments in cases {
        let output = tandem_load(arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
        assert!(text.starts_with("tandem-load: "), "{text}");
    }
}
