// SPDX-License-Identifier: GPL-2.0-only
//! Having the kernel move pages, against a scripted one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use tandem_machine::ProgramId;
use tandem_policies::example::crossed;
use tandem_policies::model::NodeId;

use super::*;
use crate::programs::tests::{program, programs};
use crate::{Call, CallError};

const PROCESS: ProcessId = ProcessId(42);
const PAGES: u64 = 100;
/// Rounds in which the kernel gets through the process.
const SCAN: u32 = 3;
/// Rounds in vain after which a group is given up.
const IN_VAIN: u32 = 4 + 2 * SCAN;

/// Pages of a process by number, and threads that use them from a node.
#[derive(Debug, Default)]
struct Kernel {
    on: Vec<i32>,
    /// Where the pages go when they are seen to be used; by page.
    users_on: Vec<i32>,
    /// Pages that nobody uses.
    idle: BTreeSet<usize>,
    /// Pages that go in a round at most.
    per_round: usize,
    draws: Vec<u64>,
    drawn: bool,
    refuses: Option<i32>,
    no_thread: bool,
    nobody_runs: bool,
    /// Why nobody may ask where pages are.
    unasked: Option<CallError>,
    tries: u32,
    /// Pages that were asked for.
    asked: u64,
    /// Number of the program that the process runs.
    program: u64,
}

#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<Kernel>>);

impl MovePages for Shared {
    fn program(&self, _: ProcessId) -> Option<ProgramId> {
        Some(program(self.0.lock().unwrap().program))
    }

    fn call(&self, process: ProcessId, addresses: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call {
        assert_eq!((process, to), (PROCESS, None), "it only asks");
        let mut kernel = self.0.lock().unwrap();
        if let Some(error) = kernel.unasked {
            return Call { result: Err(error), time_ns: 0 };
        }
        kernel.asked += addresses.len() as u64;
        for (address, status) in addresses.iter().zip(status) {
            *status = kernel.on[(address / PAGE_BYTES) as usize];
        }
        Call { result: Ok(0), time_ns: 10 }
    }
}

impl Attention for Shared {
    fn draw(&mut self, _: ProcessId, now_ns: u64) -> io::Result<Lending> {
        let mut kernel = self.0.lock().unwrap();
        if let Some(errno) = kernel.refuses {
            return Err(io::Error::from_raw_os_error(errno));
        }
        kernel.tries += 1;
        if kernel.nobody_runs {
            return Ok(Lending::NoneRuns);
        }
        kernel.draws.push(now_ns);
        kernel.drawn = !kernel.no_thread;
        let Kernel { on, users_on, idle, per_round, no_thread, .. } = &mut *kernel;
        if !*no_thread {
            let misplaced =
                (0..on.len()).filter(|page| on[*page] >= 0 && on[*page] != users_on[*page] && !idle.contains(page));
            misplaced.take(*per_round).collect::<Vec<_>>().into_iter().for_each(|page| on[page] = users_on[page]);
        }
        Ok(if *no_thread { Lending::NoneThere } else { Lending::Lent })
    }

    fn end(&mut self, _: u64) {
        self.0.lock().unwrap().drawn = false;
    }

