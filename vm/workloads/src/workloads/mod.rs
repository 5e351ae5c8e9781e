// SPDX-License-Identifier: GPL-2.0-only
//! The workloads. Each file says one workload's memory, who touches what, its check, and its best and worst placement.

mod all_shared;
mod bandwidth;
mod cg;
mod crossed;
mod hogs;
mod is;
mod jobs;
mod kernel;
mod master_init;
mod membench;
mod migration;
mod mixed;
mod oltp;
mod pairs;
mod phases;
mod ping_pong;
mod ring;
mod sharers;
mod sp;

use crate::frame::spec::Spec;

/// All workloads, in the order of lists.
pub const ALL: &[Spec] = &[
    crossed::SPEC,
    pairs::SPEC,
    ring::SPEC,
    master_init::SPEC,
    phases::SPEC,
    all_shared::SPEC,
    hogs::SPEC,
    bandwidth::SPEC,
    ping_pong::SPEC,
    mixed::SPEC,
    sharers::HUBENCH,
    sharers::LUBENCH,
    membench::SPEC,
    oltp::SPEC,
    jobs::QUEUE,
    jobs::INTERACTIVE_SPEC,
    cg::SPEC,
    sp::SPEC,
    is::SPEC,
    migration::SPEC,
];
