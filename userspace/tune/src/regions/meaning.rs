// SPDX-License-Identifier: GPL-2.0-only
//! Functions that tell of parallel regions.

use nix::sys::ptrace::{self, AddressType};
use nix::unistd::Pid;

use crate::breakpoint::Stand;

/// What a breakpoint is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A function of libgomp that runs the region which is its first argument, with as many threads as its third says.
    Gomp,
    /// libomp's that runs the region which is its third argument.
    Kmp,
    /// A function that counts like a region.
    Named,
    /// The program sets the number of threads of all further regions: the first argument.
    SetsNumber,
    /// Fortran's for the same: the first argument is where the number is.
    SetsNumberAt,
    /// It gives the next region of libomp a number of threads: the third argument.
    PushesNumber,
}

impl Meaning {
    /// Whether a region is entered there.
    pub fn is_region(self) -> bool {
        matches!(self, Self::Gomp | Self::Kmp | Self::Named)
    }
}

/// What libomp's function for `num_threads` is called.
const PUSH: &str = "__kmpc_push_num_threads";

/// What libomp's function is called that tells a thread's number, which that one wants.
pub const THREAD_NUMBER: &str = "__kmpc_global_thread_num";

/// What a function of this name is, if it matters; `named` ones count like regions.
pub fn meaning(name: &str, named: &[String]) -> Option<Meaning> {
    let gomp = name.starts_with("GOMP_parallel") && !name.ends_with("_start") && !name.ends_with("_end");
    match name {
        "__kmpc_fork_call" => Some(Meaning::Kmp),
        "omp_set_num_threads" => Some(Meaning::SetsNumber),
        "omp_set_num_threads_" => Some(Meaning::SetsNumberAt),
        PUSH => Some(Meaning::PushesNumber),
        _ if gomp => Some(Meaning::Gomp),
        _ if named.iter().any(|one| one == name) => Some(Meaning::Named),
        _ => None,
    }
}

/// The function of the region that is entered.
pub fn function(meaning: Meaning, stand: &Stand) -> u64 {
    match meaning {
        Meaning::Kmp => stand.third,
        Meaning::Named => stand.at,
        _ => stand.first,
    }
}

/// The number of threads that is at an address of the process of `thread`, which is stopped.
pub fn number_at(thread: Pid, address: u64) -> Option<usize> {
    ptrace::read(thread, address as AddressType).ok().map(|word| word as u32 as usize)
}
