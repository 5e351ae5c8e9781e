// SPDX-License-Identifier: GPL-2.0-only
//! Others that place threads or pages, or keep pages from being moved, each with its remedy.
//!
//! Seen in /proc/PID/comm (daemons), in the sysfs of DAMON (schemes whose action is `migrate_hot` or `migrate_cold`), in
//! that of KSM, and in the kernel's settings of memory tiering.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::parse_cpu_list;

/// Programs that place threads or pages themselves, and how each is stopped.
const DAEMONS: [(&str, &str); 3] = [
    ("numad", "systemctl stop numad"),
    ("memtierd", "systemctl stop memtierd"),
    ("scx_loader", "systemctl stop scx_loader, or let it start scx_tandem"),
];
const DAMON: &str = "sys/kernel/mm/damon/admin/kdamonds";
const KSM: &str = "sys/kernel/mm/ksm";
const NUMA_BALANCING: &str = "proc/sys/kernel/numa_balancing";
/// Bits of `kernel.numa_balancing`: pages follow threads between nodes; hot pages of slow memory are promoted.
const BALANCING: u32 = 1;
const TIERING: u32 = 2;
const DEMOTION: &str = "sys/kernel/mm/numa/demotion_enabled";
const NODES: &str = "sys/devices/system/node";

/// What kind of rival it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RivalKind {
    /// A program.
    Daemon,
    /// A running DAMON scheme.
    Damon,
    /// Kernel samepage merging.
    Ksm,
    /// The kernel promotes pages between tiers of memory.
    Promotion,
    /// The kernel demotes pages to memory-only nodes instead of reclaiming them.
    Demotion,
}

/// One of them. Shown as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rival {
    /// Its kind.
    pub kind: RivalKind,
    /// What it is and does, in words.
    pub found: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; remedy: {}", self.found, self.remedy)
    }
}

/// Those below `root`, which is `/` but for tests. The process `starter`, which started this one, is none: a loader of
/// schedulers that loads this one does not stand in its way.
pub fn rivals(root: &Path, starter: u32) -> Vec<Rival> {
    let mut rivals = daemons(root, starter);
    rivals.extend(damon(root));
    rivals.extend(ksm(root));
    rivals.extend(promotion(root));
    rivals.extend(demotion(root));
    rivals
}

/// One of them that was not there at the last look, or is not there any more. Shown as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RivalChange {
    /// It came.
    Came(Rival),
    /// It has gone.
    Gone(Rival),
}

impl fmt::Display for RivalChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Came(rival) => write!(f, "{rival}"),
            Self::Gone(rival) => write!(f, "not any more: {}", rival.found),
        }
    }
}

/// Tells changes, each once.
#[derive(Debug, Default)]
pub struct RivalWatch(Vec<Rival>);

impl RivalWatch {
    /// None was there yet.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// What has changed now that these are there.
    pub fn look(&mut self, now: Vec<Rival>) -> Vec<RivalChange> {
        let came = now.iter().filter(|rival| !self.0.contains(rival)).cloned().map(RivalChange::Came);
        let gone = self.0.iter().filter(|rival| !now.contains(rival)).cloned().map(RivalChange::Gone);
        let changes = came.chain(gone).collect();
        self.0 = now;
        changes
    }
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Entries of a directory whose names are numbers, ascending; none where it is missing.
fn numbered(directory: &Path) -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> =
        entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path()))).collect();
    found.sort_unstable();
    found
}

fn daemons(root: &Path, starter: u32) -> Vec<Rival> {
    let processes = numbered(&root.join("proc"));
    let commands: Vec<String> = processes
        .into_iter()
        .filter(|(process, _)| *process != starter)
        .filter_map(|(_, path)| text(&path.join("comm")))
        .collect();
    let running = DAEMONS.iter().filter(|(name, _)| commands.iter().any(|command| command == name));
    let rival = |&(name, remedy): &(&str, &str)| Rival {
        kind: RivalKind::Daemon,
        found: format!("{name} is running: it places programs too, and would undo what scx_tandem does"),
        remedy: remedy.to_owned(),
    };
    running.map(rival).collect()
}

