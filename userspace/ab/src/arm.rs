// SPDX-License-Identifier: GPL-2.0-only
//! Arms: the ways of scheduling and placing that an experiment compares.
//!
//! An arm is named as the user writes it: `NAME` or, for a scheduler, `NAME:OPTIONS` with its options separated by spaces
//! and commas in them written `\,`.
//!
//! | arm | scheduler | NUMA balancing | THP | workload |
//! |---|---|---|---|---|
//! | `stock-nb0`, `stock-nb1`, `stock-nb0-thp`, `stock-nb1-thp` | the kernel's | 0 or 1 | never or always | as it is |
//! | `direct` | the kernel's | 0 | never | threads and memory on the first node (numactl) |
//! | `interleave` | the kernel's | 0 | never | memory over all nodes, page by page (numactl) |
//! | `oracle`, `worst` | the kernel's | 0 | never | places itself in the best or worst known way |
//! | `scx_tandem[:OPTIONS]` | Tandem's | 0 | never | as it is |
//! | `scx_tandem:--partial --mover kernel` | Tandem's, of class SCHED_EXT alone | 1 | never | in that class |
//! | `scx_rusty`, `scx_bpfland` `[:OPTIONS]` | that of Cargo's registry | 0 | never | as it is |
//! | `/PATH/TO/PROGRAM[:OPTIONS]`, `scx_NAME[:OPTIONS]` on PATH | another sched_ext one | 0 | never | as it is |
//!
//! Under a sched_ext scheduler the kernel scans no task, so NUMA balancing is off whatever its switch says; 0 says it. With
//! `--partial` the workload is put into the class that such a scheduler wants, and balancing is on if Tandem's leaves moving
//! pages to it (`--mover kernel`).

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};

use crate::list;
use crate::programs::on_path;

/// Schedulers of Cargo's registry that `vm/setup/peers.sh` builds.
pub const PEERS: [&str; 2] = ["scx_bpfland", "scx_rusty"];

/// Only names that begin so are looked for on PATH: another is rather a misspelt arm than a scheduler.
const PREFIX: &str = "scx_";

/// `stock` stands for these four.
const STOCK: [(&str, bool, bool); 4] = [
    ("stock-nb0", false, false),
    ("stock-nb1", true, false),
    ("stock-nb0-thp", false, true),
    ("stock-nb1-thp", true, true),
];

/// The settings of the kernel that arms differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// kernel.numa_balancing.
    pub numa_balancing: bool,
    /// Transparent huge pages: always or never.
    pub huge_pages: bool,
}

/// How the workload is to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Left to the system.
    None,
    /// By the workload, in the best known way.
    Oracle,
    /// By the workload, in the worst known way.
    Worst,
    /// By numactl: threads and memory on the first node.
    Direct,
    /// By numactl: memory over all nodes in turn.
    Interleave,
}

/// The program of a sched_ext scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// Tandem's own.
    Tandem,
    /// One of [`PEERS`].
    Peer(&'static str),
    /// Any other, by its path.
    Path(PathBuf),
}

/// A sched_ext scheduler with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduler {
    /// What to start.
    pub program: Program,
    /// Its options, one word each.
    pub options: Vec<String>,
}

impl Scheduler {
    /// Whether it schedules tasks of the class SCHED_EXT only.
    pub fn is_partial(&self) -> bool {
        self.options.iter().any(|word| word == "--partial" || word == "--partial=true")
    }

    /// Files that its options name from which scx_tandem reads what to do.
    pub fn named_files(&self) -> Vec<&str> {
        const NAMING: [&str; 2] = ["--config", "--calibration"];
        let mut files = Vec::new();
        for (at, word) in self.options.iter().enumerate() {
            match word.split_once('=') {
                Some((option, file)) if NAMING.contains(&option) => files.push(file),
                None if NAMING.contains(&word.as_str()) => files.extend(self.options.get(at + 1).map(String::as_str)),
                _ => {}
            }
        }
        files
    }

    /// Whether it leaves moving pages to the kernel.
    fn needs_balancing(&self) -> bool {
        let words = self.options.join(" ");
        self.program == Program::Tandem && (words.contains("--mover kernel") || words.contains("--mover=kernel"))
    }
}

