// SPDX-License-Identifier: GPL-2.0-only
//! The mover against a kernel that fails in the middle of things, as move_pages does: it ends a call where it meets the
//! fault and leaves the statuses behind it unwritten.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;

use tandem_machine::ProgramId;
use tandem_policies::model::{PAGE_BYTES, ProcessId};

use super::tests::{S, one_by_one, wanted};
use super::*;
use crate::Call;

const TICK_NS: u64 = S / 50;

/// What a call that moves pages meets after some pages.
#[derive(Clone, Copy)]
enum Fault {
    /// Nothing: all pages are dealt with.
    None,
    /// A page that cannot be isolated: the call ends there and says how many pages are left.
    EndsAfter(usize),
    /// The target is full: the call fails.
    FullAfter(usize),
    /// The target is full for single pages, each with its status.
    NoMemoryFrom(usize),
    /// The process exits: this call and all later ones find none.
    ExitAfter(usize),
}

/// Where the pages of processes are, and what goes wrong with them.
#[derive(Default)]
struct Kernel {
    pages: BTreeMap<(ProcessId, u64), i32>,
    /// Met by the next calls that move pages, in order; then all is well.
    faults: VecDeque<Fault>,
    gone: BTreeSet<ProcessId>,
    forbidden: BTreeSet<ProcessId>,
    full: BTreeSet<i32>,
    /// Written to a disk at present.
    under_io: BTreeSet<(ProcessId, u64)>,
    shared: BTreeSet<(ProcessId, u64)>,
    /// How often each page has moved.
    moves: BTreeMap<(ProcessId, u64), u32>,
    calls: u64,
}

impl Kernel {
    fn with(process: ProcessId, pages: u64) -> Self {
        let pages = (0..pages).map(|page| ((process, page * PAGE_BYTES), 0)).collect();
        Self { pages, ..Self::default() }
    }

    fn move_one(&mut self, page: (ProcessId, u64), to: i32) -> i32 {
        if self.under_io.contains(&page) {
            return -libc::EBUSY;
        }
        if self.shared.contains(&page) {
            return -libc::EACCES;
        }
        self.pages.insert(page, to);
        *self.moves.entry(page).or_default() += 1;
        to
    }

    fn move_all(
        &mut self,
        process: ProcessId,
        addresses: &[u64],
        to: i32,
        status: &mut [i32],
    ) -> Result<u64, CallError> {
        if self.full.contains(&to) {
            return Err(CallError::NoMemory);
        }
        let fault = self.faults.pop_front().unwrap_or(Fault::None);
        for (at, address) in addresses.iter().enumerate() {
            match fault {
                Fault::EndsAfter(pages) if at == pages => return Ok((addresses.len() - at) as u64),
                Fault::FullAfter(pages) if at == pages => return Err(CallError::NoMemory),
                Fault::ExitAfter(pages) if at == pages => {
                    self.gone.insert(process);
                    return Err(CallError::ProcessGone);
                }
                Fault::NoMemoryFrom(pages) if at >= pages => status[at] = -libc::ENOMEM,
                _ => status[at] = self.move_one((process, *address), to),
            }
        }
        Ok(0)
    }
}

impl MovePages for Mutex<Kernel> {
    fn program(&self, _: ProcessId) -> Option<ProgramId> {
        None
    }

