// SPDX-License-Identifier: GPL-2.0-only
//! How time passes: to the next event, with threads that work, pay debts, change phase and end.

use std::ops::Range;

use super::{Sim, Status, add};

/// Work of less than this is done: below what is worth a step.
const LEAST_STEP_NS: f64 = 1.0;

impl Sim<'_> {
    /// Time to the next end of a thread or of a phase at the present speeds, or to the next start; at most `most_ns`.
    pub fn step_ns(&self, most_ns: f64) -> f64 {
        let mut step_ns = most_ns;
        for (at, &thread) in self.active.iter().enumerate() {
            let state = &self.threads[thread];
            let speed = self.rates.accesses_per_ns[at];
            let to_go = self.left(thread).min(state.phase_end - state.done).max(0.0);
            step_ns = step_ns.min(state.debt_ns / self.cpu_share[at] + to_go / speed);
        }
        for program in 0..self.world.programs.len() {
            if self.started_ns[program].is_none()
                && let Some(due_ns) = self.due_ns(program)
            {
                step_ns = step_ns.min(due_ns - self.now_ns);
            }
        }
        step_ns.max(LEAST_STEP_NS)
    }

    /// Lets so much time pass.
    pub fn advance(&mut self, step_ns: f64) {
        let factors = self.working_shares(step_ns);
        let mut changed = false;
        for (at, factor) in factors.into_iter().enumerate() {
            let thread = self.active[at];
            let accesses = self.rates.accesses_per_ns[at] * step_ns * factor;
            let (memory, remote) = self.memory_per_access[at];
            self.counts.memory_accesses += accesses * memory;
            self.counts.remote_accesses += accesses * remote;
            let state = &mut self.threads[thread];
            state.done += accesses;
            add(&mut state.recent, state.phase, accesses);
            add(&mut state.ran_ns, state.node, self.cpu_share[at] * step_ns);
            changed |= self.pass_events(thread, self.rates.accesses_per_ns[at]);
        }
        self.now_ns += step_ns;
        self.counts.steps += 1;
        if changed {
            self.end_programs();
            self.refresh_active();
            self.events += 1;
            self.dirty = true;
        }
    }

    /// Which share of a step each active thread works and does not pay debts; those that wait for each other all as the
    /// one that pays longest.
    fn working_shares(&mut self, step_ns: f64) -> Vec<f64> {
        let mut factors = Vec::with_capacity(self.active.len());
        let mut of_group = vec![1.0_f64; self.world.programs.len()];
        for (&thread, &share) in self.active.iter().zip(&self.cpu_share) {
            let state = &mut self.threads[thread];
            let paid_ns = state.debt_ns.min(share * step_ns);
            state.debt_ns -= paid_ns;
            let factor = 1.0 - paid_ns / (share * step_ns);
            factors.push(factor);
            let program = self.world.threads[thread].program;
            of_group[program] = of_group[program].min(factor);
        }
        for (factor, &thread) in factors.iter_mut().zip(&self.active) {
            let program = self.world.threads[thread].program;
            if self.world.programs[program].barrier {
                *factor = of_group[program];
            }
        }
        factors
    }

    /// Goes on to the next phase, or ends the thread; whether anything happened.
    fn pass_events(&mut self, thread: usize, speed: f64) -> bool {
        let spec = &self.world.threads[thread];
        let state = &mut self.threads[thread];
        let slack = speed * LEAST_STEP_NS;
        if state.done + slack >= spec.accesses {
            state.status = Status::Done;
            return true;
        }
        if state.done + slack >= state.phase_end {
            state.phase = (state.phase + 1) % spec.phases.len();
            state.phase_end += spec.phases[state.phase].accesses;
            return true;
        }
        false
    }

    fn end_programs(&mut self) {
        for program in 0..self.world.programs.len() {
            let Range { start, end } = self.world.programs[program].threads;
            let done = self.threads[start..end].iter().all(|thread| thread.status == Status::Done);
            if done && self.ended_ns[program].is_none() {
                self.ended_ns[program] = Some(self.now_ns);
                self.world.programs[program].regions.clone().for_each(|region| self.lift_region(region));
            }
        }
    }
}
