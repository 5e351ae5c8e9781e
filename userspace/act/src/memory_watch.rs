// SPDX-License-Identifier: GPL-2.0-only
//! Looks at the machine's memory for the mover: whether tasks wait for it, and how much the nodes can take.
//!
//! Reads /proc while moves are queued, at most every 100 ms, and tells the mover. Without one of the files the mover goes on
//! as if all were well, and that is said once.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::pressure::{PressureGate, Turn, waited_percent};
use crate::room::{HugeBlocks, Room, ZoneRooms};
use crate::{MoverConfig, PageMover};

/// Time between two looks at least.
const LOOK_NS: u64 = 100_000_000;
const PRESSURE_FILE: &str = "pressure/memory";
const ROOM_FILE: &str = "zoneinfo";
const BLOCKS_FILE: &str = "buddyinfo";

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
    /// The kernel does not tell what huge pages nodes can take: these move to where free memory is in pieces too.
    BlocksUnknown {
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
            Self::BlocksUnknown { why } => write!(
                f,
                "free blocks of the nodes are unknown ({why}), so the kernel may split huge pages that move: \
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
    blocks_unknown: bool,
}

impl MemoryWatch {
    /// Has seen nothing yet. `proc` is /proc but for tests.
    pub fn new(proc: &Path, config: MoverConfig) -> Self {
        let gate = PressureGate::new(config.pressure_percent);
        let [pressure_unknown, room_unknown, blocks_unknown] = [false; 3];
        Self { proc: proc.to_owned(), gate, looked_ns: None, pressure_unknown, room_unknown, blocks_unknown }
    }

    /// Looks again, if moves are queued and it is time (`now_ns` on CLOCK_MONOTONIC), and tells the mover.
    pub fn look(&mut self, mover: &mut dyn PageMover, now_ns: u64) -> Vec<MemoryNotice> {
        if self.is_fresh(now_ns) || (mover.queued_groups() == 0 && !self.gate.is_pressed()) {
            return Vec::new();
        }
        self.looked_ns = Some(now_ns);
        let mut notices = self.look_at_pressure(mover);
        if !self.gate.is_pressed() {
            notices.extend(self.look_at_room(mover));
        }
        notices
    }

    /// Looks at pressure alone, before there is anything to move, unless that was just done.
    pub fn look_ahead(&mut self, mover: &mut dyn PageMover, now_ns: u64) -> Vec<MemoryNotice> {
        if self.is_fresh(now_ns) { Vec::new() } else { self.look_at_pressure(mover) }
    }

    fn is_fresh(&self, now_ns: u64) -> bool {
        self.looked_ns.is_some_and(|looked_ns| now_ns.saturating_sub(looked_ns) < LOOK_NS)
    }

    fn look_at_room(&mut self, mover: &mut dyn PageMover) -> Vec<MemoryNotice> {
        let (zones, buddies) = (self.text(ROOM_FILE), self.text(BLOCKS_FILE));
        let rooms =
            zones.as_deref().map_err(String::clone).and_then(|text| self.parsed(ROOM_FILE, ZoneRooms::parse(text)));
        let blocks = buddies
            .as_deref()
            .map_err(String::clone)
            .and_then(|text| self.parsed(BLOCKS_FILE, HugeBlocks::parse(text)));
        mover.set_room(rooms.as_ref().ok().map(|rooms| Room::new(rooms, blocks.as_ref().ok())));
        let mut notices = Vec::new();
        if let Some(why) = first_time(&mut self.room_unknown, rooms.err()) {
            notices.push(MemoryNotice::RoomUnknown { why });
        }
        if let Some(why) = first_time(&mut self.blocks_unknown, blocks.err()) {
            notices.push(MemoryNotice::BlocksUnknown { why });
        }
        notices
    }

    fn look_at_pressure(&mut self, mover: &mut dyn PageMover) -> Vec<MemoryNotice> {
        let mut notices = Vec::new();
        let read = self.text(PRESSURE_FILE).and_then(|text| self.parsed(PRESSURE_FILE, waited_percent(&text)));
        let waited = read.as_ref().ok().copied();
        if let Some(why) = first_time(&mut self.pressure_unknown, read.err()) {
            notices.push(MemoryNotice::PressureUnknown { why });
        }
        match self.gate.judge(waited) {
            Some(Turn::Began) => notices.push(MemoryNotice::PressureBegan {
                waited_percent: waited.unwrap_or(0.0),
                end_percent: self.gate.end_percent(),
            }),
            Some(Turn::Ended) => notices.push(MemoryNotice::PressureEnded),
            None => {}
        }
        mover.set_paused(self.gate.is_pressed());
        notices
    }

    /// What a file says; the error says which and why not.
    fn text(&self, file: &str) -> Result<String, String> {
        let path = self.proc.join(file);
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// What was understood of it, likewise.
    fn parsed<T>(&self, file: &str, understood: Option<T>) -> Result<T, String> {
        understood.ok_or_else(|| format!("{}: it does not have what is expected", self.proc.join(file).display()))
    }
}

/// What is wrong, if that was not so before.
fn first_time(known: &mut bool, wrong: Option<String>) -> Option<String> {
    let first = !*known;
    *known |= wrong.is_some();
    wrong.filter(|_| first)
}
