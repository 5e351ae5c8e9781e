// SPDX-License-Identifier: GPL-2.0-only
//! How a program's threads share memory and use its pages, in numbers: pure functions, whatever saw the accesses.
//!
//! Problem: before threads and pages are placed one wants to know whether placing can bring anything, and where. Two
//! kinds of numbers tell: how unevenly threads share (then some belong together), and how far pages are used from one
//! node only (then they belong there).
//!
//! | file | metrics | equations |
//! |---|---|---|
//! | `communication` | heterogeneity, C_H, C_A, the part of the sharing that stays, across nodes | 1 to 6 |
//! | `phases` | when C_H changes | 7 |
//! | `pages` | exclusivity, accuracy, balance, at three page sizes | 8 to 13 |
//! | `footprint` | memory against caches | 14 |
//! | `meaning` | a sentence for a value | |
//!
//! Equations are numbered as in docs/profile.md. Sources: Diener, Cruz, Pilla, Dupros, Navaux, "Characterizing
//! Communication and Page Usage of Parallel Applications for Thread and Data Mapping", Performance Evaluation 2015
//! (below: Characterizing); Diener, Cruz, Navaux, Busse, Heiss, "kMAF", PACT 2014. What neither has is marked: ours.

pub mod communication;
pub mod footprint;
pub mod meaning;
pub mod pages;
pub mod phases;

pub use communication::Communication;
pub use footprint::Footprint;
pub use pages::{PageSize, PageUse, Pages};
pub use phases::Phase;
