// SPDX-License-Identifier: GPL-2.0-only
//! Sessions with a made-up program.

use tandem_policies::model::NodeIndex;

use super::*;
use crate::seat::CpuSet;
use crate::testing::{self, trial};

/// A made-up program on two nodes of four CPUs: seconds and threads by configuration.
pub type Program<'a> = &'a dyn Fn(Option<&Configuration>) -> (End, f64, usize);

pub struct Run {
    pub outcome: Result<Option<Outcome>>,
    /// How often each configuration was really run.
    pub ran: BTreeMap<String, usize>,
    pub said: Vec<String>,
    /// Numbers of threads of the runs that told who uses which page.
    pub profiles: Vec<usize>,
    /// By configuration.
    pub maps: BTreeMap<String, PageMap>,
}

/// A session with this store that is stopped at the `last` run, of a command without `{threads}`.
pub fn session(store: &Path, program: Program, last: usize) -> Run {
    session_of(false, store, program, last)
}

pub fn session_of(command_has_threads: bool, store: &Path, program: Program, last: usize) -> Run {
    session_with(AT_BIRTH, &|_| panic!("nothing is moved"), command_has_threads, store, program, last)
}

/// The same with these page placements; `moved` is what became of those that are moved.
pub fn session_with(
    pages: &[PagePlacement],
    moved: &dyn Fn(&Configuration) -> Result<u64, String>,
    command_has_threads: bool,
    store: &Path,
    program: Program,
    last: usize,
) -> Run {
    session_on(None, pages, moved, command_has_threads, store, program, last)
}

thread_local! {
    /// Whether pages can be moved where there is no map, and what tells who uses which page; no maps if none.
    pub static PROFILED: RefCell<Option<(bool, Profiled)>> = const { RefCell::new(None) };
    /// With how many threads a run cannot be set up; 0: that with the main thread alone bound.
    pub static NOT_SET_UP: Cell<Option<usize>> = const { Cell::new(None) };
    /// How the next runs with the main thread alone bound end, and after how many seconds.
    pub static BOUND: RefCell<Vec<(End, f64)>> = const { RefCell::new(Vec::new()) };
    /// How long sessions may take.
    pub static BUDGET: Cell<Option<Duration>> = const { Cell::new(None) };
    /// What becomes of maps.
    pub static MAP_USE: RefCell<MapUse> = RefCell::default();
    /// How many entries of a region a whole run has, and whether only whole runs are wanted.
    pub static ENTRIES: Cell<Option<(u64, bool)>> = const { Cell::new(None) };
    /// How many regions there are then, each entered as often as the others.
    pub static REGIONS: Cell<u64> = const { Cell::new(1) };
    /// How many runs as they are began on each node of those that are placed by chance, and by how much the other one is slower.
    pub static DRAWS: Cell<Option<(u32, f64)>> = const { Cell::new(None) };
}

/// Seconds and first memory of a run whose main thread was bound to this node, or placed by chance: on each in turn.
fn main_thread(one: Option<&Configuration>, seconds: f64, bound: Option<u32>) -> (f64, Option<FirstTouch>) {
    let Some((draws, factor)) = DRAWS.get().filter(|_| one.is_none()) else { return (seconds, None) };
    let node = bound.unwrap_or(draws % 2);
    DRAWS.set(Some((draws + u32::from(bound.is_none()), factor)));
    let first_touch = FirstTouch { main_cpu: 0, pages: [(node, 300), (1 - node, 20)].into() };
    (if node == 0 { factor * seconds } else { seconds }, Some(first_touch))
}

/// The same of a program that enters a region so often in equal distances.
fn with_entries(seen: Seen, entries: u64, limit: Limit) -> Seen {
    let whole_s = seen.seconds;
    let by_time = limit.time.map_or(1.0, |time| time.as_secs_f64() / whole_s);
    let by_entry = limit.entries.map_or(1.0, |last| last as f64 / entries as f64);
    let (part, end) = match seen.end {
        _ if by_entry < by_time.min(1.0) => (by_entry, End::Measured),
        _ if by_time < 1.0 => (by_time, End::TooLong),
        end => (1.0, end),
    };
    let (seconds, had) = (part * whole_s, (part * entries as f64).round() as u64);
    let count = REGIONS.get();
    let region = |number: u64| {
        let (entries, seconds) = (had / count, seconds / count as f64);
        Region { name: format!("step {number}"), entries, seconds, ..Region::default() }
    };
    Seen { end, seconds, regions: (0..count).map(region).collect(), ..seen }
}

/// What runs the made-up program.
struct Runner<'a> {
    program: Program<'a>,
    moved: &'a dyn Fn(&Configuration) -> Result<u64, String>,
    topology: &'a Topology,
    stop: &'a Stop,
    /// Runs until the session is stopped.
    left: Cell<usize>,
    ran: RefCell<BTreeMap<String, usize>>,
    maps: RefCell<BTreeMap<String, PageMap>>,
}

