// SPDX-License-Identifier: GPL-2.0-only
//! The threads of a traced process, and which seats they have.
//!
//! Outside of parallel regions a new thread gets the lowest seat that is empty. Where regions have seats of their own, a
//! thread's seat is its rank in the team instead. The OpenMP runtimes give ranks in the order of births. When a team
//! shrinks, libgomp ends the threads with the highest ranks, some time later, and libomp keeps them for the next larger
//! one; in both, who is left keeps its rank.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use nix::unistd::Pid;
use tandem_machine::process_text;

use crate::placer::Placer;
use crate::seat::CpuSet;

/// The seats of a part of a run: a thread's, by its rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seating {
    /// Number of threads.
    pub threads: usize,
    /// CPUs by seat. Threads beyond take them from the first again; no thread is placed if empty.
    pub seats: Vec<CpuSet>,
}

impl Seating {
    /// The CPUs of this seat.
    pub fn at(&self, seat: usize) -> Option<&CpuSet> {
        seat.checked_rem(self.seats.len()).map(|at| &self.seats[at])
    }
}

/// The threads of a process.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Its threads, by their seats outside of regions.
    seats: BTreeMap<Pid, usize>,
    /// In the order of their births.
    births: Vec<Pid>,
    /// Its OpenMP threads by rank.
    team: Vec<Pid>,
    /// The seat that a thread was put onto last.
    seated: BTreeMap<Pid, CpuSet>,
    /// The seats of the region whose team is forming.
    forming: Option<Seating>,
}

impl Process {
    /// One with its main thread, on the first seat.
    pub fn of(main: Pid) -> Self {
        let mut process = Self { team: vec![main], ..Self::default() };
        process.seat(main);
        process
    }

    /// The same threads, none of which was put anywhere.
    pub fn unseated(&self) -> Self {
        Self { seated: BTreeMap::new(), ..self.clone() }
    }

    /// Its threads with their seats outside of regions.
    pub fn all_seats(&self) -> impl Iterator<Item = (Pid, usize)> {
        self.seats.iter().map(|(&thread, &seat)| (thread, seat))
    }

    /// Number of its threads.
    pub fn threads(&self) -> usize {
        self.seats.len()
    }

    /// Gives `thread` the lowest seat that is empty.
    pub fn seat(&mut self, thread: Pid) -> usize {
        let taken: BTreeSet<usize> = self.seats.values().copied().collect();
        let seat = (0..).find(|seat| !taken.contains(seat)).expect("seats are endless");
        self.seats.insert(thread, seat);
        self.births.push(thread);
        seat
    }

    /// Gives the CPUs to `thread`, which is new, if it is born into a team: those of its rank.
    pub fn join(&mut self, thread: Pid) -> Option<CpuSet> {
        let seating = self.forming.as_ref()?;
        let cpus = seating.at(self.team.len()).cloned();
        self.team.push(thread);
        self.seated.extend(cpus.clone().map(|cpus| (thread, cpus)));
        cpus
    }

    /// A region with a team of `threads` begins. Surplus threads end if `surplus_ends`.
    ///
    /// # Errors
    /// A thread cannot be put there.
    pub fn enter(&mut self, threads: usize, seating: &Seating, surplus_ends: bool, placer: &Placer) -> Result<()> {
        // A team of one is the main thread alone: the others wait, whatever the runtime.
        if surplus_ends && threads > 1 {
            self.team.truncate(threads);
        }
        let members: Vec<Pid> = self.team.iter().copied().take(threads).collect();
        self.forming = Some(seating.clone());
        self.put_all(&members, seating, placer)
    }

    /// A named function begins: all threads take these seats, in the order of their births.
    ///
    /// # Errors
    /// A thread cannot be put there.
    pub fn enter_function(&mut self, seating: &Seating, placer: &Placer) -> Result<()> {
        let threads = self.births.clone();
        self.put_all(&threads, seating, placer)
    }

    /// Threads that are born from now on belong to no team.
    pub fn is_formed(&mut self) {
        self.forming = None;
    }

    fn put_all(&mut self, threads: &[Pid], seating: &Seating, placer: &Placer) -> Result<()> {
        if self.changes(threads, seating).is_empty() {
            return Ok(());
        }
        // A scheduler that assigns looks for an idle CPU itself.
        if placer.is_affinity() {
            self.spread(threads, seating);
        }
        let changes = self.changes(threads, seating);
        placer.put(&changes)?;
        self.seated.extend(changes);
        Ok(())
    }

