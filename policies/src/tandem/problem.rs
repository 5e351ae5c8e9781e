// SPDX-License-Identifier: GPL-2.0-only
//! The objective of `tandem`: what a placement of threads costs when every page goes where it pays best.
//!
//! All in ns per second. Accesses that a thread has in flight together are waited for once: its rates are scaled down so
//! that it does not wait longer than it ran.
//!
//! | term | value |
//! |---|---|
//! | own memory | table by thread and node: per home, the cheaper of staying there and following the thread |
//! | memory of few | per part, the cheapest of staying and going to the node of one of its owners, with errors of the samples |
//! | memory of a process | the cheaper of staying and going to one node together |
//! | lines | per pair of threads, the transfers put down to it and those of wake-ups x latency between the nodes |
//! | CPUs | 1e9 for each CPU that threads of a node want beyond its CPUs, or its share if all are short |
//! | waits | [`crate::knee`] |
//! | leaving | what a move must bring: its cost over the horizon, a share of the stall, and errors of the samples |

use super::latencies::{Latencies, Row};
use crate::knee::{Knee, Load};
use crate::model::PAGE_BYTES;

/// Cost of a CPU that is wanted and not there, in ns per second.
const CPU_NS_PER_S: f64 = 1e9;
const HUGE_PAGE_BYTES: f64 = (2 << 20) as f64;

/// What moves cost, and what they must bring.
#[derive(Clone, Copy, Debug)]
pub struct Prices {
    /// Time to move a base page, a huge page of 2 MiB, and a thread with its caches.
    pub page_ns: f64,
    /// See `page_ns`.
    pub huge_page_ns: f64,
    /// See `page_ns`.
    pub thread_ns: f64,
    /// Lines that threads exchange when one wakes the other and sleeps.
    pub wake_lines: f64,
    /// Share of the stall that a move must save.
    pub least_gain: f64,
    /// Standard errors of the samples that it must exceed.
    pub errors: f64,
    /// CPU time in the interval below which a thread stays.
    pub busy_ns: f64,
    /// Cache lines per second that a memory is assumed to give for each CPU of its node; 0: without limit.
    pub cpu_lines_per_s: f64,
}

impl Prices {
    /// Moving so many base pages, of which this share are in huge pages, in ns per second of this horizon.
    pub fn pages(&self, pages: f64, huge_share: f64, horizon_s: f64) -> f64 {
        let in_huge_ns = self.huge_page_ns * PAGE_BYTES as f64 / HUGE_PAGE_BYTES;
        pages * (self.page_ns + huge_share * (in_huge_ns - self.page_ns)) / horizon_s
    }

    /// What is in doubt of a gain that errs by 1 / sqrt(samples) of itself. Whether it is a gain is in doubt only near 0:
    /// twice as far away as the doubt reaches there is none left.
    pub fn doubt(&self, gain: f64, samples: f64) -> f64 {
        self.doubt_of(gain, gain.abs() / libm::sqrt(samples.max(1.0)))
    }

    /// The same of a gain that errs by `error`.
    pub fn doubt_of(&self, gain: f64, error: f64) -> f64 {
        let doubt = self.errors * error;
        // By rates beyond all reason an error may be no number: then it is none. A gain that is none is in full doubt.
        (2.0 * doubt - gain.abs()).min(doubt).max(0.0)
    }
}

/// A thread, by its position in the snapshot.
#[derive(Clone, Debug)]
pub struct Unknown {
    /// Where it is; where it goes first if it may not stay.
    pub present: usize,
    /// Nodes to which it may go.
    pub choices: Vec<usize>,
    /// CPUs that it wants.
    pub demand: f64,
    /// Share of its accesses that it waits for one after the other.
    pub scale: f64,
    /// The pool of its process, its number among the users, and what it waits for there per second.
    pub pool: Option<(usize, usize, f64)>,
    /// Parts that it owns with others.
    pub parts: Vec<usize>,
    /// Threads that it exchanges lines with, and how many per second.
    pub partners: Vec<(usize, f64)>,
    /// Memory of its own that follows it: home, load, and by node whether it does.
    pub followers: Vec<Follower>,
}

/// Memory of one thread.
#[derive(Clone, Debug)]
pub struct Follower {
    /// Where it is.
    pub home: usize,
    /// Accesses to it.
    pub load: Load,
    /// By node of the thread, whether it goes along.
    pub goes: Vec<bool>,
}

/// Memory of several threads that may be moved.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Owners with what they wait for, per second.
    pub users: Vec<(usize, f64)>,
    /// By node of a user, latency to where it is.
    pub stay_ns: Row,
    /// What others pay if it stays.
    pub others_stay: f64,
    /// By node to which it goes, what others pay and what the move must bring.
    pub base: Row,
    /// What its owners wait for, per second, that a sample stands for.
    pub per_sample: f64,
    /// Accesses of its owners by where it is.
    pub rests: Vec<(usize, Load)>,
}

/// Memory that the threads of a process have in common.
#[derive(Clone, Debug)]
pub struct Pool {
    /// By node to which it goes, what the move must bring; infinite without room.
    pub base: Vec<f64>,
    /// What its users pay where it is: by number among them, then by node.
    pub stay: Vec<Vec<f64>>,
    /// Positions of its users.
    pub users: Vec<usize>,
    /// Accesses to it by where it is.
    pub rests: Vec<(usize, Load)>,
}

