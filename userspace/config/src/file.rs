// SPDX-License-Identifier: GPL-2.0-only
//! Configuration files. What is in one becomes root's orders, so only root may write it.

use std::collections::BTreeMap;
use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tandem_policies::foreign::{message, quoted};
use thiserror::Error;
use toml::{Spanned, Value};

/// A configuration file takes a few lines; what is larger is something else.
const MOST_BYTES: u64 = 1 << 20;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Why a configuration file is not used. Every one says the file, and the line if there is one.
#[derive(Debug, Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("{}: cannot be read: {cause}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why. No source of this error: whoever prints both would say it twice.
        cause: io::Error,
    },
    /// It is a directory, a device or the like.
    #[error("{}: is no regular file", .path.display())]
    NotRegular {
        /// The file.
        path: PathBuf,
    },
    /// It is too large.
    #[error("{}: is larger than 1 MiB, which no configuration is", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Somebody else than root owns it.
    #[error("{}: belongs to user {owner}, who could give root's orders with it: chown root it", .path.display())]
    NotRoots {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Others than its owner may write it.
    #[error("{}: others than root may write it (mode {mode:04o}): chmod go-w it", .path.display())]
    Writable {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// What it does not say is wrong beside what it says.
    #[error("{}: {what}", .path.display())]
    Whole {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// It is no TOML, or a key or its value is wrong.
    #[error("{}:{line}: {what}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
}

/// A key of a configuration file, with the line it is on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub line: usize,
    /// One for each element of a list.
    pub values: Vec<String>,
    /// Whether it is a list.
    pub list: bool,
}

/// A configuration file that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigFile {
    path: PathBuf,
    pub(crate) entries: BTreeMap<String, Entry>,
}

