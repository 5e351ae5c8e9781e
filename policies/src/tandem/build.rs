// SPDX-License-Identifier: GPL-2.0-only
//! From a snapshot to the [`Problem`].

use smallvec::smallvec;

use super::history::Horizons;
use super::latencies::{Latencies, Row};
use super::owners::{Common, Owners, Part};
use super::partners::Variances;
use super::problem::{Follower, Pool, Prices, Problem, Shared, Unknown};
use super::still::Still;
use super::together;
use crate::capacity;
use crate::in_step;
use crate::knee::{Knee, Load};
use crate::model::{FULL_CAPACITY, NodeIndex, Snapshot, Thread};
use crate::relocation::{may_go, may_run};
use crate::signals::sound;

/// Share of its CPU time that a thread can wait for memory at least, whatever it waits for lines.
const LEAST_MEMORY_SHARE: f64 = 0.05;
/// CPUs by which a node may be over-full for nothing.
const CPU_SLACK: f64 = 0.05;
/// Where nobody knows how long memories are waited for, that is taken for this share of the stall where threads are placed: enough to
/// spread those that can take their memory along, and too little to send any away from what it uses.
const ASSUMED_SHARE: f64 = 0.1;
/// Own memory with less than this share of a thread's accesses does not count for the waits.
const FAINTEST_FOLLOWER: f64 = 0.02;

/// Capacity in CPUs of the fastest kind.
fn cpus(capacity: u64) -> f64 {
    capacity as f64 / FULL_CAPACITY as f64
}

/// What a [`Problem`] is made from.
pub struct Facts<'a> {
    /// What was seen.
    pub snapshot: &'a Snapshot,
    /// Whose memory is whose.
    pub owners: &'a Owners,
    /// What moves cost.
    pub prices: Prices,
    /// Time over which they must pay.
    pub horizons: &'a Horizons,
    /// Pages for which each node has room.
    pub room: &'a [f64],
    /// Memory to which pages of a thread on a node go.
    pub memory_of: &'a [Option<usize>],
    /// What stays where it is.
    pub still: &'a Still,
}

impl Facts<'_> {
    /// The problem.
    pub fn problem(&self) -> Problem {
        let nodes = self.snapshot.topology.len();
        let all: Vec<&Thread> = self.snapshot.threads.iter().collect();
        let demands = in_step::demands(&all, capacity::demands(self.snapshot, &all), self.snapshot.time_ns);
        let threads: Vec<Unknown> =
            all.iter().zip(demands).map(|(thread, demand)| self.unknown(thread, cpus(demand))).collect();
        let movable: Vec<usize> = (0..threads.len()).filter(|&at| !threads[at].choices.is_empty()).collect();
        let (capacity, taken) = self.cpus(&threads);
        let sets = together::sets(&movable, |at| (all[at].process.0, all[at].cgroup));
        let mut problem = Problem {
            nodes,
            latencies: Latencies::of(&self.snapshot.topology),
            value: vec![0.0; threads.len() * nodes],
            prices: vec![0.0; threads.len() * nodes],
            threads,
            movable,
            sets,
            moves: self.prices,
            shared: vec![],
            pools: vec![],
            capacity,
            taken,
            memory_of: self.memory_of.to_vec(),
            knee: None,
            assumed_knee: None,
            placing_knee: None,
            loads: vec![],
        };
        problem.scale(self.snapshot);
        let variances = problem.pair_up(self);
        let owned = problem.take_parts(self);
        problem.take_rest(self, &owned);
        problem.take_waits(self);
        problem.price_leaving(self, &variances);
        problem.settle(self.snapshot);
        problem
    }

    fn unknown(&self, thread: &Thread, demand: f64) -> Unknown {
        let snapshot = self.snapshot;
        let may_stay = may_run(snapshot, thread, thread.node);
        let goes =
            thread.cpu_time_ns as f64 >= self.prices.busy_ns && !(may_stay && self.still.threads(thread.process));
        let may = |node: &usize| {
            let node = NodeIndex(*node);
            goes && may_go(snapshot, thread, node) && (node != thread.node || may_run(snapshot, thread, node))
        };
        let choices: Vec<usize> = (0..snapshot.topology.len()).filter(may).collect();
        let is_free = choices.iter().any(|&node| node != thread.node.0);
        Unknown {
            present: thread.node.0,
            choices: if is_free { choices } else { vec![] },
            demand,
            scale: 1.0,
            pool: None,
            parts: vec![],
            partners: vec![],
            followers: vec![],
        }
    }

    /// CPUs by node that cost nothing, and those that others use.
    fn cpus(&self, threads: &[Unknown]) -> (Vec<f64>, Vec<f64>) {
        let snapshot = self.snapshot;
        let interval_ns = snapshot.interval_ns.max(1) as f64;
        let cpus: Vec<f64> = snapshot.topology.nodes.values().map(|node| cpus(node.capacity())).collect();
        let others = |node: usize| {
            snapshot.nodes.get(NodeIndex(node)).map_or(0.0, |load| load.unmanaged_ns as f64 / interval_ns)
        };
        let taken: Vec<f64> = (0..cpus.len()).map(|node| others(node).min(cpus[node])).collect();
        let wanted: f64 = threads.iter().map(|thread| thread.demand).sum::<f64>() + taken.iter().sum::<f64>();
        let all: f64 = cpus.iter().sum::<f64>().max(1.0);
        let capacity = cpus.iter().map(|&cpus| cpus.max(wanted * cpus / all) + CPU_SLACK).collect();
        (capacity, taken)
    }
}

