// SPDX-License-Identifier: GPL-2.0-only
//! Programs whose pages are moved while they run, or whose threads are assigned: scx_tandem with a policy for pages at most and
//! none for threads, there for as long as the program, which it alone manages.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::{Arc, mpsc};

use anyhow::{Context, Result, anyhow, bail};
use tandem_ab::stop::Stop;
use tandem_tune::launch::{self, Limit, Program, Seen};
use tandem_tune::placer::{Placer, ThreadsBy};
use tandem_tune::places::Places;
use tandem_tune::session::AT_BIRTH;
use tandem_tune::space::{ALL, Configuration, PagePlacement};

use super::assigner::Keeper;
use super::trial::usable;
use crate::run::scheduler::{Scheduler, managed};

/// A program that has run.
pub struct Ran {
    /// What was seen of it.
    pub seen: Seen,
    /// Pages that were moved meanwhile, or why scx_tandem failed; `None` if it did not, and was to move none.
    pub moved_pages: Option<Result<u64, String>>,
}

/// What a scx_tandem beside a program is for.
pub struct Beside<'a> {
    /// The configuration that it moves pages by, if that needs it and there is no map of pages.
    pub moves_by: Option<&'a Configuration>,
    /// Whether it keeps threads on their seats.
    pub threads_by: ThreadsBy,
}

impl<'a> Beside<'a> {
    /// For this configuration; for nothing if it is none.
    pub fn of(one: Option<&'a Configuration>, threads_by: ThreadsBy) -> Self {
        Self { moves_by: one, threads_by: one.map_or(ThreadsBy::Affinity, |_| threads_by) }
    }
}

/// Runs `program` as [`launch::run`] does, beside a scx_tandem if that is for anything. Nothing is loaded when this returns.
///
/// # Errors
/// scx_tandem cannot be loaded (then the program is not started), or the program cannot be started or traced.
pub fn run(
    program: &Program,
    beside: &Beside,
    places: &Places,
    limit: Limit,
    stop: &Stop,
    started: impl FnOnce(i32) + Send,
) -> Result<Ran> {
    let moves_by = beside.moves_by.filter(|one| one.needs_moving() && places.page_map.is_none());
    let assigns = beside.threads_by == ThreadsBy::Assignments;
    if moves_by.is_none() && !assigns {
        return Ok(Ran { seen: launch::run(program, places, limit, stop, started)?, moved_pages: None });
    }
    let what_for = match moves_by {
        Some(one) => {
            format!("pages cannot be placed by {}, for which scx_tandem moves pages", one.page_placement.name())
        }
        None => "threads cannot be assigned, for which scx_tandem is loaded".to_owned(),
    };
    let scheduler = match obstacle_here() {
        Some(obstacle) => Err(anyhow!(obstacle)),
        None if moves_by.is_some() && assigns => Err(anyhow!(NO_MOVES)),
        None => Scheduler::start(&flags(moves_by), None),
    };
    let scheduler = scheduler.context(what_for)?;
    let (seen, kept) = if assigns {
        assigned(places, |places| launch::run(program, places, limit, stop, started))
    } else {
        (launch::run(program, places, limit, stop, started), Ok(()))
    };
    // Whatever became of the program: it must not stay.
    let moved = kept.and(scheduler.stop()).map(|report| report.moved_pages()).map_err(|error| format!("{error:#}"));
    match (seen, moved) {
        (Err(seen), Err(why)) => Err(seen.context(why)),
        (seen, moved) => {
            Ok(Ran { seen: seen?, moved_pages: Some(moved).filter(|moved| moves_by.is_some() || moved.is_err()) })
        }
    }
}

/// Why nothing is moved where threads are assigned.
pub const NO_MOVES: &str =
    "a scx_tandem that moves pages keeps threads where it sees them, so not with --threads-by assignments";

