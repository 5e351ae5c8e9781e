// SPDX-License-Identifier: GPL-2.0-only
//! CPUs that `tandem` itself may use.

use std::fs;
use std::process::Command;

use crate::bench::{Bench, known, text};

/// The first CPU that this process may use, and whether there are others.
fn first_cpu() -> (String, bool) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let first = list.split(['-', ',']).next().unwrap();
    (first.to_owned(), first != list)
}

fn on_one_cpu(bench: &Bench, cpu: &str, arguments: &[&str]) -> std::process::Output {
    let mut taskset = Command::new("taskset");
    taskset.args(["-c", cpu, env!("CARGO_BIN_EXE_tandem")]).args(arguments).current_dir(bench.directory.path());
    taskset.output().unwrap()
}

#[test]
fn threads_get_no_cpus_that_tandem_may_not_use() {
    let (cpu, has_others) = first_cpu();
    let bench = Bench::new("grep Cpus_allowed_list /proc/self/status >> cpus; sleep 0.04");
    let cpus = || {
        let noted = fs::read_to_string(bench.path("cpus")).unwrap();
        fs::remove_file(bench.path("cpus")).unwrap();
        noted.lines().map(|line| line.rsplit('\t').next().unwrap().to_owned()).collect::<Vec<String>>()
    };
    let tune = ["tune", "--repeats", "4", "--", "./prog"];
    let output = on_one_cpu(&bench, &cpu, &tune);
    assert!(output.status.success(), "{output:?}");
    assert!(cpus().iter().all(|allowed| *allowed == cpu));
    let runs = bench.runs();
    assert_eq!(known(&on_one_cpu(&bench, &cpu, &tune)), runs);

    let elsewhere = bench.tandem(&["tune", "--repeats", "4", "-o", "all.toml", "--", "./prog"]);
    assert!(elsewhere.status.success(), "{elsewhere:?}");
    assert_eq!(text(&elsewhere.stderr).contains("known already"), !has_others, "runs on other CPUs are others");
    // Whatever was the best: all of the machine's seats, as the file would have them.
    let result = fs::read_to_string(bench.path("all.toml")).unwrap();
    let mut result: toml::Table = result.parse().unwrap();
    let seats = "threads = 2\nthread_nodes = 1\nthread_placement = \"scatter\"\n";
    let pages = "page_nodes = 1\npage_placement = \"first-touch\"\n";
    result.insert("configuration".into(), format!("{seats}{pages}").parse::<toml::Table>().unwrap().into());
    fs::write(bench.path("all.toml"), result.to_string()).unwrap();
    fs::remove_file(bench.path("cpus")).unwrap();
    let output = on_one_cpu(&bench, &cpu, &["run", "--tuned", "all.toml", "--", "./prog"]);
    assert_eq!((output.status.code(), cpus()), (Some(0), vec![cpu.clone()]), "{output:?}");
    let warning = format!("only the CPUs {cpu} may be used here");
    assert_eq!(text(&output.stderr).contains(&warning), has_others, "{output:?}");
}
