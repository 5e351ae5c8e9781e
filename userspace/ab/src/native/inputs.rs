// SPDX-License-Identifier: GPL-2.0-only
//! What a run on this machine depends on besides its command line, and what of it the arm's script cannot pass on.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::arm::{Arm, Program};
use crate::programs::Programs;
use crate::run::hex;
use crate::runner::Job;

/// Variables of the environment that begin so are options of scx_tandem.
const SETTING: &[u8] = b"TANDEM_";

/// A hash of the programs of `arm`, of the words that they are given, and of the files that these name for scx_tandem.
///
/// # Errors
/// One cannot be read.
pub fn fingerprint(programs: &Programs, arm: &Arm, words: &[String]) -> Result<String> {
    let programs_sha256 = programs.fingerprint(words)?;
    let Some(scheduler) = &arm.scheduler else { return Ok(programs_sha256) };
    let mut files = Vec::new();
    for file in scheduler.named_files() {
        match fs::read(file) {
            Ok(content) => files.push(hex(&Sha256::digest(content))),
            // What another scheduler means by such an option may be no file.
            Err(_) if scheduler.program != Program::Tandem => {}
            Err(error) => return Err(error).with_context(|| format!("the arm {arm}: {file} cannot be read")),
        }
    }
    // Without any, runs that are in a store keep their place in it.
    Ok(if files.is_empty() { programs_sha256 } else { hex(&Sha256::digest(programs_sha256 + &files.concat())) })
}

/// Takes away from `command` those of the variables `names` that set options of scx_tandem: an arm is what its name says.
pub fn without_settings(command: &mut Command, names: impl Iterator<Item = OsString>) {
    for name in names.filter(|name| name.as_bytes().starts_with(SETTING)) {
        command.env_remove(name);
    }
}

/// Refuses paths that are more than one word in the scheduler's command line, or another one, to the shell that runs it.
///
/// # Errors
/// There is one, of a scheduler or of the store.
pub fn check_words(jobs: &[Job], store: &Path) -> Result<()> {
    const WHY: &str = "has white space or one of * ? [ \\ in it, which the script of an arm cannot pass on";
    for job in jobs {
        let Some(program) = &job.programs.scheduler else { continue };
        if !is_one_word(program.as_os_str()) {
            bail!("the arm {}: the path {} {WHY}: give the scheduler another one", job.arm, program.display());
        }
        let reports = job.arm.scheduler.as_ref().is_some_and(|scheduler| scheduler.program == Program::Tandem);
        if reports && !is_one_word(store.as_os_str()) {
            bail!("the path of the store {} {WHY}: give another one with --store", store.display());
        }
    }
    Ok(())
}

fn is_one_word(path: &OsStr) -> bool {
    !path.as_bytes().iter().any(|byte| byte.is_ascii_whitespace() || b"*?[\\".contains(byte))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::run::Identity;
    use crate::{arm, testing, workload};

    fn arm(text: &str) -> Arm {
        arm::parse_lists(&[text.to_owned()]).unwrap().remove(0)
    }

    fn programs(folder: &Path) -> Programs {
        let load = folder.join("tandem-load");
        fs::write(&load, "").unwrap();
        Programs { load, scheduler: None, numactl: None, tools: Vec::new() }
    }

    #[test]
    fn what_a_file_holds_that_an_option_names_is_part_of_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let (programs, file) = (programs(folder.path()), folder.path().join("t.toml"));
        for option in ["--config ", "--config=", "--calibration ", "--calibration="] {
            let arm = arm(&format!("scx_tandem:--stats 1 {option}{}", file.display()));
            let with = |content: &str| {
                fs::write(&file, content).unwrap();
                fingerprint(&programs, &arm, &[]).unwrap()
            };
            let (one, other) = (with("page_rate = 1"), with("page_rate = 2"));
            assert_ne!(one, other, "{option}");
            assert_eq!(with("page_rate = 1"), one);
        }
        fs::remove_file(&file).unwrap();
        let lost = arm(&format!("scx_tandem:--config {}", file.display()));
        let said = format!("{:#}", fingerprint(&programs, &lost, &[]).unwrap_err());
        assert!(said.contains("t.toml cannot be read: No such file"), "{said}");
    }

    #[test]
    fn arms_that_name_no_file_keep_their_place_in_stores() {
        let folder = tempfile::tempdir().unwrap();
        let programs = programs(folder.path());
        for text in ["stock-nb0", "scx_tandem:--stats 1", "/bin/sh:--config layers"] {
            assert_eq!(fingerprint(&programs, &arm(text), &[]).unwrap(), programs.fingerprint(&[]).unwrap(), "{text}");
        }
    }

    #[test]
    fn settings_of_the_environment_reach_no_arm() {
        let mut command = Command::new("true");
        let names = ["TANDEM_POLICY", "PATH", "TANDEM_CONFIG", "MY_TANDEM_"].map(OsString::from);
        without_settings(&mut command, names.into_iter());
        let changed: Vec<_> = command.get_envs().collect();
        assert_eq!(changed, [("TANDEM_CONFIG".as_ref(), None), ("TANDEM_POLICY".as_ref(), None)]);
    }

    #[test]
    fn paths_that_a_shell_would_take_for_something_else_are_refused() {
        let job = |text: &str, scheduler: Option<&str>| Job {
            identity: Identity { ..testing::run("x", 1, 1.0).identity },
            arm: arm(text),
            workload: workload::parse_lists(&["crossed".to_owned()]).remove(0),
            programs: Programs {
                load: PathBuf::new(),
                scheduler: scheduler.map(Into::into),
                numactl: None,
                tools: Vec::new(),
            },
            boot: 1,
        };
        let check = |job: Job, store: &str| check_words(&[job], Path::new(store)).map_err(|error| error.to_string());
        for path in ["/a b/scx_x", "/a*/scx_x", "/[a]/scx_x", "/a\\b/scx_x", "/a\tb", "/a?"] {
            let said = check(job("/bin/sh", Some(path)), "/s").unwrap_err();
            assert!(said.starts_with(&format!("the arm /bin/sh: the path {path} has white space")), "{said}");
        }
        let said = check(job("scx_tandem", Some("/bin/scx_tandem")), "/my store").unwrap_err();
        assert!(said.starts_with("the path of the store /my store has") && said.ends_with("with --store"), "{said}");
        // Nobody splits what these are given.
        assert_eq!(check(job("stock-nb0", None), "/my store"), Ok(()));
        assert_eq!(check(job("/bin/sh", Some("/bin/sh")), "/my store"), Ok(()));
    }
}