/// The problem of one snapshot.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Number of nodes.
    pub nodes: usize,
    /// Latencies between nodes.
    pub latencies: Latencies,
    /// Threads by position.
    pub threads: Vec<Unknown>,
    /// Threads that may move.
    pub movable: Vec<usize>,
    /// Those of them that may go together, ascending: of a process, or of a control group of several.
    pub sets: Vec<Vec<usize>>,
    /// What moves cost, and what they must bring.
    pub moves: Prices,
    /// By thread, then by node.
    pub value: Vec<f64>,
    /// By thread, then by node, what of that leaving the present one must bring.
    pub prices: Vec<f64>,
    /// Memory of few.
    pub shared: Vec<Shared>,
    /// Memory of processes.
    pub pools: Vec<Pool>,
    /// CPUs of each node that cost nothing.
    pub capacity: Vec<f64>,
    /// CPUs of each node that others use.
    pub taken: Vec<f64>,
    /// Memory to which pages of a thread on a node go.
    pub memory_of: Vec<Option<usize>>,
    /// Waits, if there are any.
    pub knee: Option<Knee>,
    /// Waits as they might be, where nobody can tell. They only choose between memories that are equally near.
    pub assumed_knee: Option<Knee>,
    /// Waits that count where threads go with their memory: measured, or a little of those that are assumed.
    pub placing_knee: Option<Knee>,
    /// Accesses to each memory now.
    pub loads: Vec<Load>,
}

impl Problem {
    /// Latency from a node's CPUs to a memory.
    pub fn latency_ns(&self, from: usize, to: usize) -> f64 {
        self.latencies.from(from)[to]
    }

    /// Where a thread's own memory is when the thread is on a node.
    pub fn memory_of_follower(&self, follower: &Follower, node: usize) -> usize {
        self.memory_of[node].filter(|_| follower.goes[node]).unwrap_or(follower.home)
    }

    /// Row of the table of a thread.
    pub fn row(&self, thread: usize) -> &[f64] {
        &self.value[thread * self.nodes..][..self.nodes]
    }

    /// By node, what the move of a thread there must bring; it is in its row.
    pub fn price(&self, thread: usize) -> &[f64] {
        &self.prices[thread * self.nodes..][..self.nodes]
    }

    /// Latency between two nodes, both ways.
    pub fn between_ns(&self, one: usize, other: usize) -> f64 {
        self.latencies.between(one)[other]
    }

    /// Cost of a node whose threads want so many CPUs.
    pub fn crowd(&self, node: usize, wanted: f64) -> f64 {
        CPU_NS_PER_S * (wanted + self.taken[node] - self.capacity[node]).max(0.0)
    }

    /// What memory of few costs with threads where `node_of` says, and where it goes; `None`: it stays.
    pub fn place_shared(&self, shared: &Shared, node_of: impl Fn(usize) -> usize) -> (f64, Option<usize>) {
        let stay = shared.users.iter().map(|&(user, per_s)| per_s * shared.stay_ns[node_of(user)]).sum::<f64>();
        let mut best = (stay + shared.others_stay, None);
        for &(user, _) in &shared.users {
            let Some(to) = self.memory_of[node_of(user)] else { continue };
            let users = shared.users.iter().map(|&(user, per_s)| per_s * self.latency_ns(node_of(user), to));
            let mut follow = shared.base[to] + users.sum::<f64>();
            // How far samples err is dear to tell, and can only speak against it.
            if follow < best.0 {
                follow += self.doubt_of_shared(shared, to, &node_of);
            }
            if follow < best.0 {
                best = (follow, Some(to));
            }
        }
        best
    }

    /// What is in doubt of what owners of memory gain if it goes to a node: some come nearer and others do not.
    fn doubt_of_shared(&self, shared: &Shared, to: usize, node_of: impl Fn(usize) -> usize) -> f64 {
        let (mut all, mut gain, mut squares) = (0.0, 0.0, 0.0);
        for &(user, per_s) in &shared.users {
            let nearer_ns = shared.stay_ns[node_of(user)] - self.latency_ns(node_of(user), to);
            all += per_s;
            gain += per_s * nearer_ns;
            squares += per_s * nearer_ns * nearer_ns;
        }
        let variance = if all > 0.0 { (shared.per_sample * (squares - gain * gain / all)).max(0.0) } else { 0.0 };
        self.moves.doubt_of(gain, libm::sqrt(variance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: Prices = Prices {
        page_ns: 1.0,
        huge_page_ns: 1.0,
        thread_ns: 1.0,
        wake_lines: 1.0,
        least_gain: 0.0,
        errors: 3.0,
        busy_ns: 0.0,
        cpu_lines_per_s: 0.0,
    };

    #[test]
    fn a_gain_is_in_doubt_by_its_errors_and_not_at_all_twice_as_far_from_none() {
        let doubts = [1.0, -3.0, 4.0, 6.0, 100.0].map(|gain| PRICES.doubt_of(gain, 1.0));
        assert_eq!(doubts, [3.0, 3.0, 2.0, 0.0, 0.0]);
        assert_eq!((PRICES.doubt(4.0, 16.0), PRICES.doubt(4.0, 4.0)), (2.0, 6.0));
    }

    #[test]
    fn an_error_that_is_no_number_is_none_and_a_gain_that_is_none_is_in_full_doubt() {
        assert_eq!((PRICES.doubt_of(1.0, f64::NAN), PRICES.doubt_of(f64::NAN, 1.0)), (0.0, 3.0));
        assert_eq!([1.0, f64::INFINITY].map(|gain| PRICES.doubt_of(gain, f64::INFINITY)), [f64::INFINITY; 2]);
    }
}
