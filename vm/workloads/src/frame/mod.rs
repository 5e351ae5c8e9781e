// SPDX-License-Identifier: GPL-2.0-only
//! What all workloads have in common: memory, threads, placement, timing, checks and the report.
//!
//! A workload makes a [`plan::Plan`]; [`command::run`] runs it: one process for each of its programs ([`child`],
//! [`program`]), arrays filled where their homes are ([`fill`]), threads at their seats ([`worker`]), the timed part
//! between two marks ([`run`], [`mark`]), then the check of what is in memory, then one line of JSON ([`report`]).

pub mod child;
pub mod command;
pub mod fill;
pub mod mark;
pub mod meeting;
pub mod memory;
pub mod plan;
pub mod program;
pub mod report;
pub mod run;
pub mod seating;
pub mod spec;
pub mod spin;
pub mod stop;
pub mod stream;
pub mod walk;
pub mod worker;
