// SPDX-License-Identifier: GPL-2.0-only
//! Machine files: what is read, what is derived, and one sentence per mistake.

use std::path::Path;

use tandem_machine::MachineFile;
use tandem_policies::model::{CpuId, LatencySource, NodeId, NodeIndex};

const RING: &str = "
name = 'ring'
nodes = 4
cpus_per_node = [2, 2, 2, 0]
memory_mb = 512
distance = [[10, 12, 20, 12], [12, 10, 12, 20], [20, 12, 10, 12], [12, 20, 12, 10]]
";

fn parse(text: &str) -> Result<MachineFile, String> {
    MachineFile::parse(text, Path::new("m.toml")).map_err(|error| error.to_string())
}

/// The sentence for `RING` with `from` replaced by `to`.
fn mistake(from: &str, to: &str) -> String {
    assert!(RING.contains(from), "{from}");
    parse(&RING.replacen(from, to, 1)).expect_err(to)
}

#[test]
fn numbers_and_lists_are_per_node_values() {
    let machine = parse(RING).unwrap();
    assert_eq!(machine.cpus_per_node, [2, 2, 2, 0]);
    assert_eq!(machine.memory_mb, [512; 4]);
    assert_eq!(machine.node_ids, [0, 1, 2, 3]);
}

#[test]
fn what_is_absent_is_derived_and_said() {
    let machine = MachineFile::parse("nodes = 2\ncpus_per_node = 1", Path::new("dir/small.toml")).unwrap();
    assert_eq!(machine.name, "small");
    assert_eq!(machine.distance, [[10, 20], [20, 10]]);
    for key in [
        "name",
        "memory_mb",
        "distance",
        "latency_ns",
        "threads_per_core",
        "llcs_per_node",
        "[core]",
        "[caches]",
        "[memory]",
    ] {
        assert!(machine.derived.iter().any(|sentence| sentence.starts_with(key)), "{key}: {:?}", machine.derived);
    }
}

#[test]
fn the_topology_has_dense_cpus_and_the_files_ids() {
    let text = "name = 's'\nnodes = 2\nnode_ids = [0, 5]\ncpus_per_node = 4\nllcs_per_node = 2\nthreads_per_core = 2\nmemory_mb = 4";
    let topology = parse(text).unwrap().topology().unwrap();
    let last = &topology.nodes[NodeIndex(1)];
    assert_eq!(last.id, NodeId(5));
    assert_eq!(last.cpus, [4, 5, 6, 7].map(CpuId));
    assert_eq!(last.llcs, [[4, 5].map(CpuId).to_vec(), [6, 7].map(CpuId).to_vec()]);
    assert_eq!((last.memory_pages, last.free_pages), (1024, 1024));
    assert_eq!(topology.latency_source, LatencySource::Distance);
    assert_eq!(topology.latency_ns(NodeIndex(0), NodeIndex(1)), 200.0);
}

#[test]
fn a_memory_only_node_has_no_cpu_and_no_llc() {
    let topology = parse(RING).unwrap().topology().unwrap();
    assert!(topology.nodes[NodeIndex(3)].cpus.is_empty());
    assert!(topology.nodes[NodeIndex(3)].llcs.is_empty());
}

#[test]
fn a_bandwidth_matrix_says_how_fast_memory_is_unless_the_file_does() {
    let matrix = "nodes = 2\ncpus_per_node = 1\nbandwidth_mb_s = [[20000, 5000], [5000, 16000]]";
    let machine = parse(matrix).unwrap();
    assert_eq!(machine.memory.service_ns_per_line, 3.2);
    assert!(machine.derived.iter().any(|sentence| sentence.starts_with("[memory]")), "{:?}", machine.derived);
    let given = parse(&format!("{matrix}\n[memory]\nservice_ns_per_line = 5")).unwrap();
    assert_eq!(given.memory.service_ns_per_line, 5.0);
}

#[test]
fn given_latencies_are_taken() {
    let text = "name = 'l'\nnodes = 2\ncpus_per_node = 1\nlatency_ns = [[80, 140.5], [150, 90]]";
    let topology = parse(text).unwrap().topology().unwrap();
    assert_eq!(topology.latency_source, LatencySource::MachineFile);
    assert_eq!(topology.latency_ns(NodeIndex(0), NodeIndex(1)), 140.5);
    assert_eq!(topology.latency_ns(NodeIndex(1), NodeIndex(0)), 150.0);
}