/// One way of scheduling and placing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arm {
    /// As it was written.
    pub name: String,
    /// Kernel settings.
    pub settings: Settings,
    /// Who places the workload.
    pub placement: Placement,
    /// The sched_ext scheduler; `None` for the kernel's own.
    pub scheduler: Option<Scheduler>,
}

impl Arm {
    /// Whether this is one of the four settings of the stock scheduler with nothing placed by hand.
    pub fn is_stock(&self) -> bool {
        is_stock(&self.name)
    }
}

/// Whether `name` is that of a stock arm.
pub fn is_stock(name: &str) -> bool {
    STOCK.iter().any(|(stock, ..)| *stock == name)
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The arms of comma-separated lists, in their order, each once.
///
/// # Errors
/// An arm is unknown or takes no options, in one sentence that lists what there is.
pub fn parse_lists(lists: &[String]) -> Result<Vec<Arm>> {
    let mut arms: Vec<Arm> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut previous: Option<&str> = None;
    let names = list::split(lists);
    for name in &names {
        for arm in parse(name, previous)? {
            if seen.insert(arm.name.clone()) {
                arms.push(arm);
            }
        }
        previous = Some(name);
    }
    Ok(arms)
}

/// The arm or arms that `text` stands for, which follows `previous` in its list.
fn parse(text: &str, previous: Option<&str>) -> Result<Vec<Arm>> {
    if text == "stock" {
        return Ok(STOCK.iter().map(|(name, ..)| fixed(name).expect("a stock arm is a fixed arm")).collect());
    }
    let (name, options) = text.split_once(':').map_or((text, None), |(name, options)| (name, Some(options)));
    if let Some(arm) = fixed(name) {
        if options.is_some() {
            bail!("the arm {name} takes no options (found '{text}'): only sched_ext schedulers do");
        }
        return Ok(vec![arm]);
    }
    let program = program(name, on_path).ok_or_else(|| unknown(name, previous))?;
    let options = options.unwrap_or("").split_whitespace().map(list::plain).collect();
    let scheduler = Scheduler { program, options };
    Ok(vec![Arm {
        name: text.to_owned(),
        settings: Settings { numa_balancing: scheduler.needs_balancing(), huge_pages: false },
        placement: Placement::None,
        scheduler: Some(scheduler),
    }])
}

/// The scheduler that `name` names; `find` looks for a program on PATH.
fn program(name: &str, find: impl Fn(&str) -> Option<PathBuf>) -> Option<Program> {
    match PEERS.iter().find(|peer| **peer == name) {
        _ if name == "scx_tandem" => Some(Program::Tandem),
        Some(peer) => Some(Program::Peer(peer)),
        None if name.contains('/') => Some(Program::Path(list::plain(name).into())),
        None if name.starts_with(PREFIX) => find(&list::plain(name)).map(Program::Path),
        None => None,
    }
}

/// The refusal of `name`, which follows `previous` in its list.
fn unknown(name: &str, previous: Option<&str>) -> anyhow::Error {
    anyhow!(
        "the arm '{name}' is unknown: choose of stock (stands for {}), direct, interleave, oracle, worst, \
         scx_tandem[:OPTIONS], {}, or give a sched_ext scheduler by its path, or by its name if that begins with {PREFIX} and is on \
         PATH{}",
        STOCK.map(|(name, ..)| name).join(", "),
        PEERS.join(", "),
        list::hint(previous)
    )
}

/// The arm under the kernel's scheduler that has this name.
fn fixed(name: &str) -> Option<Arm> {
    let stock = STOCK.iter().find(|(stock, ..)| *stock == name);
    let placement = match name {
        "direct" => Placement::Direct,
        "interleave" => Placement::Interleave,
        "oracle" => Placement::Oracle,
        "worst" => Placement::Worst,
        _ if stock.is_some() => Placement::None,
        _ => return None,
    };
    let (_, numa_balancing, huge_pages) = stock.copied().unwrap_or(("", false, false));
    Some(Arm { name: name.to_owned(), settings: Settings { numa_balancing, huge_pages }, placement, scheduler: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Vec<String> {
        parse_lists(&[list.to_owned()]).unwrap().into_iter().map(|arm| arm.name).collect()
    }

    fn refusal(list: &str) -> String {
        parse_lists(&[list.to_owned()]).unwrap_err().to_string()
    }

    #[test]
    fn stock_stands_for_its_four_settings() {
        assert_eq!(names("stock,oracle"), ["stock-nb0", "stock-nb1", "stock-nb0-thp", "stock-nb1-thp", "oracle"]);
        let arms = parse_lists(&["stock".to_owned()]).unwrap();
        let settings: Vec<_> = arms.iter().map(|arm| (arm.settings.numa_balancing, arm.settings.huge_pages)).collect();
        assert_eq!(settings, [(false, false), (true, false), (false, true), (true, true)]);
        assert!(arms.iter().all(Arm::is_stock));
    }

    #[test]
    fn an_arm_named_twice_is_run_once() {
        assert_eq!(names("stock-nb1,stock,worst,worst").len(), 5);
    }

    #[test]
    fn schedulers_take_options() {
        let arms =
            parse_lists(&["scx_tandem:--policy sma+tmma  --seed 3".to_owned(), "/opt/scx_x:-v,scx_rusty".to_owned()]);
        let arms = arms.unwrap();
        assert_eq!(arms[0].scheduler.as_ref().unwrap().options, ["--policy", "sma+tmma", "--seed", "3"]);
        assert_eq!(arms[1].scheduler.as_ref().unwrap().program, Program::Path("/opt/scx_x".into()));
        assert_eq!(arms[2].scheduler.as_ref().unwrap().program, Program::Peer("scx_rusty"));
        assert!(!arms.iter().any(Arm::is_stock));
    }

    #[test]
    fn in_partial_mode_the_kernel_may_move_pages() {
        let list = "scx_tandem:--partial --mover kernel,scx_tandem:--partial,scx_tandem,/opt/x:--mover kernel";
        let of = |arm: &Arm| (arm.scheduler.as_ref().unwrap().is_partial(), arm.settings.numa_balancing);
        let arms: Vec<_> = parse_lists(&[list.to_owned()]).unwrap().iter().map(of).collect();
        assert_eq!(arms, [(true, true), (true, false), (false, false), (false, false)]);
    }

    #[test]
    fn schedulers_on_the_path_go_by_their_name() {
        let find = |name: &str| (name != "scx_none").then(|| PathBuf::from("/usr/bin").join(name));
        assert_eq!(program("scx_lavd", find), Some(Program::Path("/usr/bin/scx_lavd".into())));
        assert_eq!(program("scx_rusty", find), Some(Program::Peer("scx_rusty")), "the one whose version is known");
        assert_eq!((program("scx_none", find), program("ls", find)), (None, None));
        let said = refusal("scx_that_is_nowhere:-v");
        assert!(said.starts_with("the arm 'scx_that_is_nowhere' is unknown") && said.ends_with("on PATH"), "{said}");
    }

    #[test]
    fn options_may_hold_marked_commas() {
        let arms =
            parse_lists(&[r"scx_tandem:--manage uid=0\,pid=1 --seed 3,/opt/a\,b:-n 0\,1,oracle".to_owned()]).unwrap();
        assert_eq!(arms[0].scheduler.as_ref().unwrap().options, ["--manage", "uid=0,pid=1", "--seed", "3"]);
        assert_eq!(arms[1].scheduler.as_ref().unwrap().program, Program::Path("/opt/a,b".into()));
        assert_eq!(arms[1].scheduler.as_ref().unwrap().options, ["-n", "0,1"]);
        assert_eq!((arms[1].name.as_str(), arms[2].name.as_str()), (r"/opt/a\,b:-n 0\,1", "oracle"));
    }

    #[test]
    fn what_may_be_a_part_of_options_is_refused_with_how_to_write_it() {
        let said = refusal("stock,scx_tandem:--manage uid=0,pid=1,oracle");
        assert!(said.starts_with("the arm 'pid=1' is unknown: choose of stock"), "{said}");
        let end =
            r"; if it belongs to the options of 'scx_tandem:--manage uid=0', write the comma between them as '\,'";
        assert!(said.ends_with(end), "{said}");
        assert!(!refusal("scx_tandem,llc").contains("belongs"), "{}", refusal("scx_tandem,llc"));
    }

    #[test]
    fn unknown_arms_are_refused_in_words() {
        let said = refusal("stock,fastest");
        assert!(said.starts_with("the arm 'fastest' is unknown: choose of stock"), "{said}");
        assert!(!said.contains('\n'));
        assert!(refusal("oracle:--now").contains("takes no options"));
        assert!(refusal("stock,,worst").contains("''"), "{}", refusal("stock,,worst"));
    }
}
