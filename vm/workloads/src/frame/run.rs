// SPDX-License-Identifier: GPL-2.0-only
//! Runs a plan: starts its processes when they are due, marks and times the timed part, gathers what they did.
//!
//! The process that does this has one thread and does no work itself: it sleeps until a process says something or the
//! next one is due.

use crate::frame::child::{self, Child, Ended, Message};
use crate::frame::mark;
use crate::frame::plan::{Plan, Start};
use crate::frame::program::{self, Setting};
use crate::topology::NodeId;
use crate::truth::{ThreadTruth, Truth, monotonic_ns};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::io::Error;
use std::path::Path;

/// What a run gave.
pub struct Outcome {
    /// Length of the timed part.
    pub seconds: f64,
    /// The sum of the programs' own lengths, from when each was due to its end.
    pub accumulated_seconds: f64,
    /// What each program did.
    pub ended: Vec<Ended>,
    /// Pages of all programs by node: after the timed part, or at the end of a program that came later.
    pub pages: BTreeMap<NodeId, u64>,
}

/// A run under way.
struct Run<'a> {
    name: &'a str,
    plan: &'a Plan,
    setting: &'a Setting<'a>,
    children: BTreeMap<usize, Child>,
    /// CLOCK_MONOTONIC in ns at which each program was due.
    due_ns: BTreeMap<usize, u64>,
    ended: BTreeMap<usize, Ended>,
    pages: BTreeMap<NodeId, u64>,
}

/// Runs `plan` of workload `name` to its end. Writes the truth document to `truth` if a path is given.
pub fn run(name: &str, plan: &Plan, setting: &Setting, truth: Option<&Path>) -> Result<Outcome> {
    let (children, due_ns, ended) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut run = Run { name, plan, setting, children, due_ns, ended, pages: BTreeMap::new() };
    let threads = run.prepare()?;
    if let Some(path) = truth {
        run.truth_of(threads).write(path)?;
    }
    let begin_ns = monotonic_ns();
    mark::begin();
    run.children.values_mut().try_for_each(Child::release)?;
    run.due_ns = run.children.keys().map(|index| (*index, begin_ns)).collect();
    while run.ended.len() < plan.programs.len() {
        run.start_due(begin_ns)?;
        for index in run.wait_for_message(begin_ns)? {
            run.listen(index)?;
        }
    }
    mark::end();
    run.finish()?;
    Ok(run.outcome(begin_ns))
}

impl Run<'_> {
    /// Starts the programs that start together and waits until they are ready.
    fn prepare(&mut self) -> Result<Vec<ThreadTruth>> {
        for (index, program) in self.plan.programs.iter().enumerate() {
            if program.start == Start::Together {
                self.start(index)?;
            }
        }
        let mut threads = Vec::new();
        for child in self.children.values_mut() {
            match child.receive()? {
                Message::Ready(of_child) => threads.extend(of_child),
                other => bail!("process {} answered out of turn: {other:?}", child.pid()),
            }
        }
        Ok(threads)
    }

    fn start(&mut self, index: usize) -> Result<()> {
        let program = &self.plan.programs[index];
        let child = child::start(self.children.values(), |parent| program::run(program, self.setting, parent))?;
        self.children.insert(index, child);
        Ok(())
    }

    /// Starts the programs whose time has come.
    fn start_due(&mut self, begin_ns: u64) -> Result<()> {
        for (index, program) in self.plan.programs.iter().enumerate() {
            let due_ns = match program.start {
                Start::Together => continue,
                Start::At(after) => begin_ns + after.as_nanos() as u64,
                Start::After(earlier) => match self.ended.get(&earlier) {
                    Some(ended) => ended.at_ns,
                    None => continue,
                },
            };
            if !self.due_ns.contains_key(&index) && due_ns <= monotonic_ns() {
                self.due_ns.insert(index, due_ns);
                self.start(index)?;
            }
        }
        Ok(())
    }

    /// Sleeps until processes have something to say or the next program is due; gives the programs to listen to.
    fn wait_for_message(&self, begin_ns: u64) -> Result<Vec<usize>> {
        let silent = self.children.iter().filter(|(index, _)| !self.is_held(**index));
        let (indices, mut polled): (Vec<usize>, Vec<libc::pollfd>) = silent
            .map(|(index, child)| (*index, libc::pollfd { fd: child.descriptor(), events: libc::POLLIN, revents: 0 }))
            .unzip();
        let waiting = self.plan.programs.iter().enumerate().filter(|(index, _)| !self.due_ns.contains_key(index));
        let next_ns = waiting.filter_map(|(_, program)| match program.start {
            Start::At(after) => Some((begin_ns + after.as_nanos() as u64).saturating_sub(monotonic_ns())),
            _ => None,
        });
        let timeout_ms = next_ns.min().map_or(-1, |ns| ns.div_ceil(1_000_000) as i32);
        // SAFETY: the kernel reads and writes as many entries as the array has.
        let result = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout_ms) };
        if result < 0 && Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return Err(Error::last_os_error()).context("cannot wait for the processes");
        }
        let heard = indices.into_iter().zip(polled).filter(|(_, polled)| result > 0 && polled.revents != 0);
        Ok(heard.map(|(index, _)| index).collect())
    }

    /// Whether the program has ended and waits for its check.
    fn is_held(&self, index: usize) -> bool {
        self.ended.contains_key(&index) && self.plan.programs[index].start == Start::Together
    }

    /// Takes a program's next message and does what it calls for.
    fn listen(&mut self, index: usize) -> Result<()> {
        let child = self.children.get_mut(&index).expect("only children are polled");
        match child.receive()? {
            Message::Ready(_) => child.release()?,
            Message::Ended(ended) => {
                if self.plan.programs[index].start != Start::Together {
                    child.release()?;
                }
                self.ended.insert(index, ended);
            }
            message => self.take_pages(index, message)?,
        }
        Ok(())
    }

    fn take_pages(&mut self, index: usize, message: Message) -> Result<()> {
        let child = self.children.remove(&index).expect("a message comes from a child");
        let Message::Checked(pages) = message else {
            bail!("process {} answered out of turn: {message:?}", child.pid());
        };
        for (node, count) in pages {
            *self.pages.entry(node).or_default() += count;
        }
        child.wait();
        Ok(())
    }

    /// Lets those that wait check their work, one after the other, and waits for all.
    fn finish(&mut self) -> Result<()> {
        while let Some(index) = self.children.keys().next().copied() {
            let is_held = self.is_held(index);
            let child = self.children.get_mut(&index).expect("just found");
            if is_held {
                child.release()?;
            }
            let message = child.receive()?;
            self.take_pages(index, message)?;
        }
        Ok(())
    }

    fn truth_of(&self, threads: Vec<ThreadTruth>) -> Truth {
        Truth {
            workload: self.name.into(),
            initialised_at_ns: monotonic_ns(),
            processes: self.children.values().map(Child::pid).collect(),
            pairs: self.plan.pairs.iter().map(|pair| pair.map(|thread| threads[thread].tid)).collect(),
            threads,
        }
    }

    fn outcome(self, begin_ns: u64) -> Outcome {
        let end_ns = self.ended.values().map(|ended| ended.at_ns).max().unwrap_or(begin_ns);
        let lengths = self.ended.iter().map(|(index, ended)| (ended.at_ns - self.due_ns[index]) as f64 / 1e9);
        Outcome {
            seconds: (end_ns - begin_ns) as f64 / 1e9,
            accumulated_seconds: lengths.sum(),
            ended: self.ended.into_values().collect(),
            pages: self.pages,
        }
    }
}
