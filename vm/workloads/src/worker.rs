// SPDX-License-Identifier: GPL-2.0-only
//! One working thread: random reads and writes, mostly private, some shared with its partner.

use crate::buffer::{Buffer, key};
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

/// Of 256 accesses, how many go to the shared buffer (20 %).
const SHARED_OF_256: u64 = 51;
/// Accesses between two looks at the clock.
const BATCH_ACCESSES: u64 = 1 << 14;

/// Share of a thread's accesses that go to its private buffer.
pub const PRIVATE_WEIGHT: f64 = (256 - SHARED_OF_256) as f64 / 256.0;
/// Share of a thread's accesses that go to the shared buffer.
pub const SHARED_WEIGHT: f64 = SHARED_OF_256 as f64 / 256.0;

/// What a thread did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Lines read or written.
    pub accesses: u64,
    private_writes: u64,
    shared_writes: u64,
    broken_reads: u64,
}

/// A thread's buffers and its number within its pair.
pub struct Worker<'a> {
    /// Used by this thread alone.
    pub private: &'a Buffer,
    /// Used by both threads of the pair.
    pub shared: &'a Buffer,
    /// 0 or 1: which of the shared counters are this thread's.
    pub slot: usize,
    /// Start of the random sequence; not 0.
    pub seed: u64,
}

impl Worker<'_> {
    /// Works until `deadline` or `stop`, then checks the memory.
    pub fn run(&self, stop: &AtomicBool, deadline: Instant) -> Result<Work> {
        let mut work = Work::default();
        let mut random = self.seed;
        while !stop.load(Relaxed) && Instant::now() < deadline {
            random = self.batch(random, &mut work);
        }
        self.check(&work)?;
        Ok(work)
    }

    /// One batch of single-line accesses; kept out of line, so that the loop is easy to find in a profile.
    #[inline(never)]
    fn batch(&self, mut random: u64, work: &mut Work) -> u64 {
        let (private, shared) = (self.private.lines(), self.shared.lines());
        for _ in 0..BATCH_ACCESSES {
            // xorshift64 (Marsaglia 2003, triple 13, 7, 17)
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let is_shared = random & 255 < SHARED_OF_256;
            let is_write = random >> 8 & 1 == 0;
            let lines = if is_shared { shared } else { private };
            let index = (((random >> 32) * lines.len() as u64) >> 32) as usize;
            let line = &lines[index];
            match (is_shared, is_write) {
                (false, true) => {
                    line.write(0, key(index));
                    work.private_writes += 1;
                }
                (false, false) => work.broken_reads += !line.read(0, key(index)) as u64,
                (true, true) => {
                    line.write(self.slot, key(index));
                    work.shared_writes += 1;
                }
                // The partner's counter may be half-written just now: reading it costs the same, its value says nothing.
                (true, false) => {
                    black_box(line.read(1 - self.slot, key(index)));
                    work.broken_reads += !line.read(self.slot, key(index)) as u64;
                }
            }
        }
        work.accesses += BATCH_ACCESSES;
        random
    }

    /// Fails unless memory holds exactly the writes that were made.
    fn check(&self, work: &Work) -> Result<()> {
        if work.broken_reads != 0 {
            bail!("self-check failed: {} reads gave a broken line", work.broken_reads);
        }
        let buffers =
            [("private", self.private, 0, work.private_writes), ("shared", self.shared, self.slot, work.shared_writes)];
        for (name, buffer, writer, written) in buffers {
            match buffer.count_writes(writer) {
                Ok(counted) if counted == written => {}
                Ok(counted) => bail!("self-check failed: {written} writes to {name} memory, which counts {counted}"),
                Err(line) => bail!("self-check failed: line {line} of {name} memory is broken"),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::PageSize;
    use std::time::Duration;

    fn buffers() -> (Buffer, Buffer) {
        let (private, shared) = (Buffer::map(1 << 20, PageSize::Base), Buffer::map(1 << 18, PageSize::Base));
        let (private, shared) = (private.unwrap(), shared.unwrap());
        private.first_touch();
        shared.first_touch();
        (private, shared)
    }

    #[test]
    fn the_same_seed_does_the_same_work_with_the_stated_shares() {
        let mut results = Vec::new();
        for _ in 0..2 {
            let (private, shared) = buffers();
            let worker = Worker { private: &private, shared: &shared, slot: 0, seed: 42 };
            let (mut work, mut random) = (Work::default(), 42);
            for _ in 0..20 {
                random = worker.batch(random, &mut work);
            }
            worker.check(&work).unwrap();
            results.push((work, random));
        }
        assert_eq!(results[0], results[1]);
        let work = results[0].0;
        let shared_share = work.shared_writes as f64 / (work.shared_writes + work.private_writes) as f64;
        assert!((shared_share - SHARED_WEIGHT).abs() < 0.01, "{shared_share}");
    }

    #[test]
    fn two_threads_of_a_pair_lose_no_write_of_the_shared_buffer() {
        let (first, shared) = buffers();
        let (second, _) = buffers();
        let stop = AtomicBool::new(false);
        let deadline = Instant::now() + Duration::from_millis(200);
        std::thread::scope(|scope| {
            for (slot, private) in [&first, &second].into_iter().enumerate() {
                let worker = Worker { private, shared: &shared, slot, seed: slot as u64 + 1 };
                let stop = &stop;
                scope.spawn(move || worker.run(stop, deadline).unwrap());
            }
        });
    }

    #[test]
    fn memory_that_lost_a_write_fails_the_self_check() {
        let (private, shared) = buffers();
        let worker = Worker { private: &private, shared: &shared, slot: 0, seed: 42 };
        let mut work = Work::default();
        worker.batch(42, &mut work);
        private.lines()[7].write(0, key(7));
        assert!(worker.check(&work).unwrap_err().to_string().contains("private"));
    }
}
