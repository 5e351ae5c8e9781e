// SPDX-License-Identifier: GPL-2.0-only
//! One session of `tandem tune` from its machine to what it found.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, bail};
use tandem_ab::stop::Stop;
use tandem_tune::executable::Executable;
use tandem_tune::launch::{End, Limit};
use tandem_tune::lock::Lock;
use tandem_tune::mapping::{Mapping, Profiled};
use tandem_tune::places::Places;
use tandem_tune::plan::Plan;
use tandem_tune::remote::{Description, Executor};
use tandem_tune::rights;
use tandem_tune::search::Settings;
use tandem_tune::session::{Asked, Outcome, Ran, Replay, Session, Trial};
use tandem_tune::store::Store;
use tandem_tune::subject::Subject;

use super::checkpoints::Checkpoints;
use super::elsewhere::Far;
use super::files::Files;
use super::{Arguments, Codelets, KeptBy, PageMaps, code, movers, page_use, say, trial, written};
use crate::signals::Suspension;

/// What a session works on.
pub struct Work<'a> {
    arguments: &'a Arguments,
    what: trial::What<'a>,
    /// The machine that is tuned for.
    pub machine: Description,
    pages: movers::Choice,
    can_map: bool,
    can_move: bool,
    /// Dropped before what holds it for this session.
    store: Store,
    _lock: Lock,
    /// What is tuned, as far as it is known not to write it.
    pub subject: RefCell<Subject>,
    /// As it was before it was hashed.
    executable: RefCell<Executable>,
    /// Which of its files was found to be another one.
    changed: RefCell<Option<PathBuf>>,
    /// Whether its code besides its own file is known.
    knows_code: Cell<bool>,
    /// Whether a run has ended.
    has_run: Cell<bool>,
    far: Option<Far<'a>>,
    stop: &'a Stop,
}

impl<'a> Work<'a> {
    /// A session on `machine`, whose trials are run by `executor` if there is one, until the `deadline`.
    ///
    /// # Errors
    /// Pages cannot be placed as was asked, the program or its input cannot be read, or the store not be used.
    pub fn begin(
        arguments: &'a Arguments,
        files: &Files,
        machine: Description,
        executor: Option<&'a dyn Executor>,
        stop: &'a Stop,
        deadline: Option<Instant>,
    ) -> Result<Self> {
        let to_maps = obstacle_to_maps(arguments.page_maps, &machine);
        let can_map = to_maps.is_none();
        let to_moving = arguments.obstacle_to_moving(&machine)?;
        let can_move = to_moving.is_none();
        let pages = movers::choose(&arguments.pages, to_moving, to_maps)?;
        if arguments.threads_by == KeptBy::Assignments && arguments.codelets == Codelets::Auto {
            say(
                "single regions are not tuned: an assignment holds from the end of a thread's time slice on, which may be after a region's",
            );
        }
        let (command, input) = (&arguments.command, arguments.stdin.as_deref());
        let executable = Executable::of(command)?;
        let subject = Subject::of(command, input, &machine.topology)?;
        let threads_by = arguments.threads_by.into();
        let subject = Subject { functions: arguments.regions.clone(), threads_by, cpu: machine.cpu.clone(), ..subject };
        let _lock = written::hold(&files.store)?;
        let (store, subject) = written::open(&files.store, subject)?;
        let (subject, knows_code) = code::known(&store, subject, &say)?;
        let executable = executable.with(code::names(&subject));
        if let Some(withheld) = rights::withheld(Path::new(&subject.program), movers::is_root()) {
            say(&withheld);
        }
        let known = store.len()?;
        if known > 0 {
            say(&format!("{known} runs are known already"));
        }
        let suspension = Suspension::noted()?;
        let what = trial::What { command, input, functions: &arguments.regions, threads_by, suspension };
        let far = executor.map(|executor| {
            Far::new(executor, stop, command, input, &subject, deadline).context("the present directory is not known")
        });
        let (far, subject) = (far.transpose()?, RefCell::new(subject));
        let (executable, changed) = (RefCell::new(executable), RefCell::default());
        let (knows_code, has_run) = (Cell::new(knows_code), Cell::new(false));
        Ok(Self {
            arguments,
            what,
            machine,
            pages,
            can_map,
            can_move,
            store,
            _lock,
            subject,
            executable,
            changed,
            knows_code,
            has_run,
            far,
            stop,
        })
    }

