// SPDX-License-Identifier: GPL-2.0-only
//! Counters by thread on a real kernel: what its own events count must be charged to the thread that did it. Guests have no
//! counters of hardware; `cpu-clock` and `minor-faults` are counted and read in the same way.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use tandem_guest_tests::{Hog, Memory, Scx, Worker, read, run_ns, wait_until};
use tandem_policies::model::{CpuId, ProcessId};
use tandem_sense::Counts;
use tandem_sense::counting::{CountedOn, Counter, Counting, Encoding};

use crate::trial;

/// Of perf_event_open(2).
const SOFTWARE: u32 = 1;
const CPU_CLOCK: u64 = 0;
const MINOR_FAULTS: u64 = 5;

pub fn tests() -> Vec<Trial> {
    vec![
        trial("counts_go_to_the_thread_that_ran", counts_go_to_the_thread_that_ran),
        trial("a_thread_that_never_lets_go_is_charged_too", a_thread_that_never_lets_go_is_charged_too),
    ]
}

/// Counts for this process: minor faults as instructions, nanoseconds on a CPU as cycles.
fn counting(scx: &Scx) -> Counting {
    let online: Vec<CpuId> = scx.topology.nodes.values().flat_map(|node| node.cpus.iter().copied()).collect();
    let event = |counter, config| {
        let encoding = Encoding { kind: SOFTWARE, config: [config, 0, 0, 0, 0] };
        CountedOn { counter, weight: 1, encoding, cpus: None }
    };
    let events = vec![event(Counter::Instructions, MINOR_FAULTS), event(Counter::Cycles, CPU_CLOCK)];
    let mut counting = Counting::open_events(events, &online).unwrap_or_else(|error| panic!("{error}"));
    counting.set_managed(&[ProcessId(std::process::id())].into()).unwrap_or_else(|error| panic!("{error}"));
    counting
}

fn taken(counting: &mut Counting) -> BTreeMap<u32, Counts> {
    let counts = counting.take().unwrap_or_else(|error| panic!("{error}"));
    let others = counts.iter().filter(|counts| counts.process != ProcessId(std::process::id()));
    assert_eq!(others.count(), 0, "{counts:?}");
    counts.into_iter().map(|counts| (counts.tid, counts)).collect()
}

/// A thread that touched so many pages for the first time, 50 at a time with 10 ms of work and a pause after each, and now stays
/// as long as this.
struct Toucher {
    pages: u64,
    tid: u32,
    _stay: Sender<()>,
}

impl Toucher {
    fn start(pages: u64) -> Self {
        let ((send, done), (_stay, stay)) = (channel(), channel::<()>());
        std::thread::spawn(move || {
            for _ in 0..pages / 50 {
                let memory = Memory::map(50);
                let until = Instant::now() + Duration::from_millis(10);
                while Instant::now() < until {
                    memory.walk();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            // SAFETY: gettid cannot fail.
            send.send(unsafe { libc::gettid() } as u32).expect("the test waits");
            assert!(stay.recv().is_err(), "nothing is ever sent");
        });
        Self { pages, tid: done.recv().expect("it touches its pages"), _stay }
    }

    fn is_asleep(&self) -> bool {
        let stat = read(&format!("/proc/self/task/{}/stat", self.tid));
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
    }
}

fn counts_go_to_the_thread_that_ran() {
    let scx = Scx::start_observing();
    // Somebody else, on every CPU.
    let cpus: Vec<u32> = scx.topology.nodes.values().flat_map(|node| node.cpus.iter().map(|cpu| cpu.0)).collect();
    let _hogs: Vec<Hog> = cpus.iter().map(|cpu| Hog::on(&[*cpu])).collect();
    let mut counting = counting(&scx);
    let threads = [2000, 1000].map(Toucher::start);
    wait_until("both sleep", || threads.iter().all(Toucher::is_asleep));
    let counts = taken(&mut counting);
    for Toucher { pages, tid, .. } in &threads {
        let (of, ran_ns) = (counts[tid], run_ns(*tid));
        println!("{pages} pages in {ran_ns} ns: {of:?}");
        // Its stack, and what it allocates itself.
        assert!((*pages..pages + 50).contains(&of.instructions), "{pages} pages: {of:?}");
        let ratio = of.cycles as f64 / ran_ns as f64;
        // Neither leaves out interrupts alike, nor begins a turn at the same point of a switch, and a machine that is busy may stop
        // the emulator there for milliseconds; the hog on its CPU would be as much again.
        assert!((0.7..1.4).contains(&ratio), "{ran_ns} ns: {of:?}");
    }
    let left = taken(&mut counting);
    assert!(threads.iter().all(|thread| !left.contains_key(&thread.tid)), "what was taken is gone: {left:?}");
    assert_eq!(counting.uncharged(), 0);
    drop(threads);
    assert!(scx.stop().success());
}

fn a_thread_that_never_lets_go_is_charged_too() {
    let scx = Scx::start_observing();
    let counting = RefCell::new(counting(&scx));
    let worker = Worker::start();
    let charged = RefCell::new(0);
    let take = || taken(&mut counting.borrow_mut()).get(&worker.tid).map_or(0, |counts| counts.cycles);
    wait_until("it is charged", || take() > 0);
    let before_ns = run_ns(worker.tid);
    wait_until("it is charged for half a second", || {
        *charged.borrow_mut() += take();
        *charged.borrow() > 500_000_000
    });
    let ran_ns = run_ns(worker.tid) - before_ns;
    let ratio = *charged.borrow() as f64 / ran_ns as f64;
    println!("charged {ratio:.3} of what it ran");
    assert!((0.9..1.1).contains(&ratio), "{ratio} of {ran_ns} ns");
    let charged_to = |counting: &mut Counting| taken(counting).contains_key(&worker.tid);
    counting.borrow_mut().set_managed(&[].into()).unwrap_or_else(|error| panic!("{error}"));
    taken(&mut counting.borrow_mut());
    assert!(!charged_to(&mut counting.borrow_mut()), "a process that is not managed any more");
    drop(worker);
    assert!(scx.stop().success());
}
