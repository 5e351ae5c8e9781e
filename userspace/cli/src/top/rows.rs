// SPDX-License-Identifier: GPL-2.0-only
//! The rows of the table: processes, threads, or threads below their processes; filtered and sorted.

use std::cmp::Ordering;

use tandem_view::{Maybe, NodeView, ProcessView, Status, ThreadView};

/// What the rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    Threads,
    Processes,
    Tree,
}

/// What they are sorted by; the most interesting comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Most CPU time first.
    Load,
    /// Least local first; unknown last.
    Local,
    /// Lowest node first.
    Node,
    /// Last moved first.
    Moved,
    /// Alphabetically.
    Command,
    /// Lowest first.
    Id,
}

impl Arrangement {
    pub fn next(self) -> Self {
        match self {
            Self::Threads => Self::Processes,
            Self::Processes => Self::Tree,
            Self::Tree => Self::Threads,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Processes => "processes",
            Self::Tree => "tree",
        }
    }
}

impl Order {
    pub fn next(self) -> Self {
        match self {
            Self::Load => Self::Local,
            Self::Local => Self::Node,
            Self::Node => Self::Moved,
            Self::Moved => Self::Command,
            Self::Command => Self::Id,
            Self::Id => Self::Load,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Local => "local",
            Self::Node => "node",
            Self::Moved => "moved",
            Self::Command => "command",
            Self::Id => "id",
        }
    }
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub pid: u64,
    /// `None` for a process.
    pub tid: Option<u64>,
    /// Below its process.
    pub indented: bool,
    /// Its node; of a process the busy threads by node, as far as they fit.
    pub node: String,
    pub preferred: String,
    pub load_cpus: f64,
    pub local_share: Maybe<f64>,
    /// Sharing group and its size.
    pub group: String,
    /// Seconds since its last move.
    pub moved_s: Option<f64>,
    pub command: String,
    pub why: String,
    sort_node: u64,
}

/// The rows to show.
pub fn rows(status: &Status, arrangement: Arrangement, order: Order, reversed: bool, filter: &str) -> Vec<Row> {
    let sorted = |mut rows: Vec<Row>| {
        rows.sort_by(|one, other| {
            let by = compare(one, other, order).then_with(|| (one.pid, one.tid).cmp(&(other.pid, other.tid)));
            if reversed { by.reverse() } else { by }
        });
        rows
    };
    let threads = || status.threads.iter().map(|thread| of_thread(status, thread));
    let processes = || status.processes.iter().map(|process| of_process(status, process));
    let is_shown = |row: &Row| matches(row, filter);
    match arrangement {
        Arrangement::Threads => sorted(threads().filter(is_shown).collect()),
        Arrangement::Processes => sorted(processes().filter(is_shown).collect()),
        Arrangement::Tree => {
            let mut shown = Vec::new();
            for process in sorted(processes().collect()) {
                let whole = is_shown(&process);
                let below = threads().filter(|thread| thread.pid == process.pid && (whole || is_shown(thread)));
                let below: Vec<Row> = below.map(|thread| Row { indented: true, ..thread }).collect();
                if whole || !below.is_empty() {
                    shown.push(process);
                    shown.extend(sorted(below));
                }
            }
            shown
        }
    }
}

fn matches(row: &Row, filter: &str) -> bool {
    let id = row.tid.unwrap_or(row.pid);
    filter.is_empty()
        || row.command.to_lowercase().contains(&filter.to_lowercase())
        || id.to_string() == filter
        || row.pid.to_string() == filter
        || filter.strip_prefix('n').is_some_and(|node| row.tid.is_some() && row.node == node)
}

fn compare(one: &Row, other: &Row, order: Order) -> Ordering {
    let least_first = |one: Option<f64>, other: Option<f64>| match (one, other) {
        (Some(one), Some(other)) => one.total_cmp(&other),
        (one, other) => other.is_some().cmp(&one.is_some()),
    };
    match order {
        Order::Load => other.load_cpus.total_cmp(&one.load_cpus),
        Order::Local => least_first(one.local_share.0, other.local_share.0),
        Order::Node => one.sort_node.cmp(&other.sort_node),
        Order::Moved => least_first(one.moved_s, other.moved_s),
        Order::Command => one.command.cmp(&other.command),
        Order::Id => Ordering::Equal,
    }
}

fn since(status: &Status, time_ns: u64) -> f64 {
    status.time_ns.saturating_sub(time_ns) as f64 / 1e9
}

