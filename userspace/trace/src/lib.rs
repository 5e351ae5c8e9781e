// SPDX-License-Identifier: GPL-2.0-only
//! Recordings of what an agent saw and decided, and their replay. The format is described in `docs/trace.md`.
//!
//! A recording is a file header and frames ([`frame`]). The first frame says under which settings the agent ran; every
//! interval is one more. An interval is coded against the one before it ([`walk`]): each field has a column of its own
//! ([`columns`]), which holds only how far the value is from the predicted one.

mod blank;
mod check;
mod coder;
mod columns;
mod frame;
mod interval;
mod reader;
mod recorder;
mod replay;
mod scales;
mod settings;
#[cfg(feature = "testing")]
pub mod testing;
mod walk;
mod writer;

pub use coder::Malformed;
pub use frame::{Damage, NotReadable, VERSION};
pub use interval::{Answer, Decision, Interval, Outcome};
pub use reader::{Entry, TraceReader};
pub use recorder::{CannotRecord, Recorder, Recording};
pub use replay::{Difference, Policies, Replay, ReplayError, Replayed};
pub use settings::{PolicySettings, Settings};
pub use writer::TraceWriter;
