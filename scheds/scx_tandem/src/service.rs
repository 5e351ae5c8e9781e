// SPDX-License-Identifier: GPL-2.0-only
//! What the service manager is told, if there is one (systemd's protocol). It only wants to know; nothing depends on it.

use sd_notify::NotifyState;
use tracing::debug;

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        debug!("the service manager cannot be told: {error}");
    }
}

/// The scheduler is loaded.
pub fn ready(what: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(what)]);
}

/// What it is doing, or what was refused, in a line.
pub fn status(what: &str) {
    tell(&[NotifyState::Status(what)]);
}

/// The agent is alive.
pub fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// The scheduler is about to be unloaded.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}
