// SPDX-License-Identifier: GPL-2.0-only
//! Columns: one stream of numbers for each field of an interval, compressed on its own.
//!
//! A number below 248 is one byte, its head. A larger one has the head 247 + n and n more bytes (little-endian) in a
//! second stream, the tails. So the heads, of which nearly all are 0 or small, compress well whatever the tails hold.
//! Zeros at the end of the heads are left out, and a stream without bytes is left out altogether.
//!
//! ```text
//! stream  number u8 (twice the column's, plus one for tails)   length u32   stored length u32   bytes
//! ```
//! The bytes are one zstd frame, or as they are if both lengths are the same.

use std::collections::BTreeMap;
use std::io;

use zstd::bulk::{Compressor, Decompressor};

use crate::coder::{Coder, Malformed};

/// Greatest number that is its own head.
const LAST_SMALL: u64 = 247;
/// Streams shorter than this are not worth a zstd header.
const SHORTEST_COMPRESSED: usize = 24;
/// Bytes of all streams of a frame together.
const MAX_STREAM_BYTES: usize = 256 << 20;
/// Bytes that the values of one interval may take in memory.
const MAX_VALUE_BYTES: usize = 128 << 20;

macro_rules! columns {
    ($($name:ident = $number:literal,)*) => {
        /// The columns with their numbers in the file. A number is never used for another field.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum Column {
            $($name = $number,)*
        }

        impl Column {
            const ALL: &[Column] = &[$(Column::$name,)*];
        }
    };
}

columns! {
    Time = 0,
    Length = 1,
    NodeCount = 2,
    NodeId = 3,
    CpuCount = 4,
    Cpu = 5,
    LlcCount = 6,
    LlcCpuCount = 7,
    LlcCpu = 8,
    NodeMemory = 9,
    NodeFree = 10,
    DistanceCount = 11,
    Distance = 12,
    LatencyCount = 13,
    Latency = 14,
    LatencySource = 15,
    LoadCount = 16,
    LoadBusy = 17,
    LoadUnmanaged = 18,
    LoadLatency = 19,
    ThreadCount = 20,
    ThreadRow = 21,
    ThreadTid = 22,
    ThreadStart = 23,
    ThreadProcess = 24,
    ThreadCommand = 25,
    ThreadNode = 26,
    ThreadCpu = 27,
    ThreadAllowedCount = 28,
    ThreadAllowed = 29,
    ThreadRunCount = 30,
    ThreadRun = 31,
    ThreadCpuTime = 32,
    ThreadLatency = 33,
    ThreadOperations = 34,
    ThreadCycles = 35,
    ThreadTransfers = 36,
    ThreadTransfersWithin = 37,
    ThreadTransfersAcross = 38,
    ThreadPerformanceCount = 39,
    ThreadPerformance = 40,
    ThreadSharingCount = 41,
    ThreadSharingRow = 42,
    ThreadSharingWith = 43,
    ThreadSharing = 44,
    ThreadCooldown = 45,
    ThreadAccesses = 46,
    ThreadAccessesCount = 47,
    ThreadAccessesByNode = 48,
    ScaleRatio = 49,
    ScaleUnit = 50,
    GroupCount = 51,
    GroupRow = 52,
    GroupProcess = 53,
    GroupStart = 54,
    GroupBytes = 55,
    GroupResidentCount = 56,
    GroupResident = 57,
    GroupUserCount = 58,
    GroupUserRow = 59,
    GroupUser = 60,
    GroupUserNew = 61,
    GroupUserAccesses = 62,
    GroupAccessesCount = 63,
    GroupAccesses = 64,
    GroupSamplesNew = 65,
    GroupSamples = 66,
    GroupLatency = 67,
    GroupUnmovable = 68,
    StrangerTid = 69,
    StrangerStart = 70,
    Decided = 71,
    Seed = 72,
    Generation = 73,
    AnswerCount = 74,
    Answer = 75,
    Missing = 76,
    Taken = 77,
    MoveCount = 78,
    Move = 79,
    MoveThread = 80,
    MoveNode = 81,
    MoveCpu = 82,
    MoveProcess = 83,
    MoveStart = 84,
    MoveBytes = 85,
    MoveGain = 86,
    MoveReason = 87,
    OutcomeCount = 88,
    Outcome = 89,
    OutcomeGeneration = 90,
    OutcomeFlag = 91,
    OutcomeProcess = 92,
    OutcomeStart = 93,
    OutcomeNode = 94,
    OutcomeRequested = 95,
    OutcomeMoved = 96,
    OutcomeTime = 97,
    OutcomeWord = 98,
    OutcomeThread = 99,
    OutcomeLatency = 100,
    ThreadSharingWhose = 101,
    ThreadSharingNew = 102,
    SlowCpuCount = 103,
    SlowCpu = 104,
    SlowCpuCapacity = 105,
    PageMove = 106,
    LoadPairCount = 107,
    LoadPairLatency = 108,
    ThreadTurned = 109,
    ThreadMemoryLines = 110,
    ThreadRemoteLines = 111,
    AccessRates = 112,
    ThreadControlGroup = 113,
    ProcessCount = 114,
    Process = 115,
    ProcessAllowedCount = 116,
    ProcessAllowed = 117,
    HugePageMove = 118,
    GroupHuge = 119,
    Realised = 120,
    ThreadWoken = 121,
    ThreadWakerTid = 122,
    ThreadWakerStart = 123,
    ThreadWakes = 124,
    ThreadInStep = 125,
}

/// Both streams of a column.
#[derive(Default, PartialEq)]
struct Streams {
    heads: Vec<u8>,
    tails: Vec<u8>,
}

/// Takes numbers down.
pub(crate) struct Sink {
    columns: Vec<Streams>,
    room: usize,
}

