// SPDX-License-Identifier: GPL-2.0-only
//! What was decided, and what became of it.

use tandem_policies::model::{Action, CpuId, GroupId, Move, NodeIndex};

use super::People;
use crate::blank;
use crate::coder::{Coder, Malformed, Whole};
use crate::columns::Column;
use crate::interval::{Answer, Decision, Outcome};

pub(super) fn decision(coder: &mut impl Coder, now: &mut Option<Decision>, people: &People) -> Result<(), Malformed> {
    let mut decided = now.is_some();
    coder.flag(Column::Decided, &mut decided, false)?;
    if !decided {
        *now = None;
        return Ok(());
    }
    let decision = now.get_or_insert_with(blank::decision);
    coder.number(Column::Seed, &mut decision.seed, 0)?;
    let count = coder.count::<Answer>(Column::AnswerCount, decision.answers.len(), 1)?;
    decision.answers.resize_with(count, blank::answer);
    for given in &mut decision.answers {
        answer(coder, given, people)?;
    }
    maybe(coder, Column::Taken, &mut decision.taken, 0)?;
    maybe(coder, Column::Generation, &mut decision.generation, 0)
}

/// Passes a number that may be absent; `some` is what it should be if it is there.
fn maybe<N: Whole>(
    coder: &mut impl Coder,
    column: Column,
    value: &mut Option<N>,
    predicted: N,
) -> Result<(), Malformed> {
    let mut present = value.is_some();
    coder.flag(column, &mut present, false)?;
    if !present {
        *value = None;
        return Ok(());
    }
    coder.number(column, value.get_or_insert(predicted), predicted)
}

pub(super) fn answer(coder: &mut impl Coder, now: &mut Answer, people: &People) -> Result<(), Malformed> {
    let mut missing = matches!(now, Answer::Missing(_));
    coder.flag(Column::Answer, &mut missing, false)?;
    if missing {
        if let Answer::Plan(_) = now {
            *now = blank::answer();
        }
    } else if let Answer::Missing(_) = now {
        *now = Answer::Plan(Default::default());
    }
    match now {
        Answer::Missing(words) => coder.text(Column::Missing, words, ""),
        Answer::Plan(plan) => {
            let count = coder.count::<Move>(Column::MoveCount, plan.moves.len(), 0)?;
            plan.moves.resize_with(count, blank::planned);
            plan.moves.iter_mut().try_for_each(|planned| one_move(coder, planned, people))
        }
    }
}

fn one_move(coder: &mut impl Coder, now: &mut Move, people: &People) -> Result<(), Malformed> {
    let mut kind: u64 = match now.action {
        Action::MoveThread { .. } => 0,
        Action::Interchange { .. } => 1,
        Action::MovePages { .. } => 2,
    };
    coder.number(Column::Move, &mut kind, 0)?;
    now.action = match kind {
        0 => move_thread(coder, &now.action, people)?,
        1 => interchange(coder, &now.action, people)?,
        2 => move_pages(coder, &now.action)?,
        _ => return Err(Malformed::Column(Column::Move)),
    };
    coder.optional(Column::MoveGain, &mut now.gain_ns_per_s, Some(0.0))?;
    coder.text(Column::MoveReason, &mut now.reason, "")
}

fn node(coder: &mut impl Coder, value: &mut NodeIndex) -> Result<(), Malformed> {
    coder.number(Column::MoveNode, value, NodeIndex(0))
}

fn move_thread(coder: &mut impl Coder, now: &Action, people: &People) -> Result<Action, Malformed> {
    let (mut thread, mut from, mut to, mut cpu) = match *now {
        Action::MoveThread { thread, from, to, cpu } => (thread, from, to, cpu),
        _ => (blank::THREAD_ID, NodeIndex(0), NodeIndex(0), None),
    };
    people.pass(coder, Column::MoveThread, &mut thread, 0)?;
    node(coder, &mut from)?;
    node(coder, &mut to)?;
    maybe(coder, Column::MoveCpu, &mut cpu, CpuId(0))?;
    Ok(Action::MoveThread { thread, from, to, cpu })
}

