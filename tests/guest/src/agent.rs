// SPDX-License-Identifier: GPL-2.0-only
//! The whole loop against programs that turn the agent's plans to their own harm: what did not pay is taken back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libtest_mimic::Trial;
use serde_json::Value;
use tandem_guest_tests::{Memory, Scx, Worker, monotonic_ns, read, set_affinity, wait_until};
use tandem_policies::model::{Node, Topology};
use tandem_view::{Client, SOCKET, Status};

use crate::trial;
use crate::visitor::Visitor;

pub const PAGES: usize = 1024;
/// What counts as all of them: the agent leaves a few pages alone where they are not worth a move.
pub const MOST_PAGES: usize = PAGES / 10 * 9;
/// An emulator inside an emulated machine is slow: the default budgets would be a sample or two a second.
const BUDGETS: [&str; 4] = ["--sampler-budget", "25", "--mover-budget", "50"];
/// Longer than usual so that the signal, which halves every 3 s, is mostly of the time after the plan when it is judged first.
const LONG_INTERVALS: [&str; 2] = ["--interval-ms", "3000"];
pub const LONG_INTERVAL_NS: u64 = 3_000_000_000;
/// An undone plan is judged so many intervals after it was made at most; what it moved may go back in the next one.
const MOST_INTERVALS: u64 = 3;
const IN_TIME_NS: u64 = (MOST_INTERVALS + 1) * LONG_INTERVAL_NS;
/// So short that the plan is judged first when hardly anything is known of the time after it.
const SHORT_INTERVALS: [&str; 2] = ["--interval-ms", "300"];

pub fn tests() -> Vec<Trial> {
    vec![
        trial("page_moves_that_did_not_pay_are_undone", page_moves_that_did_not_pay_are_undone),
        trial("what_slowed_one_process_down_goes_back_alone", what_slowed_one_process_down_goes_back_alone),
        trial("pages_go_where_threads_turn", pages_go_where_threads_turn),
        trial("what_is_undone_goes_on_with_a_new_configuration", what_is_undone_goes_on_with_a_new_configuration),
        trial(
            "a_plan_that_was_kept_is_undone_once_it_shows_that_it_did_not_pay",
            a_plan_that_was_kept_is_undone_once_it_shows_that_it_did_not_pay,
        ),
        trial("thread_moves_that_did_not_pay_are_undone", thread_moves_that_did_not_pay_are_undone),
        trial("moves_are_given_up_when_leases_ran_out", moves_are_given_up_when_leases_ran_out),
    ]
}

/// When a program turns a plan to its harm, and what happens then.
#[derive(PartialEq)]
enum Turns {
    /// Once it has been carried out.
    OnceMoved,
    /// The same; scx_tandem is to read its configuration again when it undoes the plan.
    MovedThenReloads,
    /// Once it has been judged.
    OnceKept,
}

/// scx_tandem managing this process, with long intervals and more options.
pub fn manage_this_process(options: &[&str]) -> Scx {
    manage_every(&LONG_INTERVALS, options)
}

/// The same with these intervals.
pub fn manage_every(intervals: &[&str], options: &[&str]) -> Scx {
    let process = format!("pid={}", std::process::id());
    Scx::start(&[&BUDGETS[..], intervals, &["--manage", &process], options].concat())
}

/// The two nodes with CPUs that are farthest from each other.
pub fn two_nodes(scx: &Scx) -> [Node; 2] {
    far_nodes(&scx.topology)
}

/// The same of a machine.
pub fn far_nodes(topology: &Topology) -> [Node; 2] {
    let nodes = &topology.nodes;
    let with_cpus = || topology.nodes_with_cpus();
    let pairs =
        with_cpus().flat_map(|one| with_cpus().filter(move |&other| other != one).map(move |other| (one, other)));
    let (one, other) = pairs.max_by_key(|&(one, other)| nodes[one].distance[other]).expect("two nodes have CPUs");
    [nodes[one].clone(), nodes[other].clone()]
}

pub fn cpus(node: &Node) -> Vec<u32> {
    node.cpus.iter().map(|cpu| cpu.0).collect()
}

