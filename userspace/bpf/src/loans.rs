// SPDX-License-Identifier: GPL-2.0-only
//! Threads lent to the fair class for a moment, so that the kernel's NUMA balancing looks at their process. In partial mode.
//!
//! Under sched_ext nothing marks pages for hint faults: that is done from the tick of the fair class only. One fair tick of
//! any thread of a process marks the next pages of its address space (256 MiB by default), and the faults are taken by
//! whichever thread uses them. So one thread of class SCHED_EXT is lent to SCHED_OTHER for [`LENT_NS`]: one that runs, or there
//! is no tick, and that has run for as long as the kernel wants before it looks. In full mode SCHED_OTHER is sched_ext's, too,
//! and there is nothing to lend to.
//!
//! Threads and processes that a lent one starts inherit its class: they are taken back with it, unless the process had threads
//! of SCHED_OTHER anyway. What is lent is noted in a file first, so that [`Loans::recover`] brings back what a program that was
//! killed meanwhile had lent.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use procfs::process::Process;

/// Several ticks at any tick rate.
const LENT_NS: u64 = 50_000_000;
/// The kernel looks again after a thread has run for so long by itself (`scan_period_min_ms` by default).
const SCAN_PERIOD_NS: u64 = 1_000_000_000;
const SCHED_EXT: libc::c_int = 7;
const NOTES: &str = "/run";

/// What threads are lent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To see who faults.
    Samples,
    /// To have the kernel move pages.
    Pages,
}

impl Purpose {
    const ALL: [Self; 2] = [Self::Samples, Self::Pages];

    fn file(self, directory: &Path) -> PathBuf {
        directory.join(match self {
            Self::Samples => "scx_tandem.lent.samples",
            Self::Pages => "scx_tandem.lent.pages",
        })
    }
}

/// What became of a wish to lend a thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lending {
    /// One is lent.
    Lent,
    /// None of class SCHED_EXT runs now.
    NoneRuns,
    /// None is of class SCHED_EXT.
    NoneThere,
}

/// A thread that is in the fair class for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lent {
    process: i32,
    tid: i32,
    /// When the loan began, in clock ticks since boot: as precise as the kernel tells when a thread began.
    begun_ticks: u64,
    /// Whether the process had threads in SCHED_OTHER before: then who has begun there since did not inherit that.
    mixed: bool,
}

/// Lends threads and takes them back, at the latest when it is dropped.
#[derive(Debug)]
pub struct Loans {
    file: PathBuf,
    /// Where others note what they lent.
    others: Vec<PathBuf>,
    /// The class that threads are lent from.
    class: libc::c_int,
    /// With the time until which, on CLOCK_MONOTONIC.
    lent: Vec<(Lent, u64)>,
    /// The thread that was lent last.
    last: i32,
}

impl Loans {
    /// Nothing is lent yet.
    pub fn new(purpose: Purpose) -> Self {
        let file = |purpose: Purpose| purpose.file(Path::new(NOTES));
        let others = Purpose::ALL.into_iter().filter(|other| *other != purpose).map(file).collect();
        Self::of(SCHED_EXT, file(purpose), others)
    }

    fn of(class: libc::c_int, file: PathBuf, others: Vec<PathBuf>) -> Self {
        Self { file, others, class, lent: Vec::new(), last: 0 }
    }

    /// Lends a thread of `process` until a moment after `now_ns` (CLOCK_MONOTONIC), if one of class SCHED_EXT runs. One that is
    /// lent for another purpose serves this one too.
    ///
    /// # Errors
    /// The process has ended, its threads' classes may not be changed, or what is lent cannot be noted.
    pub fn lend(&mut self, process: u32, now_ns: u64) -> io::Result<Lending> {
        let process = i32::try_from(process).map_err(|_| ErrorKind::InvalidInput)?;
        let is_lent = |file: &PathBuf| noted(file).is_ok_and(|lent| lent.iter().any(|lent| lent.process == process));
        if self.others.iter().any(is_lent) {
            return Ok(Lending::Lent);
        }
        let mut threads = threads_of(process)?;
        let mixed = threads.iter().any(|&tid| class_of(tid).is_ok_and(|class| class == libc::SCHED_OTHER));
        threads.retain(|&tid| class_of(tid).is_ok_and(|class| class == self.class));
        if threads.is_empty() {
            return Ok(Lending::NoneThere);
        }
        let begun_ticks = ticks_since_boot();
        let Some(tid) = self.fittest(process, threads, begun_ticks) else { return Ok(Lending::NoneRuns) };
        self.lent.push((Lent { process, tid, begun_ticks, mixed }, now_ns + LENT_NS));
        let noted = self.note().map_err(|error| io::Error::other(format!("{}: {error}", self.file.display())));
        if let Err(error) = noted.and_then(|()| set_class(tid, libc::SCHED_OTHER)) {
            self.lent.pop();
            self.note_or_warn();
            return Err(error);
        }
        self.last = tid;
        Ok(Lending::Lent)
    }

