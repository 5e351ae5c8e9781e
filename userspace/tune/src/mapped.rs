// SPDX-License-Identifier: GPL-2.0-only
//! What a process has mapped, as its file `maps` in /proc tells.
//!
//! The name of a file is bytes, which need not be text: the procfs crate reads nothing of a process that has mapped one other
//! than in UTF-8, and its file could not be opened by what is left of such a name as text.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use nix::unistd::Pid;

/// A part of a process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its first address.
    pub begin: u64,
    /// One past its last address.
    pub end: u64,
    /// `rwxp`, with `-` for what is not so, and `s` instead of `p` if it is shared.
    rights: [u8; 4],
    /// Where it begins in its file, in bytes.
    pub offset: u64,
    /// The path of its file, in brackets what else it is, or nothing.
    pub name: OsString,
}

impl Part {
    /// All parts of the process of `thread`, by address; none if it is gone.
    pub(crate) fn all_of(thread: Pid) -> Vec<Self> {
        parsed(&fs::read(format!("/proc/{thread}/maps")).unwrap_or_default())
    }

    /// Whether it is code.
    pub(crate) fn can_run(&self) -> bool {
        self.rights[2] == b'x'
    }

    /// Whether it is of a file.
    pub(crate) fn is_of_a_file(&self) -> bool {
        self.name.as_bytes().starts_with(b"/")
    }

    /// Whether the process may write it, and what it writes nobody else sees.
    pub(crate) fn is_private_and_writable(&self) -> bool {
        self.rights.starts_with(b"rw") && self.rights[3] == b'p'
    }

    /// Whether it is memory that the process alone has and may write, of no file, heap or stack.
    pub(crate) fn is_own_memory(&self) -> bool {
        // A name in brackets may be one that the program gave it.
        let is_named = !self.name.is_empty() && !self.name.as_bytes().starts_with(b"[anon:");
        self.is_private_and_writable() && !is_named
    }
}

/// The parts in what such a file says.
pub(crate) fn parsed(maps: &[u8]) -> Vec<Part> {
    maps.split(|&byte| byte == b'\n').filter_map(part).collect()
}

/// One line: `begin-end rights offset device inode name`.
fn part(line: &[u8]) -> Option<Part> {
    let mut words = line.splitn(6, |&byte| byte == b' ');
    let mut word = || words.next();
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (begin, end) = str::from_utf8(word()?).ok()?.split_once('-')?;
    let rights = word()?.try_into().ok()?;
    let offset = str::from_utf8(word()?).ok()?;
    // Behind device and inode; what has no name may end with them.
    let name = words.nth(2).unwrap_or_default().trim_ascii_start();
    let name = OsStr::from_bytes(name).to_owned();
    Some(Part { begin: number(begin)?, end: number(end)?, rights, offset: number(offset)?, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_part_whatever_bytes_its_name_has() {
        let maps = b"\
55d0-55d8 r--p 00000000 fe:00 12 /usr/bin/with space
55d8-55e0 r-xs 00001000 fe:00 12                         /usr/lib/caf\xe9
7f00-7f01 r-xp 00000000 00:00 0 [vdso]
7f02-7f03 rw-p 00000000 00:00 0 
7f04-7f05 rw-p 00000000 00:00 0
";
        let of = |begin, end, rights: &[u8; 4], offset, name: &[u8]| Part {
            begin,
            end,
            rights: *rights,
            offset,
            name: OsStr::from_bytes(name).to_owned(),
        };
        let expected = [
            of(0x55d0, 0x55d8, b"r--p", 0, b"/usr/bin/with space"),
            of(0x55d8, 0x55e0, b"r-xs", 0x1000, b"/usr/lib/caf\xe9"),
            of(0x7f00, 0x7f01, b"r-xp", 0, b"[vdso]"),
            of(0x7f02, 0x7f03, b"rw-p", 0, b""),
            of(0x7f04, 0x7f05, b"rw-p", 0, b""),
        ];
        assert_eq!(parsed(maps), expected);
        assert_eq!(expected.each_ref().map(Part::can_run), [false, true, true, false, false]);
        assert_eq!(expected.each_ref().map(Part::is_of_a_file), [true, true, false, false, false]);
    }
}