/// Memory of `pages` pages with its home on `node`.
pub fn memory_on(node: &Node, pages: usize) -> Arc<Memory> {
    let memory = Arc::new(Memory::map(pages));
    let (touched, cpus) = (Arc::clone(&memory), cpus(node));
    let touch = move || {
        // SAFETY: gettid cannot fail.
        set_affinity(unsafe { libc::gettid() } as u32, &cpus);
        touched.walk();
    };
    std::thread::spawn(touch).join().expect("the memory is touched");
    assert_eq!(memory.pages_on(node.id.0), pages, "first touch places it");
    memory
}

fn page_moves_that_did_not_pay_are_undone() {
    let report = pages_come_and_go(&LONG_INTERVALS, Turns::OnceMoved, &["--policy", "none+locality"], None);
    assert_pages_went_back(&report, IN_TIME_NS);
    assert_judged_in_time(&report);
}

/// Pages go back so slowly that the agent which began it ends before it is done.
fn what_is_undone_goes_on_with_a_new_configuration() {
    let options = ["--policy", "none+locality", "--page-rate", "1"];
    let report = pages_come_and_go(&LONG_INTERVALS, Turns::MovedThenReloads, &options, None);
    assert_pages_went_back(&report, 2 * IN_TIME_NS);
}

/// The program turns only when the plan has been kept, which is before anything is known of that.
fn a_plan_that_was_kept_is_undone_once_it_shows_that_it_did_not_pay() {
    let report = pages_come_and_go(&SHORT_INTERVALS, Turns::OnceKept, &["--policy", "none+locality"], None);
    // It is judged again 3 s after it was made.
    assert_pages_went_back(&report, 2 * LONG_INTERVAL_NS);
}

/// Most of what undone plans moved went back by undoing, in time. Two plans may have brought the pages, of which the last one alone is
/// undone.
fn assert_pages_went_back(report: &Value, within_ns: u64) {
    let moves = report["page_moves"].as_array().expect("moves are listed");
    let is_back = |one: &&Value| one["outcome"]["purpose"].get("undo").is_some();
    let back: Vec<&Value> = moves.iter().filter(is_back).collect();
    let plans: Vec<&Value> = back.iter().map(|one| &one["outcome"]["generation"]).collect();
    let sent = moves.iter().filter(|one| !is_back(one) && plans.contains(&&one["outcome"]["generation"]));
    let sum = |pages: u64, one: &Value| pages + one["moved_pages"].as_u64().expect("a number");
    let (sent, returned) = (sent.fold(0, sum), back.iter().copied().fold(0, sum));
    println!("{returned} of {sent} pages went back");
    assert!(sent > 0 && 10 * returned >= 9 * sent, "{returned} of {sent} pages went back: {}", report["plans"]);
    assert_undone_in_time(report, &back, within_ns);
}

/// The same plan brings another process its memory, and all are worse off with it than before.
fn what_slowed_one_process_down_goes_back_alone() {
    let mut other = Visitor::start();
    let options = ["--policy", "none+locality"];
    let report = pages_come_and_go(&LONG_INTERVALS, Turns::OnceMoved, &options, Some(&mut other));
    assert!(other.near() >= MOST_PAGES, "it has its memory still");
    let plans = report["plans"].as_array().expect("plans are listed");
    let undone: Vec<&Value> = plans.iter().map(|plan| &plan["undone_of"]).collect();
    assert!(undone.contains(&&serde_json::json!([std::process::id()])), "{}", report["plans"]);
}

/// By a new plan or by undoing the last one, whichever is first.
fn pages_go_where_threads_turn() {
    pages_come_and_go(&LONG_INTERVALS, Turns::OnceMoved, &[], None);
}

