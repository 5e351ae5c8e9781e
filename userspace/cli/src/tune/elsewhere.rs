// SPDX-License-Identifier: GPL-2.0-only
//! `tandem tune --executor`: trials on other machines.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use tandem_ab::stop::Stop;
use tandem_tune::mapping::Profiled;
use tandem_tune::remote::slurm::Slurm;
use tandem_tune::remote::ssh::SshHosts;
use tandem_tune::remote::{Description, Executor, Job, Reply, Request};
use tandem_tune::session::{Asked, ManyRunner, Ran, Trial};
use tandem_tune::subject::Subject;

/// What runs trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// This machine, one after the other
    Local,
    /// Machines that Slurm hands out: job arrays, a whole machine for each trial
    Slurm,
    /// Machines that are reached by ssh, one trial at a time each
    SshHosts,
}

/// Where trials are run.
#[derive(Args)]
#[group(id = "elsewhere")]
pub struct Arguments {
    /// Who runs trials; program, input and this directory must be at the same paths on all machines, which must be alike
    #[arg(long, value_name = "WHO", value_enum, default_value_t = Name::Local)]
    executor: Name,
    /// With ssh-hosts: the machines
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    hosts: Vec<String>,
    /// With ssh-hosts: the command that reaches one [default: ssh]
    #[arg(long, value_name = "COMMAND")]
    ssh: Option<String>,
    /// With slurm: an option for sbatch, for example --partition=numa (repeatable)
    #[arg(long = "slurm-option", value_name = "OPTION", allow_hyphen_values = true)]
    slurm_options: Vec<String>,
    /// With slurm: where jobs and their replies are, which all machines see [default: tandem-jobs]
    #[arg(long, value_name = "DIR")]
    jobs: Option<PathBuf>,
    /// `tandem` on these machines [default: where this one is]
    #[arg(long, value_name = "PATH")]
    worker: Option<PathBuf>,
}

impl Arguments {
    /// Who runs trials; `None`: this process.
    ///
    /// # Errors
    /// Options contradict each other, or it cannot be used.
    pub fn executor(&self) -> Result<Option<Box<dyn Executor>>> {
        let only = |given: bool, option: &str, name: Name, words: &str| match given && self.executor != name {
            true => bail!("{option} is for --executor {words}"),
            false => Ok(()),
        };
        only(!self.hosts.is_empty(), "--hosts", Name::SshHosts, "ssh-hosts")?;
        only(self.ssh.is_some(), "--ssh", Name::SshHosts, "ssh-hosts")?;
        only(!self.slurm_options.is_empty(), "--slurm-option", Name::Slurm, "slurm")?;
        only(self.jobs.is_some(), "--jobs", Name::Slurm, "slurm")?;
        if self.worker.is_some() && self.executor == Name::Local {
            bail!("--worker is for --executor slurm or ssh-hosts");
        }
        let worker = || match &self.worker {
            Some(worker) => Ok(worker.clone()),
            None => std::env::current_exe().context("where tandem is cannot be told: name it with --worker"),
        };
        Ok(match self.executor {
            Name::Local => None,
            Name::Slurm => {
                let jobs = self.jobs.clone().unwrap_or_else(|| "tandem-jobs".into());
                Some(Box::new(Slurm::new(jobs, worker()?, self.slurm_options.clone())?))
            }
            Name::SshHosts => Some(Box::new(self.hosts(worker()?)?)),
        })
    }

    /// Why nothing can be replayed from checkpoints where trials are run, in words, if so.
    pub fn obstacle_to_checkpoints(&self) -> Option<String> {
        let is_here = self.executor == Name::Local;
        (!is_here).then(|| "checkpoints are made on this machine alone (--executor local)".to_owned())
    }

    fn hosts(&self, worker: PathBuf) -> Result<SshHosts> {
        if self.hosts.is_empty() {
            bail!("--executor ssh-hosts needs --hosts HOST,...");
        }
        // ssh would take it for an option.
        if let Some(host) = self.hosts.iter().find(|host| host.is_empty() || host.starts_with('-')) {
            bail!("--hosts: '{host}' is no name of a machine");
        }
        let twice = |at: &usize| self.hosts[..*at].contains(&self.hosts[*at]);
        if let Some(at) = (0..self.hosts.len()).find(twice) {
            bail!("--hosts: {} is there twice, and two trials at a time would disturb each other", self.hosts[at]);
        }
        let ssh = self.ssh.as_deref().unwrap_or("ssh").split_whitespace().map(str::to_owned).collect();
        Ok(SshHosts::new(self.hosts.clone(), ssh, worker))
    }
}

/// The machine that the first worker is on; `None` if a stop was wished.
///
/// # Errors
/// No worker tells, or none by the deadline.
pub fn describe(executor: &dyn Executor, stop: &Stop, deadline: Option<Instant>) -> Result<Option<Description>> {
    let mut machine = None;
    executor.carry_out(&[Request::Describe], stop, deadline, &mut |_, reply| match reply {
        Reply::Machine(description) => {
            machine = Some(*description);
            Ok(())
        }
        other => unexpected(&other),
    })?;
    if machine.is_none() && !stop.wished() {
        bail!("no machine has answered within --budget: give it more time, or see whether they are there");
    }
    Ok(machine)
}

