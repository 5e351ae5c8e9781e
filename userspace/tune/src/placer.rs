// SPDX-License-Identifier: GPL-2.0-only
//! Who keeps a thread on its seat.
//!
//! Problem: a seat is a node. The kernel keeps a thread there by its affinity, which needs nobody else and forbids all other
//! CPUs; scx_tandem keeps it there by an assignment, which gives way to work that waits while CPUs elsewhere are idle, and which
//! is how placements are kept where that scheduler runs. Mechanism: a new thread is stopped while it gets its seat, so either is
//! in force before its first instruction. A seat that changes later is in force at once by affinity, and by an assignment when the
//! thread's time slice has ended.

use std::fmt;
use std::sync::Arc;

use anyhow::Result;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::process::bind;
use crate::seat::CpuSet;

/// What threads are kept on their seats by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadsBy {
    /// Their affinity.
    #[default]
    Affinity,
    /// Assignments of scx_tandem's.
    Assignments,
}

impl ThreadsBy {
    /// Whether it is what it is where nobody says anything.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// What whoever reads a time should know of it; nothing of affinity.
    pub fn note(self) -> Option<String> {
        (self == Self::Assignments).then(|| {
            "threads are kept on their nodes by assignments of scx_tandem, under whose scheduling all times are but that of the \
             program as it is; single regions were not tuned"
                .to_owned()
        })
    }
}

/// Assigns threads to nodes.
pub trait Assigner: Send + Sync {
    /// Assigns each thread to the node whose CPUs these are, from now on. Those that are gone are left out.
    ///
    /// # Errors
    /// A thread cannot be assigned, in one sentence.
    fn assign(&self, seats: &[(Pid, CpuSet)]) -> Result<()>;
}

/// Puts threads onto their seats.
#[derive(Clone, Default)]
pub enum Placer {
    /// By their affinity.
    #[default]
    Affinity,
    /// By assignments; affinity is left as it is.
    Assigner(Arc<dyn Assigner>),
}

impl Placer {
    /// Whether affinity is what keeps threads.
    pub fn is_affinity(&self) -> bool {
        matches!(self, Self::Affinity)
    }

    /// Puts each thread onto its seat, unless it is gone.
    ///
    /// # Errors
    /// One of them cannot be put there.
    pub fn put(&self, seats: &[(Pid, CpuSet)]) -> Result<()> {
        match self {
            Self::Affinity => seats.iter().try_for_each(|(thread, cpus)| bind(*thread, cpus)),
            Self::Assigner(_) if seats.is_empty() => Ok(()),
            Self::Assigner(assigner) => assigner.assign(seats),
        }
    }
}

impl fmt::Debug for Placer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_affinity() { "affinity" } else { "assignments" })
    }
}

impl PartialEq for Placer {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Affinity, Self::Affinity) => true,
            (Self::Assigner(one), Self::Assigner(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}
