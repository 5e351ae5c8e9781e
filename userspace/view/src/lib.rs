// SPDX-License-Identifier: GPL-2.0-only
//! What scx_tandem shows of itself and of the machine: shapes, how they follow from a [`Snapshot`], and the socket they
//! are read from.
//!
//! [`Snapshot`]: tandem_policies::model::Snapshot

mod board;
mod explain;
mod maybe;
mod prometheus;
mod shapes;
mod socket;
mod survey;
mod words;

pub use board::Board;
pub use maybe::Maybe;
pub use prometheus::prometheus;
pub use shapes::{
    Activity, AgentView, MoveView, NodeView, PlanVerdict, PlanView, ProcessView, SamplerView, Status, Superseding,
    ThreadView,
};
pub use socket::{Client, SOCKET, Server, describe};
pub use survey::{Survey, survey};
pub use words::{line, percent};
