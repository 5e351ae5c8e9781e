// SPDX-License-Identifier: GPL-2.0-only
//! Machines and scenarios for tests.

use std::path::Path;

use tandem_machine::MachineFile;

use crate::machine::Machine;
use crate::scenario::Scenario;

/// The machine of a machine file's text.
pub fn machine(text: &str) -> Machine {
    Machine::new(&MachineFile::parse(text, Path::new("test.toml")).unwrap()).unwrap()
}

/// The lab's machine of two nodes with four CPUs: 90 ns locally, 180 ns remotely.
pub fn two_nodes() -> Machine {
    machine(include_str!("../../../vm/machines/2node.toml"))
}

/// A scenario of one second with these programs.
pub fn scenario(programs: &str) -> Scenario {
    Scenario::parse(&format!("name = 'test'\nsummary = 'test'\nseconds = 1\n{programs}"), "test").unwrap()
}