    /// The first thread after the one that was lent last, in turn, that runs and has run for long enough; else the one that has
    /// run longest of those that run. One that began just now is left out: nothing would tell it from what a lent one starts.
    fn fittest(&self, process: i32, mut threads: Vec<i32>, now_ticks: u64) -> Option<i32> {
        threads.sort_unstable();
        let next = threads.partition_point(|&tid| tid <= self.last);
        threads.rotate_left(next);
        let mut longest = None;
        for tid in threads {
            let Some((began, ran_ns)) = running_for_ns(process, tid) else { continue };
            if began >= now_ticks {
                continue;
            }
            if ran_ns >= SCAN_PERIOD_NS {
                return Some(tid);
            }
            longest = longest.max(Some((ran_ns, tid)));
        }
        longest.map(|(_, tid)| tid)
    }

    /// Takes back those whose time is over.
    pub fn take_back(&mut self, now_ns: u64) {
        let (over, lasting): (Vec<_>, Vec<_>) = self.lent.iter().partition(|(_, until_ns)| *until_ns <= now_ns);
        if over.is_empty() {
            return;
        }
        over.iter().for_each(|(lent, _)| lent.take_back(self.class));
        self.lent = lasting;
        self.note_or_warn();
    }

    /// Takes back what programs that were killed had lent. Nobody else may have something lent now.
    ///
    /// # Errors
    /// A note cannot be read.
    pub fn recover() -> io::Result<()> {
        Purpose::ALL.iter().try_for_each(|purpose| recover_from(&purpose.file(Path::new(NOTES)), SCHED_EXT))
    }

    fn note_or_warn(&self) {
        if let Err(error) = self.note() {
            tracing::warn!(%error, file = %self.file.display(), "threads that were lent could not be noted");
        }
    }

    /// Notes what is lent, all or nothing: this program may be killed at any moment.
    fn note(&self) -> io::Result<()> {
        if self.lent.is_empty() {
            return fs::remove_file(&self.file).or_else(|error| absent(error, ()));
        }
        let line =
            |(lent, _): &(Lent, u64)| format!("{} {} {} {}\n", lent.process, lent.tid, lent.begun_ticks, lent.mixed);
        let new = self.file.with_added_extension("new");
        fs::write(&new, self.lent.iter().map(line).collect::<String>())?;
        fs::rename(&new, &self.file)
    }
}

impl Drop for Loans {
    fn drop(&mut self) {
        self.take_back(u64::MAX);
    }
}

impl Lent {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [process, tid, begun_ticks, mixed] = words[..] else { return None };
        Some(Self {
            process: process.parse().ok()?,
            tid: tid.parse().ok()?,
            begun_ticks: begun_ticks.parse().ok()?,
            mixed: mixed.parse().ok()?,
        })
    }

    /// Takes back the thread and what inherited the class of it, as far as it is there and still has it: what ended or chose
    /// another class is not ours to change.
    fn take_back(self, class: libc::c_int) {
        let began = |tid| began_ticks(self.process, tid);
        // A process, or a thread, that is younger than the loan has got its number from another one.
        if began(self.process).is_none_or(|ticks| ticks >= self.begun_ticks) {
            return;
        }
        if began(self.tid).is_some_and(|ticks| ticks < self.begun_ticks) {
            give_back(self.tid, class);
        }
        // From now on it starts none in SCHED_OTHER: those that there are can be listed.
        if self.mixed {
            self.take_back_children(self.process, &[self.tid], class);
        } else {
            self.take_back_born(self.process, class);
            // Its threads started some too, and to which of them those belong that were left behind is chance.
            self.take_back_children(self.process, &threads_of(self.process).unwrap_or_default(), class);
        }
    }

    /// Takes back the threads of a process that began since the loan did.
    fn take_back_born(self, process: i32, class: libc::c_int) -> Vec<i32> {
        let is_born = |tid: &i32| began_ticks(process, *tid).is_some_and(|ticks| ticks >= self.begun_ticks);
        let born: Vec<i32> = threads_of(process).unwrap_or_default().into_iter().filter(is_born).collect();
        born.iter().for_each(|&tid| give_back(tid, class));
        born
    }

    /// The same of the children that these threads of a process have started since, and of theirs.
    fn take_back_children(self, process: i32, threads: &[i32], class: libc::c_int) {
        for tid in threads {
            let children = fs::read_to_string(format!("/proc/{process}/task/{tid}/children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|word| word.parse().ok()) {
                let born = self.take_back_born(child, class);
                self.take_back_children(child, &born, class);
            }
        }
    }
}