fn interchange(coder: &mut impl Coder, now: &Action, people: &People) -> Result<Action, Malformed> {
    let (mut first, mut second, mut first_node, mut second_node) = match *now {
        Action::Interchange { first, second, first_node, second_node } => (first, second, first_node, second_node),
        _ => (blank::THREAD_ID, blank::THREAD_ID, NodeIndex(0), NodeIndex(0)),
    };
    people.pass(coder, Column::MoveThread, &mut first, 0)?;
    people.pass(coder, Column::MoveThread, &mut second, 0)?;
    node(coder, &mut first_node)?;
    node(coder, &mut second_node)?;
    Ok(Action::Interchange { first, second, first_node, second_node })
}

fn move_pages(coder: &mut impl Coder, now: &Action) -> Result<Action, Malformed> {
    let (mut group, mut bytes, mut to) = match *now {
        Action::MovePages { group, bytes, to } => (group, bytes, to),
        _ => (blank::group().id, 0, NodeIndex(0)),
    };
    group_id(coder, (Column::MoveProcess, Column::MoveStart), &mut group)?;
    coder.number(Column::MoveBytes, &mut bytes, 0)?;
    node(coder, &mut to)?;
    Ok(Action::MovePages { group, bytes, to })
}

fn group_id(coder: &mut impl Coder, (process, start): (Column, Column), now: &mut GroupId) -> Result<(), Malformed> {
    let nothing = blank::group().id;
    coder.number(process, &mut now.process, nothing.process)?;
    coder.number(start, &mut now.start, nothing.start)
}

pub(super) fn outcomes(coder: &mut impl Coder, now: &mut Vec<Outcome>, people: &People) -> Result<(), Malformed> {
    let count = coder.count::<Outcome>(Column::OutcomeCount, now.len(), 0)?;
    now.resize_with(count, blank::outcome);
    now.iter_mut().try_for_each(|one| outcome(coder, one, people))
}

fn outcome(coder: &mut impl Coder, now: &mut Outcome, people: &People) -> Result<(), Malformed> {
    let kind: u64 = match now {
        Outcome::Pages { .. } => 0,
        Outcome::Refused { .. } => 1,
        Outcome::Judged { .. } => 2,
    };
    let mut passed = kind;
    coder.number(Column::Outcome, &mut passed, 0)?;
    if passed != kind {
        // Reading: the right shape, with values that are replaced below.
        *now = match passed {
            0 => blank::pages_outcome(),
            1 => blank::outcome(),
            2 => blank::judged_outcome(),
            _ => return Err(Malformed::Column(Column::Outcome)),
        };
    }
    match now {
        Outcome::Pages { generation, undo, group, to, requested_pages, moved_pages, time_ns, ended } => {
            coder.number(Column::OutcomeGeneration, generation, 0)?;
            coder.flag(Column::OutcomeFlag, undo, false)?;
            group_id(coder, (Column::OutcomeProcess, Column::OutcomeStart), group)?;
            coder.number(Column::OutcomeNode, to, blank::node().id)?;
            coder.number(Column::OutcomeRequested, requested_pages, 0)?;
            coder.number(Column::OutcomeMoved, moved_pages, *requested_pages)?;
            coder.number(Column::OutcomeTime, time_ns, 0)?;
            coder.text(Column::OutcomeWord, ended, "done")
        }
        Outcome::Refused { thread, why } => {
            people.pass(coder, Column::OutcomeThread, thread, 0)?;
            coder.text(Column::OutcomeWord, why, "")
        }
        Outcome::Judged { generation, before_ns, after_ns, undone } => {
            coder.number(Column::OutcomeGeneration, generation, 0)?;
            coder.optional(Column::OutcomeLatency, before_ns, None)?;
            coder.optional(Column::OutcomeLatency, after_ns, None)?;
            coder.flag(Column::OutcomeFlag, undone, false)
        }
    }
}
