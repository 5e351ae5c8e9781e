// SPDX-License-Identifier: GPL-2.0-only
//! Truth documents of other programs whose threads use all of their process's large mappings evenly,
//! as `perf bench numa mem -P MB` does.

use crate::page_homes::{page_bytes, page_homes};
use crate::process_files::{Stat, all_processes, anonymous_mappings, program_of, threads_of};
use crate::truth::{RangeTruth, ThreadTruth, Truth, monotonic_ns};
use anyhow::{Result, bail};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Time between two looks at /proc.
const POLL: Duration = Duration::from_millis(50);

/// Options of `tandem-load truth-of`.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true)))]
pub struct Options {
    /// Name of the program or of its main thread (perf bench renames its threads).
    #[arg(long, group = "which")]
    comm: Option<String>,
    /// Process ids.
    #[arg(long, value_delimiter = ',', group = "which")]
    pids: Vec<i32>,
    /// Pieces of anonymous memory with at least so many MiB in memory without a gap count.
    #[arg(long, default_value_t = 16)]
    min_mib: u64,
    /// MiB really used of each such piece, from the first 2 MiB boundary in it (perf bench rounds up its memory);
    /// default: all that is in memory.
    #[arg(long)]
    used_mib: Option<u64>,
    /// Processes to wait for.
    #[arg(long)]
    processes: usize,
    /// Working threads of each process to wait for; a main thread beside them is taken as idle.
    #[arg(long)]
    threads: usize,
    /// Give up after so many seconds.
    #[arg(long, default_value_t = 60)]
    timeout_seconds: u64,
    /// Where to write the truth document.
    #[arg(long)]
    json: PathBuf,
}

/// Waits until the processes have all their threads and their memory, then writes who touches what.
pub fn run(options: &Options) -> Result<()> {
    if options.processes == 0 || options.threads == 0 {
        bail!("--processes and --threads must be at least 1");
    }
    if options.comm.is_none() && options.pids.len() != options.processes {
        bail!("--pids names {} processes, --processes says {}", options.pids.len(), options.processes);
    }
    let deadline = Instant::now() + Duration::from_secs(options.timeout_seconds);
    loop {
        let (found, missing) = look(options)?;
        if missing.is_none() {
            return truth_of(options, found).write(&options.json);
        }
        if Instant::now() >= deadline {
            bail!("{} after {} s", missing.unwrap_or_default(), options.timeout_seconds);
        }
        std::thread::sleep(POLL);
    }
}

/// A process that is complete: all threads, all memory.
struct Found {
    pid: i32,
    tids: Vec<i32>,
    ranges: Vec<RangeTruth>,
}

/// Complete processes, and in words what is missing yet.
fn look(options: &Options) -> Result<(Vec<Found>, Option<String>)> {
    let candidates = match &options.comm {
        Some(name) => all_processes()?.into_iter().filter(|pid| is_named(*pid, name)).collect(),
        None => options.pids.clone(),
    };
    let found: Vec<Found> = candidates.into_iter().filter_map(|pid| complete(pid, options)).collect();
    let missing = (found.len() != options.processes).then(|| {
        format!(
            "{} instead of {} processes with {} threads and a mapping of at least {} MiB in memory were there",
            found.len(),
            options.processes,
            options.threads,
            options.min_mib
        )
    });
    Ok((found, missing))
}

fn is_named(pid: i32, name: &str) -> bool {
    Stat::read(pid, pid).is_ok_and(|stat| stat.comm == name) || program_of(pid).as_deref() == Some(name)
}

/// The process if it is complete; one that is ending or may not be looked into is not.
fn complete(pid: i32, options: &Options) -> Option<Found> {
    let tids = working_threads(pid, threads_of(pid).ok()?, options.threads)?;
    let mappings = anonymous_mappings(pid).ok()?;
    let mut used = Vec::new();
    for mapping in mappings.iter().filter(|mapping| mapping.resident_bytes >= options.min_mib << 20) {
        let pages = (mapping.start..mapping.start + mapping.bytes).step_by(page_bytes() as usize).collect::<Vec<u64>>();
        let resident: Vec<bool> = page_homes(pid, &pages).ok()?.iter().map(Option::is_some).collect();
        for run in resident_runs(mapping.start, &resident) {
            if run.1 >= options.min_mib << 20 {
                used.push(used_part(run, options.used_mib)?);
            }
        }
    }
    let all: u64 = used.iter().map(|(_, bytes)| bytes).sum();
    let range = |(start, bytes)| RangeTruth { start, bytes, weight: bytes as f64 / all as f64 };
    let ranges: Vec<RangeTruth> = used.into_iter().map(range).collect();
    (!ranges.is_empty()).then_some(Found { pid, tids, ranges })
}

