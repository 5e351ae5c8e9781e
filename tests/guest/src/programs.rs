// SPDX-License-Identifier: GPL-2.0-only
//! What the kernel's verifier has to do for each program: it gives up after a million instructions, and loading takes
//! as long as it works.

use libtest_mimic::Trial;
use tandem_guest_tests::Scx;

use crate::trial;

/// Instructions that the verifier may walk through for all programs together, and for the one with most.
const BUDGET_ALL: u64 = 70_000;
const BUDGET_ONE: u64 = 25_000;

pub fn tests() -> Vec<Trial> {
    vec![trial("programs_are_verified_within_their_budget", programs_are_verified_within_their_budget)]
}

/// What the verifier did for a program.
#[derive(Debug)]
struct Verified {
    program: String,
    instructions: u64,
    states: u64,
}

/// The number that stands between `before` and the next space.
fn number(line: &str, before: &str) -> u64 {
    let (_, rest) = line.split_once(before).unwrap_or_else(|| panic!("no '{before}' in '{line}'"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|error| panic!("'{before}' in '{line}': {error}"))
}

/// Reads what `scx_tandem -vv` prints of every program that it loads.
fn verified(log: &str) -> Vec<Verified> {
    let mut program = None;
    let mut verified = Vec::new();
    for line in log.lines() {
        if let Some((name, _)) = line.strip_prefix("libbpf: prog '").and_then(|rest| rest.split_once("': -- BEGIN")) {
            program = Some(name.to_owned());
        } else if line.starts_with("processed ") {
            verified.push(Verified {
                program: program.take().expect("a program's name comes before"),
                instructions: number(line, "processed "),
                states: number(line, "total_states "),
            });
        }
    }
    verified
}

fn programs_are_verified_within_their_budget() {
    let scx = Scx::start(&["-vv", "--dry-run", "--manage", "pid=1", "--interval-ms", "10000"]);
    let mut verified = verified(&scx.log());
    verified.sort_by_key(|program| std::cmp::Reverse(program.instructions));
    for Verified { program, instructions, states } in &verified {
        println!("verified: {program:24} {instructions:8} instructions {states:6} states");
    }
    let all: u64 = verified.iter().map(|program| program.instructions).sum();
    println!("verified: {:24} {all:8} instructions", "all");
    assert!(verified.iter().any(|program| program.program == "tandem_dispatch"), "{verified:?}");
    assert!(all <= BUDGET_ALL, "{all} instructions, the budget is {BUDGET_ALL}: {verified:?}");
    assert!(verified[0].instructions <= BUDGET_ONE, "the budget of a program is {BUDGET_ONE}: {:?}", verified[0]);
}
