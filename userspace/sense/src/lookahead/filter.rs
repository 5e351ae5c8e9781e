// SPDX-License-Identifier: GPL-2.0-only
//! Drops accesses that caches absorb, so that what is left stands for memory traffic.
//!
//! Four rules: lines within [`STACK_BYTES`] of the stack pointer; a line touched before in the same sample;
//! a line that occurs in at least 3 of 4 recent samples of its thread (after 8 samples; counts halve every
//! 64 samples); a line seen before while the thread stays within a first-level cache, which is so when hardly any line of
//! its samples is new among the last 512, unless another thread of its process uses it too: what is written elsewhere has to come anew.
//! Processes that have memory in common see it at addresses that tell nothing, so each is taken to be alone with it.

use std::collections::BTreeSet;

use hashbrown::{HashMap, HashSet};
use tandem_machine::LINE_BYTES;
use tandem_policies::model::{ProcessId, ThreadId};

use super::counters::LookaheadCounters;
use super::emulator::Touch;

/// The warm part of a stack: a few call frames to either side.
pub(super) const STACK_BYTES: u64 = 2048;
const MIN_SAMPLES: u32 = 8;
const HALVE_AT: u32 = 64;
/// Threads remembered; the table starts anew beyond that.
const MAX_THREADS: usize = 4096;
/// Lines remembered of a thread: 32 KiB, the smallest first-level cache there is.
const MAX_LINES: usize = 512;
/// What one sample adds to a line's hits: one seen once is remembered for three times as long as it takes to halve them.
const HIT: u32 = 4;
/// A thread stays within the lines that are remembered when fewer of those it touches are new.
const FEW_NEW: f32 = 0.1;
/// Weight of one sample in the share of lines that are new.
const SAMPLE_WEIGHT: f32 = 1.0 / 16.0;
/// Lines remembered of all threads, to know which are used by several; the table starts anew beyond that.
const MAX_USED_LINES: usize = 16_384;

struct Recent {
    samples: u32,
    lines: HashMap<u64, u32>,
    /// Share of new lines among those of recent samples.
    new_share: f32,
}

impl Default for Recent {
    fn default() -> Self {
        Self { samples: 0, lines: HashMap::default(), new_share: 1.0 }
    }
}

impl Recent {
    /// Counts a sample; what was seen long ago fades.
    fn begin_sample(&mut self) {
        self.samples += 1;
        if self.samples > HALVE_AT {
            self.samples /= 2;
            self.lines.retain(|_, hits| {
                *hits /= 2;
                *hits > 0
            });
        }
    }

    /// Counts a touch of `line`; its hits with this one.
    fn hit(&mut self, line: u64) -> u32 {
        if self.lines.len() >= MAX_LINES && !self.lines.contains_key(&line) {
            self.lines.retain(|_, hits| *hits > HIT);
        }
        let room = self.lines.len() < MAX_LINES;
        match self.lines.get_mut(&line) {
            Some(hits) => {
                *hits += HIT;
                *hits
            }
            None if room => *self.lines.entry(line).or_insert(HIT),
            None => HIT,
        }
    }

    /// Whether `line` occurs in 3 of 4 samples.
    fn recurs(&self, hits: u32) -> bool {
        self.samples >= MIN_SAMPLES && hits * 4 >= self.samples * HIT * 3
    }

    fn note_new(&mut self, new: u32, lines: u32) {
        if lines > 0 {
            self.new_share += (new as f32 / lines as f32 - self.new_share) * SAMPLE_WEIGHT;
        }
    }
}

/// A line, by number, in the memory of a process.
type Line = (ProcessId, u64);

/// Who uses a line.
#[derive(Clone, Copy, PartialEq)]
enum Users {
    One(u32),
    Several,
}

/// Recent lines by thread.
#[derive(Default)]
pub(super) struct CacheFilter {
    threads: HashMap<u32, Recent>,
    used: HashMap<Line, Users>,
    seen: HashSet<u64>,
}

impl CacheFilter {
    /// Forgets these processes and their threads.
    pub(super) fn forget(&mut self, gone: &BTreeSet<ProcessId>, threads: &BTreeSet<ThreadId>) {
        self.used.retain(|(process, _), _| !gone.contains(process));
        threads.iter().for_each(|thread| drop(self.threads.remove(&thread.tid)));
    }

