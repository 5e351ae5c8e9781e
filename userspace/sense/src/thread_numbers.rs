// SPDX-License-Identifier: GPL-2.0-only
//! Small numbers that stand for threads in tables with many entries.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;

use tandem_policies::model::ThreadId;

/// A thread, as long as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ThreadNumber(NonZeroU16);

/// Which number stands for which thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadNumbers {
    /// By number, from 1 on.
    threads: Vec<Option<ThreadId>>,
    numbers: BTreeMap<ThreadId, ThreadNumber>,
}

impl ThreadNumbers {
    /// The number of `thread`, a new one if it has none; `None` if there are none left.
    pub(crate) fn number(&mut self, thread: ThreadId) -> Option<ThreadNumber> {
        if let Some(&number) = self.numbers.get(&thread) {
            return Some(number);
        }
        let free = self.threads.iter().position(Option::is_none);
        let at = free.unwrap_or(self.threads.len());
        let number = ThreadNumber(NonZeroU16::new(u16::try_from(at + 1).ok()?)?);
        if at == self.threads.len() {
            self.threads.push(None);
        }
        self.threads[at] = Some(thread);
        self.numbers.insert(thread, number);
        Some(number)
    }

    /// Whom `number` stands for.
    pub(crate) fn thread(&self, number: ThreadNumber) -> Option<ThreadId> {
        *self.threads.get(usize::from(number.0.get()) - 1)?
    }

    /// All that are known.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ThreadId, ThreadNumber)> {
        self.numbers.iter().map(|(&thread, &number)| (thread, number))
    }

    /// Numbers of threads that are not `alive`.
    pub(crate) fn gone(&self, alive: impl Fn(ThreadId) -> bool) -> BTreeSet<ThreadNumber> {
        self.numbers.iter().filter(|(thread, _)| !alive(**thread)).map(|(_, number)| *number).collect()
    }

    /// Lets other threads have these numbers.
    pub(crate) fn forget(&mut self, gone: &BTreeSet<ThreadNumber>) {
        self.numbers.retain(|_, number| !gone.contains(number));
        for number in gone {
            self.threads[usize::from(number.0.get()) - 1] = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(tid: u32) -> ThreadId {
        ThreadId { tid, start_boottime_ns: 1 }
    }

    #[test]
    fn a_thread_keeps_its_number_until_it_is_forgotten_and_then_another_has_it() {
        let mut numbers = ThreadNumbers::default();
        let [first, second] = [1, 2].map(|tid| numbers.number(thread(tid)).unwrap());
        assert_ne!(first, second);
        assert_eq!((numbers.number(thread(1)), numbers.thread(first)), (Some(first), Some(thread(1))));
        let gone = numbers.gone(|alive| alive == thread(2));
        numbers.forget(&gone);
        assert_eq!((numbers.thread(first), numbers.thread(second)), (None, Some(thread(2))));
        assert_eq!(numbers.number(thread(3)), Some(first));
    }

    #[test]
    fn numbers_end() {
        let mut numbers = ThreadNumbers::default();
        for tid in 0..u32::from(u16::MAX) {
            assert!(numbers.number(thread(tid)).is_some());
        }
        assert_eq!(numbers.number(thread(1 << 20)), None);
    }
}
