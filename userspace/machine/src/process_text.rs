// SPDX-License-Identifier: GPL-2.0-only
//! What /proc says of processes in words.

use std::path::Path;
use std::{fs, io};

/// What a file of /proc about a process says. Names in it are the process's own, in any bytes, and the kernel cuts them within a
/// letter: what is no UTF-8 becomes U+FFFD.
///
/// # Errors
/// The file cannot be read: the process has ended, or this one may not.
pub fn process_text(file: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(file)?).into_owned())
}

/// The parent of the process that this is the `stat` of.
pub fn parent_of(stat: &str) -> Option<u32> {
    // The command may hold spaces and brackets; the fields start after its last bracket: the state, then the parent.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Which program a process runs: another one after `exec`, and another one where a process has the number of one that ended.
///
/// The kernel gives address spaces no number. Besides the start of the process, where code and stack begin tell them apart: they are
/// random at each `exec`. Where that is turned off (`setarch -R`), programs differ by their files, and by how long their arguments
/// and environment are: one that executes itself with the same ones is taken for the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramId {
    /// When the process began, on CLOCK_BOOTTIME, in ticks of 10 ms.
    pub start_ticks: u64,
    /// Where its code begins; 0 once its main thread has ended.
    pub code_start: u64,
    /// Where its stack begins; likewise.
    pub stack_start: u64,
}

impl ProgramId {
    /// Of the process that this is the `stat` of. Who may not trace it sees its start alone.
    pub fn of(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(19);
        let start_ticks = fields.next()?.parse().ok()?;
        let mut fields = fields.skip(3);
        let code_start = fields.next()?.parse().ok()?;
        let stack_start = fields.nth(1)?.parse().ok()?;
        Some(Self { start_ticks, code_start, stack_start })
    }

    /// Of a process by its number, below `proc`, which is /proc but for tests; `None` if it has ended.
    pub fn read(proc: &Path, process: u32) -> Option<Self> {
        // The file of the process itself is the same but for sums over all of its threads, which take time.
        Self::of(&process_text(&proc.join(format!("{process}/task/{process}/stat"))).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn names_in_any_bytes_hide_nothing_of_what_follows_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"7 (\xd1) (a b) S 42 7 7 0 -1\n").unwrap();
        assert_eq!(parent_of(&process_text(file.path()).unwrap()), Some(42));
        assert_eq!(parent_of("7 (a) Z"), None);
        assert!(process_text(Path::new("/proc/0/stat")).is_err());
    }

    #[test]
    fn a_program_is_told_by_its_start_its_code_and_its_stack() {
        let stat = "7 (a) (b) S 1 7 7 0 -1 4194304 99 0 0 0 0 0 0 0 20 0 1 0 3792983 3133440 379 184 942788 942797 1407262 0 0";
        let expected = ProgramId { start_ticks: 3_792_983, code_start: 942_788, stack_start: 1_407_262 };
        assert_eq!(ProgramId::of(stat), Some(expected));
        assert_eq!(ProgramId::of("7 (a) Z 1 7"), None);
        assert_eq!(ProgramId::read(Path::new("/proc"), u32::MAX), None);
    }

    #[test]
    fn a_process_that_executes_another_program_is_told_from_itself_before() {
        const SCRIPT: &str = "echo; read line; exec sh -c 'echo; read line'";
        let mut shell = Command::new("sh");
        let mut child = shell.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (process, mut input, mut output) = (child.id(), child.stdin.take().unwrap(), child.stdout.take().unwrap());
        // What it is told by is not complete until its own code runs.
        let mut read = || {
            output.read_exact(&mut [0]).unwrap();
            ProgramId::read(Path::new("/proc"), process).unwrap()
        };
        let before = read();
        assert_eq!(ProgramId::read(Path::new("/proc"), process), Some(before), "it is the same as long as it runs");
        input.write_all(b"\n").unwrap();
        let after = read();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(after.start_ticks, before.start_ticks);
        assert_ne!(after, before);
        assert_eq!(ProgramId::read(Path::new("/proc"), process), None, "it has ended");
    }
}
