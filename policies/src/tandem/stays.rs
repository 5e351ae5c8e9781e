// SPDX-License-Identifier: GPL-2.0-only
//! What speaks against the moves that one would expect: of threads to the node whose memory they use most.

use super::build::Facts;
use super::problem::Problem;
use super::search::State;
use crate::model::{NodeIndex, Thread};
use crate::stay::Stay;

/// Threads that stay where `place` has them, though they use the memory of another node most and may go there, with what that would
/// bring while all others are where `place` has them.
pub fn of(facts: &Facts, problem: &Problem, place: &[usize]) -> Vec<Stay> {
    let mut state = State::at(problem, place.to_vec());
    let stays = |at: &usize| stay(&mut state, &facts.snapshot.threads[*at], *at);
    problem.movable.iter().filter_map(stays).collect()
}

fn stay(state: &mut State, thread: &Thread, at: usize) -> Option<Stay> {
    let problem = state.problem();
    let here = state.place[at];
    let preferred = thread.preferred_node()?.0;
    if preferred == here || here != thread.node.0 || !problem.threads[at].choices.contains(&preferred) {
        return None;
    }
    let change = [(at, preferred)];
    let cost = state.change(&change);
    let (cpus, waits) = (state.crowd_change(&change), state.waits_change(&change));
    let price = problem.price(at)[preferred];
    Some(Stay {
        thread: thread.id,
        at: thread.node,
        preferred: NodeIndex(preferred),
        saved_ns_per_s: cpus + waits + price - cost,
        cpus_ns_per_s: cpus,
        waits_ns_per_s: waits,
        price_ns_per_s: price,
    })
}
