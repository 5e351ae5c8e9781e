// SPDX-License-Identifier: GPL-2.0-only
//! Load of each node over time while a workload runs on a real machine: what the lab's ground truth tells of a guest.
//!
//! Nothing marks the timed part to others here, so the course is that of the whole program, initialisation included. A
//! thread beside the one that waits for the arm's script reads /proc/stat; between two readings it sleeps, and it ends
//! at once when the script does. The files that the script leaves tell when the program began and ended.
//!
//! Terms: *load of a node*, see `truth`. Here it counts what else the machine does, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::beside::beside;
use super::cpu_time::CpuTime;
use crate::truth::Point;

/// Time between two readings at first. Each takes up to some ms of one CPU on a machine of hundreds.
pub const FIRST_INTERVAL: Duration = Duration::from_millis(200);
/// When there are so many readings, every other one is dropped and the interval doubles.
const MOST_READINGS: usize = 256;

/// Whose load to watch, and how to know when.
pub struct Watch<'a> {
    /// Directory that holds proc/stat.
    pub proc: &'a Path,
    /// Numbers of the CPUs of each node.
    pub cpus_per_node: &'a [Vec<u32>],
    /// The file that is there from the program's begin on.
    pub begun: PathBuf,
    /// The file that is there from its end on.
    pub ended: PathBuf,
    /// Time between two readings at first, [`FIRST_INTERVAL`].
    pub interval: Duration,
}

/// What was read so far.
struct Readings {
    taken: Vec<Reading>,
    interval: Duration,
}

/// What each node's CPUs did until one moment.
#[derive(Clone, Debug, PartialEq)]
struct Reading {
    at: Instant,
    nodes: Vec<CpuTime>,
}

impl Watch<'_> {
    /// Does `work` in the calling thread; its result, and the course of the load while the program ran, no points if it
    /// was too short for any.
    ///
    /// # Errors
    /// /proc/stat cannot be read.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> Result<(T, Vec<Point>)> {
        let (result, readings) = beside("/proc/stat", |done| self.readings(done), work)?;
        Ok((result, series(&readings)))
    }

    /// Reads until the program ended or the other end of `done` is dropped.
    fn readings(&self, done: &Receiver<()>) -> Result<Vec<Reading>> {
        let mut readings = Readings { taken: Vec::new(), interval: self.interval };
        while done.recv_timeout(readings.interval) == Err(RecvTimeoutError::Timeout) && self.step(&mut readings)? {}
        Ok(readings.taken)
    }

    /// Takes a reading if the program began; whether further ones are to follow.
    fn step(&self, readings: &mut Readings) -> Result<bool> {
        if !self.begun.exists() {
            return Ok(true);
        }
        let ended = self.ended.exists();
        readings.taken.push(self.read()?);
        if readings.taken.len() == MOST_READINGS {
            readings.taken = readings.taken.drain(..).step_by(2).collect();
            readings.interval *= 2;
        }
        Ok(!ended)
    }

    fn read(&self) -> Result<Reading> {
        let path = self.proc.join("stat");
        let text = fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        let nodes = times_per_node(&text, self.cpus_per_node);
        Ok(Reading { at: Instant::now(), nodes: nodes.with_context(|| path.display().to_string())? })
    }
}

/// The CPU time of each node by the content of /proc/stat, which does not show offline CPUs.
fn times_per_node(stat: &str, cpus_per_node: &[Vec<u32>]) -> Result<Vec<CpuTime>> {
    let mut nodes = vec![CpuTime::default(); cpus_per_node.len()];
    for line in stat.lines() {
        let Some((number, times)) = line.strip_prefix("cpu").and_then(|line| line.split_once(' ')) else { continue };
        // Without a number it is the sum of all.
        let Ok(number) = number.parse::<u32>() else { continue };
        let Some(node) = cpus_per_node.iter().position(|cpus| cpus.contains(&number)) else { continue };
        nodes[node] = nodes[node] + CpuTime::parse(times).with_context(|| format!("this is no CPU time: '{line}'"))?;
    }
    Ok(nodes)
}

