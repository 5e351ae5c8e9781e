// SPDX-License-Identifier: GPL-2.0-only
//! Drops accesses that caches absorb, so that what is left stands for memory traffic.
//!
//! Three rules: lines within [`STACK_BYTES`] of the stack pointer; a line touched before in the same sample;
//! a line that occurs in at least 3 of 4 recent samples of its thread (after 8 samples; counts halve every
//! 64 samples).

use hashbrown::{HashMap, HashSet};

use super::counters::LookaheadCounters;
use super::emulator::Touch;

/// Cache line of every x86-64 machine.
const LINE_BYTES: u64 = 64;
/// The warm part of a stack: a few call frames to either side.
const STACK_BYTES: u64 = 2048;
const MIN_SAMPLES: u32 = 8;
const HALVE_AT: u32 = 64;
/// Threads remembered; the table starts anew beyond that.
const MAX_THREADS: usize = 4096;
const MAX_LINES: usize = 512;

#[derive(Default)]
struct Recent {
    samples: u32,
    lines: HashMap<u64, u32>,
}

/// Recent lines by thread.
#[derive(Default)]
pub(super) struct CacheFilter {
    threads: HashMap<u32, Recent>,
    seen: HashSet<u64>,
}

impl CacheFilter {
    /// The touches of one sample of thread `tid` that count as memory accesses.
    pub(super) fn keep<'a>(
        &'a mut self,
        tid: u32,
        stack_pointer: u64,
        touches: &'a [Touch],
        counters: &'a mut LookaheadCounters,
    ) -> impl Iterator<Item = Touch> + 'a {
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            self.threads.clear();
        }
        let recent = self.threads.entry(tid).or_default();
        recent.samples += 1;
        if recent.samples > HALVE_AT {
            recent.samples /= 2;
            recent.lines.retain(|_, hits| {
                *hits /= 2;
                *hits > 0
            });
        }
        let seen = &mut self.seen;
        seen.clear();
        touches.iter().copied().filter(move |touch| {
            let line = touch.address / LINE_BYTES;
            if touch.address.abs_diff(stack_pointer) < STACK_BYTES {
                counters.stack_accesses += 1;
                return false;
            }
            if !seen.insert(line) {
                counters.repeated_accesses += 1;
                return false;
            }
            if recent.lines.len() >= MAX_LINES && !recent.lines.contains_key(&line) {
                recent.lines.retain(|_, hits| *hits > 1);
            }
            let room = recent.lines.len() < MAX_LINES;
            let hits = match recent.lines.get_mut(&line) {
                Some(hits) => {
                    *hits += 1;
                    *hits
                }
                None if room => *recent.lines.entry(line).or_insert(1),
                None => 1,
            };
            let cached = recent.samples >= MIN_SAMPLES && hits * 4 >= recent.samples * 3;
            counters.cached_accesses += u64::from(cached);
            !cached
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(address: u64) -> Touch {
        Touch { address, bytes: 8, store: false }
    }

    #[test]
    fn stack_repeated_and_recurring_lines_are_dropped() {
        let (mut filter, mut counters) = (CacheFilter::default(), LookaheadCounters::default());
        let mut kept = 0;
        for sample in 0..20_u64 {
            let touches = [touch(0x7fff_0010), touch(0x1000), touch(0x1008), touch(0x10_0000 + sample * 4096)];
            kept = filter.keep(1, 0x7fff_0000, &touches, &mut counters).count();
        }
        assert_eq!(kept, 1, "only the line that is new in each sample is left");
        assert_eq!((counters.stack_accesses, counters.repeated_accesses, counters.cached_accesses), (20, 20, 13));
    }
}
