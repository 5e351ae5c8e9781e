// SPDX-License-Identifier: GPL-2.0-only
//! Which runs are made, in which order, how many at a time, and what becomes of those that fail.
//!
//! Boot by boot, every arm has its turn (so that whatever drifts drifts for all), beginning with another arm each time.
//! All arms of a boot have the same seed. Runs that the store has, or that another experiment is making for it, are not made
//! again. A run that fails is reported and the rest go on; a wish to stop ends those under way and starts no more.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Instant;

use anyhow::Result;

use crate::arm::Arm;
use crate::attempt::Attempt;
use crate::programs::Programs;
use crate::run::{Identity, Run};
use crate::stop::Stop;
use crate::store::Store;
use crate::workload::Workload;

/// One run to make.
#[derive(Clone, Debug)]
pub struct Job {
    /// What it will be a run of.
    pub identity: Identity,
    /// How it is scheduled and placed.
    pub arm: Arm,
    /// What is run.
    pub workload: Workload,
    /// The programs it needs, as paths on this machine.
    pub programs: Programs,
    /// Number of the boot, from 1.
    pub boot: u64,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Measured, now or earlier.
    Done(Box<Run>),
    /// Failed, for this reason.
    Failed(String),
    /// Not made, because a stop was wished.
    NotRun,
}

/// How jobs are carried out.
#[derive(Clone, Copy)]
pub struct Runner<'a> {
    /// Where finished runs go and are looked up.
    pub store: &'a Store,
    /// Make runs that the store has, too.
    pub again: bool,
    /// Runs at a time.
    pub side_by_side: usize,
    /// The wish to stop.
    pub stop: &'a Stop,
    /// Takes lines about the progress.
    pub say: &'a (dyn Fn(&str) + Sync),
}

/// Makes a run, its files in the folder; they are kept when it fails.
pub type Make<'a> = dyn Fn(&Job, &Path) -> Result<Run> + Sync + 'a;

/// A run from the making to the keeping.
struct Made {
    run: Run,
    /// Held until the run is kept: whoever waits for it looks into the store next.
    attempt: Attempt,
    /// Another experiment has kept it since this one began.
    elsewhere: bool,
}

/// The arms of `boots` boots in the order in which they are to run: (index of the arm, number of the boot from 1).
pub fn interleaved(arms: usize, boots: u64) -> Vec<(usize, u64)> {
    (0..boots).flat_map(|boot| (0..arms).map(move |turn| ((turn + boot as usize) % arms, boot + 1))).collect()
}

