// SPDX-License-Identifier: GPL-2.0-only
//! Machines for all tests.

use tandem_machine::MachineFile;
use tandem_policies::model::Topology;

/// A machine of equal nodes, all equally far from each other.
pub fn machine(nodes: usize, cpus: usize) -> Topology {
    let row =
        |node: usize| (0..nodes).map(|other| if other == node { "10" } else { "20" }).collect::<Vec<_>>().join(",");
    let rows: Vec<String> = (0..nodes).map(|node| format!("[{}]", row(node))).collect();
    let text = format!(
        "name = \"m\"\nnodes = {nodes}\ncpus_per_node = {cpus}\nmemory_mb = 1024\ndistance = [{}]\n",
        rows.join(",")
    );
    MachineFile::parse(&text, "m.toml".as_ref()).unwrap().topology().unwrap()
}

/// A machine of the lab.
pub fn lab_machine(name: &str) -> Topology {
    let path = format!("{}/../../vm/machines/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    MachineFile::load(path).unwrap().topology().unwrap()
}