/// Runs a program whose threads are assigned by what is loaded; and whether they were all the time.
fn assigned(places: &Places, run: impl FnOnce(&Places) -> Result<Seen>) -> (Result<Seen>, Result<()>) {
    let keeper = match usable().and_then(|machine| Keeper::of_loaded(&machine.topology)) {
        Ok(keeper) => Arc::new(keeper),
        Err(error) => return (Err(error), Ok(())),
    };
    let places = Places { placer: Placer::Assigner(keeper.clone()), ..places.clone() };
    std::thread::scope(|scope| {
        let (over, wait) = mpsc::channel();
        let renewing = scope.spawn(move || keeper.renew_until(&wait));
        let seen = run(&places);
        drop(over);
        (seen, renewing.join().expect("renewing does not panic"))
    })
}

/// What scx_tandem is told.
fn flags(moves_by: Option<&Configuration>) -> Vec<OsString> {
    let mut flags = managed().to_vec();
    let Some(one) = moves_by else {
        // Of what is not managed nobody looks at the memory.
        flags.push(format!("--exclude=pid={}", std::process::id()).into());
        // Leases are as long as an interval allows, whatever the environment says.
        flags.extend(["--policy=none+none", "--interval-ms=1000"].map(OsString::from));
        return flags;
    };
    let policy = one.page_placement.name();
    flags.push(format!("--policy=none+{policy}").into());
    if !one.page_placement.follows_threads() {
        flags.push(format!("--parameter={policy}.page_nodes={}", one.page_nodes).into());
    }
    flags
}

/// The page placements to try, and what is said of those that are left out.
#[derive(Debug, PartialEq)]
pub struct Choice {
    /// To be tried.
    pub placements: Vec<PagePlacement>,
    /// Which are not though nobody asked for that, and why.
    pub left_out: Option<String>,
}

/// Why scx_tandem cannot be loaded on this machine, if that is known beforehand.
pub fn obstacle_here() -> Option<String> {
    obstacle(Path::new("/"), is_root())
}

/// Whether this process is root's.
pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// What can be tried on a machine with these obstacles to moving pages and to maps of them: those `asked` for, else all that
/// are possible. Either way will do.
///
/// # Errors
/// One that was asked for is not possible.
pub fn choose(asked: &[PagePlacement], to_moving: Option<String>, to_maps: Option<String>) -> Result<Choice> {
    let needs = |placements: &[PagePlacement]| {
        let names: Vec<&str> = placements.iter().filter(|one| one.needs_moving()).map(|one| one.name()).collect();
        names.join(", ")
    };
    let obstacle =
        to_moving.zip(to_maps).map(|(moving, maps)| format!("{moving}; nor is there a map of pages: {maps}"));
    match obstacle {
        Some(obstacle) if asked.is_empty() => {
            let left_out =
                format!("pages are not placed by {}, for which scx_tandem moves pages: {obstacle}", needs(&ALL));
            Ok(Choice { placements: AT_BIRTH.to_vec(), left_out: Some(left_out) })
        }
        Some(obstacle) if asked.iter().any(|one| one.needs_moving()) => {
            bail!("--pages {}: scx_tandem cannot move pages here: {obstacle}", needs(asked))
        }
        _ => {
            // In the order of the space, in which the first stands for those that are the same.
            let wanted = |one: &PagePlacement| asked.is_empty() || asked.contains(one);
            Ok(Choice { placements: ALL.into_iter().filter(wanted).collect(), left_out: None })
        }
    }
}

