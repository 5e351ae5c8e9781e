// SPDX-License-Identifier: GPL-2.0-only
//! Fair A/B experiments: one workload under several ways of scheduling and placing it.
//!
//! An experiment is a set of [`arm`]s, a [`workload`] and a number of boots. [`in_lab`] boots a machine for each run, in
//! virtual time; [`native`] uses the real one. The [`runner`] interleaves the arms and keeps every finished [`run`] in a
//! [`store`]; [`experiment`] puts the runs together by the rules of [`statistics`]; [`table`] and [`report`] show it.
//!
//! | file | concern |
//! |---|---|
//! | `arm`, `workload`, `list` | what the user names |
//! | `programs`, `arm.sh` | which programs a run needs, and its command line |
//! | `lab`, `stop` | the lab as a child process that can be stopped |
//! | `truth`, `vmstat`, `energy`, `run` | what a run leaves |
//! | `plan`, `runner`, `room`, `store`, `attempt` | order, how many at a time, resuming, failures |
//! | `calibration`, `statistics`, `notes` | whether and how far numbers may be believed |
//! | `experiment`, `compare` | the result as a document |
//! | `table`, `report`, `charts` | the result for eyes |
//! | `say` | words for the user |
//! | `page`, `plots` | pages that all reports are, and their plots as files |

pub mod arm;
mod attempt;
pub mod calibration;
pub mod charts;
pub mod compare;
mod energy;
pub mod experiment;
pub mod in_lab;
pub mod lab;
mod list;
pub mod native;
mod notes;
pub mod page;
pub mod plan;
pub mod plots;
pub mod programs;
pub mod report;
pub mod room;
pub mod run;
pub mod runner;
pub mod say;
pub mod statistics;
pub mod stop;
pub mod store;
pub mod table;
#[cfg(test)]
mod testing;
pub mod truth;
pub mod vmstat;
pub mod workload;
