// SPDX-License-Identifier: GPL-2.0-only
//! The calls for one batch of pages, and for several batches at the same time. Nothing is counted here.

use std::io;
use std::thread::{self, ScopedJoinHandle};

use tandem_machine::ProgramId;
use tandem_policies::model::{NodeId, ProcessId};

use super::job::{BATCH_PAGES, Job};
use crate::move_pages::UNWRITTEN;
use crate::{CallError, MovePages, PageStatus, Purpose};

/// Pages that shall be on a node.
pub(super) struct Order {
    process: ProcessId,
    /// The program that the pages are of, if that is known.
    program: Option<ProgramId>,
    pub(super) addresses: Vec<u64>,
    to: NodeId,
    /// If set, only those that are on this node go.
    only_from: Option<NodeId>,
}

/// What became of an order.
pub(super) struct Settled {
    /// Whether it could be asked where the pages were; if not, nothing else happened.
    pub(super) asked: Result<(), CallError>,
    /// Where the pages were that were not sent, or why they are nowhere.
    pub(super) unsent: Vec<PageStatus>,
    /// The pages that were sent, where they were, and what became of each.
    pub(super) sent: Vec<(u64, NodeId, PageStatus)>,
    /// What the call that sent them said.
    pub(super) result: Result<u64, CallError>,
    /// Whether what was sent is one huge page, which moved whole.
    pub(super) huge: bool,
    /// CPU time of all calls.
    pub(super) time_ns: u64,
}

/// Carries out orders, at the same time if there are several and as many threads can be had.
pub(super) fn carry_out<S: MovePages>(system: &S, orders: &[&Order]) -> Vec<Settled> {
    if let [order] = orders {
        return vec![order.carry_out(system)];
    }
    thread::scope(|scope| {
        let mut running = Vec::new();
        for &order in orders {
            let near = move || {
                system.go_near(order.to);
                order.carry_out(system)
            };
            running.push((order, thread::Builder::new().spawn_scoped(scope, near)));
        }
        let settle = |(order, thread): (&Order, io::Result<ScopedJoinHandle<'_, Settled>>)| match thread {
            Ok(thread) => thread.join().expect("moving pages does not panic"),
            Err(_) => order.carry_out(system),
        };
        running.into_iter().map(settle).collect()
    })
}

impl Order {
    /// To send the pages of a job's batch, which are of this program.
    pub(super) fn of(job: &Job, addresses: Vec<u64>, program: Option<ProgramId>) -> Self {
        let only_from = match job.outcome.purpose {
            Purpose::Undo { from } => Some(from),
            Purpose::Plan => None,
        };
        Self { process: job.outcome.group.process, program, addresses, to: job.outcome.to, only_from }
    }

    /// Asks where the pages are and sends those that are elsewhere.
    fn carry_out<S: MovePages>(&self, system: &S) -> Settled {
        let (before, time_ns) = self.ask(system, &self.addresses);
        // As late as can be: the answer too may be of another program, and asking takes its time.
        let before =
            before.and_then(|before| if self.is_meant(system) { Ok(before) } else { Err(CallError::ProcessGone) });
        let asked = before.as_ref().map(|_| ()).map_err(|&error| error);
        let mut settled = Settled { asked, unsent: Vec::new(), sent: Vec::new(), result: Ok(0), huge: false, time_ns };
        let goes = |node: NodeId| node != self.to && self.only_from.is_none_or(|from| node == from);
        for (&address, status) in self.addresses.iter().zip(before.unwrap_or_default()) {
            match status {
                PageStatus::On(node) if goes(node) => settled.sent.push((address, node, PageStatus::Busy)),
                status => settled.unsent.push(status),
            }
        }
        if !settled.sent.is_empty() {
            self.send(system, &mut settled);
        }
        settled
    }

    /// Whether the process runs the program that the pages are of.
    fn is_meant<S: MovePages>(&self, system: &S) -> bool {
        self.program.is_none_or(|program| system.program(self.process) == Some(program))
    }

    fn ask<S: MovePages>(&self, system: &S, addresses: &[u64]) -> (Result<Vec<PageStatus>, CallError>, u64) {
        let mut raw = vec![UNWRITTEN; addresses.len()];
        let call = system.call(self.process, addresses, None, &mut raw);
        (call.result.map(|_| raw.into_iter().map(PageStatus::from_raw).collect()), call.time_ns)
    }

    /// Sends pages and asks again for those whose status is not final: all but the first page of a huge page are
    /// reported busy or not at all although they moved with it.
    fn send<S: MovePages>(&self, system: &S, settled: &mut Settled) {
        let addresses: Vec<u64> = settled.sent.iter().map(|sent| sent.0).collect();
        let mut raw = vec![UNWRITTEN; addresses.len()];
        let call = system.call(self.process, &addresses, Some(self.to), &mut raw);
        settled.result = call.result;
        settled.time_ns += call.time_ns;
        for (sent, raw) in settled.sent.iter_mut().zip(raw) {
            sent.2 = PageStatus::from_raw(raw);
        }
        let open: Vec<usize> = (0..addresses.len()).filter(|&at| settled.sent[at].2 == PageStatus::Busy).collect();
        if open.is_empty() {
            return;
        }
        let asked: Vec<u64> = open.iter().map(|&at| addresses[at]).collect();
        let (found, time_ns) = self.ask(system, &asked);
        settled.time_ns += time_ns;
        // What cannot be asked stays busy, and is tried again.
        for (&at, status) in open.iter().zip(found.unwrap_or_default()) {
            settled.sent[at].2 = status;
        }
        settled.huge = is_followed_by_all(&open, addresses.len())
            && settled.sent.iter().all(|sent| sent.2 == PageStatus::On(self.to));
    }
}

/// Whether these are the pages that are reported busy where so many are one huge page: either those that follow the first,
/// or the second only, at which the kernel moves what it has and finds the others where they are to be.
fn is_followed_by_all(busy: &[usize], pages: usize) -> bool {
    pages as u64 == BATCH_PAGES && (*busy == [1] || busy.iter().copied().eq(1..pages))
}
