// SPDX-License-Identifier: GPL-2.0-only
//! The store of finished runs: a directory with one JSON file a run, named by a hash of the run's [`Identity`].
//!
//! A file appears whole or not at all, so an experiment that is interrupted goes on where it was, and what was measured
//! once is not measured again. Failed runs are not stored.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::NamedTempFile;

use crate::run::{Identity, Run};

/// Where a process has its open files.
const DESCRIPTORS: [&str; 2] = ["/dev/fd", "/proc/self/fd"];

/// A directory of finished runs.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
}

impl Store {
    /// The store in `directory`, which is made when it is not there.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn open(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("the store {} cannot be made", directory.display()))?;
        Ok(Self { directory: directory.to_owned() })
    }

    /// Where it is.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The run of this identity, if it is there.
    ///
    /// # Errors
    /// Its file cannot be read or holds something else.
    pub fn run(&self, identity: &Identity) -> Result<Option<Run>> {
        let run: Option<Run> = self.read(&identity.file_name())?;
        match &run {
            Some(run) if run.identity != *identity => {
                bail!("{} holds another run: remove it", self.directory.join(identity.file_name()).display())
            }
            _ => Ok(run),
        }
    }

    /// Keeps a run, in place of an older one of the same identity.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&self, run: &Run) -> Result<()> {
        self.write(&run.identity.file_name(), run)
    }

    /// Keeps those of `runs` that are not there; how many.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn take_up<'a>(&self, runs: impl IntoIterator<Item = &'a Run>) -> Result<usize> {
        let mut taken = 0;
        for run in runs {
            if self.run(&run.identity)?.is_none() {
                self.keep(run)?;
                taken += 1;
            }
        }
        Ok(taken)
    }

    /// The document of this name, if it is there.
    ///
    /// # Errors
    /// It cannot be read or is damaged.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let path = self.directory.join(name);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("{} cannot be read", path.display())),
        };
        let document = serde_json::from_str(&text)
            .with_context(|| format!("{} is damaged: remove it to measure that run again", path.display()))?;
        Ok(Some(document))
    }

    /// Writes a document under this name, whole or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, name: &str, document: &impl Serialize) -> Result<()> {
        write_whole(&self.directory.join(name), serde_json::to_string(document)?.as_bytes())
    }

    /// The directory for a run's files while it is made.
    pub(crate) fn attempt(&self, identity: &Identity) -> PathBuf {
        let name = identity.file_name();
        self.directory.join("attempts").join(name.trim_end_matches(".json"))
    }
}

/// Writes a file so that it is there with all of `content` or as it was before, with the same owner and rights. Behind a symbolic
/// link it is the file that this leads to. A terminal, pipe or open file (`/dev/stdout`) gets `content` behind what it got before.
///
/// # Errors
/// The file or its directory cannot be written, or what is there is neither.
pub fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    if is_stream(path) {
        let written = stream(path).and_then(|mut stream| stream.write_all(content));
        return written.with_context(|| format!("{} cannot be written", path.display()));
    }
    let file = behind_links(path)?;
    let written = part_of(&file).and_then(|mut part| {
        part.write_all(content)?;
        part.as_file().sync_all()?;
        Ok(part.persist(&file)?)
    });
    written.map(drop).with_context(|| format!("{} cannot be written", path.display()))
}

/// A part that can take a file's place: what tempfile makes otherwise nobody else may read.
fn part_of(file: &Path) -> io::Result<NamedTempFile> {
    let usual = Permissions::from_mode(0o666);
    let part = tempfile::Builder::new().permissions(usual).tempfile_in(directory_of(file))?;
    if let Ok(there) = fs::metadata(file) {
        match fchown(part.as_file(), Some(there.uid()), Some(there.gid())) {
            // Who may not give it away keeps it.
            Err(error) if error.kind() != ErrorKind::PermissionDenied => return Err(error),
            _ => part.as_file().set_permissions(there.permissions())?,
        }
    }
    Ok(part)
}

/// Whether [`write_whole`] could write this: for what takes long before there is something to write.
///
/// # Errors
/// It could not.
pub fn check_writable(path: &Path) -> Result<()> {
    if !is_stream(path) {
        return check_replaceable(path);
    }
    // Who reads from a pipe with a name sees its end when it is closed again.
    let is_pipe = fs::metadata(path).is_ok_and(|there| there.file_type().is_fifo());
    let opened = if is_pipe { Ok(()) } else { stream(path).map(drop) };
    opened.with_context(|| format!("{} cannot be written", path.display()))
}

/// The same for what is to be read again later: only a file will do.
///
/// # Errors
/// It could not be written, or is no regular file.
pub fn check_replaceable(path: &Path) -> Result<()> {
    let part = tempfile::tempfile_in(directory_of(&behind_links(path)?));
    part.map(drop).with_context(|| format!("{} cannot be written", path.display()))
}

/// Whether this names what takes bytes as they come, where a part could take no place: even if what is open there is a file, others
/// write to it as well.
fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| {
        let kind = there.file_type();
        kind.is_fifo() || kind.is_char_device() || kind.is_file() && descriptor(path).is_some()
    })
}

/// The descriptor of this process that a path names.
fn descriptor(path: &Path) -> Option<RawFd> {
    let leads_to = fs::read_link(path).unwrap_or_default();
    let number = |path: &Path| {
        let name = DESCRIPTORS.iter().find_map(|folder| path.strip_prefix(folder).ok())?;
        name.to_str()?.parse().ok()
    };
    number(path).or_else(|| number(&leads_to))
}

/// Opens what [is a stream](is_stream). What is open already is not opened anew: it goes on where others have written to.
fn stream(path: &Path) -> io::Result<File> {
    let Some(number) = descriptor(path) else { return File::options().append(true).open(path) };
    // SAFETY: it is only duplicated, which fails if it is not open.
    unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().map(File::from)
}