/// A point for every stretch between two readings, by time since the first one.
fn series(readings: &[Reading]) -> Vec<Point> {
    let Some(first) = readings.first() else { return Vec::new() };
    let point = |pair: &[Reading]| {
        let nodes = pair[1].nodes.iter().zip(&pair[0].nodes);
        Point {
            at_s: (pair[1].at - first.at).as_secs_f64(),
            remote_share: None,
            load: nodes.map(|(now, before)| now.busy_share_since(*before)).collect(),
        }
    };
    readings.windows(2).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that plays /proc, and in which a program begins and ends.
    fn folder(stat: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("stat"), stat).unwrap();
        folder
    }

    fn watch<'a>(folder: &'a Path, cpus_per_node: &'a [Vec<u32>]) -> Watch<'a> {
        Watch {
            proc: folder,
            cpus_per_node,
            begun: folder.join("begun"),
            ended: folder.join("ended"),
            interval: Duration::from_millis(1),
        }
    }

    fn stat(busy: [u64; 4], idle: [u64; 4]) -> String {
        let line = |cpu: usize| format!("cpu{cpu} {} 0 0 {} 0 0 0 0 0 0\n", busy[cpu], idle[cpu]);
        format!("cpu  999 0 0 999 0 0 0 0 0 0\n{}intr 5 0\n", (0..4).map(line).collect::<String>())
    }

    #[test]
    fn a_nodes_load_is_that_of_its_own_cpus() {
        let nodes = [vec![0, 2], vec![], vec![1, 3]];
        let at = Instant::now();
        let reading = |ms: u64, busy: [u64; 4], idle: [u64; 4]| Reading {
            at: at + Duration::from_millis(ms),
            nodes: times_per_node(&stat(busy, idle), &nodes).unwrap(),
        };
        let readings = [
            reading(0, [5, 5, 5, 5], [7, 7, 7, 7]),
            reading(200, [25, 5, 25, 5], [7, 27, 7, 27]),
            reading(500, [25, 35, 40, 5], [37, 27, 22, 57]),
        ];
        let points = series(&readings);
        assert_eq!(
            points.iter().map(|point| point.load.clone()).collect::<Vec<_>>(),
            [[1.0, 0.0, 0.0], [0.25, 0.0, 0.5]]
        );
        assert_eq!(points.iter().map(|point| point.at_s).collect::<Vec<_>>(), [0.2, 0.5]);
        assert!(points.iter().all(|point| point.remote_share.is_none()));
        assert!(series(&readings[..1]).is_empty() && series(&[]).is_empty());
    }

    #[test]
    fn offline_cpus_are_not_shown_and_other_texts_are_refused() {
        let nodes = [vec![0], vec![1]];
        let times = times_per_node("cpu1 6 0 0 2 0 0 0 0 0 0\n", &nodes).unwrap();
        assert_eq!((times[0], times[1].busy_share_since(CpuTime::default())), (CpuTime::default(), 0.75));
        let said = times_per_node("cpu1 x 0 0 2 0 0 0 0 0 0\n", &nodes).unwrap_err().to_string();
        assert_eq!(said, "this is no CPU time: 'cpu1 x 0 0 2 0 0 0 0 0 0'");
    }

    #[test]
    fn readings_begin_and_end_with_the_program() {
        let folder = folder(&stat([0; 4], [0; 4]));
        let (nodes, mut readings) = ([vec![0]], Readings { taken: Vec::new(), interval: FIRST_INTERVAL });
        let watch = watch(folder.path(), &nodes);
        let mut step = || (watch.step(&mut readings).unwrap(), readings.taken.len());
        assert_eq!((step(), step()), ((true, 0), (true, 0)));
        fs::write(&watch.begun, "").unwrap();
        assert_eq!((step(), step()), ((true, 1), (true, 2)));
        fs::write(&watch.ended, "").unwrap();
        assert_eq!(step(), (false, 3));
    }

    #[test]
    fn a_long_program_is_read_less_often() {
        let folder = folder(&stat([0; 4], [0; 4]));
        let (nodes, mut readings) = ([vec![0]], Readings { taken: Vec::new(), interval: FIRST_INTERVAL });
        let watch = watch(folder.path(), &nodes);
        fs::write(&watch.begun, "").unwrap();
        for _ in 0..MOST_READINGS + MOST_READINGS / 2 {
            assert!(watch.step(&mut readings).unwrap());
        }
        assert_eq!((readings.taken.len(), readings.interval), (MOST_READINGS / 2, FIRST_INTERVAL * 4));
        assert!(readings.taken.is_sorted_by_key(|reading| reading.at));
    }

    #[test]
    fn it_ends_with_the_work_and_does_not_wait_for_the_next_reading() {
        let folder = folder(&stat([0; 4], [0; 4]));
        let (begun, nodes) = (Instant::now(), [vec![0]]);
        let watch = Watch { interval: Duration::from_secs(600), ..watch(folder.path(), &nodes) };
        assert_eq!(watch.during(|| 7).unwrap(), (7, vec![]));
        assert!(begun.elapsed() < Duration::from_secs(300), "{:?}", begun.elapsed());
    }

    #[test]
    fn it_reads_while_the_work_goes_on() {
        let folder = folder(&stat([0; 4], [0; 4]));
        let nodes = [vec![0, 1], vec![2, 3]];
        let watch = watch(folder.path(), &nodes);
        fs::write(&watch.begun, "").unwrap();
        // How soon the reader has its turns depends on what else the machine does.
        let mut work = Duration::from_millis(10);
        let points = loop {
            let (_, points) = watch.during(|| std::thread::sleep(work)).unwrap();
            if !points.is_empty() {
                break points;
            }
            work *= 2;
            assert!(work < Duration::from_secs(10), "it does not read");
        };
        assert!(points.iter().all(|point| point.load == [0.0, 0.0]), "{points:?}");
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let (folder, nodes) = (tempfile::tempdir().unwrap(), [vec![0]]);
        let watch = watch(folder.path(), &nodes);
        fs::write(&watch.begun, "").unwrap();
        let (_work_goes_on, hears_done) = std::sync::mpsc::channel();
        let said = format!("{:#}", watch.readings(&hears_done).unwrap_err());
        assert!(said.contains("/stat cannot be read"), "{said}");
    }
}
