// SPDX-License-Identifier: GPL-2.0-only
//! The heap of a process, as brk lets it grow.
//!
//! Problem: the C library lets it grow by 132 KiB at a time, so none of these steps is large enough to be bound, whatever they come to.
//! Mechanism: steps that are small are one allocation, which grows, from where they come to more than [`LEAST_BYTES`]. A
//! step that is large is an allocation of its own, and ends the one that grew.

use tandem_policies::model::PAGE_BYTES;

use super::{LEAST_BYTES, up};

/// The site of allocations that grow with the heap.
pub const SITE: &str = "heap";

/// What the heap grew by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Nothing that is bound.
    Little,
    /// As much as is an allocation of its own.
    Large {
        /// Its first byte.
        begin: u64,
        /// How many.
        bytes: u64,
    },
    /// A part of what grows in small steps.
    Step(Step),
}

/// New pages of an allocation that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How many such allocations there were before it.
    pub order: u32,
    /// Address of the allocation's first page.
    pub begin: u64,
    /// The first new page, counted from there.
    pub first: u64,
    /// The page behind the last one.
    pub end: u64,
    /// So many pages it had at most before: it may have been given back in part.
    pub had: u64,
}

/// Small steps that came to something.
#[derive(Clone, Copy, Debug)]
struct Growing {
    begin: u64,
    had: u64,
}

/// The heap of one process.
#[derive(Clone, Debug, Default)]
pub struct Heap {
    /// Where it ends, once the process has asked for that.
    end: Option<u64>,
    /// Where the last small steps begin.
    small_from: u64,
    growing: Option<Growing>,
    /// How many there were that grew.
    many: u32,
}

impl Heap {
    /// It ends here now.
    pub fn ends_at(&mut self, end: u64) -> Growth {
        let Some(before) = self.end.replace(end) else {
            self.small_from = end;
            return Growth::Little;
        };
        if end <= before {
            self.small_from = self.small_from.min(end);
            self.growing = self.growing.filter(|growing| growing.begin < up(end));
            return Growth::Little;
        }
        if end - before >= LEAST_BYTES {
            (self.small_from, self.growing) = (end, None);
            return Growth::Large { begin: before, bytes: end - before };
        }
        if self.growing.is_none() && end - self.small_from <= LEAST_BYTES {
            return Growth::Little;
        }
        let many = &mut self.many;
        let growing = self.growing.get_or_insert_with(|| {
            *many += 1;
            Growing { begin: up(before), had: 0 }
        });
        let page = |address: u64| (up(address) - growing.begin) / PAGE_BYTES;
        let (first, end, had) = (page(before), page(end), growing.had);
        if first == end {
            return Growth::Little;
        }
        growing.had = had.max(end);
        Growth::Step(Step { order: *many - 1, begin: growing.begin, first, end, had })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: u64 = 33 * PAGE_BYTES;
    const BEGIN: u64 = 0x10000;

    fn step(order: u32, begin: u64, pages: (u64, u64), had: u64) -> Growth {
        Growth::Step(Step { order, begin, first: pages.0, end: pages.1, had })
    }

    #[test]
    fn small_steps_are_one_allocation_beyond_256_kib() {
        let mut heap = Heap::default();
        assert_eq!([BEGIN, BEGIN, BEGIN + SMALL].map(|end| heap.ends_at(end)), [Growth::Little; 3]);
        let first = BEGIN + SMALL;
        assert_eq!(heap.ends_at(first + SMALL), step(0, first, (0, 33), 0));
        // Every page once, the one that a step ends in with that.
        assert_eq!(heap.ends_at(first + SMALL + 8), step(0, first, (33, 34), 33));
        assert_eq!(heap.ends_at(first + SMALL + 16), Growth::Little);
        assert_eq!(heap.ends_at(first + 2 * SMALL), step(0, first, (34, 66), 34));
        // Some of it is given back and asked for again.
        assert_eq!(heap.ends_at(first + SMALL), Growth::Little);
        assert_eq!(heap.ends_at(first + 2 * SMALL), step(0, first, (33, 66), 66));
        assert_eq!(heap.ends_at(first + 3 * SMALL), step(0, first, (66, 99), 66));
    }

    #[test]
    fn a_large_step_is_an_allocation_of_its_own_and_ends_what_grew() {
        let mut heap = Heap::default();
        heap.ends_at(BEGIN);
        assert_eq!(heap.ends_at(BEGIN + LEAST_BYTES), Growth::Large { begin: BEGIN, bytes: LEAST_BYTES });
        let mut end = BEGIN + LEAST_BYTES;
        for order in 0..2 {
            let steps = [1, 2].map(|small| heap.ends_at(end + small * SMALL));
            assert_eq!(steps, [Growth::Little, step(order, end + SMALL, (0, 33), 0)]);
            end += 2 * SMALL + LEAST_BYTES;
            assert!(matches!(heap.ends_at(end), Growth::Large { .. }));
        }
        // All of it is given back.
        assert_eq!([BEGIN, BEGIN + SMALL].map(|end| heap.ends_at(end)), [Growth::Little; 2]);
        assert_eq!(heap.ends_at(BEGIN + 2 * SMALL), step(2, BEGIN + SMALL, (0, 33), 0));
    }
}