    /// Searches, within the time from `started` on.
    ///
    /// # Errors
    /// One sentence: the program cannot be tuned, or the store not be used.
    pub fn search(&self, started: Instant) -> Result<Option<Outcome>> {
        let arguments = self.arguments;
        let profiler = |plan: &Plan, places: &Places, limit: Limit| match &self.far {
            Some(far) => far.profile(&Asked { plan: Some(plan.clone()), places: places.clone(), limit }),
            None => {
                let profiled = page_use::profile(&self.what, plan, places, limit, self.stop);
                // As on other machines: the search goes on without a map.
                let profiled = profiled.unwrap_or_else(|error| Profiled::Impossible(format!("{error:#}")));
                Ok(if self.is_the_same() { profiled } else { Profiled::Stopped })
            }
        };
        let checkpoints = Checkpoints::new(&self.what, self.stop);
        let replay = |asked: &Replay| {
            let ran = checkpoints.replay(asked);
            Ok(if self.is_the_same() { ran } else { Ok(Trial::stopped()) })
        };
        let mapping = Mapping::new(&profiler, self.can_move);
        Session {
            topology: &self.machine.topology,
            cores: self.machine.cores,
            page_placements: &self.pages.placements,
            left_out: self.pages.left_out.as_deref(),
            functions: &arguments.regions,
            one_by_one: arguments.codelets != Codelets::Off && arguments.threads_by == KeptBy::Affinity,
            replay: (arguments.codelets == Codelets::Criu).then_some(&replay),
            command_has_threads: arguments.command.iter().any(|word| word.contains(trial::THREADS)),
            store: &self.store,
            settings: arguments.settings(),
            started,
            budget: arguments.budget,
            only_whole_runs: arguments.whole,
            first_entries: None,
            stop: self.stop,
            say: &say,
            run: &|one, places, limit| self.run(one, places, limit),
            // What the first run writes is told at once, so that whatever ends this session the same command goes on.
            kept: &|| if self.has_run.replace(true) { Ok(()) } else { self.leave_out() },
            mapping: self.can_map.then_some(&mapping),
            run_many: self.far.as_ref().map(Far::many).as_deref(),
            machines: self.far.as_ref().map_or(1, Far::machines),
        }
        .tune()
    }

    fn run(&self, one: Option<&Plan>, places: &Places, limit: Limit) -> Result<Ran> {
        let started = SystemTime::now();
        let ran = match &self.far {
            Some(far) => far.one(Asked { plan: one.cloned(), places: places.clone(), limit })?,
            None => {
                let ran = trial::here(&self.what, one, places, limit, self.stop);
                if self.is_the_same() { ran } else { Ok(Trial::stopped()) }
            }
        };
        if let Ok(trial) = ran.as_ref().map(|trial| &trial.seen)
            // One that failed or was cut off may not have come to all of it.
            && matches!(trial.end, End::Code(0) | End::Measured)
            && !self.knows_code.replace(true)
        {
            let subject = code::learn(&self.store, self.subject.borrow().clone(), &trial.code, started)?;
            self.far.iter().for_each(|far| far.know(&subject));
            self.executable.replace_with(|own| std::mem::take(own).with(code::names(&subject)));
            self.subject.replace(subject);
        }
        Ok(ran)
    }

    /// Whether the program is still the one that is tuned. If not, the session ends: what just ran says nothing of it.
    fn is_the_same(&self) -> bool {
        let Some(changed) = self.executable.borrow().changed().map(Path::to_owned) else { return true };
        self.changed.replace(Some(changed));
        self.stop.wish();
        false
    }

    /// Why the session ended before its time, though nobody wished it.
    ///
    /// # Errors
    /// That, in one sentence.
    pub fn check_program(&self) -> Result<()> {
        self.far.as_ref().map_or(Ok(()), Far::check)?;
        match &*self.changed.borrow() {
            Some(changed) => bail!(
                "{} is not the file that it was when this session began: the runs of before are kept, the same command \
                 tunes what is there now",
                changed.display()
            ),
            None => Ok(()),
        }
    }

    /// Leaves out of the subject what the program is found to write.
    ///
    /// # Errors
    /// A file cannot be read, or the store not be written.
    pub fn leave_out(&self) -> Result<()> {
        let subject = written::leave_out(&self.store, self.subject.borrow().clone(), &say)?;
        self.far.iter().for_each(|far| far.know(&subject));
        self.subject.replace(subject);
        Ok(())
    }
}

/// Why pages cannot be placed by maps of who uses them, if so.
fn obstacle_to_maps(wish: PageMaps, machine: &Description) -> Option<String> {
    match wish {
        PageMaps::Off => Some("--page-maps off".to_owned()),
        // There is nothing to place.
        PageMaps::Auto if machine.topology.len() == 1 => Some("there is one node".to_owned()),
        PageMaps::Auto => machine.map_obstacle.clone(),
    }
}

impl Arguments {
    /// Why pages cannot be moved while a program runs, if so.
    ///
    /// # Errors
    /// Threads are to be assigned, and cannot be.
    fn obstacle_to_moving(&self, machine: &Description) -> Result<Option<String>> {
        if self.threads_by == KeptBy::Affinity {
            return Ok(machine.obstacle.clone());
        }
        let one_node = || {
            let has_one = machine.topology.nodes_with_cpus().nth(1).is_none();
            has_one.then(|| "only one node has CPUs that may be used".to_owned())
        };
        match machine.obstacle.clone().or_else(one_node) {
            Some(obstacle) => bail!("--threads-by assignments: scx_tandem cannot be loaded here: {obstacle}"),
            None => Ok(Some(movers::NO_MOVES.to_owned())),
        }
    }

    fn settings(&self) -> Settings {
        Settings { repeats: self.repeats.into(), exhaustive: self.exhaustive, ..Settings::default() }
    }
}
