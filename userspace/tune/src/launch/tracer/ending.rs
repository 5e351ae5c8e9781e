// SPDX-License-Identifier: GPL-2.0-only
//! What becomes of the processes that a program leaves behind.

use anyhow::Result;
use nix::sys::ptrace;
use nix::unistd::Pid;

use super::Tracer;
use crate::wait::{Event, event_that_is_there, go_on, is_gone, next_event};

impl Tracer<'_> {
    /// Ends what is left of a program with breakpoints. Otherwise what outlives the program does so untraced from now on.
    pub(super) fn end_rest(mut self) -> Result<()> {
        if !self.has_breakpoints {
            return self.let_go();
        }
        while !self.processes.is_empty() {
            for &process in self.processes.keys() {
                // SAFETY: a plain system call; the process was not waited for yet, so its id is its own.
                unsafe { libc::kill(process.as_raw(), libc::SIGKILL) };
            }
            match next_event()? {
                (pid, Event::Ended(_)) => self.forget(pid),
                (pid, Event::Birth) => {
                    if let Ok(new) = ptrace::getevent(pid) {
                        match self.born(pid, Pid::from_raw(new as i32)) {
                            Err(error) if !is_gone(&error) => return Err(error),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Lets go of what outlives the program. What was born a moment ago stops first: without a tracer nobody would have it go on.
    fn let_go(&mut self) -> Result<()> {
        loop {
            let next = if self.unborn.is_empty() { event_that_is_there()? } else { Some(next_event()?) };
            let Some((thread, event)) = next else {
                // Their parents were killed before they could say whom they made.
                return self.stopped.iter().try_for_each(|&thread| go_on(thread, 0));
            };
            match event {
                Event::Ended(_) => self.forget(thread),
                event => match self.stopped_by(thread, event) {
                    Err(error) if !is_gone(&error) => return Err(error),
                    _ => {}
                },
            }
        }
    }
}
