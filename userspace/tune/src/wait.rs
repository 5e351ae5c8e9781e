// SPDX-License-Identifier: GPL-2.0-only
//! What traced threads tell by stopping. All signals are told, those for real-time use included, which the C library
//! itself needs.

use std::io::Error;

use anyhow::{Context, Result};
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

/// Waits for the next event of any thread that the calling one traces.
///
/// # Errors
/// There is no such thread.
pub fn next_event() -> Result<(Pid, Event)> {
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
    // SAFETY: takes plain numbers.
    if unsafe { libc::ptrace(libc::PTRACE_CONT, thread.as_raw(), 0, libc::c_long::from(signal)) } == 0 {
        return Ok(());
    }
    let error = Error::last_os_error();
    if error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error).context("the program cannot go on") }
}

/// Waits until `thread`, which was told to make one step, has made it; false if it ended instead, which is told as an
/// event then. Signals that come meanwhile come again after it.
///
/// # Errors
/// The thread cannot be waited for.
pub fn has_stepped(thread: Pid) -> Result<bool> {
    let mut held = Vec::new();
    loop {
        if has_ended(thread)? {
            return Ok(false);
        }
        let mut status = 0;
        // SAFETY: the status lives through the call.
        if unsafe { libc::waitpid(thread.as_raw(), &mut status, libc::__WALL) } < 0 {
            return Err(Error::last_os_error()).context("the program cannot be waited for");
        }
        match event(status) {
            Event::Signal(libc::SIGTRAP) => break,
            Event::Signal(signal) => held.push(signal),
            _ => {}
        }
        ptrace::step(thread, None).context("the program cannot be stepped")?;
    }
    for signal in held {
        // SAFETY: a plain system call, on a thread that is stopped.
        unsafe { libc::syscall(libc::SYS_tkill, thread.as_raw(), signal) };
    }
    Ok(true)
}

/// Waits until `thread` is stopped or has ended, and says which; that is not taken from the events.
fn has_ended(thread: Pid) -> Result<bool> {
    // SAFETY: all zeroes is a value of this plain structure.
    let mut told: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL;
    // SAFETY: the structure lives through the call.
    if unsafe { libc::waitid(libc::P_PID, thread.as_raw().cast_unsigned(), &mut told, flags) } != 0 {
        return Err(Error::last_os_error()).context("the program cannot be waited for");
    }
    Ok(matches!(told.si_code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED))
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