    /// The touches of one sample of a thread of this process that count as memory accesses.
    pub(super) fn keep(
        &mut self,
        (process, tid): (ProcessId, u32),
        stack_pointer: u64,
        touches: &[Touch],
        counters: &mut LookaheadCounters,
    ) -> Vec<Touch> {
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            self.threads.clear();
        }
        let recent = self.threads.entry(tid).or_default();
        recent.begin_sample();
        let stays_in_cache = recent.new_share < FEW_NEW;
        self.seen.clear();
        let mut kept = Vec::with_capacity(touches.len());
        let mut new = 0;
        for touch in touches {
            let line = touch.address / LINE_BYTES;
            if touch.address.abs_diff(stack_pointer) < STACK_BYTES {
                counters.stack_accesses += 1;
                continue;
            }
            if !self.seen.insert(line) {
                counters.repeated_accesses += 1;
                continue;
            }
            let hits = recent.hit(line);
            new += u32::from(hits == HIT);
            let alone = note_user(&mut self.used, (process, line), tid) == Users::One(tid);
            if recent.recurs(hits) || stays_in_cache && alone && hits > HIT {
                counters.cached_accesses += 1;
            } else {
                kept.push(*touch);
            }
        }
        recent.note_new(new, self.seen.len() as u32);
        kept
    }
}

/// Notes that `tid` uses `line`; who does now.
fn note_user(used: &mut HashMap<Line, Users>, line: Line, tid: u32) -> Users {
    if used.len() >= MAX_USED_LINES {
        used.clear();
    }
    let users = used.entry(line).or_insert(Users::One(tid));
    if *users != Users::One(tid) {
        *users = Users::Several;
    }
    *users
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
            kept = filter.keep((ProcessId(1), 1), 0x7fff_0000, &touches, &mut counters).len();
        }
        assert_eq!(kept, 1, "only the line that is new in each sample is left");
        assert_eq!((counters.stack_accesses, counters.repeated_accesses, counters.cached_accesses), (20, 20, 13));
    }

    /// Touches of samples `samples` of a thread that walks over `lines` lines again and again, 11 a sample.
    fn walk(samples: std::ops::Range<u64>, lines: u64) -> impl Iterator<Item = Vec<Touch>> {
        samples
            .map(move |sample| (0..11).map(|at| touch(0x10_0000 + (sample * 11 + at) % lines * LINE_BYTES)).collect())
    }

    /// How many of 64 more samples of each thread, by process and tid, are kept, after 128 of the same kind.
    fn kept_of_walks(lines: u64, threads: &[(u32, u32)]) -> usize {
        let (mut filter, mut counters) = (CacheFilter::default(), LookaheadCounters::default());
        let mut keep = |samples| -> usize {
            walk(samples, lines)
                .flat_map(|touches| threads.iter().map(move |&thread| (thread, touches.clone())))
                .map(|((process, tid), touches)| {
                    filter.keep((ProcessId(process), tid), 0x7fff_0000, &touches, &mut counters).len()
                })
                .sum()
        };
        keep(0..128);
        keep(128..192)
    }

    /// Spec of the thesis, section 3: the known answer for its DRAM-only filter.
    #[test]
    fn a_loop_within_the_first_level_cache_is_no_memory_traffic() {
        assert_eq!(kept_of_walks(128, &[(1, 1)]), 0, "8 KiB");
        assert_eq!(kept_of_walks(480, &[(1, 1)]), 0, "30 KiB");
        assert_eq!(kept_of_walks(1 << 16, &[(1, 1)]), 64 * 11, "4 MiB: every line comes from memory");
    }

    #[test]
    fn small_memory_that_several_threads_use_is_traffic() {
        assert_eq!(kept_of_walks(128, &[(1, 1), (1, 2)]), 2 * 64 * 11);
    }

    #[test]
    fn small_memory_that_threads_of_another_program_shared_is_none() {
        let (mut filter, mut counters) = (CacheFilter::default(), LookaheadCounters::default());
        let mut kept = |threads: &[u32], samples, filter: &mut CacheFilter| -> usize {
            let of = |touches: Vec<Touch>| -> usize {
                let mut keep = |tid| filter.keep((ProcessId(1), tid), 0x7fff_0000, &touches, &mut counters).len();
                threads.iter().map(|&tid| keep(tid)).sum()
            };
            walk(samples, 128).map(of).sum()
        };
        kept(&[1, 2], 0..128, &mut filter);
        filter.forget(&[ProcessId(1)].into(), &[1, 2].map(|tid| ThreadId { tid, start_boottime_ns: 1 }).into());
        kept(&[1], 128..256, &mut filter);
        assert_eq!(kept(&[1], 256..320, &mut filter), 0);
    }

    #[test]
    fn small_memory_of_processes_at_the_same_addresses_is_none() {
        assert_eq!(kept_of_walks(128, &[(1, 1), (2, 2)]), 0, "as workers have it that were forked of one process");
    }
}
