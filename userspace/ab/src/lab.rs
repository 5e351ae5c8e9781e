// SPDX-License-Identifier: GPL-2.0-only
//! The lab (`vm/lab.py`) as a way to run a command in a machine whose memory costs what a machine file says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tandem_policies::foreign::quoted;

use crate::calibration::Walk;
use crate::programs::is_program;
use crate::run::hex;
use crate::stop::{Stop, run_to_end};

/// Folders beside the lab's program whose content decides what a run gives.
const SOURCES: [&str; 2] = ["lab", "timing"];

/// What is built of them, likewise.
const BUILT: [&str; 2] = ["../build/vm/timing.so", "../build/bin/tandem-calibrate"];

/// The lab.
#[derive(Clone, Debug)]
pub struct Lab {
    program: PathBuf,
}

/// One boot that runs one command.
#[derive(Clone, Debug)]
pub struct Boot<'a> {
    /// Machine file.
    pub machine: &'a Path,
    /// Kernel release.
    pub kernel: &'a str,
    /// What the boot's start and noise derive from.
    pub seed: u64,
    /// Where the guest's /out and the ground truth go.
    pub out: &'a Path,
    /// Where what the lab and the guest say goes.
    pub log: &'a Path,
    /// Limit for boot and command together, in time of this machine.
    pub limit: Duration,
    /// Files for the guest: path here, path there.
    pub additions: Vec<(PathBuf, PathBuf)>,
    /// The command in the guest.
    pub command: Vec<String>,
}

impl Lab {
    /// The lab whose program is `program`.
    ///
    /// # Errors
    /// It is not there.
    pub fn at(program: &Path) -> Result<Self> {
        let program = fs::canonicalize(program)
            .with_context(|| format!("the lab {} is not there: give its path by --lab", program.display()))?;
        if !is_program(&program) {
            bail!("the lab {} is no program: give the path of lab.py by --lab", program.display());
        }
        Ok(Self { program })
    }

    /// Its program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The folder of its program.
    pub fn folder(&self) -> &Path {
        self.program.parent().unwrap_or(Path::new("/"))
    }

    /// The kernel that it boots: the one that is `asked` for, or the first of `kernels.list`.
    ///
    /// # Errors
    /// The list cannot be read, is empty, or does not have it.
    pub fn kernel(&self, asked: Option<&str>) -> Result<String> {
        let path = self.folder().join("kernels.list");
        let list = fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let pinned: Vec<&str> = lines.collect();
        let first = pinned.first().with_context(|| format!("{} lists no kernel", path.display()))?;
        let kernel = asked.unwrap_or(first);
        if !pinned.contains(&kernel) {
            bail!("there is no kernel {}: choose of {} ({})", quoted(kernel), pinned.join(", "), path.display());
        }
        Ok(kernel.to_owned())
    }

    /// A hash of its sources, of what was built of them, and of QEMU's version: what changes with it may change results.
    ///
    /// # Errors
    /// A source cannot be read.
    pub fn fingerprint(&self) -> Result<String> {
        let mut files = vec![self.program.clone()];
        for folder in SOURCES {
            collect_files(&self.folder().join(folder), &mut files)?;
        }
        // What is not built yet the lab itself asks for.
        files.extend(BUILT.iter().map(|built| self.folder().join(built)).filter(|built| built.is_file()));
        let mut hash = Sha256::new();
        for file in &files {
            let content = fs::read(file).with_context(|| format!("{} cannot be read", file.display()))?;
            hash.update(file.strip_prefix(self.folder()).unwrap_or(file).as_os_str().as_encoded_bytes());
            hash.update(Sha256::digest(content));
        }
        // A lab without QEMU says so itself when it is asked to boot.
        if let Ok(version) = Command::new("qemu-system-x86_64").arg("--version").output() {
            hash.update(version.stdout);
        }
        Ok(hex(&hash.finalize()))
    }

    /// Boots and runs the command to its end.
    ///
    /// # Errors
    /// The run failed: the reason in one sentence, in the lab's own words if it has any.
    pub fn run(&self, boot: &Boot<'_>, stop: &Stop) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["run", "--timing", "--quiet", "--machine"]).arg(boot.machine).args(["--kernel", boot.kernel]);
        command.args(["--seed", &boot.seed.to_string(), "--timeout", &boot.limit.as_secs().to_string(), "--out"]);
        command.arg(boot.out);
        for (here, there) in &boot.additions {
            command.arg("--add").arg(format!("{}:{}", here.display(), there.display()));
        }
        command.arg("--").args(&boot.command);
        to_the_end(&mut command, boot.log, stop)
    }

