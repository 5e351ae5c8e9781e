// SPDX-License-Identifier: GPL-2.0-only
//! What the three kernels `cg`, `sp` and `is` have in common: threads that partition arrays, placed as a whole.
//!
//! Every element is padded to a cache line, so that memory, not arithmetic, is what an emulator spends its time on; the
//! order in which threads touch each other's parts is that of the NAS code.

use crate::frame::plan::{Claim, Home, Place, Placement, Plan, Program, Request, Start, Thread};
use crate::frame::worker::Worker;
use anyhow::Result;
use std::ops::Range;

/// Where a kernel's threads and arrays are.
#[derive(Clone)]
pub struct Layout {
    /// Place of each thread.
    pub places: Vec<Place>,
    /// Home of the arrays that threads partition.
    pub home: Home,
    /// When it starts.
    pub start: Start,
}

impl Layout {
    /// The layout of a kernel that has the machine to itself. Start under `none`: filled by one thread.
    pub fn of_machine(request: &Request) -> Result<Self> {
        let seats = request.seats(request.threads(1)?)?;
        let home = match request.placement {
            // What all threads use at once, one node's memory serves more slowly than far ones do together.
            Placement::None | Placement::Worst => Home::on(request.local_to(request.tour()?[0])),
            Placement::Oracle => Home::Parts(request.locals(&seats)),
        };
        Ok(Self { places: seats.iter().map(|seat| Place::Cpu(seat.cpu)).collect(), home, start: Start::Together })
    }

    /// Threads that do `body`, one at each place.
    pub fn threads(&self, body: impl Fn(&mut Worker) -> Result<()> + Clone + Sync + 'static) -> Vec<Thread> {
        let of_place = |place: &Place| {
            let body = body.clone();
            let body = move |worker: &mut Worker| body(worker).map(|()| Vec::<Claim>::new());
            Thread { place: *place, uses: Vec::new(), body: Box::new(body) }
        };
        self.places.iter().map(of_place).collect()
    }
}

/// The best and the worst placement, in words.
pub const BEST: &str = "each thread's parts of the arrays on its node";
/// See [`BEST`].
pub const WORST: &str = "all arrays on one node, for which all threads wait";

/// A plan of one program.
pub fn alone(program: Program) -> Plan {
    Plan { programs: vec![program], pairs: Vec::new() }
}

/// The elements of thread `thread` of `threads`.
pub fn part(elements: usize, thread: usize, threads: usize) -> Range<usize> {
    elements * thread / threads..elements * (thread + 1) / threads
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::frame::meeting::Meeting;
    use crate::frame::memory::{Memory, PageSize};
    use crate::topology::topology_of;

    /// Runs a program's threads to their end and then its check, without processes and placement; `damage` comes between.
    pub fn run(program: &Program, damage: impl FnOnce(&[Memory])) -> Result<()> {
        let memory: Vec<Memory> =
            program.regions.iter().map(|region| Memory::map(region.bytes, PageSize::Base).unwrap()).collect();
        for (array, region) in memory.iter().zip(&program.regions) {
            (region.fill)(array.lines(), 0..array.lines().len());
        }
        let topology = topology_of(&[(0, &[0], true)]);
        let meeting = Meeting::of(program.threads.len());
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, thread) in program.threads.iter().enumerate() {
                let mut worker = Worker::new(number, &memory, &meeting, &topology);
                threads.push(scope.spawn(move || worker.work(thread).map(|_claims| ())));
            }
            threads.into_iter().try_for_each(|thread| thread.join().unwrap())
        })?;
        damage(&memory);
        program.check.as_ref().unwrap()(&memory)
    }

    /// A layout of so many threads anywhere.
    pub fn anywhere(threads: usize) -> Layout {
        Layout { places: vec![Place::Anywhere; threads], home: Home::Anywhere, start: Start::Together }
    }

    #[test]
    fn parts_cover_all_elements_in_order() {
        let parts: Vec<_> = (0..3).map(|thread| part(10, thread, 3)).collect();
        assert_eq!(parts, [0..3, 3..6, 6..10]);
    }
}
