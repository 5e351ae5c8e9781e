// SPDX-License-Identifier: GPL-2.0-only
//! What traced threads tell by stopping. All signals are told, those for real-time use included, which the C library
//! itself needs.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::Error;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::launch::End;

/// Why a thread stopped.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It is gone.
    Ended(End),
    /// It has a new program.
    Exec,
    /// It has a new thread or process.
    Birth,
    /// It calls for what a filter of calls stops it at.
    Call,
    /// It would get this signal.
    Signal(i32),
}

/// What comes of a step that cannot be made: the thread gets this signal when it goes on.
const FAULTS: [i32; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// What the calling thread was told while it waited for a step, and what it owes.
#[derive(Default)]
struct Later {
    events: VecDeque<(Pid, Event)>,
    faults: BTreeMap<Pid, i32>,
}

thread_local! {
    static LATER: RefCell<Later> = RefCell::default();
}

/// Waits for the next event of any thread that the calling one traces.
///
/// # Errors
/// There is no such thread.
pub fn next_event() -> Result<(Pid, Event)> {
    let known = LATER.with_borrow_mut(|later| later.events.pop_front());
    known.map_or_else(next_of_any, Ok)
}

/// The next event if there is one already; `None` too where there is no such thread.
///
/// # Errors
/// The threads cannot be waited for.
pub fn event_that_is_there() -> Result<Option<(Pid, Event)>> {
    let known = LATER.with_borrow_mut(|later| later.events.pop_front());
    let mut status = 0;
    if known.is_some() {
        return Ok(known);
    }
    // SAFETY: the status lives through the call.
    match unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG) } {
        0 => Ok(None),
        -1 if Errno::last() == Errno::ECHILD => Ok(None),
        -1 => Err(Errno::last()).context("the program cannot be waited for"),
        pid => Ok(Some((Pid::from_raw(pid), event(status)))),
    }
}

fn next_of_any() -> Result<(Pid, Event)> {
    let mut status = 0;
    loop {
        // SAFETY: the status lives through the call.
        let pid = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
        if pid > 0 {
            return Ok((Pid::from_raw(pid), event(status)));
        }
        let error = Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINTR) {
            return Err(error).context("the program cannot be waited for");
        }
    }
}

fn event(status: i32) -> Event {
    if libc::WIFEXITED(status) {
        return Event::Ended(End::Code(libc::WEXITSTATUS(status)));
    }
    if libc::WIFSIGNALED(status) {
        return Event::Ended(End::Signal(libc::WTERMSIG(status)));
    }
    match status >> 16 {
        libc::PTRACE_EVENT_EXEC => Event::Exec,
        libc::PTRACE_EVENT_SECCOMP => Event::Call,
        libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => Event::Birth,
        _ => Event::Signal(libc::WSTOPSIG(status)),
    }
}

/// Lets a stopped thread go on, with this signal if it is not 0. One that is gone is told by its end.
///
/// # Errors
/// It is not stopped, or not traced by the calling thread.
pub fn go_on(thread: Pid, signal: i32) -> Result<()> {
    let owed = LATER.with_borrow_mut(|later| later.faults.remove(&thread));
    let signal = if signal == 0 { owed.unwrap_or(0) } else { signal };
    // SAFETY: takes plain numbers.
    if unsafe { libc::ptrace(libc::PTRACE_CONT, thread.as_raw(), 0, libc::c_long::from(signal)) } == 0 {
        return Ok(());
    }
    let error = Error::last_os_error();
    if error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error).context("the program cannot go on") }
}

