// SPDX-License-Identifier: GPL-2.0-only
//! What this process got from whoever started it, for the program that it starts.
//!
//! Problem: Rust's runtime ignores SIGPIPE before `main`, and its `Command` gives a child the default for it and a mask without
//! signals, whatever this process began with. Mechanism: what SIGPIPE was is noted before the runtime begins, and both are given
//! back between fork and exec. Other signals that are ignored stay so by themselves.

use std::io::{Error, Result};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// The C library calls what is in this section before `main`.
#[used]
// SAFETY: the section holds functions of this type.
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    SIGPIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE).unwrap_or(false), Ordering::Relaxed);
}

/// Whether this process ignores a signal now.
///
/// # Errors
/// There is no such signal.
pub fn is_ignored(signal: i32) -> Result<bool> {
    // SAFETY: all zeroes is a value of this plain structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives through the call, which changes nothing else.
    match unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) } {
        0 => Ok(action.sa_sigaction == libc::SIG_IGN),
        _ => Err(Error::last_os_error()),
    }
}

/// Has the program that `command` starts begin with SIGPIPE and blocked signals as this process did.
///
/// # Errors
/// The mask of the calling thread cannot be read.
pub fn pass_on(command: &mut Command) -> Result<()> {
    let signals = Signals::of_this_process()?;
    // SAFETY: between fork and exec only system calls are made, on what is there already.
    unsafe { command.pre_exec(move || signals.give()) };
    Ok(())
}

/// What a program gets of signals.
#[derive(Clone, Copy)]
struct Signals {
    on_broken_pipe: libc::sighandler_t,
    blocked: libc::sigset_t,
}

impl Signals {
    /// What this process got.
    ///
    /// # Errors
    /// The mask of the calling thread cannot be read.
    fn of_this_process() -> Result<Self> {
        let was_ignored = SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed);
        let on_broken_pipe = if was_ignored { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: all zeroes is a value of this plain structure.
        let mut blocked: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set lives through the call, which only reads the mask.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut blocked) } {
            0 => Ok(Self { on_broken_pipe, blocked }),
            error => Err(Error::from_raw_os_error(error)),
        }
    }

    /// Gives it to the calling process. May be called between fork and exec.
    ///
    /// # Errors
    /// What the system says.
    fn give(&self) -> Result<()> {
        // SAFETY: a plain system call.
        if unsafe { libc::signal(libc::SIGPIPE, self.on_broken_pipe) } == libc::SIG_ERR {
            return Err(Error::last_os_error());
        }
        // SAFETY: the set lives through the call.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.blocked, std::ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(Error::from_raw_os_error(error)),
        }
    }
}
