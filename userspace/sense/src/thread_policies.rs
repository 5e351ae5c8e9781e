// SPDX-License-Identifier: GPL-2.0-only
//! Which threads place memory by a policy of their own (set_mempolicy(2)), from /proc/PID/task/TID/numa_maps.
//!
//! Problem: of regions that have no policy, numa_maps of a process shows that of the main thread, but each thread's pages
//! come by its own. Mechanism: that of a thread shows the thread's. A read of no more than the first line makes the kernel walk the
//! first region only, which mostly is a small part of the program's file: some 8 us. Nothing is read where that one is large, or
//! is bound itself and so tells nothing of the thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};

use tandem_policies::model::{ProcessId, ThreadId};

use crate::regions::{POLICY_INTERVAL_NS, POLICY_RENEWAL_NS, Region, names_nodes};

/// A first region that is larger is not walked for a thread's sake: 4096 pages take about 0.1 ms.
const MOST_BYTES: u64 = 16 << 20;
/// No line is shorter: an address, a policy, and the end. A read that asks for more makes the kernel walk the next region too.
const SHORTEST_LINE: usize = "00010000 local\n".len();
/// The start of a line: an address, and a policy up to its nodes.
const LINE_BYTES: usize = 64;

/// What was read last of each thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadPolicies {
    /// When it is read again.
    due_ns: BTreeMap<ThreadId, u64>,
    /// Those whose policies name nodes: on most machines none.
    binding: BTreeSet<ThreadId>,
}

impl ThreadPolicies {
    /// Reads the policy of a thread of a process whose first region is `first`, if it is time: soon again after the first time, for
    /// a thread sets its policy a little after it began.
    pub(crate) fn look(&mut self, process: ProcessId, thread: ThreadId, first: Option<&Region>, now_ns: u64) {
        let due_ns = self.due_ns.get(&thread).copied();
        if due_ns.is_some_and(|due_ns| now_ns < due_ns) {
            return;
        }
        let wait_ns = if due_ns.is_some() { POLICY_RENEWAL_NS } else { POLICY_INTERVAL_NS };
        self.due_ns.insert(thread, now_ns.saturating_add(wait_ns));
        // A kernel without NUMA has no such file, and a thread that has ended places nothing any more.
        if first.is_some_and(tells) && line(process, thread).is_ok_and(|line| binds(&line)) {
            self.binding.insert(thread);
        } else {
            self.binding.remove(&thread);
        }
    }

    /// Whether its policy names nodes.
    pub(crate) fn binds(&self, thread: ThreadId) -> bool {
        self.binding.contains(&thread)
    }

    /// Forgets all other threads.
    pub(crate) fn retain(&mut self, alive: impl Fn(ThreadId) -> bool) {
        self.due_ns.retain(|thread, _| alive(*thread));
        self.binding.retain(|thread| alive(*thread));
    }
}

/// Whether a first region shows the policy of the thread that is asked for, at little cost.
fn tells(first: &Region) -> bool {
    !first.bound && first.end - first.start <= MOST_BYTES
}

/// The start of the first line of a thread's numa_maps.
fn line(process: ProcessId, thread: ThreadId) -> io::Result<String> {
    let mut file = File::open(format!("/proc/{}/task/{}/numa_maps", process.0, thread.tid))?;
    let mut bytes = [0; LINE_BYTES];
    let mut read = file.read(&mut bytes[..SHORTEST_LINE])?;
    // What is left of the line is there already, however little is asked for at a time.
    while (1..LINE_BYTES).contains(&read) && bytes[read - 1] != b'\n' {
        match file.read(&mut bytes[read..=read])? {
            0 => break,
            one => read += one,
        }
    }
    Ok(String::from_utf8_lossy(&bytes[..read]).into_owned())
}