/// One for each kernel thread of DAMON that has such a scheme.
fn damon(root: &Path) -> Vec<Rival> {
    let kdamonds = numbered(&root.join(DAMON)).into_iter();
    let running = kdamonds.filter(|(_, path)| text(&path.join("state")).as_deref() == Some("on"));
    let migrating = running.filter_map(|(kdamond, path)| {
        let contexts = numbered(&path.join("contexts")).into_iter();
        let schemes = contexts.flat_map(|(_, context)| numbered(&context.join("schemes")));
        let mut actions = schemes.filter_map(|(_, scheme)| text(&scheme.join("action")));
        let action = actions.find(|action| ["migrate_hot", "migrate_cold"].contains(&action.as_str()))?;
        Some(Rival {
            kind: RivalKind::Damon,
            found: format!("kdamond {kdamond} of DAMON runs a scheme {action}: it moves pages between nodes too"),
            remedy: format!("damo stop, or echo off > /{DAMON}/{kdamond}/state"),
        })
    });
    migrating.collect()
}

/// Whether the kernel lets pages follow the threads that it schedules itself. `root` is `/` but for tests.
pub fn kernel_balances(root: &Path) -> bool {
    balancing_mode(root).is_some_and(|mode| mode & BALANCING != 0)
}

fn balancing_mode(root: &Path) -> Option<u32> {
    text(&root.join(NUMA_BALANCING))?.parse().ok()
}

fn promotion(root: &Path) -> Option<Rival> {
    let mode = balancing_mode(root)?;
    (mode & TIERING != 0).then(|| Rival {
        kind: RivalKind::Promotion,
        found: format!("kernel.numa_balancing is {mode}: the kernel moves hot pages between tiers of memory too"),
        remedy: "sysctl kernel.numa_balancing=0".to_owned(),
    })
}

/// Where a node has memory and no CPU: elsewhere it demotes nothing.
fn demotion(root: &Path) -> Option<Rival> {
    if !["1", "true"].contains(&text(&root.join(DEMOTION))?.as_str()) {
        return None;
    }
    let nodes = |file: &str| parse_cpu_list(&text(&root.join(NODES).join(file))?).ok();
    let with_cpus = nodes("has_cpu")?;
    nodes("has_memory")?.iter().any(|node| !with_cpus.contains(node)).then(|| Rival {
        kind: RivalKind::Demotion,
        found: "the kernel demotes pages of full nodes to memory-only nodes: it moves pages between nodes too"
            .to_owned(),
        remedy: format!("echo false > /{DEMOTION}"),
    })
}

