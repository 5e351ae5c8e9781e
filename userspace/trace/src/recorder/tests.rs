// SPDX-License-Identifier: GPL-2.0-only

use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::Sender;

use super::*;
use crate::testing::{Shape, choices, recording, settings};
use crate::{Damage, Entry, TraceReader};

fn intervals(count: usize) -> Vec<Interval> {
    recording(Shape::SMALL, &choices("none", "none"), 1, count).1
}

/// Intervals of a file, and what ended it if that was not its end.
fn read(path: &Path) -> (Vec<Interval>, Option<Damage>) {
    let (mut intervals, mut damage) = (Vec::new(), None);
    for entry in TraceReader::new(File::open(path).unwrap()).unwrap() {
        match entry {
            Ok(Entry::Interval(interval)) => intervals.push(*interval),
            Ok(Entry::Settings(_)) => {}
            Err(found) => damage = Some(found),
        }
    }
    (intervals, damage)
}

#[test]
fn what_is_handed_over_is_in_the_file_and_only_its_owner_reads_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    let recorder = Recorder::create(&path).unwrap();
    recorder.settings(settings(&[], 1, 1));
    let all = intervals(3);
    all.iter().for_each(|interval| recorder.interval(interval.clone()));
    let recording = recorder.finish();
    let metadata = path.metadata().unwrap();
    let expected = Recording { file: path.clone(), intervals: 3, bytes: metadata.len(), ended_early: None };
    assert_eq!(recording, expected);
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    let (read, damage) = read(&path);
    assert_eq!(read, all);
    assert!(damage.is_none(), "{damage:?}");
}

#[test]
fn a_file_that_exists_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    std::fs::write(&path, "dear").unwrap();
    let said = Recorder::create(&path).unwrap_err().to_string();
    assert_eq!(said, format!("the recording {} exists; give another name, or remove it first", path.display()));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "dear");
    assert_eq!(Recorder::check(&path).unwrap_err().to_string(), said);
    let said = Recorder::create(&directory.path().join("no/such")).unwrap_err().to_string();
    assert!(said.contains("no/such cannot be made: No such file"), "{said}");
    assert_eq!(Recorder::check(&directory.path().join("no/such")).unwrap_err().to_string(), said);
    let new = directory.path().join("new");
    assert!(Recorder::check(&new).is_ok() && !new.exists(), "a check begins nothing");
    assert!(Recorder::check(Path::new("/dev/null")).is_ok(), "what is no regular file is written to");
}

#[test]
fn in_a_folder_each_recording_has_a_file_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    assert!(Recorder::check(directory.path()).is_ok());
    let recorder = Recorder::create(directory.path()).unwrap();
    recorder.settings(settings(&[], 1, 1));
    recorder.interval(intervals(1).remove(0));
    let file = recorder.finish().file;
    assert_eq!((file.parent(), file.extension().unwrap().to_str()), (Some(directory.path()), Some("trace")));
    assert!(read(&file).1.is_none(), "it is whole");
    assert!(Recorder::create(&file).is_err(), "that one is left alone");
    let empty = tempfile::tempdir().unwrap();
    let _recording = Recorder::create(empty.path()).unwrap().finish();
    assert_eq!(empty.path().read_dir().unwrap().count(), 0, "nothing was recorded");
}

/// A file on a disk with room for so many bytes.
struct FullDisk {
    file: File,
    room: usize,
}

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fits = bytes.len().min(self.room);
        if fits == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room -= fits;
        self.file.write(&bytes[..fits])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn on_a_full_disk_the_recording_ends_with_its_last_whole_frame() {
    let all = intervals(4);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    let file = File::create(&path).unwrap();
    let shortened = file.try_clone().unwrap();
    let disk = FullDisk { file, room: 2500 };
    let recorder = Recorder::begin(disk, &path, move |bytes| shortened.set_len(bytes).unwrap()).unwrap();
    recorder.settings(settings(&[], 1, 1));
    all.iter().for_each(|interval| recorder.interval(interval.clone()));
    let recording = recorder.finish();
    assert!((1..4).contains(&recording.intervals), "{recording:?}");
    assert!(recording.ended_early.as_ref().is_some_and(|why| why.contains("no storage space")), "{recording:?}");
    assert!(!recorder.is_recording());
    recorder.interval(all[0].clone());
    let (read, damage) = read(&path);
    assert_eq!(read, all[..recording.intervals as usize]);
    assert!(matches!(damage, Some(Damage::NoEnd { at }) if at == recording.bytes), "{damage:?}");
}

/// A disk that takes the header, and the rest only once it is told to.
struct SlowDisk {
    file: File,
    started: bool,
    reached: Sender<()>,
    go: Receiver<()>,
}

impl Write for SlowDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.started {
            // Nobody listens any more later on.
            let _ = self.reached.send(());
            let _ = self.go.recv();
        }
        self.started = true;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_disk_that_is_too_slow_ends_the_recording_and_never_holds_up_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace");
    let (reached, wait_for_disk) = mpsc::channel();
    let (release, go) = mpsc::channel();
    let disk = SlowDisk { file: File::create(&path).unwrap(), started: false, reached, go };
    let recorder = Recorder::begin(disk, &path, |_| ()).unwrap();
    recorder.settings(settings(&[], 1, 1));
    wait_for_disk.recv().unwrap();
    // The settings are being written, so exactly as many intervals as may wait find room.
    let all = intervals(WAITING + 3);
    for (handed_over, interval) in all.iter().enumerate() {
        assert_eq!(recorder.is_recording(), handed_over <= WAITING, "{handed_over}");
        recorder.interval(interval.clone());
    }
    drop(release);
    let recording = recorder.finish();
    assert_eq!(recording.intervals as usize, WAITING);
    let (read, damage) = read(&path);
    assert_eq!(read, all[..WAITING]);
    assert!(matches!(&damage, Some(Damage::EndedEarly(why)) if why == TOO_SLOW), "{damage:?}");
}
