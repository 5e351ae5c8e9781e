// SPDX-License-Identifier: GPL-2.0-only
//! Why a thread is where it is, in sentences. Nothing is said that the state does not show.

use tandem_policies::model::AccessRates;

use crate::survey::mib;
use crate::{Maybe, PlanView, ProcessView, Status, ThreadView, percent};

/// From this share on a thread's memory counts as local.
const MOSTLY: f64 = 0.5;

impl Status {
    /// The plan that something was moved for, or taken back from, as far as it is still known.
    pub fn plan_of(&self, generation: Maybe<u64>) -> Option<&PlanView> {
        self.plans.iter().find(|plan| generation == Maybe(Some(plan.generation)))
    }

    /// Sentences about a managed thread: where it is, why, what was moved, and what that brought.
    pub fn explain(&self, thread: &ThreadView) -> Vec<String> {
        let mut said = vec![self.where_it_is(thread)];
        said.extend(self.why_there(thread));
        said.extend(assignment(thread));
        said.extend(self.group_of(thread));
        match thread.moved_at_ns.0 {
            Some(time_ns) => said.extend(self.last_move(thread, time_ns)),
            None => said.push(self.no_move()),
        }
        said
    }

    /// A sentence about accesses per second, if they are no more than estimates.
    pub fn explain_rates(&self) -> Option<&'static str> {
        (self.sampler.rates == AccessRates::Inferred.name()).then_some(
            "How often memory is accessed is inferred from samples, not measured; shares and preferred nodes are not.",
        )
    }

    /// Sentences about the memory of a managed process.
    pub fn explain_memory(&self, process: &ProcessView) -> Vec<String> {
        let mut said = vec![self.known_memory(process)];
        said.extend(staying(process));
        let (pages, returned) = (process.moved_pages, process.returned_pages);
        if pages + returned > 0 {
            let back = if returned > 0 { format!(", and {returned} back") } else { String::new() };
            said.push(format!("Of it {pages} pages were moved since it is managed{back}."));
        }
        // The last moves may be of a program that had this process before.
        let mut moves = self.moves.iter().filter(|one| one.pages > 0 && one.pid == Maybe(Some(process.pid)));
        if let Some(last) = moves.next_back().filter(|_| pages + returned > 0) {
            let (ago, to, reason) = (self.ago(last.time_ns), last.to, sentence(&last.reason));
            said.push(format!("The last ones went {ago} to node {to}: {reason}"));
            said.extend(self.plan_of(last.generation).map(plan_in_words));
        }
        said
    }

    fn known_memory(&self, process: &ProcessView) -> String {
        let by_node = self.nodes.iter().zip(&process.known_mib).filter(|&(_, &mib)| mib > 0);
        let by_node: Vec<String> = by_node.map(|(node, mib)| format!("{mib} MiB on node {}", node.id)).collect();
        // Each node's part is rounded down.
        let known_mib = mib(process.known_pages).max(process.known_mib.iter().sum());
        match known_mib {
            0 if process.known_pages == 0 => {
                "No memory of it is known yet: none of its accesses was sampled.".to_owned()
            }
            0 => "Of its memory less than 1 MiB is known by samples.".to_owned(),
            _ if by_node.is_empty() => {
                format!("Of its memory {known_mib} MiB are known by samples, less than 1 MiB on each node.")
            }
            _ => format!("Of its memory {known_mib} MiB are known by samples: {}.", by_node.join(", ")),
        }
    }

    fn where_it_is(&self, thread: &ThreadView) -> String {
        let (tid, command, pid, node) = (thread.tid, &thread.command, thread.pid, thread.node);
        let placed = format!(
            "Thread {tid} ({command}) of process {pid} is on node {node} and uses {:.2} CPUs",
            thread.load_cpus
        );
        match thread.local_share.0 {
            Some(_) => format!("{placed}; {} of its accesses are local.", percent(thread.local_share)),
            None => format!("{placed}; what it accesses is not known yet, since too few of its accesses were sampled."),
        }
    }

    fn why_there(&self, thread: &ThreadView) -> Option<String> {
        let (Some(preferred), here) = (thread.preferred_node.0, thread.node) else {
            let node = thread.node;
            return match (thread.assigned_to.0, thread.moved_at_ns.0) {
                (None, _) => Some(format!("Without that the scheduler keeps it on node {node}, where it ran most.")),
                (_, None) => Some("Without that no plan has it go anywhere.".to_owned()),
                _ => None,
            };
        };
        if preferred == here {
            let share = thread.local_share.0.unwrap_or_default();
            let much = if share >= MOSTLY { "most" } else { "more than any other node" };
            return Some(format!("Node {here} holds {much} of what it uses, so it is beside its memory."));
        }
        let at = |id| self.nodes.iter().position(|node| node.id == id);
        let all: f64 = thread.accesses_per_s.iter().sum();
        let share = at(preferred).and_then(|at| thread.accesses_per_s.get(at)).map(|there| there / all);
        let remote = format!("It uses memory of node {preferred} most ({} of its accesses)", percent(Maybe(share)));
        let node = at(preferred).map(|at| &self.nodes[at]);
        let because = match node {
            _ if !thread.allowed_nodes.contains(&preferred) => {
                "its affinity or cpuset forbids it to run there".to_owned()
            }
            Some(node) if node.cpus == 0 => "that node has no CPU".to_owned(),
            _ if thread.on_cooldown > 0 => "it was moved so recently that it may not be moved again yet".to_owned(),
            _ if thread.load_cpus < 0.01 => "it hardly runs, so that moving it would bring nothing".to_owned(),
            _ if !thread.stays_because.is_empty() => {
                format!("by the count of {} {}", self.thread_policy, thread.stays_because)
            }
            Some(node) if node.busy_threads >= node.cpus => {
                let (busy, cpus) = (node.busy_threads, node.cpus);
                format!("{}; that node has {busy} busy threads for its {cpus} CPUs", self.has_no_move())
            }
            _ => self.has_no_move(),
        };
        Some(format!("{remote}, but {because}."))
    }

    /// That no policy has it moved, of which nothing else is known.
    fn has_no_move(&self) -> String {
        let (of_threads, of_pages) = (&self.thread_policy, &self.page_policy);
        match of_threads == of_pages {
            true => format!("{of_threads} has no move for it now that is worth a trial"),
            false => format!("neither {of_threads} nor {of_pages} has a move for it now that is worth a trial"),
        }
    }

    fn group_of(&self, thread: &ThreadView) -> Option<String> {
        let group = thread.group.0?;
        let others =
            || self.threads.iter().filter(|other| other.group == Maybe(Some(group)) && other.tid != thread.tid);
        let beside = others().filter(|other| other.node == thread.node).count();
        Some(match others().count() {
            1 if beside == 1 => "It shares memory with one other thread, which is on the same node.".to_owned(),
            1 => "It shares memory with one other thread, which is on another node.".to_owned(),
            count => format!("It shares memory with {count} other threads, {beside} of which are on the same node."),
        })
    }

    fn last_move(&self, thread: &ThreadView, time_ns: u64) -> Vec<String> {
        let from = thread.moved_from.0.map_or(String::new(), |from| format!(" from node {from}"));
        let to = thread.moved_to.0.unwrap_or(thread.node);
        let (ago, why) = (self.ago(time_ns), sentence(&thread.moved_why));
        let mut said = vec![format!("It was moved {ago}{from} to node {to}: {why}")];
        said.extend(self.plan_of(thread.moved_generation).map(plan_in_words));
        said
    }

    /// An agent remembers its own moves, and not all of them.
    fn no_move(&self) -> String {
        format!("The agent, which began {}, remembers no move of it.", self.ago(self.loaded_at_ns))
    }

    fn ago(&self, time_ns: u64) -> String {
        format!("{:.0} s ago", self.time_ns.saturating_sub(time_ns) as f64 / 1e9)
    }
}

