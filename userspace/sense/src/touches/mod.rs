// SPDX-License-Identifier: GPL-2.0-only
//! Who touched which pages, in at most 52 bytes for every two users.
//!
//! A *record* is a run of pages of one process with the threads that touched them. Records lie in aligned *blocks*, which
//! bound their size; those of one block do not overlap, and grow into what no record covers. Records are made of *slots* in
//! one array: a slot holds two users, and a record with more continues in the next slot of its chain. A chain holds the
//! records of a block, ascending by address, and a hash table finds its first slot. The array never grows beyond its bound:
//! the coldest blocks give way.

mod slot;

use std::hash::BuildHasher;
use std::ops::Range;

use hashbrown::{DefaultHashBuilder, HashTable};
use slot::{FAINTEST, NONE, Role, SLOT_USERS, Slot};

pub(crate) use slot::{Seen, User};

use crate::thread_numbers::ThreadNumber;

/// Pages in a record at most: 2 MiB.
pub(crate) const MOST_PAGES: u64 = 512;

/// A record as it is handed out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    table: &'a TouchTable,
    slot: u32,
}

impl<'a> Record<'a> {
    /// Whose pages.
    pub(crate) fn process(&self) -> u32 {
        self.table.slots[self.slot as usize].process
    }

    /// Its place, for [`TouchTable::record`] as long as the table stays as it is.
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// Which pages.
    pub(crate) fn pages(&self) -> Range<u64> {
        self.table.slots[self.slot as usize].pages()
    }

    /// What [`TouchTable::add`] was told last.
    pub(crate) fn mark(&self) -> u8 {
        self.table.slots[self.slot as usize].mark()
    }

    /// Who touched them, in no order.
    pub(crate) fn users(&self) -> impl Iterator<Item = (ThreadNumber, User)> + use<'a> {
        let users = self.table.slots_of(self.slot).flat_map(|slot| self.table.slots[slot as usize].users);
        users.filter_map(|user| Some((user.number?, user)))
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct TouchTable {
    /// Pages of a block; at most [`MOST_PAGES`], a power of two.
    block_pages: u64,
    max_slots: usize,
    most_users: usize,
    slots: Vec<Slot>,
    /// First of the chain of slots that nobody uses.
    free: u32,
    used: usize,
    /// First slots of blocks.
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Records that gave way.
    pub(crate) evicted: u64,
}

impl TouchTable {
    /// An empty table of `max_slots` slots (at least 16). Memory is used as slots are.
    pub(crate) fn new(block_pages: u64, max_slots: usize, most_users: usize) -> Self {
        let max_slots = max_slots.clamp(16, NONE as usize);
        Self {
            block_pages,
            max_slots,
            most_users,
            slots: Vec::new(),
            free: NONE,
            used: 0,
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            evicted: 0,
        }
    }

    /// Bytes of memory that it uses.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>() + self.index.allocation_size()
    }

    /// `thread` touched `page` of `process`. A new record gets as much of
    /// `around` as lies in the page's block and in no other record. Returns the record's first page.
    pub(crate) fn add(
        &mut self,
        process: u32,
        page: u64,
        around: Range<u64>,
        thread: ThreadNumber,
        seen: impl Into<Seen>,
        mark: u8,
    ) -> u64 {
        // A record that is made, and a user that needs a slot more.
        if self.used + 2 > self.max_slots {
            self.drop_coldest();
        }
        let slot = self.covering(process, page, &around);
        let pages = self.slots[slot as usize].pages();
        self.slots[slot as usize].set_place(&pages, mark, Role::First);
        self.add_user(slot, thread, seen.into());
        pages.start
    }

