// SPDX-License-Identifier: GPL-2.0-only
//! What the kernel says of a process's memory: how many parts it has, and which of it is a program's own.

use nix::unistd::Pid;

use crate::mapped::Part;

/// Parts of a process at most that memory is bound in. The kernel allows 65,530 mappings (vm.max_map_count), after which
/// the program itself would get no memory.
const MOST: usize = 32_768;

/// After so many parts that were asked for they are counted again: reading them takes as long as binding these.
const COUNTED_AFTER: usize = MOST / 8;

/// How many parts a process has.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// As many as were counted, and what came since: at least as many as there are.
    at_most: usize,
    /// What was asked for since then.
    asked: usize,
}

impl Parts {
    /// Whether there is room for so many more; they are there then. `count` tells how many there are, if that matters.
    pub fn take(&mut self, more: usize, count: impl FnOnce() -> usize) -> bool {
        self.asked += more;
        if self.at_most + more > MOST && self.asked >= COUNTED_AFTER {
            (self.at_most, self.asked) = (count(), 0);
        }
        let fits = self.at_most + more <= MOST;
        self.at_most += if fits { more } else { 0 };
        fits
    }
}

/// How many parts the process of a thread has.
pub fn count(thread: Pid) -> usize {
    Part::all_of(thread).len()
}

/// Whether from `begin` to `end` there is nothing but memory of the thread's process alone that it may write, of no file, heap or stack.
pub fn are_own_memory(thread: Pid, begin: u64, end: u64) -> bool {
    are_own(&Part::all_of(thread), begin, end)
}

fn are_own(parts: &[Part], begin: u64, end: u64) -> bool {
    let mut parts = parts.iter().filter(|part| part.begin < end && begin < part.end).peekable();
    parts.peek().is_some() && parts.all(Part::is_own_memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::parsed;

    #[test]
    fn parts_are_counted_when_there_seems_to_be_no_room_but_not_each_time() {
        let mut parts = Parts::default();
        assert!((0..MOST).all(|_| parts.take(1, || panic!("there is room"))));
        assert!(parts.take(1, || 100), "most are gone");
        assert!((101..MOST).all(|_| parts.take(1, || panic!("there is room"))));
        assert!(!parts.take(1, || MOST));
        assert!((1..COUNTED_AFTER).all(|_| !parts.take(1, || panic!("they were counted just now"))));
        assert!(parts.take(1, || MOST - 1));
    }

    #[test]
    fn only_memory_of_the_program_alone_is_its_own() {
        let maps = b"\
1000-2000 rw-p 00000000 00:00 0
2000-3000 rw-p 00000000 00:00 0      [anon:arrays]
3000-4000 rw-p 00000000 fe:00 12     /usr/lib/some file
4000-5000 rw-s 00000000 00:01 99     /dev/zero (deleted)
5000-6000 r--p 00000000 00:00 0
6000-7000 rw-p 00000000 00:00 0      [stack]
";
        let parts = parsed(maps);
        let is_own = |begin, end| are_own(&parts, begin, end);
        let own: Vec<bool> = (1..8).map(|at| is_own(at * 0x1000, (at + 1) * 0x1000)).collect();
        assert_eq!(own, [true, true, false, false, false, false, false]);
        assert!(is_own(0x1000, 0x3000) && !is_own(0x1000, 0x4000) && !is_own(0x1000, 0x1000));
    }
}