/// Why scx_tandem cannot be loaded on the machine whose files are below `root`, if that is known beforehand.
fn obstacle(root: &Path, is_root: bool) -> Option<String> {
    let files = root.join("sys/kernel/sched_ext");
    let Ok(state) = fs::read_to_string(files.join("state")) else {
        return Some("the running kernel has no sched_ext".to_owned());
    };
    if state.trim() != "disabled" {
        let name = fs::read_to_string(files.join("root/ops"));
        let name = name.map_or(String::new(), |name| format!(" ({})", name.trim()));
        return Some(format!("a sched_ext scheduler{name} is loaded already: stop it first"));
    }
    (!is_root).then(|| "that needs root".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use PagePlacement::{Balance, FirstTouch, Interleave, Locality};
    use tandem_tune::space::ThreadPlacement;

    fn words(one: &Configuration) -> Vec<String> {
        flags(Some(one)).iter().skip(managed().len()).map(|flag| flag.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn what_only_assigns_has_no_policy_and_manages_nobody() {
        let words: Vec<String> = flags(None).iter().map(|flag| flag.to_string_lossy().into_owned()).collect();
        let own = std::process::id();
        assert!(words.contains(&format!("--manage=pid={own}")) && words.contains(&format!("--exclude=pid={own}")));
        assert_eq!(words[words.len() - 2..], ["--policy=none+none", "--interval-ms=1000"]);
    }

    #[test]
    fn the_policy_is_one_of_pages_alone_and_knows_their_nodes() {
        let one = Configuration {
            threads: 4,
            thread_nodes: 2,
            thread_placement: ThreadPlacement::Scatter,
            page_nodes: 2,
            page_placement: Locality,
        };
        assert_eq!(words(&one), ["--policy=none+locality"]);
        for page_placement in [Balance, PagePlacement::Mix] {
            let name = page_placement.name();
            let expected = [format!("--policy=none+{name}"), format!("--parameter={name}.page_nodes=3")];
            let all = Configuration { page_nodes: 3, page_placement, ..one };
            assert_eq!(words(&all), expected);
            let key = tandem_policies::registry::Kind::Page;
            let policy = tandem_policies::registry::policies()
                .iter()
                .find(|policy| policy.kind == key && policy.name == name)
                .unwrap_or_else(|| panic!("no policy {name}"));
            assert!(policy.parameters.iter().any(|parameter| parameter.name == "page_nodes"), "{name}");
        }
    }

    #[test]
    fn what_is_not_possible_is_left_out_in_words_or_refused_if_it_was_asked_for() {
        let no = || Some("that needs root".to_owned());
        let choose = |asked: &[PagePlacement], moving| super::choose(asked, moving, Some("no sampler".to_owned()));
        let left = choose(&[], no()).unwrap();
        assert_eq!(left.placements, AT_BIRTH);
        let expected = "pages are not placed by locality, balance, mix, for which scx_tandem moves pages: that needs root; \
            nor is there a map of pages: no sampler";
        assert_eq!(left.left_out.unwrap(), expected);
        assert_eq!(choose(&[], None).unwrap(), Choice { placements: ALL.to_vec(), left_out: None });
        let asked = [Balance, Interleave, FirstTouch];
        assert_eq!(choose(&asked, None).unwrap().placements, [FirstTouch, Interleave, Balance]);
        let refused = choose(&asked, no()).unwrap_err().to_string();
        let expected = "--pages balance: scx_tandem cannot move pages here: that needs root; nor is there a map of pages: no sampler";
        assert_eq!(refused, expected);
        assert_eq!(super::choose(&[], no(), None).unwrap(), Choice { placements: ALL.to_vec(), left_out: None });
        assert_eq!(choose(&asked[1..], no()).unwrap().placements, [FirstTouch, Interleave]);
    }

    #[test]
    fn a_machine_on_which_it_cannot_be_loaded_says_why() {
        let root = tempfile::tempdir().unwrap();
        let obstacle = |is_root| obstacle(root.path(), is_root);
        assert_eq!(obstacle(true).unwrap(), "the running kernel has no sched_ext");
        let files = root.path().join("sys/kernel/sched_ext");
        fs::create_dir_all(files.join("root")).unwrap();
        fs::write(files.join("state"), "disabled\n").unwrap();
        assert_eq!(obstacle(true), None);
        assert_eq!(obstacle(false).unwrap(), "that needs root");
        fs::write(files.join("state"), "enabled\n").unwrap();
        assert_eq!(obstacle(true).unwrap(), "a sched_ext scheduler is loaded already: stop it first");
        fs::write(files.join("root/ops"), "tandem_0.1\n").unwrap();
        assert_eq!(obstacle(true).unwrap(), "a sched_ext scheduler (tandem_0.1) is loaded already: stop it first");
    }
}