    /// The record that covers `page`.
    pub(crate) fn at(&self, process: u32, page: u64) -> Option<Record<'_>> {
        let records = self.records_of(self.head(process, page / self.block_pages)?);
        let mut covering = records.filter(|&slot| self.slots[slot as usize].pages().contains(&page));
        covering.next().map(|slot| Record { table: self, slot })
    }

    /// The record in this place.
    pub(crate) fn record(&self, slot: u32) -> Record<'_> {
        Record { table: self, slot }
    }

    /// All records, in no order.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let first = |slot: &u32| self.slots[*slot as usize].role() == Role::First;
        (0..self.slots.len() as u32).filter(first).map(|slot| Record { table: self, slot })
    }

    /// First pages of the records of all blocks that have several, by process and block.
    pub(crate) fn neighbours(&self) -> Vec<(u32, Vec<u64>)> {
        let block = |&head: &u32| {
            let starts: Vec<u64> = self.records_of(head).map(|slot| self.slots[slot as usize].pages().start).collect();
            (self.slots[head as usize].process, starts)
        };
        self.index.iter().map(block).filter(|(_, starts)| starts.len() > 1).collect()
    }

    /// Lets all weights fade by `factor`, and drops users that are too faint or not wanted and records without users.
    pub(crate) fn retain(&mut self, factor: f32, process: impl Fn(u32) -> bool, user: impl Fn(ThreadNumber) -> bool) {
        let mut index = std::mem::take(&mut self.index);
        let kept = |slot: &Slot, one: &User| {
            one.number.is_some_and(|number| process(slot.process) && user(number)) && one.accesses >= FAINTEST
        };
        index.retain(|head| {
            // Mostly nobody goes, and chains stay as they are.
            if self.age_chain(*head, factor, kept) {
                return true;
            }
            let records: Vec<u32> = self.records_of(*head).collect();
            let left: Vec<u32> = records.into_iter().filter(|&record| self.refill(record, kept)).collect();
            self.link(&left);
            left.first().inspect(|first| *head = **first).is_some()
        });
        self.index = index;
    }

    /// Cuts the record that covers `page` there. Of each user the part `low_share` goes to the lower half.
    pub(crate) fn split(&mut self, process: u32, page: u64, low_share: impl Fn(ThreadNumber) -> f32) {
        let Some(low) = self.at(process, page).filter(|record| record.pages().start < page).map(|record| record.slot)
        else {
            return;
        };
        let continued = self.slots_of(low).count() as u32;
        if self.used + continued as usize > self.max_slots {
            return;
        }
        let (old, users) = (self.slots[low as usize], self.users_of(low));
        let halves = |user: &User| {
            let share = user.number.map_or(0.0, &low_share).clamp(0.0, 1.0);
            let part = |share: f32| {
                let mut part = *user;
                part.age(share);
                part
            };
            (part(share), part(1.0 - share))
        };
        let (mut of_low, mut of_high): (Vec<User>, Vec<User>) = users.iter().map(halves).unzip();
        for half in [&mut of_low, &mut of_high] {
            half.retain(|user| user.accesses >= FAINTEST);
        }
        let high = self.take_slot();
        let after = self.after(low);
        self.slots[high as usize].process = process;
        self.slots[high as usize].set_place(&(page..old.pages().end), old.mark(), Role::First);
        self.slots[high as usize].next = after;
        let last = self.last_slot(low);
        self.slots[last as usize].next = high;
        self.slots[low as usize].set_place(&(old.pages().start..page), old.mark(), Role::First);
        self.put_users(low, of_low);
        self.put_users(high, of_high);
    }

    /// Makes one record of the one that begins at `first` and the one that follows it in its block.
    pub(crate) fn merge(&mut self, process: u32, first: u64) {
        let Some(low) = self.at(process, first).map(|record| record.slot) else { return };
        let high = self.after(low);
        if high == NONE {
            return;
        }
        let (start, end) = (self.slots[low as usize].pages().start, self.slots[high as usize].pages().end);
        let mut users = self.users_of(low);
        for other in self.users_of(high) {
            match users.iter_mut().find(|user| user.number == other.number) {
                Some(user) => (user.accesses, user.looks) = (user.accesses + other.accesses, user.looks + other.looks),
                None => users.push(other),
            }
        }
        users.sort_by(|a, b| b.accesses.total_cmp(&a.accesses));
        users.truncate(self.most_users);
        let after = self.after(high);
        self.free_record(high);
        let last = self.last_slot(low);
        self.slots[last as usize].next = after;
        let mark = self.slots[low as usize].mark();
        self.slots[low as usize].set_place(&(start..end), mark, Role::First);
        self.put_users(low, users);
    }

    fn hash(&self, process: u32, block: u64) -> u64 {
        self.hasher.hash_one((process, block))
    }

    fn block_of(&self, slot: u32) -> (u32, u64) {
        let slot = &self.slots[slot as usize];
        (slot.process, slot.pages().start / self.block_pages)
    }

    fn head(&self, process: u32, block: u64) -> Option<u32> {
        self.index.find(self.hash(process, block), |&head| self.block_of(head) == (process, block)).copied()
    }

    /// The slots of a record.
    fn slots_of(&self, first: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(first), |&slot| {
            let next = self.slots[slot as usize].next;
            (next != NONE && self.slots[next as usize].role() == Role::Continued).then_some(next)
        })
    }

    /// The first slots of the records of a chain.
    fn records_of(&self, head: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(head), |&slot| Some(self.after(slot)).filter(|&next| next != NONE))
    }

    fn last_slot(&self, first: u32) -> u32 {
        self.slots_of(first).last().unwrap_or(first)
    }

    /// The record that follows in the chain.
    fn after(&self, first: u32) -> u32 {
        self.slots[self.last_slot(first) as usize].next
    }

    fn users_of(&self, first: u32) -> Vec<User> {
        let users = self.slots_of(first).flat_map(|slot| self.slots[slot as usize].users);
        users.filter(|user| user.number.is_some()).collect()
    }

    /// The slot of the record that covers `page`, which is made or grown if there is none.
    fn covering(&mut self, process: u32, page: u64, around: &Range<u64>) -> u32 {
        let block = page / self.block_pages;
        let (block_start, block_end) = (block * self.block_pages, (block + 1) * self.block_pages);
        let hull = around.start.max(block_start)..around.end.min(block_end);
        let chain: Vec<u32> = self.head(process, block).map(|head| self.records_of(head).collect()).unwrap_or_default();
        let at = chain.partition_point(|&slot| self.slots[slot as usize].pages().end <= page);
        let pages = |slot: u32| self.slots[slot as usize].pages();
        let (before, after) = (at.checked_sub(1).map(|at| chain[at]), chain.get(at).copied());
        let lowest = before.map_or(hull.start, |slot| hull.start.max(pages(slot).end));
        let highest = |from: usize| chain.get(from).map_or(hull.end, |&slot| hull.end.min(pages(slot).start));
        if let Some(slot) = after.filter(|&slot| pages(slot).contains(&page)) {
            // The region may have shrunk since.
            let clipped = pages(slot).start.max(hull.start)..pages(slot).end.min(hull.end);
            return self.resize(slot, clipped);
        }
        if let Some(slot) = before.filter(|&slot| pages(slot).start >= hull.start) {
            let grown = pages(slot).start..highest(at);
            return self.resize(slot, grown);
        }
        if let Some(slot) = after.filter(|&slot| pages(slot).end <= hull.end) {
            let grown = lowest..pages(slot).end;
            return self.resize(slot, grown);
        }
        let (place, next) = (lowest..highest(at), after.unwrap_or(NONE));
        let slot = self.take_slot();
        self.slots[slot as usize].process = process;
        self.slots[slot as usize].set_place(&place, 0, Role::First);
        self.slots[slot as usize].next = next;
        match (before, after) {
            (Some(before), _) => {
                let last = self.last_slot(before);
                self.slots[last as usize].next = slot;
            }
            (None, Some(after)) => self.replace_head(process, block, after, slot),
            (None, None) => self.insert_head(process, block, slot),
        }
        slot
    }

    fn resize(&mut self, slot: u32, pages: Range<u64>) -> u32 {
        let mark = self.slots[slot as usize].mark();
        self.slots[slot as usize].set_place(&pages, mark, Role::First);
        slot
    }

    fn insert_head(&mut self, process: u32, block: u64, slot: u32) {
        let hash = self.hash(process, block);
        let (slots, hasher, block_pages) = (&self.slots, &self.hasher, self.block_pages);
        self.index.insert_unique(hash, slot, |&head| {
            let head = &slots[head as usize];
            hasher.hash_one((head.process, head.pages().start / block_pages))
        });
    }

    fn replace_head(&mut self, process: u32, block: u64, old: u32, new: u32) {
        let hash = self.hash(process, block);
        if let Some(head) = self.index.find_mut(hash, |&head| head == old) {
            *head = new;
        }
    }

    fn add_user(&mut self, first: u32, thread: ThreadNumber, seen: Seen) {
        let slots: Vec<u32> = self.slots_of(first).collect();
        let mut empty = None;
        let mut lightest: Option<(f32, (u32, usize))> = None;
        for &slot in &slots {
            for (at, user) in self.slots[slot as usize].users.iter_mut().enumerate() {
                if user.number == Some(thread) {
                    return user.add(seen);
                }
                if user.number.is_none() {
                    empty = empty.or(Some((slot, at)));
                } else if lightest.is_none_or(|(accesses, _)| user.accesses < accesses) {
                    lightest = Some((user.accesses, (slot, at)));
                }
            }
        }
        let full = slots.len() * SLOT_USERS >= self.most_users;
        let place = match (empty, lightest) {
            (Some(place), _) => place,
            (None, Some((accesses, place))) if full => match accesses < seen.weight {
                true => place,
                false => return,
            },
            _ => (self.continue_record(first), 0),
        };
        let user = &mut self.slots[place.0 as usize].users[place.1];
        *user = User::of(thread);
        user.add(seen);
    }

    /// A further slot of the record.
    fn continue_record(&mut self, first: u32) -> u32 {
        let (slot, last) = (self.take_slot(), self.last_slot(first));
        let head = self.slots[first as usize];
        self.slots[slot as usize].process = head.process;
        self.slots[slot as usize].set_place(&head.pages(), 0, Role::Continued);
        self.slots[slot as usize].next = self.slots[last as usize].next;
        self.slots[last as usize].next = slot;
        slot
    }

    /// Ages all users of a chain of records; whether all of them are to be kept.
    fn age_chain(&mut self, head: u32, factor: f32, kept: impl Fn(&Slot, &User) -> bool) -> bool {
        let (mut at, mut all_kept) = (head, true);
        while at != NONE {
            let slot = &mut self.slots[at as usize];
            for user in slot.users.iter_mut().filter(|user| user.number.is_some()) {
                user.age(factor);
            }
            let slot = &self.slots[at as usize];
            all_kept &= slot.users.iter().all(|user| user.number.is_none() || kept(slot, user));
            at = slot.next;
        }
        all_kept
    }

    /// Packs the users of a record that are kept into as few slots as they need. Without any the record is freed, but still
    /// linked: returns whether there are any.
    fn refill(&mut self, first: u32, kept: impl Fn(&Slot, &User) -> bool) -> bool {
        let head = self.slots[first as usize];
        let mut users = self.users_of(first);
        users.retain(|user| kept(&head, user));
        if users.is_empty() {
            self.free_record(first);
            return false;
        }
        self.put_users(first, users);
        true
    }

    /// Gives the record these users, and as many slots as they need.
    fn put_users(&mut self, first: u32, users: Vec<User>) {
        while self.slots_of(first).count() * SLOT_USERS < users.len() {
            self.continue_record(first);
        }
        let slots: Vec<u32> = self.slots_of(first).collect();
        let mut users = users.into_iter();
        for &slot in &slots {
            self.slots[slot as usize].users = std::array::from_fn(|_| users.next().unwrap_or_default());
        }
        let needed =
            slots.iter().rposition(|&slot| self.slots[slot as usize].users[0].number.is_some()).map_or(1, |at| at + 1);
        if needed < slots.len() {
            self.slots[slots[needed - 1] as usize].next = self.slots[slots[slots.len() - 1] as usize].next;
            slots[needed..].iter().for_each(|&slot| self.free_slot(slot));
        }
    }

    /// Makes these records, in this order, a chain.
    fn link(&mut self, records: &[u32]) {
        for (at, &record) in records.iter().enumerate() {
            let last = self.last_slot(record);
            self.slots[last as usize].next = records.get(at + 1).copied().unwrap_or(NONE);
        }
    }

    fn take_slot(&mut self) -> u32 {
        self.used += 1;
        if self.free == NONE {
            if self.slots.is_empty() {
                // Once, so that it never is twice as large as it need be; what is not used is not resident.
                self.slots.reserve_exact(self.max_slots);
            }
            self.slots.push(Slot::FREE);
            return self.slots.len() as u32 - 1;
        }
        let slot = self.free;
        self.free = self.slots[slot as usize].next;
        self.slots[slot as usize] = Slot::FREE;
        slot
    }

    fn free_slot(&mut self, slot: u32) {
        self.slots[slot as usize] = Slot::FREE;
        self.slots[slot as usize].next = self.free;
        self.free = slot;
        self.used -= 1;
    }

    fn free_record(&mut self, first: u32) {
        let slots: Vec<u32> = self.slots_of(first).collect();
        slots.into_iter().for_each(|slot| self.free_slot(slot));
    }

    /// Drops the coldest blocks, an eighth of the slots or more.
    fn drop_coldest(&mut self) {
        let heat = |head: u32| -> f32 {
            let records = self.records_of(head).map(|slot| Record { table: self, slot });
            records.flat_map(|record| record.users().map(|(_, user)| user.accesses)).sum()
        };
        let mut by_heat: Vec<(f32, u32)> = self.index.iter().map(|&head| (heat(head), head)).collect();
        by_heat.sort_by(|a, b| a.0.total_cmp(&b.0));
        let target = self.max_slots - self.max_slots / 8 - 1;
        for (_, head) in by_heat {
            if self.used <= target {
                break;
            }
            let (process, block) = self.block_of(head);
            let hash = self.hash(process, block);
            if let Ok(entry) = self.index.find_entry(hash, |&other| other == head) {
                entry.remove();
            }
            let records: Vec<u32> = self.records_of(head).collect();
            self.evicted += records.len() as u64;
            records.into_iter().for_each(|record| self.free_record(record));
        }
    }
}

#[cfg(test)]
mod tests;
