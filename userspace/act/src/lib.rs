// SPDX-License-Identifier: GPL-2.0-only
//! Acting on a plan: moves pages under a budget, says what became of each, and can undo it.
//!
//! [`Mover`] executes page-group moves through [`MovePages`], [`KernelMover`] has the kernel do it; [`UndoLog`] remembers where pages came from;
//! [`Cooldowns`] and [`Generation`] are shared by threads and pages, so that the two halves cannot chase each other.

mod assign;
mod contested;
mod generation;
mod kernel_mover;
mod memory_watch;
mod migrations;
mod move_pages;
mod mover;
mod outcome;
mod page_mover;
mod pressure;
mod programs;
mod ranges;
mod room;
mod stuck;
mod undo;

pub use assign::{AssignmentSink, Assignments, RefusedAssignment};
pub use contested::{Contest, Contested, Found};
pub use generation::{Cooldowns, Generation};
pub use kernel_mover::{Attention, KernelMover};
pub use memory_watch::{MemoryNotice, MemoryWatch};
pub use migrations::Migrations;
pub use move_pages::{Call, CallError, LinuxMovePages, MovePages, PageStatus, UNWRITTEN};
pub use mover::{Mover, MoverConfig};
pub use outcome::{Ended, Outcome, Purpose};
pub use page_mover::{PageMove, PageMover, Refused};
pub use programs::Programs;
pub use room::{HugeBlocks, Room, ZoneRooms};
pub use stuck::Stuck;
pub use undo::{MovedPage, PageSet, UndoEntry, UndoLog};
