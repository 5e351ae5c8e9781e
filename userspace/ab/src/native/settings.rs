// SPDX-License-Identifier: GPL-2.0-only
//! The kernel settings that arms change, as they were before.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Whether and how the kernel balances; absent on a machine of one node.
pub const NUMA_BALANCING: &str = "/proc/sys/kernel/numa_balancing";
/// When it uses huge pages, the choice in brackets among all.
pub const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Settings at one moment; those that the kernel does not have are absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSettings {
    values: Vec<(PathBuf, String)>,
}

impl KernelSettings {
    /// Reads them below `root`.
    ///
    /// # Errors
    /// One is there and cannot be read.
    pub fn read(root: &Path) -> Result<Self> {
        let mut values = Vec::new();
        for file in [NUMA_BALANCING, HUGE_PAGES] {
            let path = root.join(file.trim_start_matches('/'));
            match fs::read_to_string(&path) {
                Ok(text) => values.push((path, chosen(&text))),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error).with_context(|| format!("{} cannot be read", path.display())),
            }
        }
        Ok(Self { values })
    }

    /// Writes those that are not as they were. The script of an arm does it itself, unless it was killed.
    ///
    /// # Errors
    /// One cannot be read or written; the others are written all the same.
    pub fn put_back(&self) -> Result<()> {
        let mut result = Ok(());
        for (path, value) in &self.values {
            let written = fs::read_to_string(path).and_then(|now| match chosen(&now) == *value {
                true => Ok(()),
                false => fs::write(path, value),
            });
            let context = || format!("{} cannot be set back to {value}: set it by hand", path.display());
            result = result.and(written.with_context(context));
        }
        result
    }
}

/// The value in brackets, or all of the text if there are none.
fn chosen(text: &str) -> String {
    let inner = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(inner, _)| inner);
    inner.unwrap_or(text).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in [(NUMA_BALANCING, "3\n"), (HUGE_PAGES, "always [madvise] never\n")] {
            let path = root.path().join(file.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn content(root: &Path, file: &str) -> String {
        fs::read_to_string(root.join(file.trim_start_matches('/'))).unwrap()
    }

    #[test]
    fn what_was_changed_is_put_back_and_nothing_else_is_touched() {
        let root = root();
        let settings = KernelSettings::read(root.path()).unwrap();
        settings.put_back().unwrap();
        assert_eq!(content(root.path(), HUGE_PAGES), "always [madvise] never\n", "nothing had changed");
        fs::write(root.path().join(&NUMA_BALANCING[1..]), "0\n").unwrap();
        fs::write(root.path().join(&HUGE_PAGES[1..]), "[always] madvise never\n").unwrap();
        settings.put_back().unwrap();
        assert_eq!(
            (content(root.path(), NUMA_BALANCING), content(root.path(), HUGE_PAGES)),
            ("3".into(), "madvise".into())
        );
    }

    #[test]
    fn one_that_cannot_be_put_back_is_named_and_the_other_is_put_back() {
        let root = root();
        let settings = KernelSettings::read(root.path()).unwrap();
        fs::remove_file(root.path().join(&NUMA_BALANCING[1..])).unwrap();
        fs::write(root.path().join(&HUGE_PAGES[1..]), "[always] madvise never\n").unwrap();
        let said = settings.put_back().unwrap_err().to_string();
        assert!(said.contains("numa_balancing cannot be set back to 3"), "{said}");
        assert_eq!(content(root.path(), HUGE_PAGES), "madvise");
    }

    #[test]
    fn a_machine_of_one_node_has_nothing_to_balance() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(KernelSettings::read(root.path()).unwrap(), KernelSettings { values: Vec::new() });
    }
}