fn binds(line: &str) -> bool {
    line.split_once(' ').is_some_and(|(_, policy)| names_nodes(policy))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::regions::{RegionKind, Regions};
    use crate::testing::{unseen, withheld};

    const SECOND: u64 = 1_000_000_000;

    /// Sets the policy of the calling thread, to node 0 if it takes nodes.
    fn set_policy(policy: i32) -> io::Result<()> {
        let node = 1_u64;
        let (nodes, bits) = if policy == libc::MPOL_DEFAULT { (0, 0) } else { (&raw const node as usize, 64_usize) };
        // SAFETY: a policy for this thread; the set of nodes lives through the call.
        match unsafe { libc::syscall(libc::SYS_set_mempolicy, policy, nodes, bits) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Runs a function beside a thread of this process that sets policies as it is told, and says when it has; the function is
    /// given its id. Not run where this user may set none.
    pub(crate) fn beside_a_thread(run: impl FnOnce(ThreadId, &dyn Fn(i32))) {
        let (tell, told): (Sender<i32>, Receiver<i32>) = channel();
        let (say, said) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // SAFETY: takes nothing and cannot fail.
                say.send(Ok(unsafe { libc::gettid() })).unwrap();
                for policy in told {
                    say.send(set_policy(policy).map(|()| 0)).unwrap();
                }
            });
            let tid = said.recv().unwrap().unwrap() as u32;
            tell.send(libc::MPOL_BIND).unwrap();
            if let Err(why) = withheld(said.recv().unwrap()) {
                return unseen(&why);
            }
            let set = |policy| {
                tell.send(policy).unwrap();
                said.recv().unwrap().unwrap();
            };
            set(libc::MPOL_DEFAULT);
            run(ThreadId { tid, start_boottime_ns: 1 }, &set);
            drop(tell);
        });
    }

    fn small() -> Region {
        Region::of(0x1000, 0x1000 + MOST_BYTES, RegionKind::Skipped)
    }

    #[test]
    fn a_policy_is_told_by_the_start_of_a_line() {
        for line in
            ["7ffd2a371000 bind:0-3 anon=1", "400000 weighted interleave=relative:0-1", "ffffffffff600000 prefer:1"]
        {
            assert!(binds(line) && binds(&line[..line.len().min(LINE_BYTES)]), "{line}");
        }
        for line in ["", "400000", "400000 default file=/a:bind:0", "400000 local file=/usr", "400000 prefer file=/usr"]
        {
            assert!(!binds(line), "{line}");
        }
    }

    #[test]
    fn a_thread_that_binds_its_memory_is_known_within_its_time_and_others_are_not_taken_for_it() {
        let me = ProcessId(std::process::id());
        beside_a_thread(|thread, set| {
            let own = ThreadId { tid: me.0, ..thread };
            let (mut policies, first) = (ThreadPolicies::default(), small());
            let mut binds = |now_ns| {
                [thread, own].into_iter().for_each(|thread| policies.look(me, thread, Some(&first), now_ns));
                [thread, own].map(|thread| policies.binds(thread))
            };
            assert_eq!(binds(SECOND), [false; 2]);
            set(libc::MPOL_BIND);
            assert_eq!(binds(10 * SECOND), [false; 2], "not yet read again");
            assert_eq!(binds(11 * SECOND), [true, false]);
            set(libc::MPOL_DEFAULT);
            assert_eq!(binds(70 * SECOND), [true, false]);
            assert_eq!(binds(71 * SECOND), [false; 2]);
        });
    }

    #[test]
    fn a_first_region_that_is_large_or_bound_itself_says_nothing_of_a_thread() {
        let me = ProcessId(std::process::id());
        beside_a_thread(|thread, set| {
            set(libc::MPOL_BIND);
            let seen = |first: Option<Region>| {
                let mut policies = ThreadPolicies::default();
                policies.look(me, thread, first.as_ref(), 1);
                policies.binds(thread)
            };
            let (mut bound, mut large) = (small(), small());
            (bound.bound, large.start) = (true, 0);
            assert_eq!([Some(small()), Some(bound), Some(large), None].map(seen), [true, false, false, false]);
        });
    }

    #[test]
    fn threads_that_are_gone_are_forgotten() {
        let id = |tid| ThreadId { tid, start_boottime_ns: 1 };
        let both = [id(1), id(2)];
        let mut policies = ThreadPolicies { due_ns: both.map(|id| (id, 1)).into(), binding: both.into() };
        policies.retain(|thread| thread == id(2));
        assert_eq!((both.map(|id| policies.binds(id)), policies.due_ns.len()), ([false, true], 1));
    }

    #[test]
    fn the_first_region_of_a_process_is_the_one_at_the_lowest_address() {
        let (me, mut regions) = (ProcessId(std::process::id()), Regions::default());
        assert!(regions.first(me).is_none());
        regions.refresh(me, 1);
        let first = regions.first(me).unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert_eq!(format!("{:08x}-{:08x}", first.start, first.end), maps.split(' ').next().unwrap());
    }
}
