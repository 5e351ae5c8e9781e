// SPDX-License-Identifier: GPL-2.0-only
//! The outer shape of a file: a header, then frames, each with a checksum.
//!
//! ```text
//! header  8f 54 41 4e 44 45 4d 0a   version u32
//! frame   kind u8   length u32   payload   checksum u32
//! ```
//! Numbers are little-endian. The checksum is CRC-32 (IEEE) of every byte of the file before it, so a frame that was
//! changed, lost, repeated or put elsewhere is found where it stands. A frame is written in one piece.

use std::io::{self, Read, Write};

use crc32fast::Hasher;
use thiserror::Error;

/// First bytes of every recording.
const MAGIC: [u8; 8] = *b"\x8fTANDEM\n";
/// Version of the format that is written. Earlier ones are read too, if there are any.
pub const VERSION: u32 = 1;
/// Largest payload: far more than 65536 groups with all signals take.
const MAX_PAYLOAD_BYTES: u32 = 256 << 20;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Settings, as JSON. A new agent starts here and remembers nothing.
    Settings = 1,
    /// An interval.
    Interval = 2,
    /// The end: why the recording ended early, in words; empty if it did not.
    End = 3,
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
        [Self::Settings, Self::Interval, Self::End].into_iter().find(|&kind| kind as u8 == number)
    }
}

/// Why nothing of a file can be read.
#[derive(Debug, Error)]
pub enum NotReadable {
    /// Another kind of file.
    #[error("this is not a recording of scx_tandem (it starts with other bytes)")]
    NotARecording,
    /// A recording that ended at once.
    #[error("the recording ends within its header, after {0} bytes: nothing was recorded")]
    NoHeader(usize),
    /// A format of another time.
    #[error(
        "the recording has version {found} of the format, and this program reads version {VERSION}: use a newer one"
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// The system cannot read it. No source of this error: whoever prints both would say it twice.
    #[error("cannot be read: {0}")]
    Io(io::Error),
}

impl From<io::Error> for NotReadable {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Why a file cannot be read further. What came before is whole.
#[derive(Debug, Error)]
pub enum Damage {
    /// The file ends between frames, without the frame that marks the end.
    #[error("the recording was cut off: it ends at byte {at} without its end mark; everything before is whole")]
    NoEnd {
        /// Length of the file.
        at: u64,
    },
    /// The file ends within a frame.
    #[error(
        "the recording was cut off at byte {at}, within the frame that starts at byte {frame_at}; what is before that frame is whole"
    )]
    CutOff {
        /// Length of the file.
        at: u64,
        /// Start of the frame.
        frame_at: u64,
    },
    /// A frame is not what was written.
    #[error(
        "the recording is damaged: the frame at byte {frame_at} {what}; what is before it is whole, what follows is not read"
    )]
    Broken {
        /// Start of the frame.
        frame_at: u64,
        /// What is wrong with it.
        what: String,
    },
    /// The recorder gave up.
    #[error("the recording ended early: {0}")]
    EndedEarly(String),
    /// The system cannot read on.
    #[error("the recording cannot be read beyond byte {at}: {error}")]
    Io {
        /// Bytes read so far.
        at: u64,
        /// Why.
        error: io::Error,
    },
}

/// Writes frames.
pub(crate) struct FrameWriter<W> {
    output: W,
    hasher: Hasher,
    /// Bytes written: the header and whole frames.
    pub(crate) written: u64,
}

impl<W: Write> FrameWriter<W> {
    /// Writes the header.
    pub(crate) fn new(mut output: W) -> io::Result<Self> {
        let header = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        output.write_all(&header)?;
        let mut hasher = Hasher::new();
        hasher.update(&header);
        Ok(Self { output, hasher, written: header.len() as u64 })
    }

    /// Writes one frame.
    pub(crate) fn write(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).ok().filter(|&length| length <= MAX_PAYLOAD_BYTES);
        let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, "the interval is too large"))?;
        let mut frame = Vec::with_capacity(payload.len() + 9);
        frame.push(kind as u8);
        frame.extend(length.to_le_bytes());
        frame.extend(payload);
        self.hasher.update(&frame);
        let checksum = self.hasher.clone().finalize().to_le_bytes();
        self.hasher.update(&checksum);
        frame.extend(checksum);
        self.output.write_all(&frame)?;
        self.output.flush()?;
        self.written += frame.len() as u64;
        Ok(())
    }
}

/// Reads frames.
pub(crate) struct FrameReader<R> {
    input: R,
    hasher: Hasher,
    /// Bytes read so far.
    at: u64,
}

impl<R: Read> FrameReader<R> {
    /// Reads the header.
    pub(crate) fn new(mut input: R) -> Result<Self, NotReadable> {
        let mut header = Vec::new();
        input.by_ref().take(MAGIC.len() as u64 + 4).read_to_end(&mut header)?;
        let magic = &header[..header.len().min(MAGIC.len())];
        if !MAGIC.starts_with(magic) {
            return Err(NotReadable::NotARecording);
        }
        let Some(version) = header.get(MAGIC.len()..).and_then(|version| version.try_into().ok()) else {
            return Err(NotReadable::NoHeader(header.len()));
        };
        match u32::from_le_bytes(version) {
            VERSION => {}
            found => return Err(NotReadable::Version { found }),
        }
        let mut hasher = Hasher::new();
        hasher.update(&header);
        Ok(Self { input, hasher, at: header.len() as u64 })
    }

    /// Bytes read so far: between frames, where the next one starts.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The next frame; `None` at the end of the file.
    pub(crate) fn next(&mut self) -> Result<Option<(Kind, Vec<u8>)>, Damage> {
        let frame_at = self.at;
        let broken = |what: &str| Damage::Broken { frame_at, what: what.to_owned() };
        let head = self.read(5)?;
        if head.is_empty() {
            return Ok(None);
        }
        let cut_off = |at| Damage::CutOff { at, frame_at };
        let Ok([kind, length @ ..]) = <[u8; 5]>::try_from(head) else { return Err(cut_off(self.at)) };
        let length = u32::from_le_bytes(length);
        if length > MAX_PAYLOAD_BYTES {
            return Err(broken("says it is longer than any frame is"));
        }
        let payload = self.read(u64::from(length))?;
        let expected = self.hasher.clone().finalize();
        let checksum = self.read(4)?;
        let Ok(checksum) = <[u8; 4]>::try_from(checksum) else { return Err(cut_off(self.at)) };
        if u32::from_le_bytes(checksum) != expected {
            return Err(broken("does not have the checksum it should have"));
        }
        let kind = Kind::of(kind).ok_or_else(|| broken("is of an unknown kind"))?;
        Ok(Some((kind, payload)))
    }

    /// Up to `bytes` more bytes, fewer only at the end of the file. Never reserves more than there is to read.
    fn read(&mut self, bytes: u64) -> Result<Vec<u8>, Damage> {
        let mut read = Vec::new();
        let result = self.input.by_ref().take(bytes).read_to_end(&mut read);
        self.at += read.len() as u64;
        self.hasher.update(&read);
        result.map_err(|error| Damage::Io { at: self.at, error })?;
        Ok(read)
    }
}
