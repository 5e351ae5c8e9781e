// SPDX-License-Identifier: GPL-2.0-only
//! Which thread of a program uses which page of which allocation: a profile that means the same in the next run.
//!
//! Problem: addresses differ from run to run. Mechanism: an allocation is named by the place in the program's code that asks for
//! it and by how many that place has asked for before; a page by its distance from the allocation's begin; a thread by its
//! rank, in the order of births.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use tandem_policies::model::PAGE_BYTES;

/// Accesses to allocations without which a profile says too little.
const FEWEST: u64 = 64;

/// The name of an allocation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Name {
    /// Where it is asked for.
    pub site: String,
    /// How many were asked for there before it.
    pub order: u32,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "number {} at {}", self.order, self.site)
    }
}

/// An allocation of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Born {
    /// Its process.
    pub process: i32,
    /// Its name.
    pub name: Name,
    /// Address of its first whole page.
    pub begin: u64,
    /// Whole pages.
    pub pages: u64,
    /// When, on CLOCK_MONOTONIC.
    pub at_ns: u64,
}

/// A thread of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its process.
    pub process: i32,
    /// Its id.
    pub thread: i32,
    /// Its rank there.
    pub rank: usize,
    /// When it was born, on CLOCK_MONOTONIC.
    pub at_ns: u64,
}

/// An access that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Who.
    pub thread: i32,
    /// Of which process.
    pub process: i32,
    /// Where.
    pub address: u64,
    /// When, on CLOCK_MONOTONIC.
    pub at_ns: u64,
}

/// Who uses the pages of an allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Used {
    /// The allocation.
    pub name: Name,
    /// Its pages.
    pub pages: u64,
    /// (page, thread, accesses), ordered.
    pub uses: Vec<(u64, usize, u64)>,
}

/// Who uses which pages of a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageUse {
    /// What saw it.
    pub sampler: String,
    /// Its allocations in the order of their births.
    pub allocations: Vec<Used>,
}

impl PageUse {
    /// What `touches` say of the allocations of the process that was seen most. What its main thread does before another one
    /// is born says nothing: it initialises what others use.
    ///
    /// # Errors
    /// Too little was seen, in words.
    pub fn of(sampler: &str, births: &[Born], members: &[Member], touches: &[Touch]) -> Result<Self> {
        let mut by_process: BTreeMap<i32, u64> = BTreeMap::new();
        touches.iter().for_each(|touch| *by_process.entry(touch.process).or_default() += 1);
        let Some((&process, _)) = by_process.iter().max_by_key(|(_, count)| **count) else {
            bail!("the sampler {sampler} saw no access of the program: give it more to do");
        };
        let births: Vec<&Born> = births.iter().filter(|one| one.process == process).collect();
        let mut ranks: BTreeMap<i32, usize> = BTreeMap::new();
        members.iter().filter(|one| one.process == process).for_each(|one| {
            ranks.insert(one.thread, one.rank);
        });
        let of_others = members.iter().filter(|one| one.process == process && one.thread != process);
        let begin_ns = of_others.map(|one| one.at_ns).min().unwrap_or(0);
        let mut by_address: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (at, one) in births.iter().enumerate() {
            by_address.entry(one.begin).or_default().push(at);
        }
        let longest = births.iter().map(|one| one.pages).max().unwrap_or(0) * PAGE_BYTES;
        let mut uses: Vec<BTreeMap<(u64, usize), u64>> = vec![BTreeMap::new(); births.len()];
        let mut seen = 0;
        for touch in touches.iter().filter(|touch| touch.process == process && touch.at_ns >= begin_ns) {
            let Some(&rank) = ranks.get(&touch.thread) else { continue };
            // Of all that ever was there, the last one that was there by then.
            let near =
                by_address.range(touch.address.saturating_sub(longest)..=touch.address).flat_map(|found| found.1);
            let covers = |one: &Born| touch.address < one.begin + one.pages * PAGE_BYTES && one.at_ns <= touch.at_ns;
            let Some(&at) = near.filter(|&&at| covers(births[at])).max_by_key(|&&at| births[at].at_ns) else {
                continue;
            };
            *uses[at].entry(((touch.address - births[at].begin) / PAGE_BYTES, rank)).or_default() += 1;
            seen += 1;
        }
        if seen < FEWEST {
            bail!(
                "the sampler {sampler} saw {seen} accesses to allocations of 256 KiB or more, {FEWEST} are needed: give the \
                 program more to do"
            );
        }
        let used = |(one, uses): (&&Born, BTreeMap<(u64, usize), u64>)| Used {
            name: one.name.clone(),
            pages: one.pages,
            uses: uses.into_iter().map(|((page, thread), count)| (page, thread, count)).collect(),
        };
        let allocations = births.iter().zip(uses).map(used).filter(|one| !one.uses.is_empty()).collect();
        Ok(Self { sampler: sampler.to_owned(), allocations })
    }

    /// Accesses that it rests on.
    pub fn accesses(&self) -> u64 {
        self.allocations.iter().flat_map(|one| &one.uses).map(|use_of| use_of.2).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn born(order: u32, begin: u64, pages: u64, at_ns: u64) -> Born {
        Born { process: 7, name: Name { site: "p+0x10".into(), order }, begin, pages, at_ns }
    }

    fn touches(thread: i32, address: u64, at_ns: u64, count: usize) -> Vec<Touch> {
        vec![Touch { thread, process: 7, address, at_ns }; count]
    }

    #[test]
    fn accesses_are_those_of_the_allocation_that_was_there_at_the_time() {
        let births = [born(0, 0x10000, 4, 1), born(1, 0x20000, 2, 20), born(2, 0x11000, 8, 30)];
        let members = [(7, 0, 0), (70, 0, 5), (71, 1, 6)];
        let members = members.map(|(thread, rank, at_ns)| Member { process: 7, thread, rank, at_ns });
        let all = [
            touches(70, 0x11008, 15, 40),
            touches(71, 0x11008, 35, 30),
            // While it is initialised.
            touches(7, 0x10000, 4, 50),
            touches(70, 0x10fff, 40, 10),
            // Before it was born, behind its end, by nobody, of another process.
            touches(70, 0x20000, 19, 9),
            touches(70, 0x22000, 40, 9),
            touches(99, 0x20000, 40, 9),
            touches(70, 0x21000, 40, 9).into_iter().map(|one| Touch { process: 8, ..one }).collect(),
        ];
        let found = PageUse::of("made up", &births, &members, &all.concat()).unwrap();
        let expected = [(0, vec![(0, 0, 10), (1, 0, 40)], 4), (2, vec![(0, 1, 30)], 8)];
        let expected = expected.map(|(order, uses, pages)| Used { name: born(order, 0, 0, 0).name, pages, uses });
        assert_eq!((found.allocations.as_slice(), found.accesses()), (expected.as_slice(), 80));
    }

    #[test]
    fn too_little_is_refused_in_words() {
        let births = [born(0, 0x10000, 4, 10)];
        let members = [Member { process: 7, thread: 70, rank: 0, at_ns: 0 }];
        let said = |touches: &[Touch]| PageUse::of("fault", &births, &members, touches).unwrap_err().to_string();
        assert!(said(&[]).contains("the sampler fault saw no access"));
        assert!(said(&touches(70, 0x10000, 20, 63)).contains("saw 63 accesses to allocations"));
        assert!(PageUse::of("fault", &births, &members, &touches(70, 0x10000, 20, 64)).is_ok());
    }
}
