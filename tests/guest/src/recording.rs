// SPDX-License-Identifier: GPL-2.0-only
//! A recording of a real agent: it can be read, holds what was decided, and the same is decided from it again.

use std::fs::File;
use std::io::BufReader;

use libtest_mimic::Trial;
use tandem_guest_tests::{Worker, set_affinity, wait_until};
use tandem_trace::{Entry, Interval, Policies, Replay, TraceReader};

use crate::agent::{PAGES, cpus, manage_this_process, memory_on, two_nodes};
use crate::trial;

const RECORDING: &str = "/tmp/decisions.trace";

pub fn tests() -> Vec<Trial> {
    vec![trial("what_an_agent_decided_is_decided_again_from_its_recording", decided_again)]
}

fn decided_again() {
    record_a_plan();
    let reader = TraceReader::new(BufReader::new(File::open(RECORDING).expect("scx_tandem wrote it")));
    let mut replay = Replay::new(Policies::Recorded, None);
    let mut plans = 0;
    for entry in reader.expect("it is a recording") {
        match entry.expect("it is whole") {
            Entry::Settings(settings) => {
                replay.begin(&settings).expect("the policies are known");
            }
            Entry::Interval(interval) => plans += usize::from(is_decided_again(&mut replay, &interval)),
        }
    }
    assert!(plans > 0, "a plan was made and is not in the recording");
}

/// Whether there was a plan. Panics if another is made now.
fn is_decided_again(replay: &mut Replay, interval: &Interval) -> bool {
    let Some(replayed) = replay.decide(interval) else { return false };
    assert!(replayed.same, "{:?}", replayed.differences);
    interval.decision.as_ref().is_some_and(|decision| decision.plan().is_some())
}

/// Runs an agent over a thread whose memory is on another node, until it has made a plan of it.
fn record_a_plan() {
    let scx = manage_this_process(&["--record", RECORDING]);
    let [home, away] = two_nodes(&scx);
    let memory = memory_on(&home, PAGES);
    let worker = Worker::doing(move || memory.walk());
    set_affinity(worker.tid, &cpus(&away));
    wait_until("a plan is made", || scx.log().contains("saves"));
    drop(worker);
    assert!(scx.stop().success());
}
