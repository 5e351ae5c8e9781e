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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_any_bytes_hide_nothing_of_what_follows_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"7 (\xd1) (a b) S 42 7 7 0 -1\n").unwrap();
        assert_eq!(parent_of(&process_text(file.path()).unwrap()), Some(42));
        assert_eq!(parent_of("7 (a) Z"), None);
        assert!(process_text(Path::new("/proc/0/stat")).is_err());
    }
}