impl Problem {
    /// What each thread waits for one after the other.
    fn scale(&mut self, snapshot: &Snapshot) {
        for (at, thread) in snapshot.threads.iter().enumerate() {
            let ran_ns = thread.cpu_time_ns as f64 / snapshot.interval_ns.max(1) as f64 * 1e9;
            let memory_ns = self.stall(thread);
            let lines_ns = thread.transfers_per_s.map_or(0.0, |lines| {
                let far = (0..self.nodes).map(|node| self.between_ns(thread.node.0, node)).fold(0.0, f64::max);
                sound(lines.within_node) * self.latency_ns(thread.node.0, thread.node.0)
                    + sound(lines.across_nodes) * far
            });
            let left_ns = (ran_ns - lines_ns).max(LEAST_MEMORY_SHARE * ran_ns);
            if memory_ns > left_ns {
                self.threads[at].scale = left_ns / memory_ns;
            }
        }
    }

    /// Waiting for memory if nothing were in flight together, in ns per second.
    fn stall(&self, thread: &Thread) -> f64 {
        let Some(row) = &thread.accesses_per_s else { return 0.0 };
        let by_table: f64 =
            row.iter().map(|(memory, &per_s)| sound(per_s) * self.latency_ns(thread.node.0, memory.0)).sum();
        let measured = thread.latency_ns.map(sound).filter(|&latency_ns| latency_ns > 0.0);
        measured.map_or(by_table, |latency_ns| latency_ns * row.values().map(|&per_s| sound(per_s)).sum::<f64>())
    }

    /// Takes in the groups of few threads; returns, by thread and node, the accesses that are accounted for.
    fn take_parts(&mut self, facts: &Facts) -> Vec<f64> {
        let mut owned = vec![0.0; self.value.len()];
        for part in &facts.owners.parts {
            for &(user, per_s) in &part.users {
                for &(node, pages) in &part.pages {
                    owned[user * self.nodes + node] += per_s * pages / part.resident;
                }
            }
            // Mean latency from each node.
            let stay_ns =
                self.latencies.costs_from(part.pages.iter().map(|&(memory, pages)| (memory, pages / part.resident)));
            match part.users[..] {
                _ if !part.movable => {
                    for &(user, per_s) in &part.users {
                        let waited = per_s * self.threads[user].scale;
                        (0..self.nodes).for_each(|node| self.value[user * self.nodes + node] += waited * stay_ns[node]);
                    }
                }
                [(user, per_s)] => self.take_own(facts, part, user, per_s, &stay_ns),
                _ => self.take_shared(facts, part, stay_ns),
            }
        }
        owned
    }

