// SPDX-License-Identifier: GPL-2.0-only
//! Where the programs are that an experiment needs, and the command line of one run.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::arm::{Arm, Placement, Program, Scheduler};
use crate::lab::collect_files;
use crate::run::{SCHEDULER_REPORT, hex};
use crate::workload::Workload;

/// The script that runs an arm, in a guest or on this machine.
pub const SCRIPT: &str = include_str!("arm.sh");

/// Where workloads find what belongs to the system.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Seconds between the settings and the workload, so that what a boot or a scheduler still does is over.
const SETTLE_S: u32 = 2;

/// The folders that programs come from.
#[derive(Clone, Debug)]
pub struct Places {
    /// Folder of `tandem-load` and `scx_tandem`.
    pub binaries: PathBuf,
    /// Folder of `setup/peers.sh`.
    pub vm: PathBuf,
    /// Where `peers.sh` builds.
    pub cache: PathBuf,
}

/// The programs of one arm, as paths on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// `tandem-load`.
    pub load: PathBuf,
    /// The sched_ext scheduler, if the arm has one.
    pub scheduler: Option<PathBuf>,
    /// `numactl`, if the arm needs it.
    pub numactl: Option<PathBuf>,
    /// What the workload starts: files and folders here, and where a guest has them. The first is a program.
    pub tools: Vec<(PathBuf, PathBuf)>,
}

impl Places {
    /// `tandem-load`.
    ///
    /// # Errors
    /// It is not there.
    pub fn load(&self) -> Result<PathBuf> {
        existing(self.binaries.join("tandem-load"))
    }

    /// The programs of `arm`, but for what workloads start; builds those of Cargo's registry, which takes minutes the
    /// first time.
    ///
    /// # Errors
    /// One is not there and cannot be built.
    pub fn of(&self, arm: &Arm) -> Result<Programs> {
        let scheduler = arm.scheduler.as_ref().map(|scheduler| match &scheduler.program {
            Program::Tandem => existing(self.binaries.join("scx_tandem")),
            Program::Path(path) => runnable(path).with_context(|| format!("the arm {arm}")),
            Program::Peer(name) => self.peer(name),
        });
        let numactl =
            matches!(arm.placement, Placement::Direct | Placement::Interleave).then(|| in_path("numactl", arm));
        let (scheduler, numactl) = (scheduler.transpose()?, numactl.transpose()?);
        Ok(Programs { load: self.load()?, scheduler, numactl, tools: Vec::new() })
    }

    /// What `workload` starts; installs it if it is not there.
    ///
    /// # Errors
    /// It cannot be had.
    pub fn tools(&self, workload: &Workload) -> Result<Vec<(PathBuf, PathBuf)>> {
        if workload.needs.is_empty() {
            return Ok(Vec::new());
        }
        let printed = self.set_up("programs.sh", &workload.needs)?;
        let printed = printed.with_context(|| format!("the programs of {} cannot be had: see above", workload.name))?;
        Ok(printed
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(here, there)| (here.into(), there.into()))
            .collect())
    }

    fn peer(&self, name: &str) -> Result<PathBuf> {
        let path = self.set_up("peers.sh", &[name.to_owned()])?;
        let path = path.with_context(|| format!("the arm {name}: its scheduler cannot be had: see above"))?;
        Ok(PathBuf::from(path))
    }

    /// What a script of the set-up prints for `names`; `None` if it fails or prints nothing.
    fn set_up(&self, script: &str, names: &[String]) -> Result<Option<String>> {
        let script = self.vm.join("setup").join(script);
        let mut command = Command::new(&script);
        let ran = command.arg(&self.cache).args(names).stderr(Stdio::inherit()).output();
        let ran = ran.with_context(|| format!("{} does not start", script.display()))?;
        let printed = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
        Ok((ran.status.success() && !printed.is_empty()).then_some(printed))
    }
}

impl Programs {
    /// All single programs.
    pub fn all(&self) -> impl Iterator<Item = &PathBuf> {
        [Some(&self.load), self.scheduler.as_ref(), self.numactl.as_ref()].into_iter().flatten()
    }

    /// The same programs as files in `folder`, which is how a guest sees them.
    #[must_use]
    pub fn moved_to(&self, folder: &Path) -> Self {
        let moved = |path: &PathBuf| folder.join(path.file_name().expect("a program is a file"));
        Self {
            load: moved(&self.load),
            scheduler: self.scheduler.as_ref().map(moved),
            numactl: self.numactl.as_ref().map(moved),
            tools: self.tools.iter().map(|(_, there)| (there.clone(), there.clone())).collect(),
        }
    }