impl Runner<'_> {
    /// Carries out all jobs by `make`; what became of each, in the order of `jobs`.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn run(&self, jobs: &[Job], make: &Make<'_>) -> Result<Vec<Outcome>> {
        let mut outcomes = vec![Outcome::NotRun; jobs.len()];
        let mut to_make = VecDeque::new();
        for (index, job) in jobs.iter().enumerate() {
            match self.store.run(&job.identity)? {
                Some(run) if !self.again => outcomes[index] = Outcome::Done(Box::new(run)),
                _ => to_make.push_back(index),
            }
        }
        let found = jobs.len() - to_make.len();
        if found > 0 {
            (self.say)(&format!("{found} of {} runs are in the store already", jobs.len()));
        }
        self.make_all(jobs, to_make, make, &mut outcomes)?;
        Ok(outcomes)
    }

    fn make_all(
        &self,
        jobs: &[Job],
        to_make: VecDeque<usize>,
        make: &Make<'_>,
        outcomes: &mut [Outcome],
    ) -> Result<()> {
        let (total, begun) = (to_make.len(), Instant::now());
        let queue = Mutex::new(to_make);
        // Without room: who has made a run begins another only when that one is about to be kept.
        let (sender, receiver) = mpsc::sync_channel(0);
        std::thread::scope(|scope| {
            for _ in 0..self.side_by_side.min(total) {
                let (queue, sender) = (&queue, sender.clone());
                scope.spawn(move || {
                    while let Some(index) = self.next(queue) {
                        if sender.send((index, self.made(&jobs[index], make))).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            // It goes with an error, and then nobody begins another run.
            for (finished, (index, made)) in receiver.into_iter().enumerate() {
                let left_s = begun.elapsed().as_secs_f64() / (finished + 1) as f64 * (total - finished - 1) as f64;
                outcomes[index] = self.outcome(&jobs[index], made, (finished + 1, total), left_s)?;
            }
            Ok(())
        })
    }

    /// What nobody else makes while the result lives. Who waits for another process is told, by the title of the run.
    ///
    /// # Errors
    /// The store cannot be written, or a stop is wished first.
    pub(crate) fn attempt(&self, identity: &Identity, title: &str) -> Result<Attempt> {
        Attempt::begin(self.store.attempt(identity), self.stop, || {
            (self.say)(&format!("{title}: another `tandem ab` measures it for this store now: waiting for it"));
        })
    }

    fn made(&self, job: &Job, make: &Make<'_>) -> Result<Made> {
        let attempt = self.attempt(&job.identity, &title(job))?;
        match self.store.run(&job.identity)? {
            Some(run) if !self.again => Ok(Made { run, attempt, elsewhere: true }),
            _ => Ok(Made { run: make(job, attempt.folder())?, attempt, elsewhere: false }),
        }
    }

    fn next(&self, queue: &Mutex<VecDeque<usize>>) -> Option<usize> {
        if self.stop.wished() {
            return None;
        }
        queue.lock().expect("no thread panics while it holds the queue").pop_front()
    }

    /// Keeps a finished run and says how it went.
    fn outcome(
        &self,
        job: &Job,
        made: Result<Made>,
        (finished, total): (usize, usize),
        left_s: f64,
    ) -> Result<Outcome> {
        let title = format!("[{finished}/{total}] {}", title(job));
        match made {
            Ok(Made { run, attempt, elsewhere }) => {
                if !elsewhere {
                    self.store.keep(&run)?;
                }
                attempt.done()?;
                let remote = run.placement.as_ref().and_then(|placement| placement.remote_share);
                let remote = remote.map_or(String::new(), |share| format!(", {:.1} % remote", share * 100.0));
                let left =
                    if finished < total { format!("; {:.0} min left", (left_s / 60.0).ceil()) } else { String::new() };
                let (value, unit) = (run.report.value, &run.report.unit);
                let took =
                    if elsewhere { "of another `tandem ab`".to_owned() } else { format!("took {:.0} s", run.host_s) };
                (self.say)(&format!("{title}: {value:.4} {unit}{remote} ({took}{left})"));
                Ok(Outcome::Done(Box::new(run)))
            }
            Err(_) if self.stop.wished() => Ok(Outcome::NotRun),
            Err(error) => {
                let reason = format!("{error:#}");
                (self.say)(&format!("{title}: failed: {reason}"));
                Ok(Outcome::Failed(reason))
            }
        }
    }
}

fn title(job: &Job) -> String {
    format!("{} {}, boot {}", job.workload.text, job.arm, job.boot)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use anyhow::bail;

    use super::*;
    use crate::testing::run;
    use crate::{arm, workload};

    struct Bench {
        store: Store,
        stop: Stop,
        said: Mutex<Vec<String>>,
        directory: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let store = Store::open(directory.path()).unwrap();
            Self { store, stop: Stop::default(), said: Mutex::default(), directory }
        }

        fn run(&self, again: bool, jobs: &[Job], make: &Make<'_>) -> Vec<Outcome> {
            let say = |line: &str| self.said.lock().unwrap().push(line.to_owned());
            Runner { store: &self.store, again, side_by_side: 2, stop: &self.stop, say: &say }.run(jobs, make).unwrap()
        }
    }

    fn jobs(list: &str, boots: u64) -> Vec<Job> {
        let arms = arm::parse_lists(&[list.to_owned()]).unwrap();
        let workload = workload::parse_lists(&["crossed".to_owned()]).remove(0);
        interleaved(arms.len(), boots)
            .into_iter()
            .map(|(index, boot)| Job {
                identity: run(&arms[index].name, boot, 1.0).identity,
                arm: arms[index].clone(),
                workload: workload.clone(),
                programs: Programs { load: "load".into(), scheduler: None, numactl: None, tools: vec![] },
                boot,
            })
            .collect()
    }

    fn measured(job: &Job) -> Run {
        run(&job.arm.name, job.boot, 4.0)
    }

    #[test]
    fn arms_take_turns_and_another_begins_each_boot() {
        assert_eq!(interleaved(3, 2), [(0, 1), (1, 1), (2, 1), (1, 2), (2, 2), (0, 2)]);
        assert_eq!(interleaved(2, 0), []);
    }

    #[test]
    fn where_runs_cannot_be_kept_no_more_are_made() {
        let (bench, jobs, made) = (Bench::new(), jobs("oracle,worst", 50), AtomicUsize::new(0));
        let runner =
            Runner { store: &bench.store, again: false, side_by_side: 1, stop: &bench.stop, say: &|_: &str| () };
        let make = |job: &Job, _: &Path| {
            made.fetch_add(1, Ordering::Relaxed);
            std::fs::create_dir(bench.directory.path().join(job.identity.file_name())).unwrap();
            Ok(measured(job))
        };
        assert!(runner.run(&jobs, &make).is_err());
        // The second began before the first was kept.
        assert!(made.into_inner() <= 2, "each may take minutes");
    }

    #[test]
    fn nothing_is_measured_twice_unless_asked() {
        let (bench, jobs, made) = (Bench::new(), jobs("oracle,worst", 3), AtomicUsize::new(0));
        let make = |job: &Job, _: &Path| {
            made.fetch_add(1, Ordering::Relaxed);
            Ok(measured(job))
        };
        for (again, expected) in [(false, 6), (false, 6), (true, 12)] {
            let outcomes = bench.run(again, &jobs, &make);
            assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Done(_))));
            assert_eq!(made.load(Ordering::Relaxed), expected);
        }
    }

    #[test]
    fn a_failed_run_is_reported_made_again_next_time_and_the_rest_go_on() {
        let (bench, jobs) = (Bench::new(), jobs("oracle,worst", 2));
        let make =
            |job: &Job, _: &Path| if job.arm.name == "worst" { bail!("kernel panic") } else { Ok(measured(job)) };
        let outcomes = bench.run(false, &jobs, &make);
        for (job, outcome) in jobs.iter().zip(&outcomes) {
            match outcome {
                Outcome::Done(run) => assert_eq!(run.identity, job.identity),
                other => assert_eq!((job.arm.name.as_str(), other), ("worst", &Outcome::Failed("kernel panic".into()))),
            }
        }
        let healthy = bench.run(false, &jobs, &|job, _| Ok(measured(job)));
        assert!(healthy.iter().all(|outcome| matches!(outcome, Outcome::Done(_))));
    }

    #[test]
    fn a_stop_keeps_what_is_done_and_starts_no_more() {
        let (bench, jobs) = (Bench::new(), jobs("oracle,worst", 4));
        let started = AtomicUsize::new(0);
        let make = |job: &Job, _: &Path| {
            if started.fetch_add(1, Ordering::Relaxed) == 2 {
                bench.stop.wish();
                bail!("killed");
            }
            Ok(measured(job))
        };
        let outcomes = bench.run(false, &jobs, &make);
        let done = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Done(_))).count();
        assert!((2..=3).contains(&done), "{outcomes:?}");
        assert!(outcomes.iter().all(|outcome| !matches!(outcome, Outcome::Failed(_))), "a killed run has not failed");
        let resumed = Bench { stop: Stop::default(), ..bench };
        let made = AtomicUsize::new(0);
        resumed.run(false, &jobs, &|job, _| {
            made.fetch_add(1, Ordering::Relaxed);
            Ok(measured(job))
        });
        assert_eq!(made.load(Ordering::Relaxed), 8 - done);
    }

    #[test]
    fn progress_counts_runs_and_names_failures() {
        let (bench, jobs) = (Bench::new(), jobs("oracle,worst", 1));
        let make =
            |job: &Job, _: &Path| if job.arm.name == "worst" { bail!("kernel panic") } else { Ok(measured(job)) };
        bench.run(false, &jobs, &make);
        let said = bench.said.lock().unwrap().join("\n");
        assert!(said.contains("crossed oracle, boot 1: 4.0000 s, 25.0 % remote"), "{said}");
        assert!(said.contains("worst, boot 1: failed: kernel panic") && said.contains("[2/2]"), "{said}");
    }
}