/// One thread uses the disputed memory from afar, so that it comes; then three threads where it was use it instead. Beside it the
/// memory of another process comes, if there is one. Returns scx_tandem's report.
fn pages_come_and_go(intervals: &[&str], turns: Turns, options: &[&str], mut other: Option<&mut Visitor>) -> Value {
    let report = Path::new("/tmp/come-and-go.json");
    let scx = manage_every(intervals, &[options, &["--report", &report.display().to_string()]].concat());
    let [home, away] = two_nodes(&scx);
    let disputed = memory_on(&home, PAGES);
    if let Some(other) = &mut other {
        other.near();
    }
    let turned = Arc::new(AtomicBool::new(false));
    let visitor = Worker::doing({
        let (disputed, turned, own) = (Arc::clone(&disputed), Arc::clone(&turned), memory_on(&away, PAGES));
        move || {
            // Its own as well from the start, so that less is remote before the turn than after it.
            own.walk();
            if !turned.load(Ordering::Relaxed) {
                disputed.walk();
            }
        }
    });
    set_affinity(visitor.tid, &cpus(&away));
    let _residents: Vec<Worker> = std::iter::repeat_with(|| {
        let (disputed, turned, own) = (Arc::clone(&disputed), Arc::clone(&turned), memory_on(&home, PAGES));
        let resident = Worker::doing(move || if turned.load(Ordering::Relaxed) { disputed.walk() } else { own.walk() });
        set_affinity(resident.tid, &cpus(&home));
        resident
    })
    .take(3)
    .collect();
    wait_until("the disputed pages come to their only user", || disputed.pages_on(away.id.0) >= MOST_PAGES);
    if turns == Turns::OnceKept {
        let mut client = Client::connect(Path::new(SOCKET)).expect("scx_tandem answers");
        let is_kept = |status: Status| status.plans.last().is_some_and(|plan| plan.verdict == "kept");
        wait_until("the plan is kept", || client.status().expect("scx_tandem answers").is_some_and(is_kept));
    }
    if let Some(other) = other {
        wait_until("those of the other process come too", || other.near() >= MOST_PAGES);
    }
    turned.store(true, Ordering::Relaxed);
    if turns == Turns::MovedThenReloads {
        wait_until("the plan is undone", || scx.log().contains("undoing it"));
        scx.reload();
        wait_until("another agent begins", || scx.log().contains("took over"));
        assert!(disputed.pages_on(home.id.0) < MOST_PAGES, "they are on their way still");
    }
    wait_until("the disputed pages are back", || disputed.pages_on(home.id.0) >= MOST_PAGES);
    scx.stop_and_report(report)
}

/// Pages are on their way, slowly, when scx_tandem is stopped for longer than leases last.
fn moves_are_given_up_when_leases_ran_out() {
    let (report, process) = (Path::new("/tmp/given-up.json"), format!("pid={}", std::process::id()));
    let options = ["--interval-ms", "1000", "--sampler-budget", "25", "--page-rate", "1", "--policy", "none+locality"];
    let scx = Scx::start(&[&options[..], &["--manage", &process, "--report", "/tmp/given-up.json"]].concat());
    let [home, away] = two_nodes(&scx);
    let memory = memory_on(&home, 4 * PAGES);
    let worker = Worker::doing({
        let memory = Arc::clone(&memory);
        move || memory.walk()
    });
    set_affinity(worker.tid, &cpus(&away));
    wait_until("the first pages come", || memory.pages_on(away.id.0) > 0);
    scx.freeze_for(Duration::from_secs(4));
    wait_until("it is seen that leases ran out", || scx.log().contains("leases ran out"));
    // What is queued then is cancelled as well.
    let stopping_ns = monotonic_ns();
    let report = scx.stop_and_report(report);
    assert_eq!(report["lost_leases"], 1, "{report}");
    let list = |name: &str| report[name].as_array().expect("a list").clone();
    let is_given_up = |one: &Value| {
        one["outcome"]["ended"] == "cancelled" && one["time_ns"].as_u64().is_some_and(|time_ns| time_ns < stopping_ns)
    };
    assert!(list("page_moves").iter().any(is_given_up), "{}", report["page_moves"]);
    assert!(list("plans").iter().any(|plan| plan["superseded_by"] == "leases_ran_out"), "{}", report["plans"]);
}