    /// By memory, what it takes to bring a part there: the move, and what it must save; infinite without room.
    fn bring(&self, facts: &Facts, part: &Part, waited_per_s: f64) -> Row {
        // Parts are of one process.
        let process = part.users.first().map(|&(user, _)| facts.snapshot.threads[user].process);
        let Some(process) = process else { return smallvec![f64::INFINITY; self.nodes] };
        let stall: f64 = part.pages.iter().map(|&(memory, pages)| pages * self.latency_ns(memory, memory)).sum();
        let least = facts.prices.least_gain * waited_per_s * stall / part.resident;
        let (horizon_s, huge_share) = (facts.horizons.of_s(Some(process)), part.huge / part.resident);
        let mut away: Row = smallvec![part.resident; self.nodes];
        part.pages.iter().for_each(|&(memory, pages)| away[memory] = part.resident - pages);
        let to = |(memory, away): (usize, f64)| {
            let may_go = facts.snapshot.may_use(process, NodeIndex(memory)) && !facts.still.memory(process);
            if away > facts.room[memory] || !may_go {
                return f64::INFINITY;
            }
            facts.prices.pages(away, huge_share, horizon_s) + if away > 0.0 { least } else { 0.0 }
        };
        away.into_iter().enumerate().map(to).collect()
    }

    /// By memory, what others than the owners of a part wait if it is there, with so much of their accesses waited for.
    fn of_others(&self, part: &Part, scale: f64) -> Row {
        self.latencies.costs_to(part.others.iter().map(|&(node, per_s)| (node, scale * per_s)))
    }

    fn take_own(&mut self, facts: &Facts, part: &Part, user: usize, per_s: f64, stay_ns: &[f64]) {
        let scale = self.threads[user].scale;
        let waited = per_s * scale;
        let [others, bring] = [self.of_others(part, scale), self.bring(facts, part, waited)];
        let others_stay = stay_of_others(part, scale, stay_ns);
        let mut goes = vec![false; self.nodes];
        for node in 0..self.nodes {
            let stay = waited * stay_ns[node];
            let follow = self.memory_of[node].map_or(f64::INFINITY, |to| {
                let more = others[to] - others_stay;
                let there = waited * self.latency_ns(node, to);
                let doubt = facts.prices.doubt((stay - there).max(0.0), part.samples);
                there + more + doubt + bring[to]
            });
            goes[node] = follow < stay;
            self.value[user * self.nodes + node] += follow.min(stay);
        }
        let all: f64 = facts.snapshot.threads[user].accesses_per_s.as_ref().map_or(0.0, |row| row.total());
        if let [(home, _)] = part.pages[..]
            && per_s > FAINTEST_FOLLOWER * all
        {
            let load = Load { per_s, waited_per_s: waited };
            self.threads[user].followers.push(Follower { home, load, goes });
        }
    }

    fn take_shared(&mut self, facts: &Facts, part: &Part, stay_ns: Row) {
        let users: Vec<(usize, f64)> =
            part.users.iter().map(|&(user, per_s)| (user, per_s * self.threads[user].scale)).collect();
        let waited: f64 = users.iter().map(|user| user.1).sum();
        let all: f64 = part.users.iter().map(|user| user.1).sum();
        let scale = if all > 0.0 { waited / all } else { 0.0 };
        let [others, bring] = [self.of_others(part, scale), self.bring(facts, part, waited)];
        let base = others.into_iter().zip(bring).map(|(others, bring)| others + bring).collect();
        let others_stay = stay_of_others(part, scale, &stay_ns);
        users.iter().for_each(|&(user, _)| self.threads[user].parts.push(self.shared.len()));
        // Those of others are with what these have in common.
        let rest = |&(node, pages): &(usize, f64)| {
            let per_s = all * pages / part.resident;
            (node, Load { per_s, waited_per_s: scale * per_s })
        };
        let rests = part.pages.iter().map(rest).collect();
        // Parts are of one process.
        let process = part.users.first().map(|&(user, _)| facts.snapshot.threads[user].process);
        let per_sample = scale * process.map_or(0.0, |process| facts.owners.per_sample(process));
        self.shared.push(Shared { users, stay_ns, others_stay, base, per_sample, rests });
    }