/// What keeps a thread where it is if the agent does.
fn assignment(thread: &ThreadView) -> Option<String> {
    let (to, node) = (thread.assigned_to.0?, thread.node);
    Some(match thread.moved_to == Maybe(Some(to)) {
        _ if to != node => format!("It is assigned to node {to}, and on its way there."),
        true => format!("An assignment keeps it on node {node}, since it was moved there."),
        false => format!("An assignment keeps it on node {node}, so that what a plan counted on lasts."),
    })
}

/// What of a process's memory may not be moved, and why.
fn staying(process: &ProcessView) -> Option<String> {
    let all = [
        (process.shared_mib, "that other processes map too"),
        (
            process.pinned_mib,
            "that are locked, pinned or in use each time, or of a kind that the kernel does not migrate",
        ),
        (
            process.bound_mib,
            "that the process binds to nodes itself, or which the kernel refuses to move to other nodes",
        ),
        (process.hugetlb_mib, "in huge pages of hugetlbfs"),
        (process.resting_mib, "that were moved, or moved back, so recently that they rest"),
        (process.waiting_mib, "until the machine is not short of memory any more"),
        (process.contested_mib, "that something else moves too: they rest ever longer"),
    ];
    let some: Vec<String> =
        all.iter().filter(|one| one.0 > 0).map(|(mib, which)| format!("{mib} MiB {which}")).collect();
    (!some.is_empty()).then(|| format!("Of them stay: {}.", some.join("; ")))
}

