// SPDX-License-Identifier: GPL-2.0-only
//! The truth document: which thread touches which memory, and how much.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A part of a process's address space that a thread uses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RangeTruth {
    /// First byte's virtual address.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Share of the thread's accesses that go here, 0 to 1.
    pub weight: f64,
}

/// What one thread touches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadTruth {
    /// Process id.
    pub pid: i32,
    /// Thread id.
    pub tid: i32,
    /// The memory it uses, accesses spread evenly within each range.
    pub ranges: Vec<RangeTruth>,
}

/// Who touches what, for a whole workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// The workload's name.
    pub workload: String,
    /// CLOCK_MONOTONIC in ns at which everything was initialised.
    pub initialised_at_ns: u64,
    /// Process ids.
    pub processes: Vec<i32>,
    /// All working threads.
    pub threads: Vec<ThreadTruth>,
    /// Thread ids of threads that share memory, two by two.
    pub pairs: Vec<[i32; 2]>,
}

impl Truth {
    /// Writes the document so that whoever sees the file sees all of it.
    pub fn write(&self, path: &Path) -> Result<()> {
        write_json(path, self)
    }

    /// Reads and checks a document.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("cannot read the truth document {}", path.display()))?;
        let truth: Self = serde_json::from_slice(&text)
            .with_context(|| format!("{} is not a truth document of tandem-load", path.display()))?;
        truth.check().with_context(|| format!("{} contradicts itself", path.display()))?;
        Ok(truth)
    }

    fn check(&self) -> Result<()> {
        if self.threads.is_empty() {
            bail!("it names no thread");
        }
        for thread in &self.threads {
            if thread.ranges.iter().any(|range| range.bytes == 0 || !(range.weight > 0.0 && range.weight <= 1.0)) {
                bail!("thread {} has a range without bytes or with a weight outside 0 to 1", thread.tid);
            }
        }
        for tid in self.pairs.iter().flatten() {
            if !self.threads.iter().any(|thread| thread.tid == *tid) {
                bail!("pair member {tid} is not among its threads");
            }
        }
        Ok(())
    }
}

/// Writes `document` as JSON into a new file beside `path` and renames it to `path`.
pub fn write_json<T: Serialize>(path: &Path, document: &T) -> Result<()> {
    let mut name = path.file_name().with_context(|| format!("{} is not a file name", path.display()))?.to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let mut text = serde_json::to_vec(document)?;
    text.push(b'\n');
    std::fs::write(&new, text).with_context(|| format!("cannot write {}", new.display()))?;
    std::fs::rename(&new, path).with_context(|| format!("cannot rename {} to {}", new.display(), path.display()))
}

/// CLOCK_MONOTONIC now, in ns.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec into the one given; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth() -> Truth {
        let ranges = vec![RangeTruth { start: 4096, bytes: 8192, weight: 1.0 }];
        Truth {
            workload: "w".into(),
            initialised_at_ns: 7,
            processes: vec![1],
            threads: vec![ThreadTruth { pid: 1, tid: 2, ranges }],
            pairs: vec![],
        }
    }

    #[test]
    fn a_written_document_reads_back_equal_and_leaves_no_other_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("truth.json");
        truth().write(&path).unwrap();
        assert_eq!(Truth::read(&path).unwrap(), truth());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_document_that_contradicts_itself_is_refused() {
        let mut stranger = truth();
        stranger.pairs = vec![[2, 3]];
        assert!(stranger.check().unwrap_err().to_string().contains('3'));
        let mut weightless = truth();
        weightless.threads[0].ranges[0].weight = 0.0;
        assert!(weightless.check().is_err());
        let mut nobody = truth();
        nobody.threads.clear();
        assert!(nobody.check().is_err());
    }
}
