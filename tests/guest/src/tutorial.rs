// SPDX-License-Identifier: GPL-2.0-only
//! The tutorial, as somebody who types it finds it.

use std::process::Command;

use libtest_mimic::Trial;
use tandem_guest_tests::state;

use crate::trial;

const PAGE: &str = include_str!("../../../docs/tutorial.md");
const PROMPT: &str = "    $ ";

pub fn tests() -> Vec<Trial> {
    vec![trial("every_command_of_the_tutorial_works", every_command_of_the_tutorial_works)]
}

fn every_command_of_the_tutorial_works() {
    let commands: Vec<&str> = PAGE.lines().filter_map(|line| line.strip_prefix(PROMPT)).collect();
    assert!(commands.len() > 10, "{commands:?}");
    // One shell, as one would have: it ends at the first command that fails, and the trace says which. Then the scheduler
    // must not stay for the tests that follow.
    let script = format!("trap 'kill $!' EXIT\n{}\ntrap - EXIT\n", commands.join("\n"));
    let output = Command::new("/bin/sh").args(["-exc", &script]).output().expect("a shell");
    let (said, trace) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{trace}");
    assert!(said.contains("disabled\n"), "unloaded in between: {said}");
    assert!(trace.contains("tandem: sh -c"), "a summary: {trace}");
    assert!(said.contains("/tmp/tandem.toml: valid\n"), "{said}");
    assert_eq!(state(), "disabled");
}
