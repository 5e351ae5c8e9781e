// SPDX-License-Identifier: GPL-2.0-only
//! What a program's threads share and how they use its pages, from every access that it makes or from samples of them.
//!
//! [`emulator`] runs the program with the trace plugin (vm/trace), and [`trace`] reads what that leaves; or [`samples`] makes a
//! trace of what a sampler saw. [`profile`] makes a document of it, [`table`] and [`report`] show it.
//!
//! | file | concern |
//! |---|---|
//! | `emulator` | finding and running the program |
//! | `trace` | traces, and their files |
//! | `samples` | a trace made of samples |
//! | `machine` | the machine that threads are placed on, with its caches |
//! | `placement` | placements of threads, and what they cost |
//! | `profile` | the document |
//! | `metrics` | its numbers, each with its sentence |
//! | `table`, `report`, `charts` | the document for eyes |

mod charts;
pub mod emulator;
pub mod machine;
mod metrics;
pub mod placement;
pub mod profile;
pub mod report;
pub mod samples;
pub mod table;
#[cfg(test)]
mod testing;
pub mod trace;

pub use tandem_metrics::PageUse;
