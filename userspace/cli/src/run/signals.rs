// SPDX-License-Identifier: GPL-2.0-only
//! Signals that are meant for the program, though this process gets them: batch systems and `kill` know it only.

use anyhow::Result;
use signal_hook::consts::{SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::signals::{self, Caught};

/// Those that are passed on.
const FORWARDED: [i32; 8] = [SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// As `si_code`: from a terminal, not from a process (asm-generic/siginfo.h; libc lacks it).
const SI_KERNEL: i32 = 0x80;

/// Catches what is to be passed on. The program ignores itself what is ignored here.
///
/// # Errors
/// Signals cannot be handled.
pub fn catch() -> Result<Caught> {
    signals::catch(&FORWARDED)
}

/// Passes on to the program `pid` what comes from now on, until the handle of `caught` is closed. What a terminal sends, Ctrl-C
/// for example, reaches the program by itself.
pub fn forward(mut caught: Caught, pid: i32) {
    std::thread::spawn(move || {
        for info in caught.forever().filter(|info| info.si_code != SI_KERNEL) {
            // SAFETY: a plain system call; a program that has ended stays a zombie until it is waited for, so the id is its own.
            unsafe { libc::kill(pid, info.si_signo) };
        }
    });
}
