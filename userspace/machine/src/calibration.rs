// SPDX-License-Identifier: GPL-2.0-only
//! What was measured once on a machine (`tandem doctor --calibrate`), so that policies need not assume it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tandem_policies::model::{LatencySource, NodeId, NodeIndex, Topology};
use thiserror::Error;

/// Why a calibration cannot be used.
#[derive(Debug, Error)]
pub enum CalibrationError {
    /// It is no calibration.
    #[error("{}: {message}; `tandem doctor --calibrate FILE` writes one", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        message: String,
    },
    /// It was made on a machine with other nodes.
    #[error("the calibration is of a machine without node {0}: make one here with `tandem doctor --calibrate FILE`")]
    OtherNodes(NodeId),
    /// It was made on a machine with other CPUs.
    #[error(
        "the calibration is of a machine with CPUs {of}, these are {here}: make one here with `tandem doctor --calibrate FILE`"
    )]
    OtherCpus {
        /// The CPUs that were measured.
        of: String,
        /// The CPUs that are here.
        here: String,
    },
}

/// What was measured. Rows: nodes with the CPUs; columns: nodes with the memory; 0 where a node has none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The model of the CPUs, as `tandem doctor` calls it.
    pub cpu: String,
    /// The kernel's ids of the nodes, in the order of rows and columns.
    pub nodes: Vec<u32>,
    /// Latency of a load, in ns.
    pub latency_ns: Vec<Vec<f64>>,
    /// All CPUs of a node reading, in MB/s.
    pub bandwidth_mb_s: Vec<Vec<f64>>,
    /// Values of policies' parameters for this machine, by `POLICY.NAME`; they count where the policy is in use.
    pub parameters: BTreeMap<String, f64>,
}

impl Calibration {
    /// What the `text` of the file `path` says.
    ///
    /// # Errors
    /// [`CalibrationError::Syntax`] with the file and what is wrong with it.
    pub fn parse(path: &Path, text: &str) -> Result<Self, CalibrationError> {
        let syntax = |message: String| CalibrationError::Syntax { path: path.to_owned(), message };
        let calibration: Self = toml::from_str(text).map_err(|error| syntax(error.message().to_owned()))?;
        let nodes = calibration.nodes.len();
        for (key, rows) in [("latency_ns", &calibration.latency_ns), ("bandwidth_mb_s", &calibration.bandwidth_mb_s)] {
            if rows.len() != nodes || rows.iter().any(|row| row.len() != nodes) {
                return Err(syntax(format!("{key} has not {nodes} rows of {nodes} values, one for each of nodes")));
            }
            if !rows.iter().flatten().all(|value| value.is_finite() && *value >= 0.0) {
                return Err(syntax(format!("{key} has a value that is no number, or below 0")));
            }
        }
        Ok(calibration)
    }

    /// Puts the measured latencies into the machine that it was measured on, whose CPUs are of the model `cpu`. Nodes that are
    /// offline now may be missing there, and some may have come since: what is from or to those stays as it is. Returns them. Another
    /// machine with CPUs of this model and such nodes cannot be told from it.
    ///
    /// # Errors
    /// [`CalibrationError::OtherCpus`]; [`CalibrationError::OtherNodes`] if none of its nodes was measured.
    pub fn apply(&self, topology: &mut Topology, cpu: &str) -> Result<Vec<NodeId>, CalibrationError> {
        if self.cpu != cpu {
            return Err(CalibrationError::OtherCpus { of: self.cpu.clone(), here: cpu.to_owned() });
        }
        let unknown = self.unknown(topology);
        if let Some(&node) = unknown.first()
            && unknown.len() == topology.len()
        {
            return Err(CalibrationError::OtherNodes(node));
        }
        let positions: Vec<Option<usize>> = topology.nodes.values().map(|node| self.position(node.id)).collect();
        for (node, at) in topology.nodes.values_mut().zip(&positions) {
            let Some(row) = at.map(|at| &self.latency_ns[at]) else { continue };
            for (index, column) in positions.iter().enumerate() {
                if let Some(latency_ns) = column.map(|column| row[column]).filter(|&ns| ns > 0.0) {
                    node.latency_ns[NodeIndex(index)] = latency_ns;
                }
            }
        }
        topology.latency_source = LatencySource::Measured;
        Ok(unknown)
    }

