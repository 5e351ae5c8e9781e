// SPDX-License-Identifier: GPL-2.0-only
//! How long a thread waits for a CPU after it was woken, in the manner of schbench.
//!
//! Messengers each wake their workers, one after the other, and wait until all have done a little work; then again. What
//! counts is the 99th percentile of the time from the wake-up to the worker's first instruction. Other threads compute
//! all the time. Nothing here is placed.

use crate::external::session::{Own, Session};
use crate::external::{External, Setting, own_program};
use crate::frame::program::percentile_99;
use crate::frame::spec::{Metric, Size, size};
use crate::frame::spin::Spin;
use crate::truth::monotonic_ns;
use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};

/// Name of the subcommand that is its one process.
pub const COMMAND: &str = "wake-ups-process";

/// The workload.
pub const SPEC: External = External {
    name: "wake-ups",
    summary: "messengers wake workers that work a little, beside threads that compute; the 99th percentile of waiting counts",
    sizes: &[
        Size { name: "messengers", default: 0, unit: "threads", help: "messengers; 0: one for each node", least: 0 },
        Size {
            name: "workers",
            default: 0,
            unit: "threads",
            help: "workers each; 0: half the CPUs / messengers",
            least: 0,
        },
        Size {
            name: "hogs",
            default: 0,
            unit: "threads",
            help: "threads that compute all the time; 0: half the CPUs",
            least: 0,
        },
        size("rounds", 500, "rounds", "times that each worker is woken"),
        size("work", 50_000, "steps", "steps of computing after each wake-up"),
    ],
    metric: Metric::P99Ns,
    work_unit: "wake-ups",
    needs: &[],
    session,
};

/// What the process does.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[arg(long)]
    messengers: u64,
    #[arg(long)]
    workers: u64,
    #[arg(long)]
    hogs: u64,
    #[arg(long)]
    rounds: u64,
    #[arg(long)]
    work: u64,
}

/// What the process prints.
#[derive(Serialize, Deserialize)]
struct Printed {
    wake_ups: u64,
    p99_ns: u64,
}

fn session(setting: &Setting) -> Result<Session> {
    let sizes = setting.sizes;
    let half = (setting.cpus / 2).max(1);
    let messengers = setting.or("messengers", setting.nodes);
    let workers = setting.or("workers", (half / messengers).max(1));
    let (hogs, rounds, work) = (setting.or("hogs", half), sizes.of("rounds"), sizes.of("work"));
    let wake_ups = messengers * workers * rounds;
    let given = [("messengers", messengers), ("workers", workers), ("hogs", hogs), ("rounds", rounds), ("work", work)];
    let options = given.iter().flat_map(|(name, value)| [format!("--{name}"), value.to_string()]);
    Ok(Session {
        commands: vec![[own_program()?, COMMAND.to_owned()].into_iter().chain(options).collect()],
        proof: Box::new(move |printed| {
            let printed: Printed = serde_json::from_str(printed[0].trim()).context("wake-ups printed no result")?;
            if printed.wake_ups != wake_ups {
                bail!("{} wake-ups instead of {wake_ups}", printed.wake_ups);
            }
            Ok(Own { value: Some(printed.p99_ns as f64), p99_ns: Some(printed.p99_ns) })
        }),
        ..Session::nothing(wake_ups)
    })
}

/// Wakes, works and prints the 99th percentile of the time from wake-ups to the first instruction.
///
/// # Errors
/// A computation came out wrong, or the result cannot be printed.
pub fn run(options: &Options) -> Result<()> {
    let stop = AtomicBool::new(false);
    let waits_ns = thread::scope(|scope| {
        let hogs: Vec<_> = (0..options.hogs).map(|_| scope.spawn(|| compute_until(&stop, options.work))).collect();
        let messengers: Vec<_> = (0..options.messengers).map(|_| scope.spawn(|| wake_workers(options))).collect();
        let waits_ns: Result<Vec<Vec<u64>>> =
            messengers.into_iter().map(|messenger| messenger.join().expect("a messenger does not panic")).collect();
        stop.store(true, Ordering::Relaxed);
        hogs.into_iter().try_for_each(|hog| hog.join().expect("a hog does not panic"))?;
        waits_ns
    })?
    .concat();
    let wake_ups = waits_ns.len() as u64;
    let p99_ns = percentile_99(waits_ns).context("nobody was woken")?;
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&Printed { wake_ups, p99_ns })?)
        .context("cannot print the result")
}

fn compute_until(stop: &AtomicBool, steps: u64) -> Result<()> {
    let mut spin = Spin::default();
    while !stop.load(Ordering::Relaxed) {
        spin.steps(steps);
    }
    spin.check()
}

/// A messenger's life: how long each of its workers waited, each time.
fn wake_workers(options: &Options) -> Result<Vec<u64>> {
    let sent_ns: Vec<AtomicU64> = (0..options.workers).map(|_| AtomicU64::new(0)).collect();
    let at_work = AtomicU64::new(0);
    let messenger = thread::current();
    thread::scope(|scope| {
        let (at_work, messenger) = (&at_work, &messenger);
        let workers: Vec<_> = sent_ns
            .iter()
            .map(|sent_ns| scope.spawn(move || work_when_woken(sent_ns, at_work, messenger, options)))
            .collect();
        for _ in 0..options.rounds {
            at_work.store(options.workers, Ordering::Release);
            for (worker, sent_ns) in workers.iter().zip(&sent_ns) {
                sent_ns.store(monotonic_ns(), Ordering::Release);
                worker.thread().unpark();
            }
            while at_work.load(Ordering::Acquire) > 0 {
                thread::park();
            }
        }
        let waits_ns: Result<Vec<Vec<u64>>> =
            workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect();
        Ok(waits_ns?.concat())
    })
}

/// A worker's life: how long it waited each time.
fn work_when_woken(
    sent_ns: &AtomicU64,
    at_work: &AtomicU64,
    messenger: &Thread,
    options: &Options,
) -> Result<Vec<u64>> {
    let mut waits_ns = Vec::with_capacity(options.rounds as usize);
    let mut spin = Spin::default();
    for _ in 0..options.rounds {
        let sent = loop {
            match sent_ns.swap(0, Ordering::Acquire) {
                0 => thread::park(),
                sent => break sent,
            }
        };
        waits_ns.push(monotonic_ns().saturating_sub(sent));
        spin.steps(options.work);
        if at_work.fetch_sub(1, Ordering::AcqRel) == 1 {
            messenger.unpark();
        }
    }
    spin.check().map(|()| waits_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_is_woken_in_every_round() {
        let options = Options { messengers: 1, workers: 3, hogs: 0, rounds: 20, work: 10 };
        assert_eq!(wake_workers(&options).unwrap().len(), 60);
    }
}