/// What a plan promised and what was measured.
fn plan_in_words(plan: &PlanView) -> String {
    let predicted = match plan.predicted_gain_ns_per_s.0 {
        Some(ns) => format!("should save {:.3} s of stall per second", ns / 1e9),
        None => "did not say what it would save".to_owned(),
    };
    let saved = match plan.measured_gain_ns_per_s.0 {
        Some(ns) if ns >= 0.0 => format!(" and saved {:.3} s", ns / 1e9),
        Some(ns) => format!(" and cost {:.3} s more", -ns / 1e9),
        None => String::new(),
    };
    let many = if plan.moves == 1 { "1 move".to_owned() } else { format!("{} moves", plan.moves) };
    let measured = match (plan.verdict.as_str(), plan.before_ns.0, plan.after_ns.0) {
        ("trial", ..) => "it is still on trial".to_owned(),
        ("superseded", ..) => format!("what it brought could not be measured: {}", plan.superseded_because),
        (verdict, Some(before), Some(after)) => {
            let change = (after - before) / before * 100.0;
            let expected = plan.expected_ns.0.map_or(String::new(), |ns| format!(", where {ns:.0} ns were expected"));
            let remote = remote_in_words(plan);
            let without =
                plan.without_ns.0.map_or(String::new(), |ns| format!(", and would take {ns:.0} ns without it"));
            format!(
                "an access took {before:.0} ns before and {after:.0} ns after ({change:+.0} %){expected}{without}{remote}, and it was {verdict}"
            )
        }
        (verdict, ..) => format!("what it brought could not be measured, and it was {verdict}"),
    };
    let pids = plan.undone_of.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let alone = match pids.as_str() {
        "" => String::new(),
        pids => format!(" Of these processes it was taken back alone, as it slowed them down: {pids}."),
    };
    format!("That plan ({many}) {predicted}{saved}; {measured}.{alone}")
}

/// What share of accesses went to other nodes, as far as that is known.
fn remote_in_words(plan: &PlanView) -> String {
    let (Some(_), Some(_)) = (plan.remote_before.0, plan.remote_after.0) else { return String::new() };
    let expected =
        plan.remote_expected.0.map_or(String::new(), |_| format!(" ({} expected)", percent(plan.remote_expected)));
    format!(
        "; {} of accesses were remote before, {} after{expected}",
        percent(plan.remote_before),
        percent(plan.remote_after)
    )
}

