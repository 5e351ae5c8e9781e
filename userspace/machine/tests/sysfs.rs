// SPDX-License-Identifier: GPL-2.0-only
//! The reader of the running machine, on trees as kernels show them.

use std::fs;
use std::path::Path;

use tandem_machine::{read_running, read_sysfs, refresh_free_memory};
use tandem_policies::model::{CpuId, NodeId, NodeIndex};
use tempfile::TempDir;

/// A tree as below /sys/devices/system.
struct Tree(TempDir);

impl Tree {
    fn new(online: &str, present: &str) -> Self {
        let tree = Self(TempDir::new().unwrap());
        tree.write("cpu/online", online).write("cpu/present", present)
    }

    fn write(self, path: &str, text: impl AsRef<str>) -> Self {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.as_ref().to_owned() + "\n").unwrap();
        self
    }

    fn node(self, id: u32, cpus: &str, distance: &str, total_kib: u64, free_kib: u64) -> Self {
        let meminfo =
            format!("Node {id} MemTotal:  {total_kib} kB\nNode {id} MemFree:  {free_kib} kB\nNode {id} MemUsed: 1 kB");
        self.write(&format!("node/node{id}/cpulist"), cpus)
            .write(&format!("node/node{id}/distance"), distance)
            .write(&format!("node/node{id}/meminfo"), meminfo)
    }

    fn cache(self, cpu: u32, index: u32, level: u32, shared: &str) -> Self {
        let at = format!("cpu/cpu{cpu}/cache/index{index}");
        self.write(&format!("{at}/level"), level.to_string()).write(&format!("{at}/shared_cpu_list"), shared)
    }

    fn siblings(self, cpu: u32, list: &str) -> Self {
        self.write(&format!("cpu/cpu{cpu}/topology/core_cpus_list"), list)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

fn cpus(ids: &[u32]) -> Vec<CpuId> {
    ids.iter().copied().map(CpuId).collect()
}

#[test]
fn slow_cpus_are_those_the_kernel_or_the_firmware_calls_so() {
    let tree = |file: &str, performance: [&str; 4]| {
        let nodes = Tree::new("0-3", "0-3").write("node/online", "0-1");
        let nodes = nodes.node(0, "0-1", "10 20", 4096, 400).node(1, "2-3", "20 10", 4096, 400);
        (0..4).fold(nodes, |tree, cpu| tree.write(&format!("cpu/cpu{cpu}/{file}"), performance[cpu]))
    };
    let slow = |tree: Tree| {
        let nodes = read_sysfs(tree.path()).unwrap().topology.nodes;
        nodes
            .values()
            .map(|node| node.slow_cpus.iter().map(|(cpu, of)| (cpu.0, *of)).collect())
            .collect::<Vec<Vec<_>>>()
    };
    assert_eq!(slow(tree("cpu_capacity", ["1024", "1024", "512", "446"])), [vec![], vec![(2, 512), (3, 446)]]);
    assert_eq!(slow(tree("acpi_cppc/highest_perf", ["60", "30", "58", "60"])), [vec![(1, 512)], vec![]]);
    let both = tree("cpu_capacity", ["1024"; 4]).write("cpu/cpu0/acpi_cppc/highest_perf", "30");
    assert_eq!(slow(both), [vec![], vec![]], "the kernel's word counts");
    let ranked = Tree::new("0-5", "0-5").write("node/online", "0").node(0, "0-5", "10", 4096, 400);
    let ranked = (0..6).fold(ranked, |tree, cpu| {
        tree.write(&format!("cpu/cpu{cpu}/acpi_cppc/highest_perf"), ["236", "231", "226", "221", "166", "161"][cpu])
    });
    assert_eq!(slow(ranked), [vec![]], "a ranking of cores of one kind");
    let error = read_sysfs(tree("cpu_capacity", ["1024", "x", "1024", "1024"]).path()).unwrap_err().to_string();
    assert!(error.contains("cpu1/cpu_capacity: `x` is not a number"), "{error}");
}

/// A folder in the place of a file: it is there, and reading it fails.
#[test]
fn a_hint_that_cannot_be_read_counts_as_absent_and_that_is_said() {
    let tree = Tree::new("0-3", "0-3").write("node/online", "0-1");
    let tree = tree.node(0, "0-1", "10 20", 4096, 400).node(1, "2-3", "20 10", 4096, 400);
    let tree = (0..4).fold(tree, |tree, cpu| tree.write(&format!("cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq"), "4000000"));
    for unreadable in ["cpu0/acpi_cppc/highest_perf", "cpu1/acpi_cppc/highest_perf", "cpu2/cpufreq/scaling_max_freq"] {
        fs::create_dir_all(tree.path().join("cpu").join(unreadable)).unwrap();
    }
    let machine = read_sysfs(tree.path()).unwrap();
    assert!(machine.topology.nodes.values().all(|node| node.slow_cpus.is_empty()));
    let said: Vec<_> = machine.assumed.iter().filter(|said| said.contains("capacities")).collect();
    let [performance, clock] = said[..] else { panic!("one for each kind of file: {said:?}") };
    assert!(performance.contains("cpu0/acpi_cppc/highest_perf: cannot be read: "), "{performance}");
    assert!(clock.contains("cpu2/cpufreq/scaling_max_freq: cannot be read: "), "{clock}");
    let error = read_sysfs(tree.write("cpu/cpu3/cpufreq/scaling_max_freq", "x").path()).unwrap_err().to_string();
    assert!(error.contains("scaling_max_freq: `x` is not a number"), "{error}");
}

#[test]
fn cpus_whose_clock_is_limited_are_slow() {
    let tree = Tree::new("0-3", "0-3").write("node/online", "0-1");
    let tree = tree.node(0, "0-1", "10 20", 4096, 400).node(1, "2-3", "20 10", 4096, 400);
    let limited = |tree: Tree, (cpu, khz): (u32, &str)| {
        let at = format!("cpu/cpu{cpu}/cpufreq");
        tree.write(&format!("{at}/scaling_max_freq"), khz).write(&format!("{at}/cpuinfo_max_freq"), "4000000")
    };
    let tree = [(0, "4000000"), (1, "4000000"), (2, "2000000"), (3, "3900000")].into_iter().fold(tree, limited);
    let nodes = read_sysfs(tree.path()).unwrap().topology.nodes;
    assert!(nodes[NodeIndex(0)].slow_cpus.is_empty());
    assert_eq!(nodes[NodeIndex(1)].slow_cpus, [(CpuId(2), 512)].into());
}

#[test]
fn sparse_ids_and_memory_only_nodes_are_read() {
    let tree = Tree::new("0-3", "0-3")
        .write("node/online", "0,2,5")
        .node(0, "0-1", "10 15 20", 4096, 400)
        .node(2, "2-3", "15 10 25", 8192, 800)
        .node(5, "", "20 25 10", 16384, 1600);
    let machine = read_sysfs(tree.path()).unwrap();
    let nodes = &machine.topology.nodes;
    assert_eq!(nodes.values().map(|node| node.id.0).collect::<Vec<_>>(), [0, 2, 5]);
    assert_eq!(nodes[NodeIndex(1)].cpus, cpus(&[2, 3]));
    assert!(nodes[NodeIndex(2)].cpus.is_empty() && nodes[NodeIndex(2)].llcs.is_empty());
    assert_eq!((nodes[NodeIndex(2)].memory_pages, nodes[NodeIndex(2)].free_pages), (4096, 400));
    assert_eq!(machine.topology.distance(NodeIndex(1), NodeIndex(2)), 25);
    assert_eq!(machine.node_of_cpu[&CpuId(3)], NodeId(2));
}

#[test]
fn the_highest_cache_level_makes_the_llcs() {
    let mut tree = Tree::new("0-3", "0-3").write("node/online", "0").node(0, "0-3", "10", 4096, 400);
    for cpu in 0..4 {
        let pair = if cpu < 2 { "0-1" } else { "2-3" };
        // Not in order of level, as some firmware has it.
        tree = tree.cache(cpu, 0, 3, pair).cache(cpu, 1, 1, &cpu.to_string()).cache(cpu, 2, 2, &cpu.to_string());
    }
    let machine = read_sysfs(tree.path()).unwrap();
    assert_eq!(machine.topology.nodes[NodeIndex(0)].llcs, [cpus(&[0, 1]), cpus(&[2, 3])]);
    assert!(machine.assumed.is_empty());
}

#[test]
fn without_cache_description_a_node_is_one_llc_and_that_is_said() {
    let tree = Tree::new("0-3", "0-3").write("node/online", "0").node(0, "0-3", "10", 4096, 400);
    let machine = read_sysfs(tree.path()).unwrap();
    assert_eq!(machine.topology.nodes[NodeIndex(0)].llcs, [cpus(&[0, 1, 2, 3])]);
    assert_eq!(machine.assumed.len(), 1);
}

#[test]
fn a_private_second_level_is_no_llc() {
    let mut tree = Tree::new("0-3", "0-3").write("node/online", "0").node(0, "0-3", "10", 4096, 400);
    for cpu in 0..4 {
        let core = if cpu < 2 { "0-1" } else { "2-3" };
        tree = tree.cache(cpu, 0, 2, core).siblings(cpu, core);
    }
    let machine = read_sysfs(tree.path()).unwrap();
    assert_eq!(machine.topology.nodes[NodeIndex(0)].llcs, [cpus(&[0, 1, 2, 3])]);
}

#[test]
fn a_cache_across_nodes_is_one_llc_in_each() {
    let mut tree = Tree::new("0-3", "0-3")
        .write("node/online", "0-1")
        .node(0, "0-1", "10 12", 4096, 400)
        .node(1, "2-3", "12 10", 4096, 400);
    for cpu in 0..4 {
        tree = tree.cache(cpu, 0, 3, "0-3");
    }
    let machine = read_sysfs(tree.path()).unwrap();
    assert_eq!(machine.topology.nodes[NodeIndex(0)].llcs, [cpus(&[0, 1])]);
    assert_eq!(machine.topology.nodes[NodeIndex(1)].llcs, [cpus(&[2, 3])]);
}

#[test]
fn smt_siblings_are_cores_and_offline_cpus_are_left_out() {
    let tree = Tree::new("0-2", "0-3")
        .write("node/online", "0")
        .node(0, "0-3", "10", 4096, 400)
        .siblings(0, "0,2")
        .siblings(2, "0,2")
        .siblings(1, "1,3")
        .write("cpu/cpu3/node0/cpulist", "0-2");
    let machine = read_sysfs(tree.path()).unwrap();
    assert_eq!(machine.cores, [cpus(&[0, 2]), cpus(&[1])]);
    assert_eq!(machine.offline_cpus, cpus(&[3]));
    assert_eq!(machine.topology.nodes[NodeIndex(0)].cpus, cpus(&[0, 1, 2]));
    assert!(!machine.node_of_cpu.contains_key(&CpuId(3)));
    assert_eq!(machine.node_of_offline_cpu, [(CpuId(3), NodeId(0))].into());
}

#[test]
fn without_numa_the_machine_is_one_node_and_that_is_said() {
    let tree = Tree::new("0-1", "0-1");
    let machine = read_sysfs(tree.path()).unwrap();
    assert_eq!(machine.topology.len(), 1);
    assert_eq!(machine.topology.nodes[NodeIndex(0)].cpus, cpus(&[0, 1]));
    assert!(machine.assumed.iter().any(|sentence| sentence.contains("NUMA")));
}

#[test]
fn free_memory_is_refreshed_and_a_node_that_left_is_named() {
    let tree = Tree::new("0", "0").write("node/online", "0").node(0, "0", "10", 4096, 400);
    let mut topology = read_sysfs(tree.path()).unwrap().topology;
    let tree = tree.node(0, "0", "10", 4096, 1200);
    refresh_free_memory(&mut topology, Some(tree.path())).unwrap();
    assert_eq!(topology.nodes[NodeIndex(0)].free_pages, 300);
    fs::remove_dir_all(tree.path().join("node/node0")).unwrap();
    let said = refresh_free_memory(&mut topology, Some(tree.path())).unwrap_err().to_string();
    assert!(said.contains("node0/meminfo"), "{said}");
}

#[test]
fn damaged_files_are_named() {
    let tree =
        Tree::new("0", "0").write("node/online", "0").node(0, "0", "10", 4096, 400).write("node/node0/distance", "ten");
    let said = read_sysfs(tree.path()).unwrap_err().to_string();
    assert!(said.ends_with("node/node0/distance: `ten` is not a row of numbers"), "{said}");
    let tree = tree.write("node/node0/distance", "10 20");
    assert!(read_sysfs(tree.path()).unwrap_err().to_string().contains("2 entries"));
    let tree = tree.write("cpu/online", "3-1");
    assert!(read_sysfs(tree.path()).unwrap_err().to_string().contains("cpu/online: `3-1` is no CPU list"));
}

#[test]
fn the_machine_of_this_test_can_be_read() {
    let machine = read_running().unwrap();
    let cpus: usize = machine.topology.nodes.values().map(|node| node.cpus.len()).sum();
    assert_eq!(cpus, machine.node_of_cpu.len());
    assert_eq!(cpus, machine.cores.iter().map(Vec::len).sum::<usize>());
    assert!(machine.topology.nodes.values().map(|node| node.memory_pages).sum::<u64>() > 0);
}