    /// Takes in what threads access besides: of a process that has memory in common, that; else memory that stays.
    fn take_rest(&mut self, facts: &Facts, owned: &[f64]) {
        let mut pool_of: Vec<Option<usize>> = vec![None; facts.owners.common.len()];
        for (at, thread) in facts.snapshot.threads.iter().enumerate() {
            let Some(row) = &thread.accesses_per_s else { continue };
            let scale = self.threads[at].scale;
            let rest: Vec<Load> = (0..self.nodes)
                .map(|node| (sound(row[NodeIndex(node)]) - owned[at * self.nodes + node]).max(0.0))
                .map(|per_s| Load { per_s, waited_per_s: scale * per_s })
                .collect();
            let stay = self.latencies.costs_from(rest.iter().map(|load| load.waited_per_s).enumerate());
            let common = facts.owners.common.binary_search_by_key(&thread.process, |common| common.process);
            let movable = common.map_or(0.0, |number| facts.owners.common[number].movable_share());
            (0..self.nodes).for_each(|node| self.value[at * self.nodes + node] += (1.0 - movable) * stay[node]);
            if movable > 0.0
                && let Ok(number) = common
            {
                let pool = *pool_of[number].get_or_insert_with(|| {
                    let rests = (0..self.nodes).map(|node| (node, Load::default())).collect();
                    self.pools.push(Pool { base: vec![], stay: vec![], users: vec![], rests });
                    self.pools.len() - 1
                });
                let waited: f64 = movable * rest.iter().map(|load| load.waited_per_s).sum::<f64>();
                let users = &mut self.pools[pool];
                self.threads[at].pool = Some((pool, users.users.len(), waited));
                users.users.push(at);
                users.stay.push(stay.into_iter().map(|cost| movable * cost).collect());
                for ((_, load), &more) in users.rests.iter_mut().zip(&rest) {
                    *load = load.plus(more, movable);
                }
            }
        }
        for (number, pool) in pool_of.into_iter().enumerate() {
            let Some(pool) = pool else { continue };
            self.pools[pool].base = self.pool_base(facts, &facts.owners.common[number], pool);
            self.pools[pool].rests.retain(|(_, load)| load.per_s > 0.0);
        }
    }

    /// What it takes to bring all that a process has in common to each node.
    fn pool_base(&self, facts: &Facts, common: &Common, pool: usize) -> Vec<f64> {
        let users = self.pools[pool].users.iter();
        let waited: f64 = users.filter_map(|&user| self.threads[user].pool).map(|(_, _, per_s)| per_s).sum();
        let pages: f64 = common.pages.iter().sum();
        let (least, most) = self.latencies.range();
        // Half of the way from near to far is what users that are anywhere can gain.
        let doubt = facts.prices.errors / libm::sqrt(common.samples.max(1.0)) * (most - least) / 2.0;
        let hurdle = waited * (doubt + facts.prices.least_gain * least);
        let horizon_s = facts.horizons.of_s(Some(common.process));
        let base = |to: usize| {
            let away = pages - common.pages[to];
            let is_meant = self.memory_of.contains(&Some(to)) && away <= facts.room[to];
            let is_meant = is_meant && facts.snapshot.may_use(common.process, NodeIndex(to));
            let is_meant = is_meant && !facts.still.memory(common.process);
            let huge_share = common.huge / pages.max(1.0);
            if is_meant { facts.prices.pages(away, huge_share, horizon_s) + hurdle } else { f64::INFINITY }
        };
        (0..self.nodes).map(base).collect()
    }

    /// The accesses to each memory now, and what the waits tell.
    fn take_waits(&mut self, facts: &Facts) {
        let snapshot = facts.snapshot;
        let mut loads = vec![Load::default(); self.nodes];
        let mut idle_ns = vec![0.0; self.nodes];
        // A rate seen in n samples errs by its square's nth part, squared; one without samples by itself.
        let mut variance = vec![0.0; self.nodes];
        for (at, thread) in snapshot.threads.iter().enumerate() {
            let Some(row) = &thread.accesses_per_s else { continue };
            let per_sample = facts.owners.per_sample(thread.process);
            for (memory, &per_s) in row.iter() {
                let (per_s, memory) = (sound(per_s), memory.0);
                variance[memory] += per_s * if per_sample > 0.0 { per_sample } else { per_s };
                let load = Load { per_s, waited_per_s: per_s * self.threads[at].scale };
                loads[memory] = loads[memory].plus(load, 1.0);
                idle_ns[memory] += per_s * self.latency_ns(thread.node.0, memory);
            }
        }
        for node in (0..self.nodes).filter(|&node| loads[node].per_s > 0.0) {
            idle_ns[node] /= loads[node].per_s;
        }
        self.knee = Knee::of(snapshot, &loads, &idle_ns);
        let is_measured = snapshot.nodes.values().any(|load| load.served_latency_ns.is_some());
        if !is_measured {
            let doubt: Vec<f64> = variance.iter().map(|variance| facts.prices.errors * libm::sqrt(*variance)).collect();
            self.assumed_knee = Knee::assumed(snapshot, &loads, &doubt, facts.prices.cpu_lines_per_s);
        }
        let assumed = || {
            let stall = (0..self.nodes).map(|node| loads[node].waited_per_s * idle_ns[node]).sum::<f64>();
            Some(self.assumed_knee.clone()?.scaled_to(&loads, ASSUMED_SHARE * stall))
        };
        self.placing_knee = self.knee.clone().or_else(assumed);
        self.loads = loads;
    }

