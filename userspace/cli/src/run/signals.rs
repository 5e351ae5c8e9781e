// SPDX-License-Identifier: GPL-2.0-only
//! Signals that are meant for the program, though this process gets them: batch systems and `kill` know it only.
//!
//! Until there is a program they are kept for it, and those that would end it are a wish not to start it at all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use signal_hook::consts::{SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Handle;

use crate::signals;

/// Those that are passed on.
const FORWARDED: [i32; 8] = [SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
/// Those of them by which somebody wants the end.
const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// As `si_code`: from a terminal, not from a process (asm-generic/siginfo.h; libc lacks it).
const SI_KERNEL: i32 = 0x80;

/// Passes signals on to a program.
pub struct Forwarding {
    state: Arc<Mutex<State>>,
    handle: Handle,
}

#[derive(Default)]
struct State {
    program: Option<i32>,
    /// What came before there was a program.
    early: Vec<i32>,
}

impl Forwarding {
    /// Catches what is to be passed on. The program ignores itself what is ignored here.
    ///
    /// # Errors
    /// Signals cannot be handled.
    pub fn begin() -> Result<Self> {
        let mut caught = signals::catch(&FORWARDED)?;
        let forwarding = Self { state: Arc::default(), handle: caught.handle() };
        let state = Arc::clone(&forwarding.state);
        std::thread::spawn(move || {
            for info in caught.forever() {
                let mut state = lock(&state);
                match state.program {
                    None => state.early.push(info.si_signo),
                    Some(pid) if !reaches_by_itself(info.si_signo, info.si_code) => send(pid, info.si_signo),
                    Some(_) => {}
                }
            }
        });
        Ok(forwarding)
    }

    /// The first signal that came before there was a program and would end it.
    pub fn end_wished(&self) -> Option<i32> {
        lock(&self.state).early.iter().copied().find(|signal| ENDING.contains(signal))
    }

    /// Passes on to the program `pid` what came until now and what comes from now on.
    pub fn to(&self, pid: i32) {
        let mut state = lock(&self.state);
        state.program = Some(pid);
        state.early.drain(..).for_each(|signal| send(pid, signal));
    }

    /// Passes on nothing any more.
    pub fn close(&self) {
        self.handle.close();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a terminal sends, Ctrl-C for example, reaches the program as well; but of a hang-up it tells the leader of its session alone.
fn reaches_by_itself(signal: i32, code: i32) -> bool {
    // SAFETY: both only return numbers.
    let leads_session = || unsafe { libc::getsid(0) == libc::getpid() };
    code == SI_KERNEL && !(signal == SIGHUP && leads_session())
}

fn send(pid: i32, signal: i32) {
    // SAFETY: a plain system call; a program that has ended stays a zombie until it is waited for, so the id is its own.
    unsafe { libc::kill(pid, signal) };
}