    /// Who gets another seat, and which.
    fn changes(&self, threads: &[Pid], seating: &Seating) -> Vec<(Pid, CpuSet)> {
        let seats = threads.iter().enumerate().filter_map(|(rank, &thread)| Some((thread, seating.at(rank)?)));
        let changes = seats.filter(|(thread, cpus)| self.seated.get(thread) != Some(cpus));
        changes.map(|(thread, cpus)| (thread, cpus.clone())).collect()
    }

    /// Puts each thread on a CPU of its own for a moment. Among all CPUs of a node the kernel chooses one for each thread by
    /// chance, puts two on one, and sees that some milliseconds later, while the others of the team wait for the two.
    fn spread(&mut self, threads: &[Pid], seating: &Seating) {
        let mut taken: BTreeMap<&CpuSet, usize> = BTreeMap::new();
        for (rank, thread) in threads.iter().enumerate() {
            let Some(cpus) = seating.at(rank) else { continue };
            let number = taken.entry(cpus).or_default();
            // Fails for a thread that is gone and for a CPU that may not be used: to be bound to all of them is what counts.
            if cpus.one(*number).allow(thread.as_raw()).is_ok() {
                self.seated.remove(thread);
            }
            *number += 1;
        }
    }

    /// `thread` has ended; whether it was the last one.
    pub fn forget(&mut self, thread: Pid) -> bool {
        self.seats.remove(&thread);
        self.seated.remove(&thread);
        self.births.retain(|&other| other != thread);
        self.team.retain(|&other| other != thread);
        self.seats.is_empty()
    }
}

/// Lets `thread` run on these CPUs only, unless it is gone.
///
/// # Errors
/// None of them may be used.
pub fn bind(thread: Pid, cpus: &CpuSet) -> Result<()> {
    match cpus.allow(thread.as_raw()) {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
            Err(error).with_context(|| format!("thread {thread} cannot be bound to its node"))
        }
        _ => Ok(()),
    }
}

/// The process of a thread; `None` if it is gone.
pub(crate) fn process_of(thread: Pid) -> Option<Pid> {
    let status = process_text(format!("/proc/{thread}/status").as_ref()).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok().map(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use nix::unistd::gettid;
    use tandem_machine::online_cpus;

    use super::*;

    /// The CPU on which a thread of this process is or was last.
    fn cpu_of(thread: Pid) -> u32 {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        // After the name, which ends with the last bracket, the 37th field.
        stat.rsplit(')').next().unwrap().split_whitespace().nth(36).unwrap().parse().unwrap()
    }

    #[test]
    fn threads_that_come_from_one_cpu_to_a_node_get_one_each_at_once() {
        const ROUNDS: usize = 20;
        let cpus = online_cpus().unwrap();
        let [first, second, ..] = cpus[..] else { panic!("two threads need two CPUs: there is one") };
        let seats_on = |cpus: &[tandem_policies::model::CpuId]| Seating { threads: 2, seats: vec![CpuSet::of(cpus)] };
        let (crowded, node) = (seats_on(&[first]), seats_on(&[first, second]));
        let (ended, (send, receive)) = (AtomicBool::new(false), mpsc::channel());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (send, ended) = (send.clone(), &ended);
                scope.spawn(move || {
                    send.send(gettid()).unwrap();
                    while !ended.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let threads = [receive.recv().unwrap(), receive.recv().unwrap()];
            let mut process = Process::of(threads[0]);
            process.seat(threads[1]);
            let are_apart = |_: &usize| {
                process.enter_function(&crowded, &Placer::Affinity).unwrap();
                let were_together = threads.map(cpu_of) == [first.0; 2];
                process.enter_function(&node, &Placer::Affinity).unwrap();
                were_together && cpu_of(threads[0]) != cpu_of(threads[1])
            };
            let times = (0..ROUNDS).filter(are_apart).count();
            ended.store(true, Ordering::Relaxed);
            // The kernel may move them again meanwhile, if something else runs.
            assert!(times >= ROUNDS / 2, "{times} of {ROUNDS} times");
        });
    }
}