impl Runner<'_> {
    fn run(&self, plan: Option<&Plan>, places: &Places, limit: Limit) -> Result<Ran> {
        let one = plan.map(|plan| &plan.base);
        assert_eq!(places.seats.len(), one.map_or(0, |one| one.threads));
        let threads = if places.main.is_some() { Some(0) } else { one.map(|one| one.threads) };
        if threads.is_some() && threads == NOT_SET_UP.get() {
            return Ok(Err("no seat is left".to_owned()));
        }
        if self.left.get() == 0 {
            self.stop.wish();
            return Ok(Ok(Trial::stopped()));
        }
        self.left.set(self.left.get() - 1);
        *self.ran.borrow_mut().entry(name(one)).or_default() += 1;
        let needs_moving = one.is_some_and(Configuration::needs_moving) && places.page_map.is_none();
        let moved_pages = needs_moving.then(|| (self.moved)(one.expect("it needs moving")));
        Ok(Ok(Trial { last_words: "oh no".to_owned(), moved_pages, ..trial(self.seen(one, places, limit)) }))
    }

    /// What is seen of a run that there is.
    fn seen(&self, one: Option<&Configuration>, places: &Places, limit: Limit) -> Seen {
        let (end, seconds, threads) = (self.program)(one);
        let first_node = CpuSet::of_node(self.topology, NodeIndex(0));
        let bound = places.main.as_ref().map(|cpus| u32::from(*cpus != first_node));
        let (seconds, first_touch) = main_thread(one, seconds, bound);
        let next_bound = |runs: &mut Vec<(End, f64)>| (bound.is_some() && !runs.is_empty()).then(|| runs.remove(0));
        let (end, seconds) = BOUND.with_borrow_mut(next_bound).unwrap_or((end, seconds));
        let late = limit.time.is_some_and(|limit| seconds > limit.as_secs_f64());
        let map_use = places.page_map.as_ref().map(|map| {
            self.maps.borrow_mut().insert(name(one), map.as_ref().clone());
            MAP_USE.with_borrow(Clone::clone)
        });
        let seen = Seen { threads, first_touch, map_use, ..Seen::of(if late { End::TooLong } else { end }, seconds) };
        match ENTRIES.get() {
            Some((entries, _)) => with_entries(seen, entries, limit),
            None => seen,
        }
    }

    /// A round at once, last run first.
    fn run_round(&self, asked: &[Asked], ended: &mut dyn FnMut(usize, Ran) -> Result<()>) -> Result<()> {
        (0..asked.len()).rev().try_for_each(|at| {
            let Asked { plan, places, limit } = &asked[at];
            ended(at, self.run(plan.as_ref(), places, *limit)?)
        })
    }
}

/// The same; each round at once if there is a list for how many these were.
pub fn session_on(
    rounds: Option<&RefCell<Vec<usize>>>,
    pages: &[PagePlacement],
    moved: &dyn Fn(&Configuration) -> Result<u64, String>,
    command_has_threads: bool,
    store: &Path,
    program: Program,
    last: usize,
) -> Run {
    let (topology, stop) = (machine(2, 4), Stop::default());
    let store = Store::open(store, &"experiment").unwrap();
    let (said, profiles) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    let runner = Runner {
        program,
        moved,
        topology: &topology,
        stop: &stop,
        left: Cell::new(last),
        ran: RefCell::default(),
        maps: RefCell::default(),
    };
    let many = rounds.map(|rounds| {
        let runner = &runner;
        move |asked: &[Asked], _: Option<Instant>, ended: &mut dyn FnMut(usize, Ran) -> Result<()>| {
            rounds.borrow_mut().push(asked.len());
            runner.run_round(asked, ended)
        }
    });
    let profiler = |plan: &Plan, places: &Places, _: Limit| {
        assert_eq!(places.seats.len(), plan.base.threads);
        profiles.borrow_mut().push(plan.base.threads);
        Ok(PROFILED.with_borrow(|profiled| profiled.as_ref().expect("there are maps").1.clone()))
    };
    let mapping = PROFILED.with_borrow(|known| known.as_ref().map(|known| Mapping::new(&profiler, known.0)));
    let run = |plan: Option<&Plan>, places: &Places, limit: Limit| runner.run(plan, places, limit);
    let outcome = Session {
        page_placements: pages,
        left_out: Some("some are left out"),
        command_has_threads,
        budget: BUDGET.get(),
        only_whole_runs: ENTRIES.get().is_some_and(|known| known.1),
        say: &|sentence: &str| said.borrow_mut().push(sentence.to_owned()),
        mapping: mapping.as_ref(),
        run_many: many.as_ref().map(|many| many as &ManyRunner<'_>),
        ..testing::session(&topology, &store, &stop, &run)
    }
    .tune();
    let Runner { ran, maps, .. } = runner;
    Run {
        outcome,
        ran: ran.into_inner(),
        said: said.into_inner(),
        profiles: profiles.into_inner(),
        maps: maps.into_inner(),
    }
}
