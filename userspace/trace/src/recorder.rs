// SPDX-License-Identifier: GPL-2.0-only
//! Records beside an agent without disturbing it.
//!
//! The agent hands intervals over and never waits: a thread of the recorder's own packs and writes them. If that thread
//! falls behind by more than a few intervals, or the disk takes no more, it is said once, the recording ends, and the
//! agent goes on. What was recorded until then stays readable.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use chrono::Utc;
use serde::Serialize;
use thiserror::Error;
use tracing::{info, warn};

use crate::interval::Interval;
use crate::settings::Settings;
use crate::writer::TraceWriter;

/// Intervals that may wait for being written.
const WAITING: usize = 8;
/// How long the end of a recording is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Why a recording ends that is not written as fast as intervals come.
const TOO_SLOW: &str = "intervals came faster than they could be written";

/// A recording that cannot begin.
#[derive(Debug, Error)]
pub enum CannotRecord {
    /// Something has that name already.
    #[error("the recording {} exists; give another name, or remove it first", .0.display())]
    Exists(PathBuf),
    /// It cannot be made.
    #[error("the recording {} cannot be made: {error}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// How far a recording came.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Recording {
    /// The file.
    pub file: PathBuf,
    /// Intervals in it.
    pub intervals: u64,
    /// Its length.
    pub bytes: u64,
    /// Why it ended early, if it did.
    pub ended_early: Option<String>,
}

/// Handle on a recording; clones are handles on the same one.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// `None` once the recording has ended.
    sender: Mutex<Option<SyncSender<Message>>>,
    progress: Arc<Mutex<Recording>>,
    /// Hangs up when the writing thread is done.
    done: Mutex<Receiver<()>>,
}

enum Message {
    Settings(Settings),
    Interval(Box<Interval>),
}

/// A name that no other recording has: the time, and which process records.
fn name_of_now() -> String {
    format!("{}-{}.trace", Utc::now().format("%Y%m%dT%H%M%SZ"), std::process::id())
}

/// The lock, whatever became of the thread that held it last: all that is kept under locks here is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// Whether a recording could begin, as far as that shows without beginning one.
    ///
    /// # Errors
    /// [`CannotRecord`] as [`Recorder::create`] would give it.
    pub fn check(path: &Path) -> Result<(), CannotRecord> {
        if path.metadata().is_ok_and(|found| found.is_file()) {
            return Err(CannotRecord::Exists(path.to_owned()));
        }
        if path.is_dir() {
            return Ok(());
        }
        // A name without a folder is of the current one.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        folder.read_dir().map(drop).map_err(|error| CannotRecord::Io { path: path.to_owned(), error })
    }

    /// Begins a recording. An existing file is left alone; one that is no regular file (a pipe, say) is written to, and in a folder a new
    /// file is made.
    ///
    /// # Errors
    /// [`CannotRecord`] if there is such a file already or it cannot be made or written.
    pub fn create(path: &Path) -> Result<Self, CannotRecord> {
        let path = &if path.is_dir() { path.join(name_of_now()) } else { path.to_owned() };
        let cannot = |error| CannotRecord::Io { path: path.to_owned(), error };
        // Only for the one who records: it says what runs here and at which addresses.
        let file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if path.metadata().is_ok_and(|found| found.is_file()) {
                    return Err(CannotRecord::Exists(path.to_owned()));
                }
                OpenOptions::new().write(true).open(path).map_err(cannot)?
            }
            Err(error) => return Err(cannot(error)),
        };
        let shortened = file.try_clone().map_err(cannot)?;
        // What is left of a frame that was written in part; a pipe has no length, and nothing is lost with it.
        let shorten = move |bytes| drop(File::set_len(&shortened, bytes));
        let recorder = Self::begin(file, path, shorten).map_err(cannot)?;
        info!("recording to {}", path.display());
        Ok(recorder)
    }

    /// Records to any output. `shorten` is told how much of it is whole if it takes no more.
    fn begin(
        output: impl Write + Send + 'static,
        path: &Path,
        shorten: impl FnOnce(u64) + Send + 'static,
    ) -> io::Result<Self> {
        let writer = TraceWriter::new(output)?;
        let (sender, receiver) = mpsc::sync_channel(WAITING);
        let (hang_up, done) = mpsc::channel();
        let progress = Recording { file: path.to_owned(), bytes: writer.written_bytes(), ..Recording::default() };
        let progress = Arc::new(Mutex::new(progress));
        let shared =
            Shared { sender: Mutex::new(Some(sender)), progress: Arc::clone(&progress), done: Mutex::new(done) };
        thread::Builder::new().name("recorder".to_owned()).spawn(move || {
            write_all(writer, &receiver, &progress, shorten);
            drop(hang_up);
        })?;
        Ok(Self(Arc::new(shared)))
    }

    /// Whether anything that is handed over is still written.
    pub fn is_recording(&self) -> bool {
        lock(&self.0.sender).is_some()
    }

    /// An agent with these settings begins.
    pub fn settings(&self, settings: Settings) {
        self.send(Message::Settings(settings));
    }

    /// Takes over an interval.
    pub fn interval(&self, interval: Interval) {
        self.send(Message::Interval(Box::new(interval)));
    }

    /// Never waits.
    fn send(&self, message: Message) {
        let mut sender = lock(&self.0.sender);
        match sender.as_ref().map(|sender| sender.try_send(message)) {
            None | Some(Ok(())) => {}
            Some(Err(TrySendError::Full(_))) => {
                warn!("recording ended: {TOO_SLOW}");
                lock(&self.0.progress).ended_early = Some(TOO_SLOW.to_owned());
                *sender = None;
            }
            // The writing thread has said why.
            Some(Err(TrySendError::Disconnected(_))) => *sender = None,
        }
    }

    /// How far it came.
    pub fn progress(&self) -> Recording {
        lock(&self.0.progress).clone()
    }

    /// Ends the recording and waits until all of it is written, but not for ever. A file in which nothing is does not stay.
    pub fn finish(&self) -> Recording {
        *lock(&self.0.sender) = None;
        if lock(&self.0.done).recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            warn!("the recording is not written yet after {} s: leaving it", PATIENCE.as_secs());
        }
        let recording = self.progress();
        let is_empty = recording.intervals == 0 && recording.file.is_file();
        if is_empty && let Err(error) = fs::remove_file(&recording.file) {
            warn!("{}: an empty recording cannot be removed: {error}", recording.file.display());
        }
        recording
    }
}

/// Writes what comes until nobody sends any more.
fn write_all<W: Write>(
    mut writer: TraceWriter<W>,
    receiver: &Receiver<Message>,
    progress: &Mutex<Recording>,
    shorten: impl FnOnce(u64),
) {
    let result = receiver.iter().try_for_each(|message| {
        let intervals = match message {
            Message::Settings(settings) => writer.settings(&settings).map(|()| 0),
            Message::Interval(interval) => writer.interval(*interval).map(|()| 1),
        }?;
        let mut progress = lock(progress);
        progress.intervals += intervals;
        progress.bytes = writer.written_bytes();
        Ok(())
    });
    let early = lock(progress).ended_early.clone();
    let result = result.and_then(|()| writer.end(early.as_deref()));
    let mut progress = lock(progress);
    progress.bytes = writer.written_bytes();
    if let Err(error) = result {
        warn!("recording ended: {}: {error}", progress.file.display());
        progress.ended_early = Some(error.to_string());
        shorten(progress.bytes);
    } else {
        info!("recorded {} intervals in {} bytes", progress.intervals, progress.bytes);
    }
}

#[cfg(test)]
mod tests;