/// A reason as the end of a sentence.
fn sentence(reason: &str) -> String {
    match reason.trim_end_matches('.') {
        "" => "no reason was noted.".to_owned(),
        reason => format!("{reason}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MoveView, NodeView, Superseding};

    fn thread() -> ThreadView {
        ThreadView {
            tid: 7,
            pid: 5,
            command: "worker".to_owned(),
            node: 0,
            preferred_node: Maybe(Some(2)),
            load_cpus: 0.98,
            local_share: Maybe(Some(0.25)),
            accesses_per_s: vec![25.0, 75.0],
            allowed_nodes: vec![0, 2],
            ..ThreadView::default()
        }
    }

    fn status() -> Status {
        let node = |id| NodeView { id, cpus: 2, busy_threads: 1, ..NodeView::default() };
        Status {
            time_ns: 20_000_000_000,
            thread_policy: "sma".to_owned(),
            page_policy: "tmma".to_owned(),
            nodes: vec![node(0), node(2)],
            ..Status::default()
        }
    }

    fn said(status: &Status, thread: &ThreadView) -> String {
        status.explain(thread).join(" ")
    }

    #[test]
    fn a_thread_far_from_its_memory_has_a_reason() {
        let mut status = status();
        let far = "It uses memory of node 2 most (75.0% of its accesses), but ";
        assert!(said(&status, &thread()).contains(&format!("{far}neither sma nor tmma has a move for it now")));
        let idle = ThreadView { load_cpus: 0.0, ..thread() };
        assert!(said(&status, &idle).contains(&format!("{far}it hardly runs")));
        let resting = ThreadView { on_cooldown: 1, ..thread() };
        assert!(
            said(&status, &resting).contains(&format!("{far}it was moved so recently that it may not be moved again"))
        );
        status.nodes[1].busy_threads = 2;
        assert!(
            said(&status, &thread())
                .contains("has a move for it now that is worth a trial; that node has 2 busy threads for its 2 CPUs.")
        );
        let counted = ThreadView { stays_because: "there it would save nothing".to_owned(), ..thread() };
        assert!(said(&status, &counted).contains(&format!("{far}by the count of sma there it would save nothing.")));
        status.nodes[1].cpus = 0;
        assert!(said(&status, &counted).contains(&format!("{far}that node has no CPU.")));
        let bound = ThreadView { allowed_nodes: vec![0], ..thread() };
        assert!(said(&status, &bound).contains(&format!("{far}its affinity or cpuset forbids")));
    }

    #[test]
    fn a_thread_beside_its_memory_and_one_without_a_signal_are_told_apart() {
        let beside = ThreadView { node: 2, local_share: Maybe(Some(0.75)), ..thread() };
        assert!(
            said(&status(), &beside).contains("75.0% of its accesses are local. Node 2 holds most of what it uses")
        );
        let unknown = ThreadView { preferred_node: Maybe(None), local_share: Maybe(None), ..thread() };
        let text = said(&status(), &unknown);
        assert!(
            text.contains("what it accesses is not known yet")
                && text.contains("keeps it on node 0, where it ran most")
        );
    }

    #[test]
    fn an_assignment_is_told_of_a_thread_that_was_moved_and_of_one_that_a_plan_counts_on() {
        assert!(!said(&status(), &thread()).contains("assignment"));
        let held = ThreadView { assigned_to: Maybe(Some(0)), preferred_node: Maybe(None), ..thread() };
        let text = said(&status(), &held);
        assert!(text.contains(
            "no plan has it go anywhere. An assignment keeps it on node 0, so that what a plan counted on lasts"
        ));
        let moved = ThreadView { moved_at_ns: Maybe(Some(1)), moved_to: Maybe(Some(0)), ..held };
        let text = said(&status(), &moved);
        assert!(text.contains("are local. An assignment keeps it on node 0, since it was moved there."), "{text}");
        let going = ThreadView { assigned_to: Maybe(Some(2)), moved_to: Maybe(Some(2)), ..moved };
        assert!(said(&status(), &going).contains("It is assigned to node 2, and on its way there."));
    }

    #[test]
    fn a_move_comes_with_its_reason_and_with_what_the_plan_brought() {
        let mut status = status();
        let moved = ThreadView {
            moved_at_ns: Maybe(Some(8_000_000_000)),
            moved_from: Maybe(Some(2)),
            moved_to: Maybe(Some(0)),
            moved_generation: Maybe(Some(5)),
            moved_why: "memory is there".to_owned(),
            ..thread()
        };
        status.plans = vec![PlanView {
            generation: 5,
            moves: 3,
            predicted_gain_ns_per_s: Maybe(Some(5e8)),
            measured_gain_ns_per_s: Maybe(Some(4.2e8)),
            before_ns: Maybe(Some(200.0)),
            expected_ns: Maybe(Some(140.0)),
            after_ns: Maybe(Some(150.0)),
            without_ns: Maybe(Some(192.0)),
            verdict: "kept".to_owned(),
            ..PlanView::default()
        }];
        let text = said(&status, &moved);
        assert!(text.contains("It was moved 12 s ago from node 2 to node 0: memory is there."), "{text}");
        let plan = "That plan (3 moves) should save 0.500 s of stall per second and saved 0.420 s; an access took 200 ns before and \
                    150 ns after (-25 %), where 140 ns were expected, and would take 192 ns without it, and it was kept.";
        assert!(text.ends_with(plan), "{text}");
        let shares = [0.5, 0.125, 0.25].map(|share| Maybe(Some(share)));
        [status.plans[0].remote_before, status.plans[0].remote_expected, status.plans[0].remote_after] = shares;
        let remote = "140 ns were expected, and would take 192 ns without it; 50.0% of accesses were remote before, 25.0% after (12.5% expected), and it was kept.";
        assert!(said(&status, &moved).ends_with(remote), "{}", said(&status, &moved));
        status.plans[0].remote_after = Maybe(None);
        status.plans[0].undone_of = vec![17, 18];
        let alone = "and it was kept. Of these processes it was taken back alone, as it slowed them down: 17, 18.";
        assert!(said(&status, &moved).ends_with(alone));
        status.plans[0].undone_of.clear();
        status.plans[0].verdict = "undone".to_owned();
        status.plans[0].measured_gain_ns_per_s = Maybe(Some(-1e8));
        let undone = said(&status, &moved);
        assert!(undone.contains("per second and cost 0.100 s more; an access"), "{undone}");
        assert!(undone.ends_with("and would take 192 ns without it, and it was undone."), "{undone}");
        status.plans[0].verdict = "trial".to_owned();
        assert!(said(&status, &moved).ends_with("it is still on trial."));
        status.plans[0].verdict = "superseded".to_owned();
        status.plans[0].superseded_because = Superseding::MemoryPressure.in_words().to_owned();
        assert!(said(&status, &moved).ends_with("could not be measured: memory pressure held its pages up."));
        status.plans[0].generation = 4;
        assert!(said(&status, &moved).ends_with("memory is there."), "its plan is forgotten");
    }

    #[test]
    fn rates_that_are_inferred_are_called_so() {
        let mut status = status();
        assert_eq!(status.explain_rates(), None, "not told");
        status.sampler.rates = "inferred".to_owned();
        assert!(status.explain_rates().is_some_and(|said| said.contains("is inferred from samples")));
        status.sampler.rates = "measured".to_owned();
        assert_eq!(status.explain_rates(), None);
    }

    #[test]
    fn sharers_are_counted_by_where_they_are() {
        let mut status = status();
        let shares = |tid, node| ThreadView { tid, node, group: Maybe(Some(7)), ..thread() };
        status.threads = vec![shares(7, 0), shares(8, 0), shares(9, 2)];
        assert!(said(&status, &status.threads[0]).contains("shares memory with 2 other threads, 1 of which"));
        status.threads.truncate(2);
        assert!(said(&status, &status.threads[0]).contains("one other thread, which is on the same node"));
    }

    #[test]
    fn memory_is_told_by_node_with_its_moves() {
        let mut status = status();
        let process = ProcessView { pid: 5, known_mib: vec![0, 12], moved_pages: 128, ..ProcessView::default() };
        let one = MoveView { time_ns: 19_000_000_000, pid: Maybe(Some(5)), to: 2, pages: 64, ..MoveView::default() };
        status.moves = vec![MoveView { time_ns: 1, ..one.clone() }, one];
        let text = status.explain_memory(&process).join(" ");
        assert!(text.contains("12 MiB are known by samples: 12 MiB on node 2."), "{text}");
        assert!(
            text.contains("Of it 128 pages were moved since it is managed. The last ones went 1 s ago to node 2"),
            "{text}"
        );
        let returned = ProcessView { returned_pages: 64, ..process };
        let text = status.explain_memory(&returned).join(" ");
        assert!(text.contains("Of it 128 pages were moved since it is managed, and 64 back."), "{text}");
    }

    #[test]
    fn memory_that_stays_is_told_with_why() {
        let process = ProcessView { pid: 5, known_mib: vec![0, 12], ..ProcessView::default() };
        assert!(!status().explain_memory(&process).join(" ").contains("stay"));
        let process = ProcessView { shared_mib: 3, hugetlb_mib: 4, waiting_mib: 5, contested_mib: 6, ..process };
        let told = "12 MiB on node 2. Of them stay: 3 MiB that other processes map too; 4 MiB in huge pages of hugetlbfs; \
                    5 MiB until the machine is not short of memory any more; 6 MiB that something else moves too: they rest ever \
                    longer.";
        let text = status().explain_memory(&process).join(" ");
        assert!(text.contains(told), "{text}");
    }

    #[test]
    fn a_plan_that_moved_pages_only_is_told_with_the_memory_it_moved() {
        let mut status = status();
        let process = ProcessView { pid: 5, known_mib: vec![0, 12], moved_pages: 3, ..ProcessView::default() };
        let generation = |number| Maybe(Some(number));
        let one = MoveView { pid: Maybe(Some(5)), to: 2, pages: 64, generation: generation(8), ..MoveView::default() };
        status.moves = vec![MoveView { generation: generation(7), ..one.clone() }, one];
        let plan = |number, gain_ns_per_s, verdict: &str| PlanView {
            generation: number,
            moves: 1,
            predicted_gain_ns_per_s: Maybe(Some(gain_ns_per_s)),
            before_ns: Maybe(Some(200.0)),
            after_ns: Maybe(Some(150.0)),
            verdict: verdict.to_owned(),
            ..PlanView::default()
        };
        status.plans = vec![plan(7, 1e9, "undone"), plan(8, 5e8, "kept"), plan(9, 2e9, "trial")];
        let text = status.explain_memory(&process).join(" ");
        let told = "That plan (1 move) should save 0.500 s of stall per second; an access took 200 ns before and 150 ns \
                    after (-25 %), and it was kept.";
        assert!(text.ends_with(told), "{text}");
    }

    #[test]
    fn little_known_memory_is_not_said_to_be_none() {
        let known = |known_pages, known_mib: &[u64]| {
            let process = ProcessView { pid: 5, known_pages, known_mib: known_mib.to_vec(), ..ProcessView::default() };
            status().explain_memory(&process).remove(0)
        };
        assert!(known(0, &[0, 0]).starts_with("No memory of it is known yet"));
        assert_eq!(known(200, &[0, 0]), "Of its memory less than 1 MiB is known by samples.");
        let halves = "Of its memory 1 MiB are known by samples, less than 1 MiB on each node.";
        assert_eq!(known(300, &[0, 0]), halves);
        assert_eq!(known(900, &[2, 0]), "Of its memory 3 MiB are known by samples: 2 MiB on node 0.");
    }
}
