// SPDX-License-Identifier: GPL-2.0-only
//! Why regions are not measured from checkpoints that CRIU makes.

use std::process::Command;

/// The last one of a tool that says more than one line.
fn last_words(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.lines().find(|line| line.starts_with("Error")).unwrap_or("nothing").trim().to_owned()
}

/// Why, in words: CRIU is not there, says that it cannot work on this kernel, or nothing uses it.
pub fn obstacle() -> String {
    let instead = "regions can be measured in place (--codelets in-place)";
    match Command::new("criu").arg("check").output() {
        Err(error) => format!("criu does not start ({error}): {instead}"),
        Ok(output) if output.status.success() => {
            format!("CRIU could make checkpoints here, but nothing replays regions from them: {instead}")
        }
        Ok(output) => {
            format!("CRIU cannot make checkpoints on this machine, it says: {}; {instead}", last_words(&output.stderr))
        }
    }
}