    /// A hash of what they and the script contain, and of the words that the script is given.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn fingerprint(&self, arguments: &[String]) -> Result<String> {
        let mut hash = Sha256::new();
        hash.update(SCRIPT);
        hash.update(serde_json::to_string(arguments)?);
        let mut files: Vec<PathBuf> = self.all().cloned().collect();
        for (here, _) in &self.tools {
            if here.is_dir() {
                collect_files(here, &mut files)?;
            } else {
                files.push(here.clone());
            }
        }
        for path in files {
            hash.update(Sha256::digest(fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?));
        }
        Ok(hex(&hash.finalize()))
    }

    /// The arguments of [`SCRIPT`] for one run that leaves its files in `out`.
    ///
    /// `direct_node` is the node that the arm `direct` uses.
    pub fn arguments(&self, arm: &Arm, workload: &Workload, seed: u64, out: &Path, direct_node: u32) -> Vec<String> {
        let mut words = vec![
            text(out),
            u8::from(arm.settings.numa_balancing).to_string(),
            if arm.settings.huge_pages { "always" } else { "never" }.to_owned(),
            SETTLE_S.to_string(),
            self.scheduler_command(arm, seed, out),
        ];
        if let Some(numactl) = &self.numactl {
            words.push(text(numactl));
            match arm.placement {
                Placement::Direct => {
                    words.extend([format!("--cpunodebind={direct_node}"), format!("--membind={direct_node}")]);
                }
                _ => words.push("--interleave=all".to_owned()),
            }
        }
        if let Some(folder) = self.tools.first().and_then(|(program, _)| program.parent()) {
            words.extend(["env".to_owned(), format!("PATH={}:{SYSTEM_PATH}", folder.display())]);
        }
        let placement = match arm.placement {
            Placement::Oracle => "oracle",
            Placement::Worst => "worst",
            Placement::None | Placement::Direct | Placement::Interleave => "none",
        };
        words.extend([text(&self.load), workload.name.clone()]);
        words.extend(["--placement", placement, "--seed"].map(str::to_owned));
        words.push(seed.to_string());
        if arm.placement == Placement::Direct {
            // As much work as in the other arms, although numactl leaves a part of the CPUs.
            words.push("--whole-machine".to_owned());
        }
        if arm.scheduler.as_ref().is_some_and(Scheduler::is_partial) {
            words.push("--sched-ext".to_owned());
        }
        words.extend(workload.options.iter().cloned());
        words
    }

    /// One word: the script splits it at spaces.
    fn scheduler_command(&self, arm: &Arm, seed: u64, out: &Path) -> String {
        let (Some(program), Some(scheduler)) = (&self.scheduler, &arm.scheduler) else { return String::new() };
        let mut words = vec![text(program)];
        words.extend(scheduler.options.iter().cloned());
        if scheduler.program == Program::Tandem {
            if !scheduler.options.iter().any(|word| word.starts_with("--report")) {
                words.extend(["--report".to_owned(), text(&out.join(SCHEDULER_REPORT))]);
            }
            if !scheduler.options.iter().any(|word| word.starts_with("--seed")) {
                words.extend(["--seed".to_owned(), seed.to_string()]);
            }
        }
        words.join(" ")
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn existing(path: PathBuf) -> Result<PathBuf> {
    if !path.is_file() {
        bail!("{} is missing: build it by ./run build", path.display());
    }
    Ok(path)
}

/// A program of somebody else's.
fn runnable(path: &Path) -> Result<PathBuf> {
    if !path.is_file() {
        bail!("there is no file {}: give the path of a sched_ext scheduler", path.display());
    }
    if !is_program(path) {
        bail!("{} is not executable: give the path of a sched_ext scheduler", path.display());
    }
    Ok(path.to_owned())
}

/// Whether it is a file that can be run.
pub(crate) fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// The first file of this name on PATH that can be run.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    first_program(name, &std::env::var_os("PATH").unwrap_or_default())
}

fn first_program(name: &str, path: &OsStr) -> Option<PathBuf> {
    let found = std::env::split_paths(path).map(|folder| folder.join(name)).find(|file| is_program(file))?;
    // An entry of PATH may be relative.
    std::path::absolute(found).ok()
}