#[test]
fn each_mistake_names_file_key_and_what_is_right() {
    let ragged = "distance = [[10, 12], [12, 10, 12, 20], [20, 12, 10, 12], [12, 20, 12, 10]]";
    let distance = RING.lines().find(|line| line.starts_with("distance")).unwrap();
    let cases = [
        (mistake("[2, 2, 2, 0]", "[2, 2]"), "m.toml: cpus_per_node: has 2 entries, must have 4: one per node"),
        (mistake("[2, 2, 2, 0]", "0"), "m.toml: cpus_per_node: no node has a CPU: at least one must"),
        (mistake("memory_mb = 512", "memory_mb = [1]"), "m.toml: memory_mb: has 1 entries, must have 4: one per node"),
        (mistake("nodes = 4", "nodes = 0"), "m.toml: nodes: is 0, must be 1 to 1024"),
        (mistake("nodes = 4", "nodes = 5"), "m.toml: cpus_per_node: has 4 entries, must have 5: one per node"),
        (mistake(distance, ragged), "m.toml: distance: row 0 has 2 entries, must have 4: the matrix is square"),
        (mistake("[[10, 12", "[[11, 12"), "m.toml: distance: row 0: the distance to itself is 11, must be 10"),
        (mistake("[[10, 12", "[[10, 9"), "m.toml: distance: from node 0 to 1 is 9, must be 11 to 254"),
        (
            mistake("nodes = 4", "nodes = 4\nnode_ids = [0, 2, 2, 3]"),
            "m.toml: node_ids: 2 comes after 2, ids must ascend",
        ),
        (
            mistake("nodes = 4", "nodes = 4\nthreads_per_core = 3"),
            "m.toml: threads_per_core: is 3, must divide the 2 CPUs of every node evenly",
        ),
        (mistake("nodes = 4", "nodes = 4\nllcs_per_node = 0"), "m.toml: llcs_per_node: is 0, must be at least 1"),
        (mistake("name = 'ring'", "paging.tlb_pages = 0"), "m.toml: paging.tlb_pages: is 0, must be at least 1"),
        (
            mistake("name = 'ring'", "paging.walk_ns = -1"),
            "m.toml: paging.walk_ns: is -1 ns, must be 0 (free) or above",
        ),
        (mistake("name = 'ring'", "moves.page_ns = 0"), "m.toml: moves.page_ns: is 0 ns, must be above 0"),
        (mistake("'ring'", "'a b'"), "m.toml: name: is \"a b\", must be letters, digits, '-', '_' and '.' only"),
        (mistake("nodes = 4", "nodes = 4000"), "m.toml: nodes: is 4000, must be 1 to 1024"),
        (
            mistake("[2, 2, 2, 0]", "[9223372036854775807, 9223372036854775807, 2, 0]"),
            "m.toml: cpus_per_node: the machine has 18446744073709551615 CPUs, 8192 is the most a kernel takes",
        ),
        (mistake(distance, "distance = [[10]]"), "m.toml: distance: has 1 rows, must have 4: one per node"),
        (
            mistake("nodes = 4", "nodes = 4\nthreads_per_core = 2\nllcs_per_node = 2"),
            "m.toml: llcs_per_node: the cores of a node must divide evenly among its LLCs",
        ),
        (
            mistake("memory_mb = 512", "memory_mb = [0, 1, 1, 1]"),
            "m.toml: memory_mb: the first node has none: kernels boot from its memory",
        ),
        (
            mistake(distance, "bandwidth_mb_s = [[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]"),
            "m.toml: bandwidth_mb_s: has the entry 0, all must be above 0",
        ),
        (mistake(distance, "[caches]\nline_b = 48"), "m.toml: caches.line_b: is 48, must be a power of two"),
        (
            mistake(distance, "[memory]\nservice_ns_per_line = nan"),
            "m.toml: memory.service_ns_per_line: is NaN ns, must be above 0",
        ),
        (
            mistake(distance, "[memory]\noutstanding_misses = 65"),
            "m.toml: memory.outstanding_misses: is 65, must be 1 to 64",
        ),
    ];
    for (said, right) in cases {
        assert_eq!(said, right);
    }
}

#[test]
fn mistakes_of_syntax_name_the_line() {
    for (from, to, line, word) in [
        ("nodes = 4", "nodez = 4", 3, "nodez"),
        ("nodes = 4", "nodes = 'four'", 3, "string"),
        ("[2, 2, 2, 0]", "'two'", 4, "whole number"),
        ("nodes = 4", "nodes = = 4", 3, ""),
        ("nodes = 4", "nodes = -1", 3, ""),
    ] {
        let said = mistake(from, to);
        assert!(said.starts_with(&format!("m.toml: line {line}: ")), "{said}");
        assert!(said.contains(word) && !said.contains('\n'), "{said}");
    }
}

#[test]
fn huge_numbers_are_refused_and_do_not_overflow() {
    for (from, to) in [
        ("[2, 2, 2, 0]", "[9223372036854775807, 9223372036854775807, 9223372036854775807, 1]"),
        ("memory_mb = 512", "memory_mb = 9223372036854775807"),
        ("nodes = 4", "nodes = 9223372036854775807"),
        ("nodes = 4", "nodes = 4\nnode_ids = [0, 1, 2, 4000000000]"),
    ] {
        let said = mistake(from, to);
        assert!(said.starts_with("m.toml: "), "{said}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let said = MachineFile::load("/no/such.toml").unwrap_err().to_string();
    assert!(said.starts_with("/no/such.toml: cannot be read: "), "{said}");
}

#[test]
fn the_labs_machine_files_are_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vm/machines");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 6, "{files:?}");
    for file in files {
        let machine = MachineFile::load(&file).unwrap();
        assert_eq!(Some(machine.name.as_str()), file.file_stem().and_then(|stem| stem.to_str()));
        machine.topology().unwrap();
    }
}