    /// Adds what a thread's move must bring to every node but the present one.
    fn price_leaving(&mut self, facts: &Facts, variances: &Variances) {
        for &at in &self.movable {
            let thread = &facts.snapshot.threads[at];
            let present = self.threads[at].present;
            if !may_run(facts.snapshot, thread, thread.node) {
                continue;
            }
            let scale = self.threads[at].scale;
            let lines: f64 = self.threads[at].partners.iter().map(|partner| partner.1).sum();
            // As if all were near, as it is for pages.
            let near_ns = self.latency_ns(present, present);
            let accesses: f64 =
                thread.accesses_per_s.as_ref().map_or(0.0, |row| row.values().map(|&rate| sound(rate)).sum());
            let stall = near_ns * (scale * accesses + lines / 2.0);
            let horizon_s = facts.horizons.of_s(Some(thread.process));
            let price = (facts.prices.thread_ns / horizon_s).max(facts.prices.least_gain * stall);
            let of_accesses = self.doubts_of_accesses(facts, thread, present);
            let of_partners = self.doubts_of_partners(facts, variances, at, present);
            for node in (0..self.nodes).filter(|&node| node != present) {
                let must_bring = price + (scale * of_accesses[node] + of_partners[node]);
                self.prices[at * self.nodes + node] = must_bring;
                self.value[at * self.nodes + node] += must_bring;
            }
        }
    }

    /// By other node, what is in doubt of what a thread's accesses cost less from there.
    fn doubts_of_accesses(&self, facts: &Facts, thread: &Thread, from: usize) -> Vec<f64> {
        let per_sample = facts.owners.per_sample(thread.process);
        let Some(row) = thread.accesses_per_s.as_ref() else { return vec![0.0; self.nodes] };
        let mut all = 0.0;
        // What they cost less, and the sum of squares.
        let mut gains = vec![(0.0, 0.0); self.nodes];
        for (memory, &per_s) in row.iter() {
            let (per_s, here_ns) = (sound(per_s), self.latency_ns(from, memory.0));
            all += per_s;
            for ((gain, squares), there_ns) in gains.iter_mut().zip(self.latencies.to(memory.0)) {
                let nearer_ns = here_ns - there_ns;
                *gain += per_s * nearer_ns;
                *squares += per_s * nearer_ns * nearer_ns;
            }
        }
        let doubt = |(gain, squares): (f64, f64)| {
            // all / per_sample samples; rate^2 x (mean of squares - square of mean) / samples.
            let variance = if all > 0.0 { (per_sample * (squares - gain * gain / all)).max(0.0) } else { 0.0 };
            facts.prices.doubt_of(gain, libm::sqrt(variance))
        };
        gains.into_iter().map(doubt).collect()
    }

    /// Threads that may not stay begin where they are best off.
    fn settle(&mut self, snapshot: &Snapshot) {
        for &at in &self.movable {
            if !self.threads[at].choices.contains(&snapshot.threads[at].node.0) {
                let value = |node: usize| self.value[at * self.nodes + node];
                let best = self.threads[at].choices.iter().copied().min_by(|&a, &b| value(a).total_cmp(&value(b)));
                self.threads[at].present = best.unwrap_or(self.threads[at].present);
            }
        }
    }
}

/// What others than the owners of a part wait where it is, at this mean latency from each node.
fn stay_of_others(part: &Part, scale: f64, stay_ns: &[f64]) -> f64 {
    part.others.iter().map(|&(node, per_s)| scale * per_s * stay_ns[node]).sum()
}
