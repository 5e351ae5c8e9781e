// SPDX-License-Identifier: GPL-2.0-only
//! Words for the user, on standard error.

use std::fmt::Arguments;
use std::io::Write as _;

/// Says one line. Whoever listened may be gone, or their disk full: that is no reason to lose what is being done, and there is
/// nowhere to tell it.
pub fn say_line(words: Arguments) {
    let _ = std::io::stderr().write_all(format!("{words}\n").as_bytes());
}