    fn call(&self, process: ProcessId, addresses: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call {
        self.lock().unwrap().call(process, addresses, to, status)
    }
}

impl Kernel {
    fn call(&mut self, process: ProcessId, addresses: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call {
        self.calls += 1;
        let result = if self.gone.contains(&process) {
            Err(CallError::ProcessGone)
        } else if self.forbidden.contains(&process) {
            Err(CallError::NotPermitted)
        } else if let Some(to) = to {
            self.move_all(process, addresses, to.0 as i32, status)
        } else {
            for (address, status) in addresses.iter().zip(status) {
                *status = self.pages.get(&(process, *address)).copied().unwrap_or(-libc::ENOENT);
            }
            Ok(0)
        };
        Call { result, time_ns: 1000 + 100 * addresses.len() as u64 }
    }
}

fn of(process: u32, page: u64, pages: u64, to: u32) -> PageMove {
    let group = GroupId { process: ProcessId(process), start: page * PAGE_BYTES };
    PageMove { group, ..wanted(page, pages, to, 1) }
}

/// Runs until nothing is queued; returns the outcomes and how long it took by the mover's clock.
fn run_all(mover: &mut Mover<Mutex<Kernel>>, cooldowns: &mut Cooldowns) -> (Vec<Outcome>, u64) {
    let (mut outcomes, mut now_ns) = (Vec::new(), 0);
    while mover.queued_groups() > 0 {
        assert!(now_ns < 60 * S, "still queued: {}", mover.queued_groups());
        outcomes.extend(mover.run(now_ns, cooldowns));
        now_ns += TICK_NS;
    }
    (outcomes, now_ns)
}

fn run_moves(kernel: Kernel, moves: &[PageMove]) -> (Mover<Mutex<Kernel>>, Vec<Outcome>) {
    run_with(MoverConfig::default(), kernel, moves)
}

fn run_with(config: MoverConfig, kernel: Kernel, moves: &[PageMove]) -> (Mover<Mutex<Kernel>>, Vec<Outcome>) {
    let (mut mover, mut cooldowns) = (Mover::new(Mutex::new(kernel), config), Cooldowns::new(64));
    for &wanted in moves {
        mover.enqueue(wanted, 0, &cooldowns).unwrap();
    }
    let (outcomes, _) = run_all(&mut mover, &mut cooldowns);
    assert_all_counted(&outcomes);
    (mover, outcomes)
}

fn assert_all_counted(outcomes: &[Outcome]) {
    for outcome in outcomes {
        assert_eq!(outcome.counted_pages() + outcome.not_tried_pages, outcome.requested_pages, "{outcome:?}");
    }
}

fn moved_in_truth(kernel: &Mutex<Kernel>) -> u64 {
    let kernel = kernel.lock().unwrap();
    assert!(kernel.moves.values().all(|&times| times == 1), "a page has moved twice");
    kernel.moves.len() as u64
}

#[test]
fn a_target_that_fills_up_in_the_middle_keeps_what_came() {
    for fault in [Fault::FullAfter(100), Fault::NoMemoryFrom(100)] {
        let mut kernel = Kernel::with(ProcessId(1), 1536);
        kernel.faults = [Fault::None, fault].into();
        let (mover, outcomes) = run_moves(kernel, &[of(1, 0, 1536, 1), of(1, 0, 4, 1), of(1, 1532, 4, 2)]);
        let full = &outcomes[0];
        assert_eq!((full.ended, full.moved_pages), (Ended::TargetFull, 612));
        assert_eq!((full.no_memory_pages, full.not_tried_pages), (412, 512));
        assert_eq!((outcomes[1].ended, outcomes[1].not_tried_pages), (Ended::TargetFull, 4));
        assert_eq!(
            (outcomes[2].ended, outcomes[2].moved_pages),
            (Ended::Cooldown, 0),
            "a group that has moved in part rests"
        );
        assert_eq!(moved_in_truth(&mover.system), 612);
    }
}

#[test]
fn a_process_that_exits_in_the_middle_ends_its_groups_only() {
    let mut kernel = Kernel::with(ProcessId(1), 1024);
    kernel.pages.insert((ProcessId(2), 0), 0);
    kernel.faults = [Fault::None, Fault::ExitAfter(100)].into();
    let moves = [of(1, 0, 1024, 1), of(1, 2048, 4, 1), of(2, 0, 1, 1)];
    let (mut mover, outcomes) = run_with(one_by_one(), kernel, &moves);
    let ended: Vec<_> = outcomes.iter().map(|one| (one.ended, one.moved_pages, one.not_tried_pages)).collect();
    // What the kernel said of pages before the exit counts.
    assert_eq!(ended, [(Ended::ProcessGone, 612, 412), (Ended::ProcessGone, 0, 4), (Ended::Done, 1, 0)]);
    let mut cooldowns = Cooldowns::new(64);
    assert_eq!(mover.undo(Generation(1), 0, S), []);
    let (undone, _) = run_all(&mut mover, &mut cooldowns);
    assert_all_counted(&undone);
    let told: BTreeSet<_> = undone.iter().map(|one| (one.group.process.0, one.moved_pages > 0)).collect();
    assert_eq!(told, [(1, false), (2, true)].into());
}

#[test]
fn a_process_that_must_not_be_touched_is_asked_once_a_group() {
    let mut kernel = Kernel::with(ProcessId(1), 2048);
    kernel.forbidden.insert(ProcessId(1));
    let (mover, outcomes) = run_moves(kernel, &[of(1, 0, 2048, 1)]);
    assert_eq!((outcomes[0].ended, outcomes[0].not_tried_pages), (Ended::NotPermitted, 2048));
    assert_eq!(moved_in_truth(&mover.system), 0);
    assert_eq!(mover.system.lock().unwrap().calls, 1);
}

#[test]
fn a_call_that_ends_early_is_gone_on_with() {
    let mut kernel = Kernel::with(ProcessId(1), 512);
    // The second try is in small calls, 32 of them: the first one ends after 3 of 16 pages. The third and the last try are of its
    // others: 13, and then 11.
    let others = std::iter::repeat_n(Fault::None, 31);
    kernel.faults = [Fault::EndsAfter(10), Fault::EndsAfter(3)].into_iter().chain(others).collect();
    kernel.faults.extend([Fault::EndsAfter(2), Fault::EndsAfter(1)]);
    let (mover, outcomes) = run_moves(kernel, &[of(1, 0, 512, 1)]);
    assert_eq!((outcomes[0].ended, outcomes[0].moved_pages, outcomes[0].busy_pages), (Ended::Done, 502, 10));
    assert_eq!(moved_in_truth(&mover.system), 502);
}

#[test]
fn pages_under_io_are_left_and_free_for_the_next_plan() {
    let mut kernel = Kernel::with(ProcessId(1), 8);
    kernel.under_io = (0..3).map(|page| (ProcessId(1), page * PAGE_BYTES)).collect();
    let (mut mover, outcomes) = run_moves(kernel, &[of(1, 0, 8, 1)]);
    assert_eq!((outcomes[0].ended, outcomes[0].moved_pages, outcomes[0].busy_pages), (Ended::Done, 5, 3));
    mover.system.lock().unwrap().under_io.clear();
    let mut cooldowns = Cooldowns::new(64);
    mover.enqueue(of(1, 0, 8, 1), 0, &cooldowns).unwrap();
    let (outcomes, _) = run_all(&mut mover, &mut cooldowns);
    assert_eq!((outcomes[0].moved_pages, outcomes[0].already_there_pages), (3, 5));
    assert_eq!(moved_in_truth(&mover.system), 8);
}

/// Ten processes with 1000 groups each, of which some are gone, forbidden, shared, under I/O, or wanted on a full node.
#[test]
fn ten_thousand_groups_at_once_all_end_and_every_page_is_counted_once() {
    const GROUPS: u64 = 1000;
    const PAGES: u64 = 8;
    let mut kernel = Kernel { full: [2].into(), ..Kernel::default() };
    let mut moves = Vec::new();
    for process in 1..=10 {
        for group in 0..GROUPS {
            let first = group * PAGES;
            let pages = (first..first + PAGES).map(|page| (ProcessId(process), page * PAGE_BYTES));
            kernel.pages.extend(pages.clone().skip((group % 3) as usize).map(|page| (page, 0)));
            kernel.under_io.extend(pages.clone().skip(5).filter(|_| group % 5 == 0));
            kernel.shared.extend(pages.take(4).filter(|_| group % 7 == 0));
            moves.push(of(process, first, PAGES, if group % 11 == 0 { 2 } else { 1 }));
        }
    }
    kernel.gone.insert(ProcessId(3));
    kernel.forbidden.insert(ProcessId(7));
    let (mut mover, mut cooldowns) = (Mover::new(Mutex::new(kernel), MoverConfig::default()), Cooldowns::new(65_536));
    for &wanted in &moves {
        mover.enqueue(wanted, 0, &cooldowns).unwrap();
    }
    let (outcomes, took_ns) = run_all(&mut mover, &mut cooldowns);
    assert_all_counted(&outcomes);
    let ended: BTreeSet<_> = outcomes.iter().map(|one| one.group).collect();
    assert_eq!((outcomes.len(), ended.len()), (moves.len(), moves.len()), "each group ends once");
    let sum = |count: fn(&Outcome) -> u64| outcomes.iter().map(count).sum::<u64>();
    assert_eq!(sum(|one| one.requested_pages), 10 * GROUPS * PAGES);
    assert_eq!(sum(|one| one.moved_pages), moved_in_truth(&mover.system));
    for outcome in &outcomes {
        let expected: &[Ended] = match (outcome.group.process.0, outcome.to.0) {
            (3, _) => &[Ended::ProcessGone, Ended::TargetFull],
            (7, _) => &[Ended::NotPermitted, Ended::TargetFull],
            (_, 2) => &[Ended::TargetFull],
            _ => &[Ended::Done],
        };
        assert!(expected.contains(&outcome.ended), "{outcome:?}");
    }
    assert!(
        sum(|one| one.moved_pages) > 30_000 && sum(|one| one.busy_pages) > 1000 && sum(|one| one.shared_pages) > 1000
    );
    // Two calls a group, and three more whenever its busy pages are tried again and asked after: all within budget.
    let calls = mover.system.lock().unwrap().calls;
    assert!(calls < 6 * moves.len() as u64, "{calls} calls");
    assert!(took_ns < 5 * S, "{took_ns} ns");
}
