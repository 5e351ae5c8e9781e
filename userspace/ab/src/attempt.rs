// SPDX-License-Identifier: GPL-2.0-only
//! The making of one run: its folder in the store, which nobody else has meanwhile.
//!
//! Experiments may share a store. A run that two of them ask for is made by one; the other waits, and finds it in the store.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::stop::{LOOK_EVERY, Stop};

/// Held as long as this lives. The kernel lets it go whatever ends the process; files of an attempt that came to nothing stay.
#[derive(Debug)]
pub struct Attempt {
    folder: PathBuf,
    lock: PathBuf,
    _file: File,
}

impl Attempt {
    /// Begins with `folder` empty, which is made for it. Where another process or thread has it, `waits` is called once and
    /// its end waited for.
    ///
    /// # Errors
    /// The folder or the lock beside it cannot be made, or a stop is wished before it is free.
    pub fn begin(folder: PathBuf, stop: &Stop, waits: impl FnOnce()) -> Result<Self> {
        let lock = folder.with_extension("lock");
        let above = folder.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(above).with_context(|| format!("{} cannot be made", above.display()))?;
        let file = locked(&lock, stop, waits)?;
        let attempt = Self { folder, lock, _file: file };
        let made = match fs::remove_dir_all(&attempt.folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => fs::create_dir(&attempt.folder),
        };
        made.with_context(|| format!("{} cannot be made anew", attempt.folder.display()))?;
        Ok(attempt)
    }

    /// The run's files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes the files of what is kept elsewhere now.
    ///
    /// # Errors
    /// They cannot be removed.
    pub fn done(self) -> Result<()> {
        fs::remove_dir_all(&self.folder).with_context(|| format!("{} cannot be removed", self.folder.display()))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // One that stays is locked anew next time.
        let _ = fs::remove_file(&self.lock);
    }
}

/// The locked file at `path`.
fn locked(path: &Path, stop: &Stop, waits: impl FnOnce()) -> Result<File> {
    let in_words = || format!("{} cannot be locked", path.display());
    let mut waits = Some(waits);
    loop {
        let file = File::create(path).with_context(in_words)?;
        match file.try_lock() {
            // Who had it before has removed it, perhaps after it was opened here.
            Ok(()) if is_at(&file, path).with_context(in_words)? => return Ok(file),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                if let Some(waits) = waits.take() {
                    waits();
                }
                if stop.wished() {
                    bail!("interrupted while another `tandem ab` had {}", path.display());
                }
                std::thread::sleep(LOOK_EVERY);
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(in_words),
        }
    }
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let opened = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    fn begin(folder: &Path) -> Attempt {
        Attempt::begin(folder.to_owned(), &Stop::default(), || panic!("nobody has it")).unwrap()
    }

    #[test]
    fn a_folder_is_empty_each_time_and_what_failed_leaves_its_files_alone() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("attempts/one");
        let attempt = begin(&folder);
        fs::write(attempt.folder().join("left"), "").unwrap();
        drop(attempt);
        assert!(folder.join("left").exists(), "files of what failed are looked at");
        let attempt = begin(&folder);
        assert!(!folder.join("left").exists());
        attempt.done().unwrap();
        assert_eq!(fs::read_dir(directory.path().join("attempts")).unwrap().count(), 0);
    }

    #[test]
    fn two_at_a_time_do_not_have_one_folder() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("one");
        let first = begin(&folder);
        fs::write(first.folder().join("mine"), "").unwrap();
        let (waiting, waits) = mpsc::channel();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| Attempt::begin(folder.clone(), &Stop::default(), || waiting.send(()).unwrap()));
            waits.recv_timeout(Duration::from_secs(60)).unwrap();
            assert!(folder.join("mine").exists(), "it is the first one's");
            first.done().unwrap();
            let second = second.join().unwrap().unwrap();
            assert_eq!(fs::read_dir(second.folder()).unwrap().count(), 0);
        });
        // Another run's is free at the same time.
        let _both = (begin(&folder), begin(&directory.path().join("other")));
    }

    #[test]
    fn a_lock_that_was_removed_meanwhile_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("one.lock");
        let opened = File::create(&path).unwrap();
        assert!(is_at(&opened, &path).unwrap());
        fs::remove_file(&path).unwrap();
        assert!(!is_at(&opened, &path).unwrap(), "a third one would not find it");
        File::create(&path).unwrap();
        assert!(!is_at(&opened, &path).unwrap(), "a third one has another");
    }

    #[test]
    fn who_waits_can_be_stopped() {
        let directory = tempfile::tempdir().unwrap();
        let (folder, stop) = (directory.path().join("one"), Stop::default());
        let _first = begin(&folder);
        let said = Attempt::begin(folder, &stop, || stop.wish()).unwrap_err().to_string();
        assert!(said.starts_with("interrupted while another `tandem ab` had "), "{said}");
    }

    #[test]
    fn a_process_that_is_killed_leaves_nothing_locked() {
        let directory = tempfile::tempdir().unwrap();
        let (folder, lock) = (directory.path().join("one"), directory.path().join("one.lock"));
        let script = format!("exec 9>'{}'; flock 9; echo locked; read forever", lock.display());
        let mut other =
            Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 7];
        io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut said).unwrap();
        let mut waited = false;
        let attempt = Attempt::begin(folder, &Stop::default(), || {
            waited = true;
            other.kill().unwrap();
        });
        attempt.unwrap().done().unwrap();
        assert!(waited);
        other.wait().unwrap();
    }
}
