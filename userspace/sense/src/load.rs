// SPDX-License-Identifier: GPL-2.0-only
//! CPU time used on each node by everybody, from /proc/stat.

use tandem_policies::model::{PerNode, Topology};

/// Busy time of each node since the last reading.
pub struct NodeBusy {
    last_ns: Option<PerNode<u64>>,
    ns_per_tick: u64,
}

impl NodeBusy {
    /// Nothing read so far.
    pub fn new() -> Self {
        // SAFETY: no pointers.
        let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Self { last_ns: None, ns_per_tick: 1_000_000_000 / ticks_per_s.max(1) as u64 }
    }

    /// Busy time by node since the last call; `None` the first time, or when /proc/stat cannot be read.
    pub fn read(&mut self, topology: &Topology) -> Option<PerNode<u64>> {
        let text = match std::fs::read_to_string("/proc/stat") {
            Ok(text) => text,
            Err(error) => {
                tracing::debug!(%error, "/proc/stat cannot be read");
                return None;
            }
        };
        let total_ns = busy_ns(&text, topology, self.ns_per_tick);
        let last_ns = self.last_ns.replace(total_ns.clone())?;
        // A CPU that went offline takes its past along.
        (last_ns.len() == total_ns.len())
            .then(|| PerNode::from_fn(total_ns.len(), |node| total_ns[node].saturating_sub(last_ns[node])))
    }
}

/// user, nice, system, irq, softirq and steal of each node's CPUs, in a text such as /proc/stat.
fn busy_ns(stat: &str, topology: &Topology, ns_per_tick: u64) -> PerNode<u64> {
    let mut busy = PerNode::filled(topology.len(), 0);
    for line in stat.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(cpu) = words.next().and_then(|word| word.strip_prefix("cpu")?.parse::<u32>().ok()) else { continue };
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        let used: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|&at| ticks.get(at)).sum();
        if let Some((node, _)) = topology.nodes.iter().find(|(_, node)| node.cpus.iter().any(|of| of.0 == cpu)) {
            busy[node] += used * ns_per_tick;
        }
    }
    busy
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::topology;

    #[test]
    fn busy_time_goes_to_the_node_of_the_cpu() {
        let stat = "cpu 9 9 9 9\ncpu0 1 2 3 100 50 4 5 6 0 0\ncpu1 10 0 0 7 7 0 0 0 0 0\nintr 5\n";
        assert_eq!(busy_ns(stat, &topology(2), 10), vec![210, 100].into());
    }
}