/// A thread goes to the memory that it uses most, and from then on uses only what it left behind. That memory has
/// another user where it is, so that it does not come to the thread instead.
fn thread_moves_that_did_not_pay_are_undone() {
    let report = Path::new("/tmp/undone.json");
    // Judged seconds after it was made: long enough for the worker to turn.
    let scx = manage_this_process(&["--policy", "sma+tmma", "--report", &report.display().to_string()]);
    let scheduler = scx.handle();
    let [home, away] = two_nodes(&scx);
    // This thread is managed like the others, and would take the room that is meant for the worker.
    // SAFETY: gettid cannot fail.
    set_affinity(unsafe { libc::gettid() } as u32, &cpus(&home));
    let turned = Arc::new(AtomicBool::new(false));
    let more = memory_on(&away, PAGES + PAGES / 2);
    let resident = Worker::doing({
        let more = Arc::clone(&more);
        move || more.walk()
    });
    set_affinity(resident.tid, &cpus(&away));
    let worker = Worker::doing({
        let less = memory_on(&home, PAGES);
        let turned = Arc::clone(&turned);
        move || {
            if !turned.load(Ordering::Relaxed) {
                more.walk();
            }
            less.walk();
        }
    });
    let index = |node: &Node| scx.topology.index_of(node.id).expect("a node of this machine").0;
    set_affinity(worker.tid, &cpus(&home));
    wait_until("the thread runs at home", || worker.record(&scheduler).run_ns[index(&home)] > 100_000_000);
    // Nowhere else, so that this is where it is sent back to.
    let either = [cpus(&home), cpus(&away)].concat();
    set_affinity(worker.tid, &either);
    let is_assigned_to = |node: &Node| worker.record(&scheduler).assigned == Some(index(node) as u32);
    wait_until("the thread goes to its memory", || {
        let record = worker.record(&scheduler);
        if record.assigned.is_none() && record.home == index(&away) as u32 {
            // Nobody sent it: an idle CPU took it, as it may while nothing is assigned.
            set_affinity(worker.tid, &cpus(&home));
            set_affinity(worker.tid, &either);
        }
        is_assigned_to(&away)
    });
    let before = chosen_by_the_user(worker.tid);
    turned.store(true, Ordering::Relaxed);
    wait_until("the thread is sent back", || is_assigned_to(&home));
    assert_eq!(chosen_by_the_user(worker.tid), before, "what the user chose stays");
    let report = scx.stop_and_report(report);
    let is_back = |one: &&Value| one["reason"].as_str().is_some_and(|reason| reason.starts_with("undone"));
    let moves = report["thread_moves"].as_array().expect("moves are listed");
    assert_undone_in_time(&report, &moves.iter().filter(is_back).collect::<Vec<_>>(), IN_TIME_NS);
    assert_judged_in_time(&report);
}

/// Undone plans were judged soon enough, by intervals.
fn assert_judged_in_time(report: &Value) {
    let plans = report["plans"].as_array().expect("plans are listed");
    let undone = plans.iter().filter(|plan| plan["verdict"] == "undone");
    let after: Vec<u64> = undone.filter_map(|plan| plan["judged_after_intervals"].as_u64()).collect();
    println!("undone after {after:?} intervals");
    assert!(!after.is_empty() && after.iter().all(|&after| after <= MOST_INTERVALS), "{}", report["plans"]);
}

/// What a thread's user may choose and we must not: where it may run, and memory policies.
fn chosen_by_the_user(tid: u32) -> Vec<String> {
    let lines = |file: String| read(&file).lines().map(str::to_owned).collect::<Vec<_>>();
    let allowed = lines(format!("/proc/self/task/{tid}/status")).into_iter().filter(|line| line.contains("_allowed"));
    let policies = lines("/proc/self/numa_maps".to_owned());
    let is_default = |line: &String| line.split(' ').nth(1) == Some("default");
    allowed.chain(policies.into_iter().filter(|line| !is_default(line))).collect()
}

/// What an undone plan moved goes `back` soon enough.
fn assert_undone_in_time(report: &Value, back: &[&Value], within_ns: u64) {
    let time_ns = |one: &Value| one["time_ns"].as_u64().expect("a time");
    let plans = report["plans"].as_array().expect("plans are listed");
    let undone: Vec<u64> = plans.iter().filter(|plan| plan["verdict"] == "undone").map(time_ns).collect();
    let back: Vec<u64> = back.iter().map(|one| time_ns(one)).collect();
    assert!(!undone.is_empty(), "{}", report["plans"]);
    for plan_ns in undone {
        let after_ns = back.iter().filter(|&&back_ns| back_ns > plan_ns).map(|back_ns| back_ns - plan_ns).min();
        println!("undone after {after_ns:?} ns");
        assert!(after_ns.is_some_and(|after_ns| after_ns <= within_ns), "{after_ns:?} ns");
    }
}
