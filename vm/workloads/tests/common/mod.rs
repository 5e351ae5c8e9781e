// SPDX-License-Identifier: GPL-2.0-only
//! What the end-to-end tests have in common.

use std::process::{Command, Stdio};

/// `tandem-load` with these arguments, its output caught.
pub fn tandem_load(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem-load"));
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