/// The file that is written under this name. A part that takes its place would take that of a link or of a device as well.
fn behind_links(path: &Path) -> Result<PathBuf> {
    let found = match fs::metadata(path) {
        Ok(there) if there.is_file() => fs::canonicalize(path),
        Ok(_) => bail!("{} is no regular file: name another one", path.display()),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Err(_) if path.is_symlink() => bail!("{} is a link to what is not there: name another file", path.display()),
        Err(_) => Ok(path.to_owned()),
    };
    found.with_context(|| format!("{} cannot be written", path.display()))
}

fn directory_of(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;
    use crate::testing::run;

    #[test]
    fn a_kept_run_is_found_by_its_identity_only() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("new")).unwrap();
        let kept = run("stock-nb1", 1, 4.9);
        assert_eq!(store.run(&kept.identity).unwrap(), None);
        store.keep(&kept).unwrap();
        assert_eq!(store.run(&kept.identity).unwrap(), Some(kept.clone()));
        for other in [
            Identity { seed: 2, ..kept.identity.clone() },
            Identity { arm: "worst".into(), ..kept.identity.clone() },
            Identity { programs_sha256: "other".into(), ..kept.identity.clone() },
            Identity { machine_sha256: "other".into(), ..kept.identity.clone() },
            Identity { kernel: "other".into(), ..kept.identity.clone() },
            Identity { workload: "crossed:--threads 4".into(), ..kept.identity.clone() },
        ] {
            assert_eq!(store.run(&other).unwrap(), None, "{other:?}");
        }
    }

    #[test]
    fn runs_taken_up_do_not_replace_those_that_are_there() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let (here, elsewhere, missing) = (run("worst", 1, 4.9), run("worst", 1, 5.1), run("worst", 2, 5.2));
        store.keep(&here).unwrap();
        assert_eq!(store.take_up([&elsewhere, &missing]).unwrap(), 1);
        assert_eq!(store.run(&here.identity).unwrap(), Some(here));
        assert_eq!(store.run(&missing.identity).unwrap(), Some(missing));
    }

    #[test]
    fn a_damaged_file_is_named_and_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let kept = run("worst", 1, 4.9);
        let path = directory.path().join(kept.identity.file_name());
        fs::write(&path, "{\"identity\":").unwrap();
        let said = store.run(&kept.identity).unwrap_err().to_string();
        assert!(said.contains(path.to_str().unwrap()) && said.contains("damaged"), "{said}");
        fs::write(&path, serde_json::to_string(&run("oracle", 1, 4.0)).unwrap()).unwrap();
        assert!(store.run(&kept.identity).unwrap_err().to_string().contains("another run"));
    }

    #[test]
    fn a_write_that_fails_leaves_what_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("occupied");
        fs::create_dir_all(path.join("inner")).unwrap();
        assert!(write_whole(&path, b"new").is_err());
        assert!(path.join("inner").is_dir());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no part is left behind");
    }

    #[test]
    fn only_a_regular_file_is_replaced_and_a_link_to_one_stays() {
        let directory = tempfile::tempdir().unwrap();
        let [file, link, nowhere] = ["file", "link", "nowhere"].map(|name| directory.path().join(name));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        check_writable(&link).unwrap();
        write_whole(&link, b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        std::os::unix::fs::symlink("missing", &nowhere).unwrap();
        let socket = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, words) in [
            (nowhere.as_path(), "is a link to what is not there"),
            (&socket, "is no regular file"),
            (directory.path(), "is no regular file"),
        ] {
            let said = [check_writable(path), write_whole(path, b"new")].map(|done| done.unwrap_err().to_string());
            assert!(said.iter().all(|said| said.contains(words)), "{said:?}");
        }
        assert!(nowhere.is_symlink() && !directory.path().join("missing").exists());
    }

    #[test]
    fn what_is_open_already_gets_what_is_written_behind_the_rest() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = File::create(file.path()).unwrap();
        let name = format!("/dev/fd/{}", open.as_raw_fd());
        (&open).write_all(b"text, ").unwrap();
        check_writable(Path::new(&name)).unwrap();
        write_whole(Path::new(&name), b"JSON, ").unwrap();
        (&open).write_all(b"more text").unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "text, JSON, more text");
        let said = check_replaceable(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(said.contains("is no regular file"), "{said}");
        check_writable(Path::new("/dev/null")).unwrap();
        write_whole(Path::new("/dev/null"), b"nobody reads this").unwrap();
    }

    #[test]
    fn who_reads_from_a_pipe_gets_all_of_it() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let name = format!("/proc/self/fd/{}", writer.as_raw_fd());
        check_writable(Path::new(&name)).unwrap();
        write_whole(Path::new(&name), b"all of it").unwrap();
        drop(writer);
        let mut read = String::new();
        std::io::Read::read_to_string(&mut reader, &mut read).unwrap();
        assert_eq!(read, "all of it");
    }

    #[test]
    fn a_file_keeps_its_rights_and_a_new_one_has_the_usual_ones() {
        let directory = tempfile::tempdir().unwrap();
        let [there, new, usual] = ["there", "new", "usual"].map(|name| directory.path().join(name));
        fs::write(&there, "old").unwrap();
        fs::set_permissions(&there, Permissions::from_mode(0o640)).unwrap();
        fs::write(&usual, "").unwrap();
        [&there, &new].iter().for_each(|file| write_whole(file, b"new").unwrap());
        let mode = |file: &Path| fs::metadata(file).unwrap().permissions().mode();
        assert_eq!((mode(&there) & 0o777, mode(&new)), (0o640, mode(&usual)));
    }
}