    fn rounds(&self, _: ProcessId) -> u32 {
        SCAN
    }
}

/// All pages on node 0, used from node 1.
fn kernel() -> Shared {
    let (on, users_on) = (vec![0; PAGES as usize], vec![1; PAGES as usize]);
    Shared(Arc::new(Mutex::new(Kernel { on, users_on, per_round: 60, ..Kernel::default() })))
}

fn mover(kernel: &Shared) -> KernelMover<Shared, Shared> {
    KernelMover::new(kernel.clone(), kernel.clone(), MoverConfig::default())
}

fn wanted() -> PageMove {
    let group = GroupId { process: PROCESS, start: 0 };
    PageMove { group, bytes: PAGES * PAGE_BYTES, huge: false, to: NodeId(1), generation: Generation(1), cooldown_ns: 5 }
}

/// Runs it every 100 ms until nothing is queued; how long that took and what ended.
fn run_all(mover: &mut KernelMover<Shared, Shared>, cooldowns: &mut Cooldowns) -> (u64, Vec<Outcome>) {
    let (mut ended, mut now_ns) = (Vec::new(), 0);
    while mover.queued_groups() > 0 {
        ended.extend(mover.run(now_ns, cooldowns));
        now_ns += ROUND_NS / 10;
        assert!(now_ns < 100 * ROUND_NS, "it ends");
    }
    (now_ns, ended)
}

#[test]
fn the_kernel_is_asked_once_a_second_until_the_pages_are_there() {
    let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
    let mut mover = mover(&kernel);
    mover.enqueue(wanted(), 0, &cooldowns).unwrap();
    let (_, ended) = run_all(&mut mover, &mut cooldowns);
    assert_eq!(kernel.0.lock().unwrap().draws, [0, ROUND_NS]);
    assert!(!kernel.0.lock().unwrap().drawn, "and left alone then");
    assert_eq!((ended.len(), ended[0].ended, ended[0].moved_pages), (1, Ended::Done, PAGES));
    assert_eq!(mover.enqueue(wanted(), 2 * ROUND_NS + 4, &cooldowns), Err(Refused::Cooldown));
}

#[test]
fn pages_that_do_not_come_are_given_up_and_counted() {
    let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
    kernel.0.lock().unwrap().idle = (0..30).collect();
    kernel.0.lock().unwrap().on[40..50].fill(-libc::ENOENT);
    kernel.0.lock().unwrap().on[50..60].fill(1);
    let mut mover = mover(&kernel);
    mover.enqueue(wanted(), 0, &cooldowns).unwrap();
    let (_, ended) = run_all(&mut mover, &mut cooldowns);
    let one = &ended[0];
    assert_eq!((one.ended, one.moved_pages, one.busy_pages), (Ended::NotUsed, 50, 30));
    assert_eq!((one.absent_pages, one.already_there_pages, one.counted_pages()), (10, 10, PAGES));
    let draws = kernel.0.lock().unwrap().draws.len();
    assert_eq!(draws, 1 + IN_VAIN as usize, "one that brought all, and those in vain");
    let again = PageMove { generation: Generation(2), ..wanted() };
    let after_ns = u64::from(1 + IN_VAIN) * ROUND_NS;
    assert_eq!(mover.enqueue(again, after_ns, &cooldowns), Err(Refused::Cooldown), "nor tried again at once");
}

#[test]
fn nearly_all_pages_are_enough() {
    let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
    kernel.0.lock().unwrap().idle = (0..4).collect();
    let mut mover = mover(&kernel);
    mover.enqueue(wanted(), 0, &cooldowns).unwrap();
    let (_, ended) = run_all(&mut mover, &mut cooldowns);
    assert_eq!((kernel.0.lock().unwrap().draws.len(), ended[0].ended, ended[0].busy_pages), (2, Ended::Done, 4));
}

#[test]
fn few_pages_among_many_that_are_not_resident_are_worth_a_round() {
    let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
    kernel.0.lock().unwrap().on[4..].fill(-libc::ENOENT);
    let mut mover = mover(&kernel);
    mover.enqueue(wanted(), 0, &cooldowns).unwrap();
    let (_, ended) = run_all(&mut mover, &mut cooldowns);
    assert_eq!((ended[0].moved_pages, ended[0].absent_pages), (4, PAGES - 4));
}

#[test]
fn a_trickle_of_pages_does_not_go_on_for_ever() {
    let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
    kernel.0.lock().unwrap().per_round = 1;
    let mut mover = mover(&kernel);
    mover.enqueue(wanted(), 0, &cooldowns).unwrap();
    let (took_ns, ended) = run_all(&mut mover, &mut cooldowns);
    assert!(took_ns <= u64::from(4 * IN_VAIN + 1) * ROUND_NS, "{took_ns} ns");
    assert_eq!((ended[0].ended, ended[0].moved_pages), (Ended::NotUsed, u64::from(4 * IN_VAIN)));
}

#[test]
fn where_nobody_runs_it_is_tried_again_soon_and_a_round_counts_after_a_second() {
    let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
    kernel.0.lock().unwrap().nobody_runs = true;
    let mut mover = mover(&kernel);
    mover.enqueue(wanted(), 0, &cooldowns).unwrap();
    let mut looks = |now_ns| {
        mover.run(now_ns, &mut cooldowns);
        (kernel.0.lock().unwrap().tries, mover.is_ready(now_ns + 1))
    };
    assert_eq!([looks(0), looks(ROUND_NS / 2)], [(1, false), (2, false)]);
    kernel.0.lock().unwrap().nobody_runs = false;
    assert_eq!([looks(ROUND_NS / 4 * 3), looks(ROUND_NS - 2)], [(3, false), (3, false)], "then it is drawn there");
}

#[test]
fn many_groups_are_looked_at_in_several_runs() {
    let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(4096));
    kernel.0.lock().unwrap().on.resize(512 * 300, 0);
    kernel.0.lock().unwrap().users_on.resize(512 * 300, 1);
    kernel.0.lock().unwrap().per_round = usize::MAX;
    let mut mover = mover(&kernel);
    for number in 0..300 {
        let group = GroupId { process: PROCESS, start: number * 512 * PAGE_BYTES };
        mover.enqueue(PageMove { group, bytes: 512 * PAGE_BYTES, ..wanted() }, 0, &cooldowns).unwrap();
    }
    let mut runs = 0;
    while kernel.0.lock().unwrap().draws.is_empty() {
        let before = kernel.0.lock().unwrap().asked;
        mover.run(runs, &mut cooldowns);
        runs += 1;
        let asked = kernel.0.lock().unwrap().asked - before;
        assert!(asked < 2 * ASKED_PER_RUN, "{asked} pages");
    }
    assert!((2..10).contains(&runs), "{runs}");
    let (_, ended) = run_all(&mut mover, &mut cooldowns);
    assert_eq!(ended.iter().map(|one| one.moved_pages).sum::<u64>(), 300 * 512);
}

