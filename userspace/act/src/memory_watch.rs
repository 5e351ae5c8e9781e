// SPDX-License-Identifier: GPL-2.0-only
//! Looks at the machine's memory for the mover: whether tasks wait for it, and how much the nodes can take.
//!
//! Reads /proc while moves are queued, at most every 100 ms, and tells the mover. Without one of the files the mover goes on
//! as if all were well, and that is said once.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::pressure::{PressureGate, Turn, waited_percent};
use crate::{MovePages, Mover, MoverConfig, Room};

/// Time between two looks at least.
const LOOK_NS: u64 = 100_000_000;
const PRESSURE_FILE: &str = "pressure/memory";
const ROOM_FILE: &str = "zoneinfo";

/// What is to be said about the machine's memory, once.
#[derive(Clone, Debug, PartialEq)]
pub enum MemoryNotice {
    /// Moves wait from now on.
    PressureBegan {
        /// Percent of the last 10 s in which a task waited for memory.
        waited_percent: f64,
        /// Below this they go on.
        end_percent: f64,
    },
    /// Moves go on.
    PressureEnded,
    /// The kernel does not tell of pressure: moves never wait for it.
    PressureUnknown {
        /// What was read, with what is wrong.
        why: String,
    },
    /// The kernel does not tell what nodes can take: moves go to full nodes too.
    RoomUnknown {
        /// What was read, with what is wrong.
        why: String,
    },
}

impl fmt::Display for MemoryNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PressureBegan { waited_percent, end_percent } => write!(
                f,
                "tasks waited for memory in {waited_percent:.0} % of the last 10 s: page moves wait until that is below \
                 {end_percent:.0} %"
            ),
            Self::PressureEnded => write!(f, "memory pressure has ended: page moves go on"),
            Self::PressureUnknown { why } => write!(
                f,
                "memory pressure is unknown ({why}), so page moves go on under it too; a kernel with CONFIG_PSI that is \
                 booted with psi=1 tells it"
            ),
            Self::RoomUnknown { why } => write!(
                f,
                "free memory and watermarks of the nodes are unknown ({why}), so page moves may make a full node reclaim: \
                 let scx_tandem read that file"
            ),
        }
    }
}

/// What was seen last.
#[derive(Debug)]
pub struct MemoryWatch {
    proc: PathBuf,
    gate: PressureGate,
    looked_ns: Option<u64>,
    pressure_unknown: bool,
    room_unknown: bool,
}

impl MemoryWatch {
    /// Has seen nothing yet. `proc` is /proc but for tests.
    pub fn new(proc: &Path, config: MoverConfig) -> Self {
        let gate = PressureGate::new(config.pressure_percent);
        Self { proc: proc.to_owned(), gate, looked_ns: None, pressure_unknown: false, room_unknown: false }
    }

    /// Looks again, if moves are queued and it is time (`now_ns` on CLOCK_MONOTONIC), and tells the mover.
    pub fn look<S: MovePages>(&mut self, mover: &mut Mover<S>, now_ns: u64) -> Vec<MemoryNotice> {
        let fresh = self.looked_ns.is_some_and(|looked_ns| now_ns.saturating_sub(looked_ns) < LOOK_NS);
        if fresh || (mover.queued_groups() == 0 && !self.gate.is_pressed()) {
            return Vec::new();
        }
        self.looked_ns = Some(now_ns);
        let mut notices = self.look_at_pressure();
        mover.set_paused(self.gate.is_pressed());
        if !self.gate.is_pressed() {
            notices.extend(self.look_at_room(mover));
        }
        notices
    }

    fn look_at_room<S: MovePages>(&mut self, mover: &mut Mover<S>) -> Option<MemoryNotice> {
        let read = self.read(ROOM_FILE, Room::parse);
        let notice = match &read {
            Err(why) if !self.room_unknown => Some(MemoryNotice::RoomUnknown { why: why.clone() }),
            _ => None,
        };
        self.room_unknown |= read.is_err();
        mover.set_room(read.ok());
        notice
    }

    fn look_at_pressure(&mut self) -> Vec<MemoryNotice> {
        let mut notices = Vec::new();
        let read = self.read(PRESSURE_FILE, waited_percent);
        if let Err(why) = &read
            && !self.pressure_unknown
        {
            self.pressure_unknown = true;
            notices.push(MemoryNotice::PressureUnknown { why: why.clone() });
        }
        let waited = read.ok();
        match self.gate.judge(waited) {
            Some(Turn::Began) => notices.push(MemoryNotice::PressureBegan {
                waited_percent: waited.unwrap_or(0.0),
                end_percent: self.gate.end_percent(),
            }),
            Some(Turn::Ended) => notices.push(MemoryNotice::PressureEnded),
            None => {}
        }
        notices
    }

    /// Reads and parses a file; the error says which and why.
    fn read<T>(&self, file: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let path = self.proc.join(file);
        let told = |error: io::Error| format!("{}: {error}", path.display());
        let text = fs::read_to_string(&path).map_err(told)?;
        parse(&text).ok_or_else(|| format!("{}: it does not have what is expected", path.display()))
    }
}