/// The text of a file that becomes root's orders: it must be a regular one, belong to root and be writable by nobody else.
///
/// # Errors
/// Any [`FileError`] but those of what the text says.
pub fn read_roots(path: &Path) -> Result<String, FileError> {
    let failed = |cause| FileError::Read { path: path.to_owned(), cause };
    // A pipe that nobody writes to must not be waited for: it is refused as what it is.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    // Of the open file, not of the path, which may name another file by now.
    check_owner(path, &file.metadata().map_err(failed)?, 0)?;
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

impl ConfigFile {
    /// Reads `path`, which must belong to root and be writable by nobody else.
    ///
    /// # Errors
    /// Any [`FileError`].
    pub fn read(path: &Path) -> Result<Self, FileError> {
        Self::parse(path, &read_roots(path)?)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, FileError> {
        let at = |offset: usize, what: String| FileError::Line {
            path: path.to_owned(),
            line: text[..offset.min(text.len())].matches('\n').count() + 1,
            what,
        };
        let table: BTreeMap<String, Spanned<Value>> = toml::from_str(text).map_err(|error| {
            at(
                error.span().map_or(0, |span| span.start),
                message(error.message().lines().next().unwrap_or("is no TOML")),
            )
        })?;
        let mut entries = BTreeMap::new();
        for (key, value) in table {
            let offset = value.span().start;
            let values = words(value.get_ref()).ok_or_else(|| {
                at(
                    offset,
                    format!("{}: expected a number, a text, true, false, or a list of such values", quoted(&key)),
                )
            })?;
            let line = text[..offset].matches('\n').count() + 1;
            let list = matches!(value.get_ref(), Value::Array(_));
            entries.insert(key, Entry { line, values, list });
        }
        Ok(Self { path: path.to_owned(), entries })
    }

    pub(crate) fn wrong(&self, entry: &Entry, what: String) -> FileError {
        FileError::Line { path: self.path.clone(), line: entry.line, what }
    }

    /// That what it says of `option` is wrong, for `why`.
    pub fn refusal(&self, option: &str, why: &str) -> FileError {
        match self.entries.get(option) {
            Some(entry) => self.wrong(entry, format!("{option}: {why}")),
            None => FileError::Whole { path: self.path.clone(), what: format!("{option}: {why}") },
        }
    }
}

fn check_owner(path: &Path, metadata: &Metadata, root: u32) -> Result<(), FileError> {
    let path = path.to_owned();
    let mode = metadata.permissions().mode() & 0o7777;
    if !metadata.is_file() {
        Err(FileError::NotRegular { path })
    } else if metadata.len() >= MOST_BYTES {
        Err(FileError::TooLarge { path })
    } else if metadata.uid() != root {
        Err(FileError::NotRoots { path, owner: metadata.uid() })
    } else if mode & WRITABLE_BY_OTHERS != 0 {
        Err(FileError::Writable { path, mode })
    } else {
        Ok(())
    }
}

/// The words that say a value on a command line; `None` for what cannot be said there.
fn words(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Array(values) => values.iter().map(word).collect(),
        single => Some(vec![word(single)?]),
    }
}

fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(yes) => Some(yes.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    fn parse(text: &str) -> Result<ConfigFile, FileError> {
        ConfigFile::parse(Path::new("tandem.toml"), text)
    }

    #[test]
    fn values_become_words_with_their_lines() {
        let file =
            parse("# comment\npage_rate = 64\nmanage = [\n  'uid=1',\n  'comm=x',\n]\ndry_run = true\n").unwrap();
        let entry = |line, values: &[&str], list| {
            let values = values.iter().map(|&v| v.to_owned()).collect();
            Entry { line, values, list }
        };
        assert_eq!(file.entries["page_rate"], entry(2, &["64"], false));
        assert_eq!(file.entries["manage"], entry(3, &["uid=1", "comm=x"], true));
        assert_eq!(file.entries["dry_run"], entry(7, &["true"], false));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, expected) in [
            ("a = 1\nb = \n", "tandem.toml:2: "),
            ("a = 1\na = 2\n", "tandem.toml:2: duplicate key"),
            ("[section]\nkey = 1\n", "tandem.toml:1: \"section\": expected a number"),
            ("\nday = 2026-01-01\n", "tandem.toml:2: \"day\": expected a number"),
            ("deep = [[1]]\n", "tandem.toml:1: \"deep\": expected a number"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected) && error.lines().count() == 1, "{error}");
        }
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: it is given a name that ends.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0, "{}", io::Error::last_os_error());
        let (sender, refused) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(ConfigFile::read(&path)));
        let refused = refused.recv_timeout(std::time::Duration::from_secs(20)).expect("an answer without a writer");
        assert!(matches!(refused, Err(FileError::NotRegular { .. })), "{refused:?}");
    }

    #[test]
    fn why_a_file_cannot_be_read_is_said_once() {
        let error = with_sources(&ConfigFile::read(Path::new("/nowhere/tandem.toml")).unwrap_err());
        assert_eq!(error, "/nowhere/tandem.toml: cannot be read: No such file or directory (os error 2)");
    }

    /// An error with its sources, as programs print it.
    fn with_sources(error: &dyn std::error::Error) -> String {
        match error.source() {
            Some(source) => format!("{error}: {}", with_sources(source)),
            None => error.to_string(),
        }
    }

    /// A file as its owner sees it: tests need not run as root.
    #[test]
    fn only_root_may_be_able_to_write_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tandem.toml");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        let own = metadata.uid();
        assert!(check_owner(&path, &metadata, own).is_ok());
        assert!(
            matches!(check_owner(&path, &metadata, own + 1), Err(FileError::NotRoots { owner, .. }) if owner == own)
        );
        for mode in [0o664, 0o646] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let refused = check_owner(&path, &fs::metadata(&path).unwrap(), own);
            assert!(matches!(refused, Err(FileError::Writable { .. })), "{mode:o}");
        }
        let refused = check_owner(directory.path(), &fs::metadata(directory.path()).unwrap(), own);
        assert!(matches!(refused, Err(FileError::NotRegular { .. })));
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, vec![b'#'; MOST_BYTES as usize]).unwrap();
        assert!(matches!(check_owner(&path, &fs::metadata(&path).unwrap(), own), Err(FileError::TooLarge { .. })));
    }
}