#[test]
fn what_is_undone_follows_its_threads_back_and_is_held() {
    let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
    kernel.0.lock().unwrap().on[..10].fill(1);
    let mut mover = mover(&kernel);
    mover.enqueue(wanted(), 0, &cooldowns).unwrap();
    run_all(&mut mover, &mut cooldowns);
    kernel.0.lock().unwrap().users_on.fill(0);
    assert_eq!(mover.undo(Generation(1), 0, 1000 * ROUND_NS), []);
    assert!(mover.is_held(wanted().group, PAGE_BYTES, 999 * ROUND_NS));
    let (_, ended) = run_all(&mut mover, &mut cooldowns);
    assert_eq!(ended.iter().map(|one| one.moved_pages).sum::<u64>(), PAGES - 10, "what was there before is not its");
    assert_eq!(ended[0].purpose, Purpose::Undo { from: NodeId(1) });
}

#[test]
fn a_plan_that_is_undone_while_pages_go_takes_back_what_went() {
    let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
    let mut mover = mover(&kernel);
    mover.enqueue(wanted(), 0, &cooldowns).unwrap();
    assert!(mover.run(0, &mut cooldowns).is_empty());
    let stopped = mover.undo(Generation(1), 1, 10);
    assert_eq!((stopped.len(), stopped[0].ended, stopped[0].moved_pages), (1, Ended::Cancelled, 60));
    assert!(mover.stop_plans(1, &mut cooldowns).is_empty() && mover.is_returning(), "a way back is no plan");
    assert_eq!(mover.queued_groups(), 1);
}

#[test]
fn what_is_undone_of_another_process_leaves_this_one_alone() {
    let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
    let mut mover = mover(&kernel);
    mover.enqueue(wanted(), 0, &cooldowns).unwrap();
    assert!(mover.run(0, &mut cooldowns).is_empty());
    let mut stopped = |meant| mover.undo_of(Generation(1), &|process| process == meant, 1, 10).len();
    assert_eq!([stopped(ProcessId(PROCESS.0 + 1)), stopped(PROCESS)], [0, 1]);
}

