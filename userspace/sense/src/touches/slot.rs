// SPDX-License-Identifier: GPL-2.0-only
//! What the table is made of: two users in 40 bytes, so that with its part of the index, and where its
//! pages are, a group takes 64 at most.

use std::ops::Range;

use crate::thread_numbers::ThreadNumber;

/// Users in a slot.
pub(super) const SLOT_USERS: usize = 2;
/// End of a chain.
pub(super) const NONE: u32 = u32::MAX;
/// Weights below this are forgotten.
pub(super) const FAINTEST: f32 = 0.01;

/// An access that was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Seen {
    /// When its thread was looked at.
    pub(crate) time_ns: u64,
    /// How much it counts.
    pub(crate) weight: f32,
}

/// One that counts in full.
impl From<u64> for Seen {
    fn from(time_ns: u64) -> Self {
        Self { time_ns, weight: 1.0 }
    }
}

/// What was seen of one thread, aged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct User {
    pub(super) number: Option<ThreadNumber>,
    /// The last look at the thread, folded.
    last_look: u16,
    /// Aged count of accesses.
    pub(crate) accesses: f32,
    /// Aged count of looks at the thread in which there was one.
    pub(crate) looks: f32,
}

impl User {
    /// A user that was not seen yet.
    pub(super) fn of(thread: ThreadNumber) -> Self {
        Self { number: Some(thread), ..Self::default() }
    }

    pub(super) fn add(&mut self, Seen { time_ns, weight }: Seen) {
        let look = (time_ns ^ (time_ns >> 16)) as u16;
        if self.looks == 0.0 || look != self.last_look {
            (self.looks, self.last_look) = (self.looks + 1.0, look);
        }
        self.accesses += weight;
    }

    pub(super) fn age(&mut self, factor: f32) {
        self.accesses *= factor;
        self.looks *= factor;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Free,
    First,
    Continued,
}

/// 40 bytes; the place is split so that its parts need no alignment to 8.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) process: u32,
    /// The page number from bit 19 on, pages - 1 in bits 10 to 18, a mark of the user's in bits 2 to 9, the role below.
    place: [u32; 2],
    pub(super) next: u32,
    pub(super) users: [User; SLOT_USERS],
}

impl Slot {
    pub(super) const FREE: Slot = Slot {
        process: 0,
        place: [0; 2],
        next: NONE,
        users: [User { number: None, last_look: 0, accesses: 0.0, looks: 0.0 }; SLOT_USERS],
    };

    pub(super) fn place(&self) -> u64 {
        u64::from(self.place[0]) | u64::from(self.place[1]) << 32
    }

    pub(super) fn set_place(&mut self, pages: &Range<u64>, mark: u8, role: Role) {
        let place = pages.start << 19 | (pages.end - pages.start - 1) << 10 | u64::from(mark) << 2 | role as u64;
        self.place = [place as u32, (place >> 32) as u32];
    }

    pub(super) fn pages(&self) -> Range<u64> {
        let start = self.place() >> 19;
        start..start + (self.place() >> 10 & 0x1ff) + 1
    }

    pub(super) fn mark(&self) -> u8 {
        (self.place() >> 2) as u8
    }

    pub(super) fn role(&self) -> Role {
        match self.place() & 3 {
            0 => Role::Free,
            1 => Role::First,
            _ => Role::Continued,
        }
    }
}