    /// Boots and makes the calibration's walks; what the lab and the guest say goes to `log`.
    ///
    /// # Errors
    /// The run failed: the reason in one sentence.
    pub fn calibrate(
        &self,
        machine: &Path,
        kernel: &str,
        seed: u64,
        log: &Path,
        limit: Duration,
        stop: &Stop,
    ) -> Result<Vec<Walk>> {
        let mut command = Command::new(&self.program);
        command.args(["calibrate", "--json", "--quiet", "--machine"]).arg(machine).args(["--kernel", kernel]);
        command.args(["--seed", &seed.to_string(), "--timeout", &limit.as_secs().to_string()]);
        let ended = to_the_end(&mut command, log, stop);
        // Walks that are off have an exit code too; what they are is judged here, from the walks.
        match (walks(&fs::read_to_string(log).unwrap_or_default()), ended) {
            (Some(walks), _) => Ok(walks),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => bail!("the lab printed no walks, see {}", log.display()),
        }
    }
}

/// The walks in what `lab.py calibrate --json` printed.
fn walks(printed: &str) -> Option<Vec<Walk>> {
    let line = printed.lines().rev().find(|line| line.starts_with('{'))?;
    let calibrated: Calibrated = serde_json::from_str(line).ok()?;
    let walk =
        |walk: MeasuredWalk| Walk { from: walk.from, to: walk.to, measured_ns: walk.ns, expected_ns: walk.file_ns };
    Some(calibrated.walks.into_iter().map(walk).collect())
}

/// Runs a command of the lab; its failure in one sentence.
fn to_the_end(command: &mut Command, log: &Path, stop: &Stop) -> Result<()> {
    let status = run_to_end(command, log, stop)?;
    if status.success() {
        return Ok(());
    }
    let said = fs::read(log).unwrap_or_default();
    let words = last_words(&String::from_utf8_lossy(&said));
    let how = status.code().map_or_else(|| format!("{status}"), |code| format!("exit code {code}"));
    match words {
        Some(words) => bail!("{words} ({how})"),
        None => bail!("the lab ended with {how}"),
    }
}

#[derive(Deserialize)]
struct Calibrated {
    walks: Vec<MeasuredWalk>,
}

/// Times of one line in ns: as measured, and as the machine file has it.
#[derive(Deserialize)]
struct MeasuredWalk {
    from: u32,
    to: u32,
    ns: f64,
    file_ns: f64,
}

/// What the lab said last in its own name, or else the last line of all.
fn last_words(log: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let own = lines.iter().rev().find_map(|line| line.strip_prefix("lab: "));
    own.or(lines.last().copied()).map(|line| line.split("; kernel log: ").next().unwrap_or(line).to_owned())
}

/// All files below `folder`, in order; none when there is no such folder. What Python leaves is no source.
pub(crate) fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    let listed = fs::read_dir(folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let mut entries = listed.with_context(|| format!("{} cannot be listed", folder.display()))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "__pycache__" {
            collect_files(&path, files)?;
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A lab that does nothing.
    fn empty_lab(program: &Path) -> Lab {
        fs::write(program, "").unwrap();
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
        Lab::at(program).unwrap()
    }

    #[test]
    fn the_labs_own_words_come_first() {
        let log = "hello\nlab: the kernel ejected the BPF scheduler x (stall); kernel log: /tmp/l\nbye\n";
        assert_eq!(last_words(log).unwrap(), "the kernel ejected the BPF scheduler x (stall)");
        assert_eq!(last_words("one\ntwo\n\n").unwrap(), "two");
        assert_eq!(last_words(""), None);
    }

    #[test]
    fn a_changed_source_is_another_lab() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("vm/lab.py");
        for folder in ["vm/timing/__pycache__", "build/vm"] {
            fs::create_dir_all(directory.path().join(folder)).unwrap();
        }
        let source = directory.path().join("vm/timing/model.c");
        fs::write(&source, "one").unwrap();
        let lab = empty_lab(&program);
        let before = lab.fingerprint().unwrap();
        fs::write(directory.path().join("vm/timing/__pycache__/x.pyc"), "cached").unwrap();
        assert_eq!(lab.fingerprint().unwrap(), before);
        fs::write(&source, "two").unwrap();
        let changed = lab.fingerprint().unwrap();
        assert_ne!(changed, before);
        fs::write(directory.path().join("build/vm/timing.so"), "built of one").unwrap();
        assert_ne!(lab.fingerprint().unwrap(), changed, "what runs is what was built");
    }

    #[test]
    fn the_first_listed_kernel_is_the_default_and_others_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let lab = empty_lab(&directory.path().join("lab.py"));
        fs::write(directory.path().join("kernels.list"), "# pinned\n\n7.3.4\n6.18\n").unwrap();
        assert_eq!(lab.kernel(None).unwrap(), "7.3.4");
        assert_eq!(lab.kernel(Some("6.18")).unwrap(), "6.18");
        let said = lab.kernel(Some("1.2.3")).unwrap_err().to_string();
        assert!(said.starts_with("there is no kernel \"1.2.3\": choose of 7.3.4, 6.18 ("), "{said}");
        let said = Lab::at(&directory.path().join("kernels.list")).unwrap_err().to_string();
        assert!(said.contains("kernels.list is no program"), "{said}");
        let said = Lab::at(&directory.path().join("none")).unwrap_err().to_string();
        assert!(said.contains("is not there"), "{said}");
    }
}
