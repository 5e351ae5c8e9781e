// SPDX-License-Identifier: GPL-2.0-only
//! The flag by which SIGTERM ends a run for a time, in all of its processes.

use anyhow::{Context, Result};
use std::io::Error;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

/// The flag of all processes; in memory they share, because a signal may come to one of them only.
static STOP: AtomicPtr<AtomicBool> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn handle_stop(_signal: i32) {
    // SAFETY: the handler is installed after the pointer is set, to memory that is never unmapped.
    unsafe { (*STOP.load(Relaxed)).store(true, Relaxed) };
}

/// A flag that SIGTERM or SIGINT to any of the processes sets for all of them. To be called before forking.
pub fn stop_at_signal() -> Result<&'static AtomicBool> {
    // SAFETY: a new shared anonymous page, zeroed: a valid AtomicBool that is false.
    let page = unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return Err(Error::last_os_error()).context("cannot map a shared page");
    }
    STOP.store(page.cast(), Relaxed);
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the handler does nothing but an atomic store.
        let before = unsafe { libc::signal(signal, handle_stop as *const () as libc::sighandler_t) };
        if before == libc::SIG_ERR {
            return Err(Error::last_os_error()).context("cannot handle SIGTERM");
        }
    }
    // SAFETY: the page is valid and is never unmapped.
    Ok(unsafe { &*page.cast::<AtomicBool>() })
}