#[test]
fn what_a_stopped_plan_or_a_cancelled_move_has_moved_stays_and_rests() {
    type Halt = fn(&mut KernelMover<Shared, Shared>, &mut Cooldowns) -> Vec<Outcome>;
    let stop: Halt = |mover, cooldowns| mover.stop(Generation(1), 1, cooldowns);
    let (stop_plans, cancel): (Halt, Halt) =
        (|mover, cooldowns| mover.stop_plans(1, cooldowns), |mover, cooldowns| mover.cancel_all(1, cooldowns));
    for halt in [stop, stop_plans, cancel] {
        let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
        let mut mover = mover(&kernel);
        mover.enqueue(wanted(), 0, &cooldowns).unwrap();
        assert!(mover.run(0, &mut cooldowns).is_empty());
        assert_eq!(mover.queued_of(Generation(1)), [(wanted().group, NodeId(1))]);
        assert!(mover.stop(Generation(2), 1, &mut cooldowns).is_empty(), "another plan's");
        let stopped = halt(&mut mover, &mut cooldowns);
        assert_eq!((stopped.len(), stopped[0].ended, stopped[0].moved_pages), (1, Ended::Cancelled, 60));
        assert_eq!((mover.queued_groups(), mover.queued_of(Generation(1))), (0, vec![]));
        assert_eq!(mover.enqueue(wanted(), 2, &cooldowns), Err(Refused::Cooldown));
    }
}

#[test]
fn a_thread_that_is_lent_is_given_back_where_all_is_cancelled() {
    let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
    let mut mover = mover(&kernel);
    mover.enqueue(wanted(), 0, &cooldowns).unwrap();
    mover.run(0, &mut cooldowns);
    assert!(kernel.0.lock().unwrap().drawn);
    mover.cancel_all(1, &mut cooldowns);
    assert!(!kernel.0.lock().unwrap().drawn);
}

#[test]
fn more_groups_than_fit_the_queue_are_refused_and_a_plan_of_long_ago_cannot_be_undone() {
    let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
    let mut mover = KernelMover::new(kernel.clone(), kernel, MoverConfig { queue_groups: 1, ..MoverConfig::default() });
    mover.enqueue(wanted(), 0, &cooldowns).unwrap();
    assert_eq!(mover.enqueue(wanted(), 0, &cooldowns), Err(Refused::QueueFull));
    run_all(&mut mover, &mut cooldowns);
    mover.forget_before(Generation(2));
    mover.undo(Generation(1), ROUND_NS, 10);
    assert_eq!(mover.queued_groups(), 0);
}

#[test]
fn why_the_kernel_cannot_be_asked_is_told() {
    let outcome = |set: &dyn Fn(&mut Kernel)| {
        let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
        set(&mut kernel.0.lock().unwrap());
        let mut mover = mover(&kernel);
        mover.enqueue(wanted(), 0, &cooldowns).unwrap();
        let ended = run_all(&mut mover, &mut cooldowns).1.remove(0);
        assert_eq!(ended.counted_pages() + ended.not_tried_pages, PAGES);
        ended.ended
    };
    assert_eq!(outcome(&|kernel| kernel.unasked = Some(CallError::NotPermitted)), Ended::NotPermitted);
    assert_eq!(outcome(&|kernel| kernel.no_thread = true), Ended::NoThreadToLend);
    assert_eq!(outcome(&|kernel| kernel.refuses = Some(libc::ESRCH)), Ended::ProcessGone);
    assert_eq!(outcome(&|kernel| kernel.refuses = Some(libc::EPERM)), Ended::NotPermitted);
    assert_eq!(outcome(&|kernel| kernel.refuses = Some(libc::ENOSPC)), Ended::Failed(libc::ENOSPC));
}