fn of_thread(status: &Status, thread: &ThreadView) -> Row {
    Row {
        pid: thread.pid,
        tid: Some(thread.tid),
        indented: false,
        node: thread.node.to_string(),
        preferred: thread.preferred_node.0.map_or_else(|| "-".to_owned(), |node| node.to_string()),
        load_cpus: thread.load_cpus,
        local_share: thread.local_share,
        group: thread.group.0.map_or_else(String::new, |group| format!("{group}({})", thread.group_threads)),
        moved_s: thread.moved_at_ns.0.map(|time_ns| since(status, time_ns)),
        command: thread.command.clone(),
        why: thread.moved_why.clone(),
        sort_node: thread.node,
    }
}

fn of_process(status: &Status, process: &ProcessView) -> Row {
    let own = |time: &&ThreadView| time.pid == process.pid;
    let moved_ns = status.threads.iter().filter(own).filter_map(|thread| thread.moved_at_ns.0).max();
    let most = process.busy_threads.iter().max().copied().unwrap_or(0);
    let busiest = process.busy_threads.iter().position(|&threads| threads == most && most > 0);
    let holder = process.known_mib.iter().enumerate().max_by_key(|&(at, &mib)| (mib, std::cmp::Reverse(at)));
    let id = |at: usize| status.nodes.get(at).map_or(0, |node: &NodeView| node.id);
    Row {
        pid: process.pid,
        tid: None,
        indented: false,
        node: process.busy_threads.iter().map(u64::to_string).collect::<Vec<_>>().join("/"),
        preferred: match holder {
            Some((at, &mib)) if mib > 0 => id(at).to_string(),
            _ => "-".to_owned(),
        },
        load_cpus: process.load_cpus,
        local_share: process.local_share,
        group: format!("{} thr", process.threads),
        moved_s: moved_ns.map(|time_ns| since(status, time_ns)),
        command: process.command.clone(),
        why: String::new(),
        sort_node: busiest.map_or(u64::MAX, id),
    }
}

#[cfg(test)]
mod tests {
    use super::super::screen::tests::status;
    use super::*;

    fn ids(arrangement: Arrangement, order: Order, filter: &str) -> Vec<u64> {
        let rows = rows(&status(), arrangement, order, false, filter);
        rows.iter().map(|row| row.tid.unwrap_or(row.pid)).collect()
    }

    #[test]
    fn rows_are_sorted_by_what_is_asked_for() {
        assert_eq!(ids(Arrangement::Threads, Order::Load, ""), [101, 201, 100, 202]);
        assert_eq!(ids(Arrangement::Threads, Order::Local, ""), [101, 100, 201, 202], "unknown last");
        assert_eq!(ids(Arrangement::Threads, Order::Node, ""), [100, 201, 101, 202]);
        assert_eq!(ids(Arrangement::Threads, Order::Moved, "")[0], 101);
        assert_eq!(ids(Arrangement::Threads, Order::Id, ""), [100, 101, 201, 202]);
        let reversed = rows(&status(), Arrangement::Threads, Order::Id, true, "");
        assert_eq!(reversed[0].tid, Some(202));
    }

    #[test]
    fn a_filter_matches_commands_ids_and_nodes() {
        assert_eq!(ids(Arrangement::Threads, Order::Id, "DB"), [100, 101]);
        assert_eq!(ids(Arrangement::Threads, Order::Id, "201"), [201]);
        assert_eq!(ids(Arrangement::Threads, Order::Id, "100"), [100, 101], "a process with its threads");
        assert_eq!(ids(Arrangement::Threads, Order::Id, "n1"), [101, 202]);
        assert!(ids(Arrangement::Threads, Order::Id, "nobody").is_empty());
    }

    #[test]
    fn a_tree_has_threads_below_their_process() {
        assert_eq!(ids(Arrangement::Tree, Order::Id, ""), [100, 100, 101, 200, 201, 202]);
        let found = rows(&status(), Arrangement::Tree, Order::Id, false, "n1");
        let shape: Vec<_> = found.iter().map(|row| (row.tid, row.indented)).collect();
        assert_eq!(shape, [(None, false), (Some(101), true), (None, false), (Some(202), true)]);
    }

    #[test]
    fn a_process_shows_its_busy_threads_by_node_and_where_its_memory_is() {
        let rows = rows(&status(), Arrangement::Processes, Order::Id, false, "");
        assert_eq!((rows[0].node.as_str(), rows[0].preferred.as_str()), ("1/1", "0"));
    }
}