/// Puts a thread of SCHED_OTHER back into its class.
fn give_back(tid: i32, class: libc::c_int) {
    if class_of(tid).is_ok_and(|class| class == libc::SCHED_OTHER)
        && let Err(error) = set_class(tid, class)
    {
        tracing::warn!(%error, tid, "a thread that was lent to SCHED_OTHER could not be taken back");
    }
}

/// Rounds in which the kernel gets through the memory of a process once, by default (`scan_size_mb`).
pub fn rounds_of_a_scan(process: u32) -> u32 {
    const SCANNED_PAGES: u64 = (256 << 20) / 4096;
    let resident = || Some(Process::new(process.try_into().ok()?).ok()?.statm().ok()?.resident);
    resident().map_or(1, |pages: u64| pages.div_ceil(SCANNED_PAGES).max(1) as u32)
}

/// What is noted in a file.
fn noted(file: &Path) -> io::Result<Vec<Lent>> {
    let text = fs::read(file).or_else(|error| absent(error, Vec::new()))?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(Lent::parse).collect())
}

fn recover_from(file: &Path, class: libc::c_int) -> io::Result<()> {
    noted(file)?.into_iter().for_each(|lent| lent.take_back(class));
    fs::remove_file(file).or_else(|error| absent(error, ()))
}

/// `instead`, where a file is not there.
fn absent<T>(error: io::Error, instead: T) -> io::Result<T> {
    if error.kind() == ErrorKind::NotFound { Ok(instead) } else { Err(error) }
}

fn threads_of(process: i32) -> io::Result<Vec<i32>> {
    let tasks = fs::read_dir(format!("/proc/{process}/task"))?;
    let tid = |task: io::Result<fs::DirEntry>| task.ok()?.file_name().to_str()?.parse().ok();
    Ok(tasks.filter_map(tid).collect())
}

fn began_ticks(process: i32, tid: i32) -> Option<u64> {
    let task = Process::new(process).ok()?.task_from_tid(tid).ok()?;
    Some(task.stat().ok()?.starttime)
}

/// When a thread that runs or waits for a CPU began, in ticks, and its CPU time in ns; `None` of others.
fn running_for_ns(process: i32, tid: i32) -> Option<(u64, u64)> {
    let stat = Process::new(process).ok()?.task_from_tid(tid).ok()?.stat().ok()?;
    let ran_ns = (stat.utime + stat.stime) * (1_000_000_000 / procfs::ticks_per_second());
    (stat.state == 'R').then_some((stat.starttime, ran_ns))
}

fn ticks_since_boot() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    let told = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    assert_eq!(told, 0, "every Linux has this clock");
    let per_s = procfs::ticks_per_second();
    now.tv_sec as u64 * per_s + now.tv_nsec as u64 * per_s / 1_000_000_000
}

fn class_of(tid: i32) -> io::Result<libc::c_int> {
    Ok(policy_of(tid)? & !libc::SCHED_RESET_ON_FORK)
}

/// The class, and whether children start with the usual one.
fn policy_of(tid: i32) -> io::Result<libc::c_int> {
    // SAFETY: takes no pointers.
    let policy = unsafe { libc::sched_getscheduler(tid) };
    if policy < 0 { Err(io::Error::last_os_error()) } else { Ok(policy) }
}

/// Changes the class alone.
fn set_class(tid: i32, class: libc::c_int) -> io::Result<()> {
    let policy = class | (policy_of(tid)? & libc::SCHED_RESET_ON_FORK);
    // SAFETY: all zeros is a valid value.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads the parameters. The nice level stays as it is.
    let set = unsafe { libc::sched_setscheduler(tid, policy, &raw const parameters) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
