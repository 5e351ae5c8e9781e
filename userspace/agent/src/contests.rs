// SPDX-License-Identifier: GPL-2.0-only
//! What is said of pages that something else moves as well: once of each process, and not of many at once.

use std::collections::BTreeSet;

use tandem_act::Contest;
use tandem_machine::{Rival, RivalKind};
use tandem_policies::model::{ProcessId, Snapshot};

/// Time between two lines.
const EVERY_NS: u64 = 60_000_000_000;

/// Of whom it was said.
#[derive(Debug, Default)]
pub struct ContestTalk {
    told: BTreeSet<ProcessId>,
    told_ns: Option<u64>,
}

impl ContestTalk {
    /// What is to be said of contests that a snapshot shows, if there are some of processes of which nothing was said yet and
    /// nothing was for a minute.
    pub fn words(&mut self, contests: &[Contest], snapshot: &Snapshot) -> Option<String> {
        let now_ns = snapshot.time_ns;
        if self.told_ns.is_some_and(|told_ns| now_ns.saturating_sub(told_ns) < EVERY_NS) {
            return None;
        }
        let new = contests.iter().filter(|contest| !self.told.contains(&contest.group.process));
        let processes: BTreeSet<ProcessId> = new.map(|contest| contest.group.process).collect();
        let first = *processes.first()?;
        let its = || contests.iter().filter(|contest| contest.group.process == first);
        let (pages, node) = (its().map(|contest| contest.pages).sum::<u64>(), its().next()?.to.0);
        let rest_s = its().map(|contest| contest.rest_ns).max()? / 1_000_000_000;
        let command = snapshot.threads.iter().find(|thread| thread.process == first).map(|thread| &thread.command);
        let name = command.map_or(String::new(), |command| format!(" ({command})"));
        let others = match processes.len() - 1 {
            0 => String::new(),
            others => format!(" and of {others} more"),
        };
        self.told_ns = Some(now_ns);
        self.told.extend(processes);
        Some(format!(
            "something else moves pages of process {}{name}{others}: {pages} that a plan had moved, the first of them to node \
             {node}, are elsewhere; they stay there for {rest_s} s, and longer each time",
            first.0
        ))
    }

    /// Processes with these numbers are others from now on.
    pub fn forget(&mut self, gone: &BTreeSet<ProcessId>) {
        self.told.retain(|process| !gone.contains(process));
    }
}

/// Who it may be that moves pages.
pub fn culprit(rivals: &[Rival]) -> String {
    let move_pages = |rival: &&Rival| rival.kind != RivalKind::Ksm;
    let known: Vec<String> = rivals.iter().filter(move_pages).map(Rival::to_string).collect();
    if known.is_empty() { "nothing that is known to do so is running".to_owned() } else { known.join("; ") }
}

#[cfg(test)]
mod tests {
    use tandem_policies::model::{GroupId, NodeId};

    use super::*;
    use crate::testing::{SECOND_NS, snapshot};

    fn contest(process: u32) -> Contest {
        let group = GroupId { process: ProcessId(process), start: 0 };
        Contest { group, to: NodeId(1), pages: 300, rest_ns: 60 * SECOND_NS }
    }

    fn said(talk: &mut ContestTalk, processes: &[u32], at_s: u64) -> Option<String> {
        let contests: Vec<Contest> = processes.iter().map(|&process| contest(process)).collect();
        talk.words(&contests, &Snapshot { time_ns: at_s * SECOND_NS, ..snapshot(&[(0, 1)]) })
    }

    #[test]
    fn whose_pages_something_else_moves_is_said_with_how_long_they_rest() {
        let expected = "something else moves pages of process 1 (worker) and of 1 more: 600 that a plan had moved, the first of them \
                        to node 1, are elsewhere; they stay there for 60 s, and longer each time";
        assert_eq!(said(&mut ContestTalk::default(), &[1, 1, 2], 5).unwrap(), expected);
    }

    #[test]
    fn it_is_said_once_of_each_process_and_once_a_minute() {
        let mut talk = ContestTalk::default();
        assert!(said(&mut talk, &[], 1).is_none() && said(&mut talk, &[1], 1).is_some());
        assert!(said(&mut talk, &[2], 60).is_none(), "too soon");
        assert!(said(&mut talk, &[1], 61).is_none(), "it was said of this one");
        let words = said(&mut talk, &[1, 2], 61).unwrap();
        assert!(words.starts_with("something else moves pages of process 2: 300"), "{words}");
        talk.forget(&[ProcessId(1)].into());
        assert!(said(&mut talk, &[1], 121).is_some(), "another program");
    }

    #[test]
    fn who_moves_pages_is_named_and_who_merges_them_is_not() {
        let rival = |kind, found: &str| Rival { kind, found: found.to_owned(), remedy: "stop it".to_owned() };
        let merging = rival(RivalKind::Ksm, "KSM merges");
        assert_eq!(culprit(std::slice::from_ref(&merging)), "nothing that is known to do so is running");
        let both = [merging, rival(RivalKind::Daemon, "numad is running")];
        assert_eq!(culprit(&both), "numad is running; remedy: stop it");
    }
}