#[test]
fn under_memory_pressure_the_kernel_is_not_asked() {
    let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
    let mut mover = mover(&kernel);
    mover.enqueue(wanted(), 0, &cooldowns).unwrap();
    mover.set_paused(true);
    assert!(!mover.is_ready(ROUND_NS) && mover.run(ROUND_NS, &mut cooldowns).is_empty());
    assert!(kernel.0.lock().unwrap().draws.is_empty());
    mover.set_paused(false);
    assert!(mover.is_ready(ROUND_NS));
}

#[test]
fn a_process_that_runs_another_program_is_not_looked_at() {
    let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
    let mut mover = mover(&kernel);
    assert!(mover.follow(&programs(&[(PROCESS.0, 0)])).is_empty());
    mover.enqueue(wanted(), 0, &cooldowns).unwrap();
    kernel.0.lock().unwrap().program = 2;
    let ended = mover.run(0, &mut cooldowns);
    assert_eq!(ended.iter().map(|one| one.ended).collect::<Vec<_>>(), [Ended::ProcessGone]);
    let kernel = kernel.0.lock().unwrap();
    assert_eq!((kernel.tries, kernel.asked, mover.queued_groups()), (0, 0, 0));
}

#[test]
fn of_a_process_that_is_gone_or_left_alone_nothing_is_kept() {
    for (told, program, expected) in
        [(programs(&[(PROCESS.0, 2)]), 2, Ended::ProcessGone), (programs(&[]), 0, Ended::Cancelled)]
    {
        let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
        let mut mover = mover(&kernel);
        mover.follow(&programs(&[(PROCESS.0, 0)]));
        mover.enqueue(wanted(), 0, &cooldowns).unwrap();
        run_all(&mut mover, &mut cooldowns);
        mover.undo(Generation(1), ROUND_NS, 60 * ROUND_NS);
        assert_eq!(mover.queued_groups(), 1, "its way back");
        kernel.0.lock().unwrap().program = program;
        let stopped = mover.follow(&told);
        assert_eq!(stopped.iter().map(|one| one.ended).collect::<Vec<_>>(), [expected]);
        assert!(mover.queued_groups() == 0 && !mover.is_held(wanted().group, PAGE_BYTES, 2 * ROUND_NS));
        let fresh = Cooldowns::new(1);
        let said = mover.enqueue(wanted(), 2 * ROUND_NS, &fresh);
        assert_eq!(said, if program == 2 { Ok(()) } else { Err(Refused::ProcessGone) });
    }
}

#[test]
fn what_is_on_its_way_back_goes_on_for_another_agent_and_no_thread_is_lent_until_that_begins() {
    let (kernel, mut cooldowns) = (kernel(), Cooldowns::new(16));
    let mut mover = mover(&kernel);
    mover.enqueue(wanted(), 0, &cooldowns).unwrap();
    run_all(&mut mover, &mut cooldowns);
    kernel.0.lock().unwrap().users_on = vec![0; PAGES as usize];
    mover.undo(Generation(1), 0, 10);
    mover.run(10 * ROUND_NS, &mut cooldowns);
    assert!(kernel.0.lock().unwrap().drawn);
    assert_eq!(mover.stop_plans(10 * ROUND_NS, &mut cooldowns), []);
    assert!(!kernel.0.lock().unwrap().drawn);
    mover.set_paused(true);
    mover.adapt(&crossed().topology, MoverConfig { queue_groups: 0, ..MoverConfig::default() });
    assert!(mover.is_returning());
    assert_eq!(mover.enqueue(wanted(), 0, &cooldowns), Err(Refused::QueueFull), "of the new configuration");
    let (mut ended, mut now_ns) = (Vec::new(), 11 * ROUND_NS);
    while mover.is_returning() && now_ns < 100 * ROUND_NS {
        ended.extend(mover.run(now_ns, &mut cooldowns));
        now_ns += ROUND_NS;
    }
    assert_eq!((ended.len(), ended[0].moved_pages), (1, PAGES));
}
