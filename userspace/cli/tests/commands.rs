// SPDX-License-Identifier: GPL-2.0-only
//! The toolbox, as its users call it.

use std::process::{Command, Output};

fn tandem(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tandem")).args(arguments).output().unwrap()
}

fn machine(name: &str) -> String {
    format!("{}/../../vm/machines/{name}.toml", env!("CARGO_MANIFEST_DIR"))
}

fn stdout(output: &Output) -> &str {
    assert!(output.status.success(), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

#[test]
fn the_labs_form_has_every_node() {
    let output = tandem(&["topo", "--machine", &machine("sparse-0-2-5"), "--emit", "lab"]);
    let lines: Vec<&str> = stdout(&output).lines().collect();
    for line in ["name=sparse-0-2-5", "nodes=3", "node.2.id=5", "node.2.cpus=2", "threads_per_core=1"] {
        assert!(lines.contains(&line), "{line} in {lines:?}");
    }
    assert!(lines.iter().any(|line| line.starts_with("node.0.distance=10 ")));
}

#[test]
fn the_labs_form_has_every_cost() {
    let output = tandem(&["topo", "--machine", &machine("cascadelake"), "--emit", "lab"]);
    let lines: Vec<&str> = stdout(&output).lines().collect();
    for line in [
        "node.1.latency_ns=141.6 81.5",
        "node.0.bandwidth_mb_s=113073.7 34305.5",
        "caches.l3_kb_per_llc=5632",
        "caches.l2_ns=4",
        "core.kernel_instruction_ns=0.3125",
        "core.pause_ns=40",
        "memory.service_ns_per_line=0.566",
        "memory.outstanding_misses=40",
        "coherence.cross_node_ns=113.7",
        "paging.walk_ns=0",
    ] {
        assert!(lines.contains(&line), "{line} in {lines:?}");
    }
    let output = tandem(&["topo", "--machine", &machine("2x4"), "--emit", "lab"]);
    assert!(stdout(&output).contains("node.0.latency_ns=100 200\n"), "derived from distances");
    assert!(!stdout(&output).contains("bandwidth"), "absent in the file");
}

#[test]
fn the_table_names_memory_only_nodes() {
    let output = tandem(&["topo", "--machine", &machine("3-cpuless")]);
    assert!(stdout(&output).lines().any(|line| line.starts_with("   2  -  ")), "{}", stdout(&output));
}

#[test]
fn nodes_that_are_parts_of_one_socket_are_named() {
    let printed = |name: &str| stdout(&tandem(&["topo", "--machine", &machine(name)])).to_owned();
    assert!(printed("thanos-b").contains("nearer to each other than to all other nodes: 0+4 1+5 2+6 3+7\n"));
    assert!(!printed("ring4").contains("nearer"));
}

#[test]
fn json_has_the_topology_of_the_file_and_of_this_machine() {
    let file = machine("4x2-ring");
    let output = tandem(&["topo", "--json", "--machine", &file]);
    let value: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(value["nodes"][3]["cpus"], serde_json::json!([6, 7]));
    let output = tandem(&["topo", "--json"]);
    let value: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    assert!(!value["nodes"].as_array().unwrap().is_empty());
}

/// Every policy by kind, in alphabetical order.
const POLICIES: [(&str, &[&str]); 3] = [
    ("joint", &["auto", "tandem"]),
    (
        "page",
        &[
            "balance",
            "dataset",
            "interleave",
            "kmaf",
            "lmma",
            "locality",
            "mix",
            "next-touch",
            "none",
            "opt",
            "rmma",
            "tmma",
        ],
    ),
    (
        "thread",
        &[
            "autopin",
            "cimar",
            "compact",
            "contiguous",
            "cra",
            "direct",
            "dyrmma",
            "imar2",
            "kmaf",
            "lbma",
            "nimar",
            "none",
            "opt",
            "sam",
            "scatter",
            "sma",
        ],
    ),
];

#[test]
fn every_policy_is_listed_with_its_kind_needs_parameters_and_source() {
    let output = tandem(&["policies", "--json"]);
    let value: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    let policies = value.as_array().unwrap();
    let words = tandem(&["policies"]);
    for (kind, names) in POLICIES {
        let of_kind = policies.iter().filter(|policy| policy["kind"] == kind);
        let mut listed: Vec<&str> = of_kind.map(|policy| policy["name"].as_str().unwrap()).collect();
        listed.sort_unstable();
        assert_eq!(listed, names, "{kind}");
        assert!(names.iter().all(|name| stdout(&words).contains(&format!("{kind} policy {name}\n"))), "{kind}");
    }
    assert_eq!(policies.len(), POLICIES.iter().map(|(_, names)| names.len()).sum::<usize>());
    for policy in policies {
        assert!(policy["source"].as_str().is_some_and(|source| !source.is_empty()), "{policy}");
        let sets = policy["needs_one_of"].as_array().unwrap().iter();
        let lists = sets.map(|set| set.as_array().unwrap()).chain([policy["needs"].as_array().unwrap()]);
        assert!(lists.flatten().all(|signal| signal.as_str().is_some_and(|name| name.contains('.'))), "{policy}");
        let parameters = policy["parameters"].as_array().unwrap();
        assert_eq!(parameters.is_empty(), policy["name"] == "none", "{policy}");
        for parameter in parameters {
            for key in ["name", "default", "unit", "range"] {
                assert!(!parameter[key].is_null(), "{key} of {parameter}");
            }
        }
    }
}

#[test]
fn what_auto_needs_is_said_as_one_of_several_sets() {
    let output = tandem(&["policies"]);
    let auto = stdout(&output).split("\n\n").find(|policy| policy.starts_with("joint policy auto")).unwrap();
    let needs = auto.lines().find(|line| line.starts_with("    needs: ")).unwrap();
    assert!(needs.contains("group.resident_pages, and thread.accesses_per_s, group.accesses_per_s; or "), "{needs}");
}

/// What the doctor says, and its exit code with what it found: 1 where scx_tandem cannot run.
fn doctor(arguments: &[&str]) -> (String, Option<i32>) {
    let output = tandem(&[&["doctor"], arguments].concat());
    assert!(output.stderr.is_empty(), "{output:?}");
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

#[test]
fn the_doctor_says_of_every_sampler_whether_it_works_or_why_not() {
    let value: serde_json::Value = serde_json::from_str(&doctor(&["--json"]).0).unwrap();
    let samplers = value["samplers"].as_array().unwrap();
    let names: Vec<_> = samplers.iter().map(|sampler| sampler["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["lookahead", "pmu", "device", "fault"]);
    let (words, _) = doctor(&[]);
    for sampler in samplers {
        assert_eq!(sampler["works"] == true, sampler["why_not"].is_null(), "{sampler}");
        for key in ["coverage", "bias", "cost"] {
            assert!(sampler[key].is_string(), "{key} of {sampler}");
        }
        if let Some(why_not) = sampler["why_not"].as_str() {
            assert!(words.contains(why_not), "{words}");
        }
    }
    let counters = &value["counters"];
    assert_eq!(counters["why_not"].is_null(), counters["pmus"][0]["core"].is_string(), "{counters}");
}

#[test]
fn the_doctor_names_a_remedy_for_all_that_is_not_good() {
    let (json, code) = doctor(&["--json"]);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let (words, code_with_words) = doctor(&[]);
    let checks = value["checks"].as_array().unwrap();
    for name in [
        "kernel",
        "type information",
        "rights",
        "BPF file system",
        "nodes",
        "other scheduler",
        "numa_balancing",
        "sampler",
    ] {
        assert!(checks.iter().any(|check| check["name"] == name), "{name}");
    }
    for check in checks {
        assert_eq!(check["verdict"] == "good", check["remedy"].is_null(), "{check}");
        assert!(words.contains(check["found"].as_str().unwrap()), "{check}");
    }
    let refused = checks.iter().any(|check| check["verdict"] == "bad");
    assert_eq!((code, code_with_words), (Some(i32::from(refused)), Some(i32::from(refused))));
}

#[test]
fn the_picture_shows_every_node_and_what_is_known_between_them() {
    let output = tandem(&["topo", "--svg", "--machine", &machine("cascadelake")]);
    let picture = stdout(&output);
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
    for text in [">node 0<", ">node 1<", ">distance (10 = local)<", ">latency of a load [ns]<", ">141.6<", ">34305.5<"]
    {
        assert!(picture.contains(text), "{text} in {picture}");
    }
    let output = tandem(&["topo", "--svg", "--machine", &machine("3-cpuless")]);
    let picture = stdout(&output);
    assert!(picture.contains(">no CPU<") && !picture.contains("latency"), "derived latencies are no news: {picture}");
}

/// On any machine, a busy one too: what the numbers must be is tested in the timing lab.
#[test]
fn what_lies_between_nodes_is_measured_and_shown_in_every_form() {
    let output = tandem(&["topo", "--measure", "--measure-ms", "1", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    let (measured, nodes) = (&shown["measured"], shown["nodes"].as_array().unwrap());
    assert!(measured["buffer_bytes"].as_u64().unwrap() >= 16 << 20, "{measured}");
    for (from, node) in nodes.iter().enumerate() {
        for (to, target) in nodes.iter().enumerate() {
            let there = !node["cpus"].as_array().unwrap().is_empty() && target["memory_pages"] != 0;
            for matrix in ["latency_ns", "bandwidth_mb_s"] {
                let value = measured[matrix][from][to].as_f64();
                assert_eq!(value.is_some_and(|value| value > 0.0), there, "{matrix}: {measured}");
            }
        }
    }
    let output = tandem(&["topo", "--measure", "--measure-ms", "1"]);
    let table = stdout(&output);
    for words in ["\ndistance (10 = local)\n", "\nmeasured latency of a load [ns]\n", "\nmeasured bandwidth [MB/s]\n"] {
        assert!(table.contains(words), "{words:?} in {table}");
    }
    assert!(table.contains("note: measured on ") && table.contains(" MiB of each node's memory"), "{table}");
    let output = tandem(&["topo", "--measure", "--measure-ms", "1", "--svg"]);
    assert!(stdout(&output).contains(">measured latency of a load [ns]<"), "{output:?}");
}

#[test]
fn nodes_are_advised_as_libvirt_takes_them() {
    let output = tandem(&["advise", "--cpus", "1", "--measure", "0.1", "--json"]);
    let advice: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(advice["nodes"].as_array().unwrap().len(), 1, "{advice}");
    let output = tandem(&["advise", "--cpus", "1", "--memory", "1M", "--measure", "0.1"]);
    assert!(stdout(&output).trim().parse::<u32>().is_ok(), "{output:?}");
    let refused = tandem(&["advise", "--cpus", "100000", "--measure", "0.1"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && said.contains("100000 CPUs and 0 MiB are more"), "{said}");
}

#[test]
fn a_size_is_as_its_help_says() {
    let output = tandem(&["advise", "--help"]);
    assert!(stdout(&output).contains("a number of MiB, or one with K, M, G or T behind it"), "{output:?}");
    let refused = tandem(&["advise", "--cpus", "1", "--memory", "4MiB"]);
    assert!(refused.status.code() == Some(2) && refused.stdout.is_empty(), "{refused:?}");
}

#[test]
fn every_command_has_a_manual_page_and_is_completed() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (man, completions) = (path("man"), path("completions"));
    let (man_word, completions_word) = (man.to_str().unwrap(), completions.to_str().unwrap());
    stdout(&tandem(&["generate", "--man", man_word, "--completions", completions_word]));
    let read =
        |path: std::path::PathBuf| std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    for (page, text) in [
        ("tandem.1", "tandem\\-explain(1)"),
        ("tandem-explain.1", "why threads are where they are"),
        ("tandem-run.1", "\\-\\-summary"),
        ("scx_tandem.1", "\\-\\-page\\-rate"),
    ] {
        assert!(read(man.join(page)).contains(text), "{text} in {page}");
    }
    for (file, text) in
        [("tandem.bash", "explain"), ("_scx_tandem", "--mover-budget"), ("scx_tandem.fish", "mover-budget")]
    {
        assert!(read(completions.join(file)).contains(text), "{text} in {file}");
    }
}

#[test]
fn bad_input_is_one_sentence_and_exit_code_2() {
    let output = tandem(&["topo", "--machine", "/no/such.toml"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said == "tandem: /no/such.toml: cannot be read: No such file or directory (os error 2)\n"
            && said.lines().count() == 1,
        "{said}"
    );
    for arguments in [
        &["nonsense"][..],
        &["topo", "--emit", "lab"],
        &["topo", "--measure-ms", "5"],
        &["topo", "--measure", "--machine", "y"],
        &["topo", "--emit", "x", "--machine", "y"],
        &[],
    ] {
        assert_eq!(tandem(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
