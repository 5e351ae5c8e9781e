// SPDX-License-Identifier: GPL-2.0-only
//! The state in the text format of Prometheus (version 0.0.4). What is unknown is left out.

use std::fmt::Write as _;

use crate::{NodeView, Status};

const MIB: f64 = (1_u64 << 20) as f64;

/// One family of metrics.
struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl<'a> Family<'a> {
    fn new(text: &'a mut String, kind: &str, name: &'static str, help: &str) -> Self {
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("a String takes all");
        Self { text, name }
    }

    fn value(&mut self, labels: &str, value: Option<f64>) {
        if let Some(value) = value {
            writeln!(self.text, "{}{labels} {value}", self.name).expect("a String takes all");
        }
    }
}

/// All metrics of a state.
pub fn prometheus(status: &Status) -> String {
    let mut text = String::new();
    let info = [
        ("version", &status.version),
        ("mode", &status.mode),
        ("thread_policy", &status.thread_policy),
        ("page_policy", &status.page_policy),
        ("sampler", &status.sampler.name),
        ("access_rates", &status.sampler.rates),
    ];
    let labels: Vec<String> = info.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    Family::new(&mut text, "gauge", "tandem_info", "What runs.").value(&format!("{{{}}}", labels.join(",")), Some(1.0));
    let (sampler, activity) = (&status.sampler, &status.activity);
    let mut gauge = |name, help, value| Family::new(&mut text, "gauge", name, help).value("", value);
    gauge("tandem_local_share", "Share of sampled accesses that go to the own node's memory.", status.local_share.0);
    let latency_s = status.latency_ns.0.map(|ns| ns / 1e9);
    gauge("tandem_access_latency_seconds", "Estimated mean latency of an access.", latency_s);
    gauge("tandem_busy_threads", "Managed threads that used a CPU.", Some(sampler.busy_threads as f64));
    gauge("tandem_covered_threads", "Those of them with a signal.", Some(sampler.covered_threads as f64));
    gauge("tandem_assigned_threads", "Threads that are assigned to a node.", Some(activity.assigned_threads as f64));
    gauge("tandem_sampler_cpus", "CPUs used by sampling.", Some(sampler.used_percent / 100.0));
    gauge("tandem_queued_groups", "Page groups that wait to be moved.", Some(activity.queued_groups as f64));
    let peak = status.agent.peak_resident_bytes.0.map(|bytes| bytes as f64);
    gauge("tandem_agent_peak_resident_bytes", "Most memory of scx_tandem that was ever resident.", peak);
    gauge(
        "tandem_plans_realised_ratio",
        "Of the latency that the last judged plans should save, the share that they did.",
        activity.realised_share.0,
    );
    Family::new(&mut text, "counter", "tandem_agent_cpu_seconds_total", "CPU time of all of scx_tandem.")
        .value("", Some(status.agent.cpu_ns as f64 / 1e9));
    let mut counter =
        |name, help, value: u64| Family::new(&mut text, "counter", name, help).value("", Some(value as f64));
    counter("tandem_thread_moves_total", "Threads sent to another node.", activity.thread_moves);
    counter("tandem_moved_pages_total", "Pages moved.", activity.moved_pages);
    counter("tandem_plans_total", "Plans carried out.", activity.plans);
    counter(
        "tandem_undone_plans_total",
        "Plans undone, or something of which was, because they did not pay.",
        activity.undone_plans,
    );
    counter(
        "tandem_pressure_pauses_total",
        "Times that page moves waited for memory pressure to end.",
        activity.pressure_pauses,
    );
    counter(
        "tandem_lost_leases_total",
        "Times that leases ran out because scx_tandem stood still, and the plan under way was given up.",
        activity.lost_leases,
    );
    nodes(&mut text, &status.nodes);
    text
}

fn nodes(text: &mut String, nodes: &[NodeView]) {
    let mut by_node = |name, help, value: fn(&NodeView) -> Option<f64>| {
        let mut family = Family::new(text, "gauge", name, help);
        for node in nodes {
            family.value(&format!("{{node=\"{}\"}}", node.id), value(node));
        }
    };
    by_node("tandem_node_load_cpus", "CPUs used by all tasks.", |node| Some(node.load_cpus));
    by_node("tandem_node_unmanaged_cpus", "CPUs used by tasks that are not managed.", |node| Some(node.unmanaged_cpus));
    by_node("tandem_node_busy_threads", "Managed busy threads placed here.", |node| Some(node.busy_threads as f64));
    by_node("tandem_node_free_bytes", "Free memory.", |node| Some(node.free_mib as f64 * MIB));
    by_node("tandem_node_known_bytes", "Known resident memory of managed processes.", |node| {
        Some(node.known_mib as f64 * MIB)
    });
    by_node("tandem_node_local_share", "Share of its threads' accesses that stay here.", |node| node.local_share.0);
    by_node("tandem_node_accesses_per_second", "Accesses to this node's memory by managed threads.", |node| {
        node.accesses_per_s.0
    });
}

/// A label's value as the format has it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Maybe, SamplerView};

    const DASHBOARD: &str = include_str!("../../../packaging/grafana-dashboard.json");

    /// Names of metrics in a text: words that begin as ours do.
    fn names(text: &str) -> BTreeSet<String> {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        words.filter(|word| word.starts_with("tandem_")).map(str::to_owned).collect()
    }

    /// All texts below `key` anywhere in a document.
    fn texts(value: &serde_json::Value, key: &str, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(members) => members.iter().for_each(|(name, member)| match member.as_str() {
                Some(text) if name == key => found.push(text.to_owned()),
                _ => texts(member, key, found),
            }),
            serde_json::Value::Array(members) => members.iter().for_each(|member| texts(member, key, found)),
            _ => {}
        }
    }

    #[test]
    fn the_dashboard_shows_every_metric_and_no_other() {
        let offered: BTreeSet<String> = prometheus(&Status::default())
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next().map(str::to_owned))
            .collect();
        let mut queries = Vec::new();
        let dashboard = serde_json::from_str(DASHBOARD).expect("the dashboard is JSON");
        texts(&dashboard, "expr", &mut queries);
        assert_eq!(names(&queries.join("\n")), offered);
        texts(&dashboard, "query", &mut queries);
        assert!(names(&queries.join("\n")).is_subset(&offered), "also where machines are chosen: {queries:?}");
    }

    #[test]
    fn every_family_is_described_once_and_unknown_values_are_left_out() {
        let node = |id, share| NodeView { id, free_mib: 2, local_share: Maybe(share), ..NodeView::default() };
        let status = Status {
            version: "1\"".to_owned(),
            local_share: Maybe(Some(0.5)),
            nodes: vec![node(0, Some(0.25)), node(5, None)],
            sampler: SamplerView { rates: "inferred".to_owned(), ..SamplerView::default() },
            ..Status::default()
        };
        let text = prometheus(&status);
        for line in [
            "tandem_local_share 0.5",
            "tandem_node_local_share{node=\"0\"} 0.25",
            "tandem_node_free_bytes{node=\"5\"} 2097152",
            "# TYPE tandem_moved_pages_total counter",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(text.contains("tandem_info{version=\"1\\\"\","), "{text}");
        assert!(text.contains(",access_rates=\"inferred\"} 1"), "{text}");
        for unknown in ["tandem_node_local_share{node=\"5\"}", "tandem_access_latency_seconds "] {
            assert!(!text.lines().any(|line| line.starts_with(unknown)), "{unknown} in {text}");
        }
        let types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let different: std::collections::BTreeSet<_> = types.iter().collect();
        assert_eq!(types.len(), different.len());
    }
}