impl Sink {
    /// Nothing taken down.
    pub(crate) fn new() -> Self {
        Self { columns: Column::ALL.iter().map(|_| Streams::default()).collect(), room: MAX_VALUE_BYTES }
    }

    /// Whether both took the same down.
    pub(crate) fn holds_the_same(&self, other: &Self) -> bool {
        self.columns == other.columns
    }

    /// All columns as the payload of a frame.
    pub(crate) fn finish(mut self, compressor: &mut Compressor) -> io::Result<Vec<u8>> {
        let mut payload = Vec::new();
        for (column, streams) in self.columns.iter_mut().enumerate() {
            let used = streams.heads.iter().rposition(|&head| head != 0).map_or(0, |last| last + 1);
            streams.heads.truncate(used);
            for (part, bytes) in [&streams.heads, &streams.tails].into_iter().enumerate() {
                if bytes.is_empty() {
                    continue;
                }
                let compressed =
                    if bytes.len() < SHORTEST_COMPRESSED { None } else { Some(compressor.compress(bytes)?) };
                let stored = compressed.as_ref().filter(|stored| stored.len() < bytes.len()).unwrap_or(bytes);
                payload.push((2 * column + part) as u8);
                payload.extend((bytes.len() as u32).to_le_bytes());
                payload.extend((stored.len() as u32).to_le_bytes());
                payload.extend(stored);
            }
        }
        Ok(payload)
    }
}

impl Coder for Sink {
    fn pass(&mut self, column: Column, number: u64) -> Result<u64, Malformed> {
        let streams = &mut self.columns[column as usize];
        if number <= LAST_SMALL {
            streams.heads.push(number as u8);
        } else {
            let bytes = 8 - number.leading_zeros() as usize / 8;
            streams.heads.push(LAST_SMALL as u8 + bytes as u8);
            streams.tails.extend(&number.to_le_bytes()[..bytes]);
        }
        Ok(number)
    }

    fn pass_bytes(&mut self, column: Column, length: usize, bytes: &mut Vec<u8>) -> Result<(), Malformed> {
        debug_assert_eq!(length, bytes.len());
        self.columns[column as usize].tails.extend(&*bytes);
        Ok(())
    }

    fn room(&mut self) -> &mut usize {
        &mut self.room
    }
}

/// Gives the numbers of a frame back.
pub(crate) struct Source {
    columns: Vec<(Streams, Position)>,
    room: usize,
}

#[derive(Clone, Copy, Default)]
struct Position {
    head: usize,
    tail: usize,
}

impl Source {
    /// The columns in the payload of a frame.
    pub(crate) fn new(mut payload: &[u8], decompressor: &mut Decompressor) -> Result<Self, Malformed> {
        let mut found: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        let mut room = MAX_STREAM_BYTES;
        while let Some((&number, rest)) = payload.split_first() {
            let (length, rest) = split_u32(rest)?;
            let (stored, rest) = split_u32(rest)?;
            let (bytes, rest) = rest.split_at_checked(stored).ok_or(Malformed::Streams)?;
            payload = rest;
            room = room.checked_sub(length).ok_or(Malformed::TooLarge)?;
            let bytes = if stored == length {
                bytes.to_vec()
            } else {
                decompressor.decompress(bytes, length).map_err(|_| Malformed::Streams)?
            };
            if bytes.len() != length || found.insert(number, bytes).is_some() {
                return Err(Malformed::Streams);
            }
        }
        let mut column = |number: u8| Streams {
            heads: found.remove(&(2 * number)).unwrap_or_default(),
            tails: found.remove(&(2 * number + 1)).unwrap_or_default(),
        };
        let columns = (0..Column::ALL.len() as u8).map(|number| (column(number), Position::default())).collect();
        if !found.is_empty() {
            return Err(Malformed::LaterColumns);
        }
        Ok(Self { columns, room: MAX_VALUE_BYTES })
    }

    /// Checks that everything was read.
    pub(crate) fn finish(self) -> Result<(), Malformed> {
        for (&column, (streams, position)) in Column::ALL.iter().zip(&self.columns) {
            // Zeros that are left out of the heads may have been read beyond the end.
            if position.head < streams.heads.len() || position.tail < streams.tails.len() {
                return Err(Malformed::Column(column));
            }
        }
        Ok(())
    }

    fn tail(&mut self, column: Column, bytes: usize) -> Result<&[u8], Malformed> {
        let (streams, position) = &mut self.columns[column as usize];
        let tail = streams.tails.get(position.tail..).and_then(|rest| rest.get(..bytes));
        position.tail += bytes;
        tail.ok_or(Malformed::Column(column))
    }
}

fn split_u32(bytes: &[u8]) -> Result<(usize, &[u8]), Malformed> {
    let (number, rest) = bytes.split_first_chunk::<4>().ok_or(Malformed::Streams)?;
    Ok((u32::from_le_bytes(*number) as usize, rest))
}

impl Coder for Source {
    fn pass(&mut self, column: Column, _number: u64) -> Result<u64, Malformed> {
        let (streams, position) = &mut self.columns[column as usize];
        let head = streams.heads.get(position.head).copied().map_or(0, u64::from);
        position.head += 1;
        if head <= LAST_SMALL {
            return Ok(head);
        }
        let tail = self.tail(column, (head - LAST_SMALL) as usize)?;
        let mut number = [0; 8];
        number[..tail.len()].copy_from_slice(tail);
        Ok(u64::from_le_bytes(number))
    }

    fn pass_bytes(&mut self, column: Column, length: usize, bytes: &mut Vec<u8>) -> Result<(), Malformed> {
        *bytes = self.tail(column, length)?.to_vec();
        Ok(())
    }

    fn room(&mut self) -> &mut usize {
        &mut self.room
    }
}
