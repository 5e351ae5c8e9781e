// SPDX-License-Identifier: GPL-2.0-only
//! Whether a program's memory fits into the caches.

use serde::{Deserialize, Serialize};

/// Memory that was touched, and the caches of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// Bytes of the pages that were touched.
    pub touched_bytes: u64,
    /// Bytes of all caches together, all levels.
    pub cache_bytes: u64,
}

impl Footprint {
    /// Equation 14 (Characterizing): pages x page size > sum of all cache sizes. True: where pages are matters. False: after
    /// the first touches the caches serve the program, and moving its pages brings little, wherever they are.
    pub fn exceeds_caches(self) -> bool {
        self.touched_bytes > self.cache_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_footprint_as_large_as_the_caches_still_fits() {
        let of = |touched_bytes| Footprint { touched_bytes, cache_bytes: 64 << 20 };
        assert!(!of(64 << 20).exceeds_caches() && of((64 << 20) + 4096).exceeds_caches());
    }
}