fn in_path(name: &str, arm: &Arm) -> Result<PathBuf> {
    on_path(name)
        .with_context(|| format!("the arm {arm} needs {name}: install the package {name}, as ./run build does"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{arm, workload};

    fn arguments(arm_text: &str, programs: &Programs) -> Vec<String> {
        let arm = arm::parse_lists(&[arm_text.to_owned()]).unwrap().remove(0);
        let workload = workload::parse_lists(&["crossed:--threads 8".to_owned()]).remove(0);
        programs.arguments(&arm, &workload, 3, Path::new("/out"), 2)
    }

    fn programs(scheduler: Option<&str>, numactl: Option<&str>) -> Programs {
        Programs {
            load: "/b/tandem-load".into(),
            scheduler: scheduler.map(Into::into),
            numactl: numactl.map(Into::into),
            tools: Vec::new(),
        }
    }

    #[test]
    fn settings_seed_and_sizes_reach_the_run() {
        let words = arguments("stock-nb1-thp", &programs(None, None)).join("|");
        assert_eq!(words, "/out|1|always|2||/b/tandem-load|crossed|--placement|none|--seed|3|--threads|8");
    }

    #[test]
    fn oracle_and_worst_place_themselves() {
        for name in ["oracle", "worst"] {
            assert!(arguments(name, &programs(None, None)).join(" ").contains(&format!("--placement {name}")));
        }
    }

    #[test]
    fn numactl_places_direct_on_its_node_and_interleave_on_all() {
        let given = programs(None, Some("/usr/bin/numactl"));
        let words = arguments("direct", &given).join(" ");
        assert!(words.contains("numactl --cpunodebind=2 --membind=2 /b/tandem-load"), "{words}");
        assert!(arguments("interleave", &given).join(" ").contains("numactl --interleave=all /b/tandem-load"));
    }

    #[test]
    fn what_a_workload_starts_comes_first_in_its_path() {
        let tools = vec![("/c/programs/redis-server".into(), "/bin/redis-server".into())];
        let given = Programs { tools, ..programs(None, Some("/usr/bin/numactl")) };
        let words = arguments("interleave", &given).join(" ");
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        assert!(words.contains(&format!("--interleave=all env PATH=/c/programs:{path} /b/tandem-load")), "{words}");
        let in_guest = arguments("interleave", &given.moved_to(Path::new("/bin"))).join(" ");
        assert!(in_guest.contains(&format!("env PATH=/bin:{path} /bin/tandem-load")), "{in_guest}");
    }

    #[test]
    fn what_a_workload_starts_is_part_of_the_fingerprint() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &str| {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, content).unwrap();
            path
        };
        let given = Programs {
            load: file("load", ""),
            tools: vec![(file("tool", "one"), "/bin/tool".into()), (directory.path().join("plugins"), "/p".into())],
            ..programs(None, None)
        };
        file("plugins/a", "one");
        let mut seen = vec![given.fingerprint(&[]).unwrap()];
        for changed in ["tool", "plugins/a"] {
            file(changed, "two");
            seen.push(given.fingerprint(&[]).unwrap());
        }
        seen.dedup();
        assert_eq!(seen.len(), 3);
    }

    #[test]
    fn tandem_reports_and_others_are_started_as_told() {
        let words = arguments("scx_tandem:--policy tandem", &programs(Some("/b/scx_tandem"), None));
        assert_eq!(words[4], "/b/scx_tandem --policy tandem --report /out/scheduler.json --seed 3");
        assert_eq!(arguments("scx_rusty:-v", &programs(Some("/p/scx_rusty"), None))[4], "/p/scx_rusty -v");
    }

    #[test]
    fn a_scheduler_in_partial_mode_gets_a_workload_of_its_class() {
        let words = |arm: &str| arguments(arm, &programs(Some("/b/scx_tandem"), None));
        let kernel = words("scx_tandem:--partial --mover kernel");
        assert_eq!((kernel[1].as_str(), kernel.contains(&"--sched-ext".to_owned())), ("1", true), "{kernel:?}");
        let full = words("scx_tandem");
        assert_eq!((full[1].as_str(), full.contains(&"--sched-ext".to_owned())), ("0", false), "{full:?}");
    }

    #[test]
    fn another_program_or_another_word_is_another_fingerprint() {
        let directory = tempfile::tempdir().unwrap();
        let load = directory.path().join("tandem-load");
        let fingerprint = |content: &str, word: &str| {
            fs::write(&load, content).unwrap();
            Programs { load: load.clone(), ..programs(None, None) }.fingerprint(&[word.to_owned()]).unwrap()
        };
        assert_ne!(fingerprint("one", "0"), fingerprint("two", "0"));
        assert_ne!(fingerprint("one", "0"), fingerprint("one", "1"));
        assert_eq!(fingerprint("one", "0"), fingerprint("one", "0"));
    }

    #[test]
    fn the_first_program_on_the_path_that_can_be_run_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, mode: u32| {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        file("text/scx_x", 0o644);
        file("first/scx_x", 0o755);
        file("second/scx_x", 0o755);
        fs::create_dir_all(directory.path().join("second/scx_folder")).unwrap();
        let folders = ["none", "text", "first", "second"].map(|name| directory.path().join(name));
        let path = std::env::join_paths(&folders).unwrap();
        assert_eq!(first_program("scx_x", &path), Some(folders[2].join("scx_x")));
        assert_eq!((first_program("scx_folder", &path), first_program("scx_other", &path)), (None, None));
    }

    #[test]
    fn what_cannot_be_run_is_no_arm() {
        let places = Places { binaries: "/no".into(), vm: "/no".into(), cache: "/no".into() };
        let arm = arm::parse_lists(&["/etc/passwd".to_owned()]).unwrap().remove(0);
        let said = format!("{:#}", places.of(&arm).unwrap_err());
        assert!(said.starts_with("the arm /etc/passwd: /etc/passwd is not executable"), "{said}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let places = Places { binaries: "/no".into(), vm: "/no".into(), cache: "/no".into() };
        assert_eq!(places.load().unwrap_err().to_string(), "/no/tandem-load is missing: build it by ./run build");
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("tandem-load"), "").unwrap();
        let places = Places { binaries: directory.path().into(), ..places };
        let arm = arm::parse_lists(&["/no/scx_x".to_owned()]).unwrap().remove(0);
        let said = format!("{:#}", places.of(&arm).unwrap_err());
        assert!(said.starts_with("the arm /no/scx_x: there is no file /no/scx_x: give"), "{said}");
    }
}
