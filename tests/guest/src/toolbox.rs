// SPDX-License-Identifier: GPL-2.0-only
//! The toolbox beside a loaded scheduler, and `tandem run`, which loads one for a program.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use libtest_mimic::Trial;
use serde_json::Value;
use tandem_bpf::Pins;
use tandem_guest_tests::{Scx, Worker, program, read, run_ns, scx_tandem_fails, state, wait_until};

use crate::trial;

const CALIBRATION: &str = "/tmp/calibration.toml";
const SUMMARY: &str = "/tmp/summary.json";

pub fn tests() -> Vec<Trial> {
    vec![
        trial("the_running_scheduler_is_shown_and_explained", the_running_scheduler_is_shown_and_explained),
        trial("what_ran_before_it_was_managed_is_not_counted", what_ran_before_it_was_managed_is_not_counted),
        trial("what_was_measured_here_is_what_the_agent_goes_by", what_was_measured_here_is_what_the_agent_goes_by),
        trial("tandem_run_is_there_for_one_program_only", tandem_run_is_there_for_one_program_only),
        trial("tandem_run_starts_nothing_without_a_scheduler", tandem_run_starts_nothing_without_a_scheduler),
    ]
}

fn tandem(arguments: &[&str]) -> Output {
    Command::new("/bin/tandem").args(arguments).output().expect("tandem is in the guest")
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn the_running_scheduler_is_shown_and_explained() {
    let worker = Worker::start();
    let manage = format!("pid={}", std::process::id());
    let scx = Scx::start(&["--dry-run", "--manage", &manage, "--interval-ms", "500"]);
    let tid = u64::from(worker.tid);
    let find = |status: &Value| -> Option<Value> {
        status["threads"].as_array()?.iter().find(|thread| thread["tid"] == tid).cloned()
    };
    wait_until("the worker is seen to be busy", || {
        let output = tandem(&["top", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        find(&status).is_some_and(|thread| thread["load_cpus"].as_f64().is_some_and(|cpus| cpus > 0.1))
    });
    let status: Value = serde_json::from_str(&said(&tandem(&["top", "--json"]))).expect("JSON");
    assert_eq!((&status["mode"], &status["thread_policy"]), (&"dry-run".into(), &"tandem".into()));
    assert_eq!(status["nodes"].as_array().map(Vec::len), Some(scx.topology.len()));
    assert_eq!(status["processes"][0]["pid"], u64::from(std::process::id()));
    let explained = said(&tandem(&["explain", &tid.to_string()]));
    assert!(explained.contains(&format!("Thread {tid} (")), "{explained}");
    let nobody = tandem(&["explain", "1"]);
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("1 is not managed"), "{nobody:?}");
    let described = said(&program().arg("--help-stats").output().expect("scx_tandem is in the guest"));
    assert!(described.contains("preferred_node"), "{described}");
    assert!(monitored().contains("threads "), "a line of statistics");
    assert!(scx.stop().success());
    let gone = tandem(&["explain"]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains("no scx_tandem answers"), "{gone:?}");
}

fn what_was_measured_here_is_what_the_agent_goes_by() {
    let said = said(&tandem(&["doctor", "--calibrate", CALIBRATION]));
    assert!(said.contains("latency of a load") && said.contains("tandem.cpu_lines_per_s = "), "{said}");
    let text = read(CALIBRATION);
    println!("{text}");
    let scx = Scx::start(&["--dry-run", "--policy", "sam+tmma", "--calibration", CALIBRATION]);
    assert!(
        scx.log().contains(&format!("latencies between nodes are those measured in {CALIBRATION}")),
        "{}",
        scx.log()
    );
    let record = scx.topology.nodes.values().map(|node| node.id.0).collect::<Vec<_>>();
    assert!(text.contains(&format!("nodes = {record:?}")), "{record:?}");
    assert!(scx.stop().success());
    let elsewhere = text.replacen(&format!("{record:?}"), &format!("{:?}", vec![77; record.len()]), 1);
    std::fs::write(CALIBRATION, elsewhere).expect("the file was just written");
    let refused = scx_tandem_fails(program().args(["--calibration", CALIBRATION]));
    assert!(refused.message.contains("of a machine without node 0"), "{}", refused.message);
    std::fs::set_permissions(CALIBRATION, Permissions::from_mode(0o666)).expect("the file was just written");
    let refused = scx_tandem_fails(program().args(["--calibration", CALIBRATION]));
    assert!(refused.message.contains("others than root may write it"), "{}", refused.message);
}

/// CPU time is that of the interval, also of a thread that comes to be managed while it runs.
fn what_ran_before_it_was_managed_is_not_counted() {
    let scx = Scx::start(&["--dry-run", "--manage", "comm=chosen", "--interval-ms", "2000"]);
    let worker = Worker::start();
    let files = format!("/proc/self/task/{}", worker.tid);
    wait_until("the worker ran for two intervals", || run_ns(worker.tid) > 4_000_000_000);
    std::fs::write(format!("{files}/comm"), "chosen").expect("a thread of this process can be named");
    let mut loads = Vec::new();
    wait_until("the worker is managed", || {
        let output = tandem(&["top", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let threads = status["threads"].as_array().cloned().unwrap_or_default();
        let ours = threads.iter().filter(|thread| thread["tid"] == u64::from(worker.tid));
        loads.extend(ours.filter_map(|thread| thread["load_cpus"].as_f64()));
        !loads.is_empty()
    });
    assert!(loads[0] < 1.5, "a thread uses one CPU at most: {loads:?}");
    assert!(scx.stop().success());
}

/// The first line of `scx_tandem --monitor`.
fn monitored() -> String {
    let mut monitor =
        program().args(["--monitor", "1"]).stdout(Stdio::piped()).spawn().expect("scx_tandem is in the guest");
    let mut line = String::new();
    BufReader::new(monitor.stdout.take().expect("it is piped")).read_line(&mut line).expect("a line");
    monitor.kill().expect("it goes on until it is told to end");
    monitor.wait().expect("a child can be waited for");
    line
}

fn tandem_run_is_there_for_one_program_only() {
    let script = "cat /sys/kernel/sched_ext/state; end=$(($(date +%s) + 4)); \
                  while [ $(date +%s) -lt $end ]; do :; done; exit 7";
    let output =
        tandem(&["run", "--json", "--summary", SUMMARY, "-o", "interval_ms=500", "--", "/bin/sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7), "the program's: {output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "enabled\n", "standard output is the program's");
    assert_eq!(state(), "disabled");
    assert!(!Pins::default().dir().exists());
    let text = std::fs::read_to_string(SUMMARY).expect("a summary");
    let summary: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&summary["exit_code"], &summary["command"][0]), (&7.into(), &"/bin/sh".into()), "{summary}");
    assert!(summary["seconds"].as_f64().is_some_and(|seconds| seconds >= 3.0), "{summary}");
    assert!(summary["intervals"].as_u64().is_some_and(|intervals| intervals >= 2), "{summary}");
}

fn tandem_run_starts_nothing_without_a_scheduler() {
    let refused = |arguments: &[&str], expected: &str| {
        let output = tandem(&[&["run"], arguments, &["--", "/bin/touch", "/tmp/started"]].concat());
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && message.contains(expected), "{output:?}");
        assert!(!std::path::Path::new("/tmp/started").exists());
        assert_eq!(message.trim().lines().count(), 1, "one sentence: {message}");
    };
    refused(&["-o", "page_rat=1"], "there is no such option");
    refused(&["-o", "manage=all"], "is given by `tandem run` itself");
    refused(&["-o", "interval_ms=1"], "100..=60000");
    let _scx = Scx::start_observing();
    refused(&[], "another scx_tandem is running");
}
