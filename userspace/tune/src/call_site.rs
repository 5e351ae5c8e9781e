// SPDX-License-Identifier: GPL-2.0-only
//! Which place in a program's own code a call for memory comes from, as an offset in its file: the same wherever it is loaded.
//!
//! Mechanism: the innermost return address on the stack that lies in the program itself, right behind an instruction that
//! calls. What libraries call on the way is left out. Without frame pointers or unwind tables that is a guess, but the
//! same one in every run of the same program. Programs that are static have the C library in themselves, so they may have few
//! sites.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use nix::unistd::Pid;

use crate::mapped::Part;

/// So far up the stack is looked.
const DEPTH: usize = 8192;

/// What a site is called that is not found.
const UNKNOWN: &str = "unknown";

/// The code of a process's own program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnCode {
    name: String,
    /// What of it can be run.
    parts: Vec<Part>,
}

impl OwnCode {
    /// That of `process`; nothing if it is gone.
    pub fn of(process: Pid) -> Self {
        let path = fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { name, parts: code_of(path.as_os_str(), Part::all_of(process)) }
    }

    /// The site of a thread that is stopped in a call with its stack here.
    pub fn site(&self, thread: Pid, stack: u64) -> String {
        let found = File::open(format!("/proc/{thread}/mem")).ok().and_then(|memory| {
            let mut bytes = vec![0; DEPTH];
            let read = memory.read_at(&mut bytes, stack).ok()?;
            let words = bytes[..read].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            let mut offsets = words.filter_map(|word| Some((word, self.offset(word)?)));
            offsets.find(|&(word, _)| is_behind_a_call(&memory, word)).map(|(_, offset)| offset)
        });
        found.map_or_else(|| UNKNOWN.to_owned(), |offset| format!("{}+{offset:#x}", self.name))
    }

    fn offset(&self, address: u64) -> Option<u64> {
        let part = self.parts.iter().find(|part| (part.begin..part.end).contains(&address))?;
        Some(address - part.begin + part.offset)
    }
}

/// Whether the instruction before `address` calls: near, relative (e8) or by a register or memory (ff /2), of 2 to 7 bytes.
fn is_behind_a_call(memory: &File, address: u64) -> bool {
    let mut before = [0; 7];
    if memory.read_exact_at(&mut before, address - 7).is_err() {
        return false;
    }
    let indirect = |length: usize| {
        let [code, operand] = [before[7 - length], before[8 - length]];
        code == 0xff && operand >> 3 & 7 == 2
    };
    before[2] == 0xe8 || [2, 3, 4, 6, 7].into_iter().any(indirect)
}

/// Those of `parts` that are of the file at `path` and can be run.
fn code_of(path: &OsStr, parts: Vec<Part>) -> Vec<Part> {
    parts.into_iter().filter(|part| part.can_run() && part.name == path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::parsed;

    #[test]
    fn only_code_of_the_program_itself_counts() {
        let maps = b"\
55d0-55d8 r--p 00000000 fe:00 12 /usr/bin/with space
55d8-55e0 r-xp 00001000 fe:00 12 /usr/bin/with space
7f00-7f01 r-xp 00000000 fe:00 13 /usr/lib/other
";
        let parts = code_of("/usr/bin/with space".as_ref(), parsed(maps));
        let found: Vec<_> = parts.iter().map(|part| (part.begin, part.end, part.offset)).collect();
        assert_eq!(found, [(0x55d8, 0x55e0, 0x1000)]);
        let code = OwnCode { name: "with space".into(), parts };
        assert_eq!((code.offset(0x55da), code.offset(0x7f00)), (Some(0x1002), None));
    }

    #[test]
    fn calls_are_known_by_the_bytes_before_their_return_address() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("code");
        let is_call = |bytes: [u8; 7]| {
            fs::write(&path, bytes).unwrap();
            is_behind_a_call(&File::open(&path).unwrap(), 7)
        };
        // call rel32; call rax; call [rip+x]; call [rsp+8*rax+x].
        assert!(is_call([0, 0, 0xe8, 1, 2, 3, 4]) && is_call([0, 0, 0, 0, 0, 0xff, 0xd0]));
        assert!(is_call([0, 0xff, 0x15, 1, 2, 3, 4]) && is_call([0xff, 0x94, 0xc4, 1, 2, 3, 4]));
        // jmp rax; mov; a call further away.
        assert!(!is_call([0, 0, 0, 0, 0, 0xff, 0xe0]) && !is_call([0x48, 0x89, 0xe5, 0, 0, 0, 0]));
        assert!(!is_call([0, 0xe8, 1, 2, 3, 4, 0x90]));
    }
}
