// SPDX-License-Identifier: GPL-2.0-only
//! CRIU, which makes checkpoints of processes and restores them. It is called as a program, `criu`.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::unistd::Pid;

use crate::seat::NodeSet;

/// What CRIU says of its work, beside a checkpoint.
const LOG: &str = "criu.log";

/// Why CRIU cannot be used here, in words; `None` if it can.
pub fn obstacle() -> Option<String> {
    match Command::new("criu").arg("check").output() {
        Err(error) => Some(format!("criu does not start ({error}); Debian's package is `criu`")),
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("CRIU cannot make checkpoints on this machine, it says: {}", fault(&output.stderr))),
    }
}

/// Makes a checkpoint of a stopped process in `directory`; the process is ended.
///
/// # Errors
/// What CRIU says.
pub fn dump(process: Pid, directory: &Path) -> Result<()> {
    let process = process.to_string();
    call(&mut Command::new("criu"), &["dump", "--tree", &process], directory).context("no checkpoint could be made")
}

/// Restores the checkpoint in `directory`: a stopped process with the id that it had, and a child of the calling thread. What it
/// touches for the first time from then on comes from these nodes in turn, if there are any: CRIU keeps no memory policy.
///
/// # Errors
/// What CRIU says; another process may have that id now.
pub fn restore(directory: &Path, page_nodes: &[u32]) -> Result<()> {
    let page_nodes = (!page_nodes.is_empty()).then(|| NodeSet::of(page_nodes));
    let mut criu = Command::new("criu");
    // SAFETY: between fork and exec only a system call is made, on what is there already.
    unsafe { criu.pre_exec(move || page_nodes.as_ref().map_or(Ok(()), NodeSet::interleave_from_now_on)) };
    let words = ["restore", "--restore-detached", "--restore-sibling"];
    call(&mut criu, &words, directory).context("a checkpoint could not be restored")
}

/// Its terminal and session stay those of whoever calls it. Ctrl-C does not reach it, as a process that is half restored would be
/// left to nobody.
fn call(criu: &mut Command, words: &[&str], directory: &Path) -> Result<()> {
    let fixed = ["--shell-job", "--log-file", LOG, "--images-dir"];
    let done = criu.args(words).args(fixed).arg(directory).process_group(0).output();
    if done.context("criu does not start")?.status.success() {
        return Ok(());
    }
    bail!("CRIU says: {}", fault(&fs::read(directory.join(LOG)).unwrap_or_default()))
}

/// The first fault in what it said.
fn fault(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().find(|line| line.contains("Error")).unwrap_or("nothing");
    // Behind its time.
    line.split_once(") ").filter(|_| line.starts_with('(')).map_or(line, |(_, words)| words).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_first_fault_is_told() {
        let log = b"(00.001) Warn  (a.c:1): odd\n(00.002) Error (b.c:2): broken\n(00.003) Error (c.c:3): given up\n";
        assert_eq!(fault(log), "Error (b.c:2): broken");
        assert_eq!(fault(b"Error (util.c:1): no rights\n"), "Error (util.c:1): no rights");
        assert_eq!(fault(b""), "nothing");
    }
}