/// Has `thread`, which is stopped, make one step; false if it ended instead, which is told as an event then, as is what other
/// threads do. The first thread of a process has ended only when the others are known to have. Signals wait until it has, as the
/// kernel keeps them: who sent them, and what with, the C library and timers go by.
///
/// # Errors
/// The thread cannot be stepped or waited for.
pub fn step(thread: Pid) -> Result<bool> {
    // What a step itself brings about comes in spite of a mask, and then not to the program's handler.
    let faults = FAULTS.iter().chain(&[libc::SIGTRAP]).fold(0, |mask, signal| mask | 1_u64 << (signal - 1));
    let begin = || {
        let blocked = signal_mask(thread, libc::PTRACE_GETSIGMASK, 0)?;
        signal_mask(thread, libc::PTRACE_SETSIGMASK, !faults)?;
        ptrace::step(thread, None).map(|()| blocked)
    };
    let blocked = match begin() {
        Ok(blocked) => blocked,
        // Its end is told as an event.
        Err(Errno::ESRCH) => return Ok(false),
        Err(error) => return Err(error).context("the program cannot be stepped"),
    };
    let stepped = has_stepped(thread)?;
    if stepped {
        signal_mask(thread, libc::PTRACE_SETSIGMASK, blocked).context("the program's signals cannot be let go on")?;
    }
    Ok(stepped)
}

/// Gets or sets which signals a stopped thread blocks.
fn signal_mask(thread: Pid, request: libc::c_uint, mut mask: u64) -> nix::Result<u64> {
    // SAFETY: the kernel's set of signals has the 8 bytes of `mask`, which lives through the call.
    let done = unsafe { libc::ptrace(request, thread.as_raw(), size_of::<u64>(), &raw mut mask) };
    Errno::result(done).map(|_| mask)
}

/// Waits until `thread`, which was told to make one step, has made it, or cannot. What cannot be blocked comes again after it.
fn has_stepped(thread: Pid) -> Result<bool> {
    let mut held = Vec::new();
    loop {
        match next_of_any()? {
            (pid, event) if pid != thread => {
                later(pid, event);
                continue;
            }
            (_, Event::Signal(libc::SIGTRAP)) => break,
            (_, Event::Signal(fault)) if FAULTS.contains(&fault) => {
                LATER.with_borrow_mut(|later| later.faults.insert(thread, fault));
                break;
            }
            (_, Event::Signal(signal)) => held.push(signal),
            (_, event @ (Event::Ended(_) | Event::Exec)) => {
                later(thread, event);
                return Ok(false);
            }
            (_, Event::Birth | Event::Call) => {}
        }
        match ptrace::step(thread, None) {
            // Its end is told as an event.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error).context("the program cannot be stepped"),
        }
    }
    for signal in held {
        // SAFETY: a plain system call, on a thread that is stopped.
        unsafe { libc::syscall(libc::SYS_tkill, thread.as_raw(), signal) };
    }
    Ok(true)
}

/// Whether an error only says that a thread is no more.
pub fn is_gone(error: &anyhow::Error) -> bool {
    let errno = |cause: &(dyn std::error::Error + 'static)| {
        let of_system = cause.downcast_ref::<Error>().and_then(Error::raw_os_error);
        of_system.or_else(|| cause.downcast_ref::<Errno>().map(|&errno| errno as i32))
    };
    error.chain().any(|cause| errno(cause) == Some(libc::ESRCH))
}

fn later(pid: Pid, event: Event) {
    LATER.with_borrow_mut(|later| later.events.push_back((pid, event)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_status_is_told_apart() {
        assert_eq!(event(3 << 8), Event::Ended(End::Code(3)));
        assert_eq!(event(libc::SIGKILL), Event::Ended(End::Signal(libc::SIGKILL)));
        assert_eq!(event(0x7f | libc::SIGUSR1 << 8), Event::Signal(libc::SIGUSR1));
        assert_eq!(event(0x7f | 33 << 8), Event::Signal(33), "of the C library's own");
        assert_eq!(event(0x7f | libc::SIGTRAP << 8 | libc::PTRACE_EVENT_EXEC << 16), Event::Exec);
        assert_eq!(event(0x7f | libc::SIGTRAP << 8 | libc::PTRACE_EVENT_CLONE << 16), Event::Birth);
        assert_eq!(event(0x7f | libc::SIGTRAP << 8 | libc::PTRACE_EVENT_SECCOMP << 16), Event::Call);
    }
}
