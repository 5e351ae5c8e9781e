// SPDX-License-Identifier: GPL-2.0-only
//! What is said about moves, and how much: a plan may have thousands, and a plan that is not carried out is made again at each
//! interval.
//!
//! A bucket of lines: [`MOST`] at once, one more each [`EVERY_NS`].

use tandem_policies::model::{Action, Move, NodeIndex, Topology};
use tandem_view::Status;
use tracing::info;

/// Lines that may be said at once.
pub const MOST: u64 = 100;
/// Time that pays for a line.
pub const EVERY_NS: u64 = 500_000_000;

/// Lines that may be said.
#[derive(Debug)]
pub struct Talk {
    left: u64,
    /// Until when time has been turned into lines.
    paid_ns: u64,
}

impl Talk {
    /// The whole bucket.
    pub fn new(now_ns: u64) -> Self {
        Self { left: MOST, paid_ns: now_ns }
    }

    /// How many of `wanted` lines may be said now; they are taken from the bucket.
    pub fn take(&mut self, now_ns: u64, wanted: usize) -> usize {
        let earned = now_ns.saturating_sub(self.paid_ns) / EVERY_NS;
        self.paid_ns += earned * EVERY_NS;
        self.left = (self.left + earned).min(MOST);
        let taken = self.left.min(wanted as u64);
        self.left -= taken;
        taken as usize
    }
}

/// Says a move: in words for people, in fields for programs (nodes as the kernel numbers them).
pub fn tell(planned: &Move, topology: &Topology, dry_run: bool) {
    let facts = Facts::of(&planned.action);
    let id = |node: Option<NodeIndex>| node.and_then(|node| topology.nodes.get(node)).map(|node| node.id.0);
    let would = if dry_run { "would: " } else { "" };
    info!(
        event = "move",
        dry_run,
        thread = facts.thread,
        other_thread = facts.other_thread,
        process = facts.process,
        address = facts.address,
        bytes = facts.bytes,
        from_node = id(facts.from),
        to_node = id(facts.to),
        gain_ns_per_s = planned.gain_ns_per_s,
        reason = planned.reason.as_str(),
        "{would}{}",
        planned.in_words(topology)
    );
}

/// Says where the agent stands, likewise.
pub fn tell_statistics(status: &Status) {
    let activity = &status.activity;
    info!(
        event = "stats",
        local_share = status.local_share.0,
        latency_ns = status.latency_ns.0,
        assigned_threads = activity.assigned_threads,
        thread_moves = activity.thread_moves,
        moved_pages = activity.moved_pages,
        queued_groups = activity.queued_groups,
        plans = activity.plans,
        undone_plans = activity.undone_plans,
        agent_cpu_percent = status.agent.cpu_percent,
        agent_peak_resident_bytes = status.agent.peak_resident_bytes.0,
        "{}",
        tandem_view::line(status)
    );
}

/// What a move is about; empty where it has no such thing.
#[derive(Debug, Default, PartialEq)]
struct Facts {
    thread: Option<u32>,
    /// That changes places with the first.
    other_thread: Option<u32>,
    process: Option<u32>,
    address: Option<u64>,
    bytes: Option<u64>,
    from: Option<NodeIndex>,
    to: Option<NodeIndex>,
}

impl Facts {
    fn of(action: &Action) -> Self {
        match *action {
            Action::MoveThread { thread, from, to, .. } => {
                Self { thread: Some(thread.tid), from: Some(from), to: Some(to), ..Self::default() }
            }
            Action::Interchange { first, second, first_node, second_node } => Self {
                thread: Some(first.tid),
                other_thread: Some(second.tid),
                from: Some(first_node),
                to: Some(second_node),
                ..Self::default()
            },
            Action::MovePages { group, bytes, to } => Self {
                process: Some(group.process.0),
                address: Some(group.start),
                bytes: Some(bytes),
                to: Some(to),
                ..Self::default()
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{GroupId, ProcessId, ThreadId};

    use super::*;

    #[test]
    fn a_program_learns_of_every_move_what_goes_from_where_to_where() {
        let thread = |tid: u32| ThreadId { tid, start_boottime_ns: 1 };
        let nodes = |facts: Facts| (facts.from.map(|node| node.0), facts.to.map(|node| node.0));
        let moved = Action::MoveThread { thread: thread(7), from: NodeIndex(0), to: NodeIndex(2), cpu: None };
        assert_eq!(Facts::of(&moved).thread, Some(7));
        assert_eq!(nodes(Facts::of(&moved)), (Some(0), Some(2)));
        let (first_node, second_node) = (NodeIndex(1), NodeIndex(3));
        let changed = Action::Interchange { first: thread(7), second: thread(8), first_node, second_node };
        assert_eq!((Facts::of(&changed).thread, Facts::of(&changed).other_thread), (Some(7), Some(8)));
        assert_eq!(nodes(Facts::of(&changed)), (Some(1), Some(3)));
        let group = GroupId { process: ProcessId(9), start: 0x1000 };
        let pages = Facts::of(&Action::MovePages { group, bytes: 8192, to: NodeIndex(1) });
        assert_eq!((pages.process, pages.address, pages.bytes), (Some(9), Some(0x1000), Some(8192)));
        assert_eq!((pages.thread, nodes(pages)), (None, (None, Some(1))));
    }

    #[test]
    fn a_small_plan_is_told_whole_and_a_large_one_up_to_the_bucket() {
        let mut talk = Talk::new(7);
        assert_eq!((talk.take(7, 3), talk.take(7, 10_000), talk.take(7, 1)), (3, 97, 0));
    }

    #[test]
    fn time_fills_the_bucket_up_to_its_rim() {
        let mut talk = Talk::new(0);
        talk.take(0, 1000);
        // What is not a whole line yet counts for the next one.
        assert_eq!((talk.take(EVERY_NS * 3 / 2, 9), talk.take(EVERY_NS * 2, 9)), (1, 1));
        assert_eq!(talk.take(EVERY_NS * 1_000_000, 1000), MOST as usize);
    }
}
