// SPDX-License-Identifier: GPL-2.0-only
//! What is known of the memory of whole processes: mostly what it was.

use std::collections::BTreeMap;

use tandem_policies::model::{ProcessId, ProcessMemory};

use super::per_node;
use crate::coder::{Coder, Malformed};
use crate::columns::Column;

/// Passes all processes, each against the one that had its place before.
pub(super) fn processes(
    coder: &mut impl Coder,
    now: &mut BTreeMap<ProcessId, ProcessMemory>,
    before: &BTreeMap<ProcessId, ProcessMemory>,
) -> Result<(), Malformed> {
    let count = coder.count::<(ProcessId, ProcessMemory)>(Column::ProcessCount, now.len(), before.len())?;
    let mut left = std::mem::take(now).into_iter();
    let mut old = before.iter();
    let nothing = ProcessMemory::default();
    for _ in 0..count {
        let (mut process, mut memory) = left.next().unwrap_or((ProcessId(0), ProcessMemory::default()));
        let (predicted, was) = old.next().map_or((ProcessId(0), &nothing), |(process, was)| (*process, was));
        coder.number(Column::Process, &mut process.0, predicted.0)?;
        let allowed = &mut memory.allowed;
        per_node(coder, Column::ProcessAllowedCount, allowed, &was.allowed, bool::default, |coder, value, &before| {
            coder.flag(Column::ProcessAllowed, value, before)
        })?;
        now.insert(process, memory);
    }
    Ok(())
}
