// SPDX-License-Identifier: GPL-2.0-only
//! How much memory the loop takes with very many page groups: all of it but the scheduler, in a process of its own.

use std::process::Command;

use tandem_act::{Call, Contested, Cooldowns, MovePages, Mover, MoverConfig, PageMove};
use tandem_machine::ProgramId;
use tandem_policies::model::{NodeId, Plan, ProcessId};
use tandem_policies::stall::localities_expected;
use tandem_view::Board;

use super::acting::places_of_moved;
use super::many_groups::ManyGroups;
use super::*;
use crate::cost::status_bytes;
use crate::leases::leases;
use crate::report::PagesMove;
use crate::status::{UnderWay, status};
use crate::testing::SECOND_NS;

/// The goal is 64 MB, of which scx_tandem takes 12.4 MB before it knows of any group: its program, and what it loaded.
const MOST_BYTES: u64 = 64_000_000 - 12_400_000;

/// Every page is on node 0, until it was moved to node 1.
struct Everywhere;

impl MovePages for Everywhere {
    fn program(&self, _: ProcessId) -> Option<ProgramId> {
        None
    }

    fn call(&self, _process: ProcessId, addresses: &[u64], to: Option<NodeId>, status: &mut [i32]) -> Call {
        status.fill(to.map_or(0, |node| node.0 as i32));
        Call { result: Ok(0), time_ns: 1000 * addresses.len() as u64 }
    }
}

/// Leases, queue and undo log of a plan, and what is said of it.
fn carry_out(snapshot: &Snapshot, plan: &Plan) -> Report {
    let leases = leases(snapshot, plan);
    assert!(!leases.is_empty());
    let config = MoverConfig { pages_per_s: 1 << 40, call_ns_per_s: 1 << 40, ..MoverConfig::default() };
    let (mut mover, mut cooldowns) = (Mover::new(Everywhere, config), Cooldowns::new(COOLDOWNS));
    let (mut reasons, mut report) = (Reasons::default(), Report::default());
    for planned in &plan.moves {
        let tandem_policies::model::Action::MovePages { group, bytes, to } = planned.action else { continue };
        let to = snapshot.topology.nodes[to].id;
        let wanted = PageMove { group, bytes, huge: false, to, generation: Generation(1), cooldown_ns: SECOND_NS };
        if mover.enqueue(wanted, 0, &cooldowns).is_ok() {
            reasons.note(Generation(1), group, planned.reason.clone());
        }
    }
    assert!(localities_expected(snapshot, plan).all.is_some());
    let changed = places_of_moved(snapshot, plan);
    let mut contested = Contested::new(COOLDOWNS, SECOND_NS);
    let mut now_ns = 0;
    while mover.queued_groups() > 0 {
        now_ns += SECOND_NS / 10;
        for outcome in mover.run(now_ns, &mut cooldowns) {
            contested.note(&outcome, now_ns);
            report.page_moves.push(PagesMove {
                time_ns: now_ns,
                process: outcome.group.process.0,
                start: outcome.start,
                to: outcome.to.0,
                moved_pages: outcome.moved_pages,
                reason: reasons.take(&outcome),
                outcome,
            });
        }
    }
    assert!(!mover.undo_log().is_empty() && !changed.is_empty());
    report
}

/// The most memory that this process had so far, less what it has of programs, as is: which parts of those are resident, and
/// were built how, says nothing of the loop.
fn peak_bytes(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process can read its own");
    let bytes = |field| status_bytes(&status, field).expect("Linux tells");
    let (peak, file) = (bytes("VmHWM:"), bytes("RssFile:"));
    println!("{what}: {:.1} MiB, of files {:.1}", peak as f64 / 1_048_576.0, file as f64 / 1_048_576.0);
    peak - file
}

#[test]
#[ignore = "in a process of its own: a_hundred_thousand_page_groups_stay_within_what_is_documented runs it"]
fn an_interval_with_a_hundred_thousand_page_groups() {
    crate::give_back_large_blocks();
    let mut many = ManyGroups::new(8, 100_000);
    let before_bytes = peak_bytes("before");
    let snapshot = many.see_all();
    assert_eq!(snapshot.groups.len(), 100_000);
    peak_bytes("snapshot");
    let mut decider = Decider::new(PolicyChoice::of_both("tandem").expect("the default"));
    let decision = Decision::new(1, decider.decide(&snapshot, 1, STEPS));
    peak_bytes("decision");
    let plan = decision.plan().expect("all threads are far from their memory");
    assert!(plan.moves.len() > 10_000, "{} moves", plan.moves.len());
    let report = carry_out(&snapshot, plan);
    peak_bytes("acting");
    let board = Board::default();
    board.publish(status(&crate::testing::config(), &snapshot, &report, UnderWay::default()));
    let bytes = peak_bytes("told") - before_bytes;
    assert!(bytes < MOST_BYTES, "{:.1} MiB", bytes as f64 / 1_048_576.0);
}

#[test]
fn a_hundred_thousand_page_groups_stay_within_what_is_documented() {
    let name = "agent::memory_tests::an_interval_with_a_hundred_thousand_page_groups";
    let own = std::env::current_exe().expect("this test is a program");
    // What fills allocated memory makes resident what nobody uses.
    let mut again = Command::new(own);
    again.env_remove("MALLOC_PERTURB_").args(["--exact", name, "--ignored", "--nocapture"]);
    let done = again.output().expect("it runs again");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&done.stderr));
}