    fn position(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|known| *known == node.0)
    }

    /// Nodes of `topology` that were not measured.
    fn unknown(&self, topology: &Topology) -> Vec<NodeId> {
        let nodes = topology.nodes.values().map(|node| node.id);
        nodes.filter(|&node| self.position(node).is_none()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MachineFile;

    const CPU: &str = "GenuineIntel-6-55-7";

    fn calibration() -> Calibration {
        Calibration {
            cpu: CPU.to_owned(),
            nodes: vec![0, 2, 5],
            latency_ns: vec![vec![80.0, 140.0, 200.0], vec![141.0, 81.0, 160.0], vec![0.0; 3]],
            bandwidth_mb_s: vec![vec![1e4; 3]; 3],
            parameters: [("sam.bandwidth_per_s".to_owned(), 1e8)].into(),
        }
    }

    fn written(text: &str) -> Result<Calibration, CalibrationError> {
        Calibration::parse(Path::new("calibration.toml"), text)
    }

    fn machine(nodes: &[u32]) -> Topology {
        let text = format!("name = \"m\"\nnodes = {}\nnode_ids = {nodes:?}\ncpus_per_node = 1\n", nodes.len());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        MachineFile::load(file.path()).unwrap().topology().unwrap()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = toml::to_string(&calibration()).unwrap();
        assert_eq!(written(&text).unwrap(), calibration());
    }

    #[test]
    fn a_wrong_file_is_refused_in_one_sentence_with_its_name() {
        let good = toml::to_string(&calibration()).unwrap();
        let cases = [
            (good.replace("nodes = [0, 2, 5]", "nodes = [0, 2]"), "latency_ns has not 2 rows"),
            (good.replace("140.0", "nan"), "latency_ns has a value that is no number"),
            (good.replace("140.0", "-1.0"), "latency_ns has a value"),
            (good.replace("latency_ns", "latencies"), "unknown field `latencies`"),
            ("nodes".to_owned(), "tandem doctor --calibrate"),
        ];
        for (text, expected) in cases {
            let error = written(&text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn measured_latencies_replace_those_of_distances_by_the_kernels_ids() {
        let mut topology = machine(&[0, 5]);
        let before = topology.nodes[NodeIndex(1)].latency_ns.clone();
        assert!(calibration().apply(&mut topology, CPU).unwrap().is_empty());
        let rows: Vec<Vec<f64>> =
            topology.nodes.values().map(|node| node.latency_ns.values().copied().collect()).collect();
        assert_eq!(rows[0], [80.0, 200.0], "node 2 is offline");
        assert_eq!(topology.nodes[NodeIndex(1)].latency_ns, before, "node 5 had no CPU to measure from");
        assert_eq!(topology.latency_source, LatencySource::Measured);
    }

    #[test]
    fn a_node_that_came_later_keeps_its_distances_and_is_named() {
        let mut topology = machine(&[0, 1, 2]);
        let before = topology.clone();
        let new = calibration().apply(&mut topology, CPU).unwrap();
        assert_eq!(new, [NodeId(1)]);
        let latency_ns = |topology: &Topology, from: usize| -> Vec<f64> {
            topology.nodes[NodeIndex(from)].latency_ns.values().copied().collect()
        };
        let to_new = latency_ns(&before, 0)[1];
        assert_eq!(latency_ns(&topology, 0), [80.0, to_new, 140.0]);
        assert_eq!(latency_ns(&topology, 1), latency_ns(&before, 1));
        assert_eq!(latency_ns(&topology, 2), [141.0, to_new, 81.0]);
    }

    #[test]
    fn another_machines_calibration_is_refused_by_its_nodes_or_its_cpus() {
        let mut other = machine(&[1, 3]);
        let error = calibration().apply(&mut other, CPU).unwrap_err().to_string();
        assert!(error.contains("without node 1") && other == machine(&[1, 3]), "{error}");
        let error = calibration().apply(&mut machine(&[0, 2]), "AuthenticAMD-25-1-1").unwrap_err().to_string();
        assert!(error.contains("CPUs GenuineIntel-6-55-7, these are AuthenticAMD-25-1-1"), "{error}");
    }
}