/// Start and bytes of each run of resident pages in a mapping. Neighbours such as thread stacks may be merged
/// into one mapping; their untouched parts keep the runs apart.
fn resident_runs(mapping_start: u64, resident: &[bool]) -> Vec<(u64, u64)> {
    let mut runs = Vec::new();
    let mut start = mapping_start;
    for run in resident.chunk_by(|page, next| page == next) {
        let bytes = run.len() as u64 * page_bytes();
        if run[0] {
            runs.push((start, bytes));
        }
        start += bytes;
    }
    runs
}

/// The part of a run that is used: all of it, or `used_mib` from its first 2 MiB boundary, which must fit.
fn used_part((start, bytes): (u64, u64), used_mib: Option<u64>) -> Option<(u64, u64)> {
    let Some(used_bytes) = used_mib.map(|mib| mib << 20) else { return Some((start, bytes)) };
    let aligned = start.next_multiple_of(HUGE_PAGE_BYTES);
    (aligned + used_bytes <= start + bytes).then_some((aligned, used_bytes))
}

/// The `working` threads among `tids`, if they are all there: with one more, the main thread only waits.
fn working_threads(pid: i32, tids: Vec<i32>, working: usize) -> Option<Vec<i32>> {
    if tids.len() == working + 1 {
        Some(tids.into_iter().filter(|tid| *tid != pid).collect())
    } else {
        (tids.len() == working).then_some(tids)
    }
}

fn truth_of(options: &Options, found: Vec<Found>) -> Truth {
    let pairs_of = |process: &Found| process.tids.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect::<Vec<_>>();
    let threads_of = |process: &Found| {
        let (pid, ranges) = (process.pid, process.ranges.clone());
        process.tids.iter().map(move |tid| ThreadTruth { pid, tid: *tid, ranges: ranges.clone() }).collect::<Vec<_>>()
    };
    Truth {
        workload: options.comm.clone().unwrap_or_else(|| "processes".into()),
        initialised_at_ns: monotonic_ns(),
        processes: found.iter().map(|process| process.pid).collect(),
        pairs: found.iter().flat_map(pairs_of).collect(),
        threads: found.iter().flat_map(threads_of).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_main_thread_beside_the_workers_is_not_one_of_them() {
        assert_eq!(working_threads(7, vec![7, 8, 9], 2), Some(vec![8, 9]));
        assert_eq!(working_threads(7, vec![7, 8], 2), Some(vec![7, 8]));
    }

    #[test]
    fn a_process_without_all_its_threads_is_not_complete() {
        assert_eq!(working_threads(7, vec![7], 2), None);
        assert_eq!(working_threads(7, vec![7, 8, 9, 10], 2), None);
    }

    #[test]
    fn resident_runs_end_where_a_page_is_missing() {
        let page = page_bytes();
        let resident = [true, false, false, true, true, true];
        assert_eq!(resident_runs(0x10_0000, &resident), [(0x10_0000, page), (0x10_0000 + 3 * page, 3 * page)]);
        assert_eq!(resident_runs(0x10_0000, &[false; 9]), []);
    }

    #[test]
    fn used_memory_starts_at_a_huge_page_boundary_and_must_all_be_there() {
        let run = |start| (start, 5 << 20);
        assert_eq!(used_part(run((2 << 20) - 4096), Some(4)), Some((2 << 20, 4 << 20)));
        assert_eq!(used_part(run((2 << 20) + 4096), Some(4)), None);
        assert_eq!(used_part(run(4096), None), Some((4096, 5 << 20)));
    }

    #[test]
    fn threads_of_one_process_are_paired_and_share_its_ranges() {
        let ranges = vec![RangeTruth { start: 4096, bytes: 1 << 24, weight: 1.0 }];
        let found = vec![
            Found { pid: 1, tids: vec![2, 3], ranges: ranges.clone() },
            Found { pid: 4, tids: vec![5, 6], ranges: ranges.clone() },
        ];
        let options = Options {
            comm: Some("perf".into()),
            pids: vec![],
            min_mib: 16,
            used_mib: None,
            processes: 2,
            threads: 2,
            timeout_seconds: 1,
            json: PathBuf::new(),
        };
        let truth = truth_of(&options, found);
        assert_eq!(truth.pairs, [[2, 3], [5, 6]]);
        assert_eq!(truth.threads.len(), 4);
        assert!(truth.threads.iter().all(|thread| thread.ranges == ranges));
    }
}