fn ksm(root: &Path) -> Option<Rival> {
    let ksm = root.join(KSM);
    if text(&ksm.join("run"))? != "1" {
        return None;
    }
    let across = text(&ksm.join("merge_across_nodes")).as_deref() != Some("0");
    let (where_from, instead) = if across {
        (
            ", also from several nodes",
            format!(", and to merge within nodes only: echo 0 > /{KSM}/merge_across_nodes, echo 1 > /{KSM}/run"),
        )
    } else {
        ("", " if pages are to be moved rather than merged".to_owned())
    };
    Some(Rival {
        kind: RivalKind::Ksm,
        found: format!("KSM merges equal pages{where_from}: processes share them then, and shared pages are not moved"),
        remedy: format!("echo 2 > /{KSM}/run{instead}"),
    })
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn machine(files: &[(&str, &str)]) -> TempDir {
        let machine = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = machine.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        machine
    }

    fn found(files: &[(&str, &str)]) -> Vec<Rival> {
        rivals(machine(files).path(), 50)
    }

    #[test]
    fn a_daemon_is_known_by_its_command_unless_it_started_this_process() {
        let rivals =
            found(&[("proc/77/comm", "numad\n"), ("proc/78/comm", "bash\n"), ("proc/50/comm", "scx_loader\n")]);
        assert_eq!(rivals.len(), 1);
        assert_eq!(
            rivals[0].to_string(),
            "numad is running: it places programs too, and would undo what scx_tandem does; remedy: systemctl stop numad"
        );
        assert_eq!(found(&[("proc/51/comm", "scx_loader\n")]).len(), 1);
        assert_eq!(found(&[]), []);
    }

    #[test]
    fn the_kernel_balances_where_the_first_bit_says_so() {
        let balances = |mode| kernel_balances(machine(&[(NUMA_BALANCING, mode)]).path());
        assert_eq!(["0\n", "1\n", "2\n", "3\n"].map(balances), [false, true, false, true]);
        assert!(!kernel_balances(machine(&[]).path()), "nor without the file");
    }

    /// A machine with a kdamond 12 in this state, whose second context has a second scheme with this action.
    fn with_damon(state: &str, action: &str) -> Vec<Rival> {
        let scheme = |context, scheme| format!("{DAMON}/12/contexts/{context}/schemes/{scheme}/action");
        found(&[
            (&format!("{DAMON}/nr_kdamonds"), "13\n"),
            (&format!("{DAMON}/3/state"), "off\n"),
            (&format!("{DAMON}/12/state"), state),
            (&scheme(0, 0), "stat\n"),
            (&scheme(1, 0), "pageout\n"),
            (&scheme(1, 1), action),
        ])
    }

    #[test]
    fn damon_is_a_rival_while_it_runs_a_scheme_that_migrates() {
        for action in ["migrate_hot", "migrate_cold"] {
            let rivals = with_damon("on\n", &format!("{action}\n"));
            assert_eq!(rivals.len(), 1, "{rivals:?}");
            assert_eq!(rivals[0].kind, RivalKind::Damon);
            assert!(rivals[0].found.contains(action) && rivals[0].remedy.ends_with("/kdamonds/12/state"), "{rivals:?}");
            assert_eq!(with_damon("off\n", &format!("{action}\n")), []);
        }
        assert_eq!(with_damon("on\n", "lru_prio\n"), []);
    }

    #[test]
    fn tiering_is_a_rival_and_demotion_only_where_there_is_somewhere_to_demote_to() {
        let kinds = |files: &[(&str, &str)]| found(files).iter().map(|rival| rival.kind).collect::<Vec<_>>();
        let balancing = |mode| kinds(&[(NUMA_BALANCING, mode)]);
        let (promotion, none) = (vec![RivalKind::Promotion], vec![]);
        assert_eq!(
            ["0\n", "1\n", "2\n", "3\n"].map(balancing),
            [none.clone(), none.clone(), promotion.clone(), promotion]
        );
        let demotes = |enabled, has_memory| {
            let (cpus, memory) = (format!("{NODES}/has_cpu"), format!("{NODES}/has_memory"));
            kinds(&[(DEMOTION, enabled), (&cpus, "0-1\n"), (&memory, has_memory)])
        };
        assert_eq!(demotes("true\n", "0-2\n"), [RivalKind::Demotion]);
        assert_eq!([demotes("true\n", "0-1\n"), demotes("false\n", "0-2\n")], [none.clone(), none]);
    }

    #[test]
    fn a_rival_is_told_once_when_it_comes_and_once_when_it_has_gone() {
        let numad = found(&[("proc/77/comm", "numad\n")]);
        let mut watch = RivalWatch::new();
        assert_eq!(watch.look(vec![]), []);
        assert_eq!(watch.look(numad.clone()), [RivalChange::Came(numad[0].clone())]);
        assert_eq!(watch.look(numad.clone()), []);
        let gone = watch.look(vec![]);
        assert_eq!(gone, [RivalChange::Gone(numad[0].clone())]);
        assert!(gone[0].to_string().starts_with("not any more: numad is running"), "{}", gone[0]);
        assert_eq!(watch.look(numad).len(), 1, "it came again");
    }

    #[test]
    fn ksm_is_a_rival_while_it_merges() {
        let with_ksm =
            |run, across| found(&[(&format!("{KSM}/run"), run), (&format!("{KSM}/merge_across_nodes"), across)]);
        assert_eq!((with_ksm("0\n", "1\n"), with_ksm("2\n", "1\n")), (vec![], vec![]));
        let (across, within) = (with_ksm("1\n", "1\n").remove(0), with_ksm("1\n", "0\n").remove(0));
        assert_eq!((across.kind, within.kind), (RivalKind::Ksm, RivalKind::Ksm));
        assert!(across.found.contains("several nodes") && across.remedy.contains("merge_across_nodes"), "{across}");
        assert!(!within.found.contains("several nodes") && !within.remedy.contains("merge_across_nodes"), "{within}");
    }
}