fn unexpected<T>(reply: &Reply) -> Result<T> {
    match reply {
        Reply::Refused(why) => bail!("a machine cannot be tuned for: {why}"),
        _ => bail!("a worker answered what it was not asked: is it of the same version (--worker)?"),
    }
}

/// What of `subject` machines must agree about: files that arguments name may be the program's output, which is not the same
/// everywhere.
fn comparable(subject: &Subject) -> Subject {
    Subject { files: None, ..subject.clone() }
}

/// Runs a program on other machines.
pub struct Far<'a> {
    executor: &'a dyn Executor,
    stop: &'a Stop,
    /// When the session has to be over.
    deadline: Option<Instant>,
    /// All that trials have in common.
    job: RefCell<Job>,
    /// Why a machine would not go on.
    refusal: RefCell<Option<String>>,
}

impl<'a> Far<'a> {
    /// Trials of `command`, which reads `input` and is `subject`, started in the present directory, until the `deadline`.
    ///
    /// # Errors
    /// The present directory is not known.
    pub fn new(
        executor: &'a dyn Executor,
        stop: &'a Stop,
        command: &[String],
        input: Option<&Path>,
        subject: &Subject,
        deadline: Option<Instant>,
    ) -> std::io::Result<Self> {
        let job = Job {
            directory: std::env::current_dir()?,
            command: command.to_vec(),
            input: input.map(Path::to_owned),
            plan: None,
            page_map: None,
            main: None,
            limit_s: None,
            last_entry: None,
            subject: comparable(subject),
            files: subject.files.clone(),
        };
        Ok(Self { executor, stop, deadline, job: RefCell::new(job), refusal: RefCell::default() })
    }

    /// Trials are of `subject` from now on, of which more is known.
    pub fn know(&self, subject: &Subject) {
        let mut job = self.job.borrow_mut();
        job.subject = comparable(subject);
        job.files.clone_from(&subject.files);
    }

    /// One run as a machine is asked for it.
    fn job(&self, asked: &Asked) -> Box<Job> {
        let Asked { plan, places, limit } = asked.clone();
        let page_map = places.page_map.map(Arc::unwrap_or_clone);
        let (limit_s, last_entry) = (limit.time.map(|time| time.as_secs_f64()), limit.entries);
        Box::new(Job { plan, page_map, main: places.main, limit_s, last_entry, ..self.job.borrow().clone() })
    }

    /// Hands over what machines answer, but that one of them would not go on: the session ends with what was measured until then.
    fn ask(
        &self,
        requests: &[Request],
        deadline: Option<Instant>,
        answered: &mut dyn FnMut(usize, Reply) -> Result<()>,
    ) -> Result<()> {
        self.executor.carry_out(requests, self.stop, deadline, &mut |at, reply| match reply {
            Reply::Refused(why) => {
                self.refusal.borrow_mut().get_or_insert(why);
                self.stop.wish();
                Ok(())
            }
            other => answered(at, other),
        })
    }

    fn run(
        &self,
        asked: &[Asked],
        deadline: Option<Instant>,
        ended: &mut dyn FnMut(usize, Ran) -> Result<()>,
    ) -> Result<()> {
        let requests: Vec<Request> = asked.iter().map(|one| Request::Run(self.job(one))).collect();
        self.ask(&requests, deadline, &mut |at, reply| match reply {
            Reply::Trial(trial) => ended(at, Ok(*trial)),
            Reply::NotSetUp(why) => ended(at, Err(why)),
            other => unexpected(&other),
        })
    }

    /// One trial; one that was stopped if the session's time was over before it.
    ///
    /// # Errors
    /// No machine runs it.
    pub fn one(&self, asked: Asked) -> Result<Ran> {
        let mut ended = None;
        self.run(&[asked], self.deadline, &mut |_, ran| {
            ended = Some(ran);
            Ok(())
        })?;
        Ok(ended.unwrap_or_else(|| Ok(Trial::stopped())))
    }

    /// One run that tells who uses which page.
    ///
    /// # Errors
    /// No machine runs it.
    pub fn profile(&self, asked: &Asked) -> Result<Profiled> {
        let mut profiled = Profiled::Impossible("--budget was over before a machine had looked".to_owned());
        self.ask(&[Request::Profile(self.job(asked))], self.deadline, &mut |_, reply| match reply {
            Reply::Profiled(found) => {
                profiled = *found;
                Ok(())
            }
            Reply::NotSetUp(why) => {
                profiled = Profiled::Impossible(why);
                Ok(())
            }
            other => unexpected(&other),
        })?;
        Ok(if self.stop.wished() { Profiled::Stopped } else { profiled })
    }

    /// Whether a machine would not go on, as it or the program there is another one.
    ///
    /// # Errors
    /// That, in one sentence.
    pub fn check(&self) -> Result<()> {
        match &*self.refusal.borrow() {
            Some(why) => bail!(
                "a machine that was to run a trial cannot: {why}: the runs of before are kept, make it like the others or leave it out"
            ),
            None => Ok(()),
        }
    }

    /// Many trials.
    pub fn many(&self) -> Box<ManyRunner<'_>> {
        Box::new(|asked, deadline, ended| self.run(asked, deadline, ended))
    }

    /// How many of them are run at a time.
    pub fn machines(&self) -> usize {
        self.executor.machines()
    }
}
