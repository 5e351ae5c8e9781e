// SPDX-License-Identifier: GPL-2.0-only
//! What is read of the machine in a thread beside the one that waits for an arm's script.

use std::sync::mpsc::{Receiver, channel};

use anyhow::{Result, anyhow};

/// Does `work` in the calling thread, and has `read` take readings of `what` meanwhile, until the other end of what it is given is
/// dropped, which ends its sleep. Returns what both gave.
///
/// # Errors
/// That of `read`, or that it panicked.
pub fn beside<T, R: Send>(
    what: &str,
    read: impl FnOnce(&Receiver<()>) -> Result<R> + Send,
    work: impl FnOnce() -> T,
) -> Result<(T, R)> {
    let (done, hears_done) = channel::<()>();
    let (result, readings) = std::thread::scope(|scope| {
        let reader = scope.spawn(move || read(&hears_done));
        let result = work();
        drop(done);
        (result, reader.join().unwrap_or_else(|_| Err(anyhow!("the thread that reads {what} panicked"))))
    });
    Ok((result, readings?))
}
