// SPDX-License-Identifier: GPL-2.0-only
//! Writes a recording.

use std::io::{self, Write};

use zstd::bulk::Compressor;

use crate::columns::Sink;
use crate::frame::{FrameWriter, Kind};
use crate::interval::Interval;
use crate::settings::Settings;
use crate::{blank, check, walk};

/// 5 % smaller than zstd's default of 3. Higher levels hardly find more: the columns hold little that repeats.
const LEVEL: i32 = 9;

/// Writes a recording, each frame in one piece. After an error nothing more may be written.
pub struct TraceWriter<W> {
    frames: FrameWriter<W>,
    compressor: Compressor<'static>,
    before: Interval,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a recording.
    ///
    /// # Errors
    /// When `output` does not take the header.
    pub fn new(output: W) -> io::Result<Self> {
        Ok(Self { frames: FrameWriter::new(output)?, compressor: Compressor::new(LEVEL)?, before: blank::interval() })
    }

    /// An agent with these settings begins: it remembers nothing of intervals before.
    ///
    /// # Errors
    /// When the output does not take it.
    pub fn settings(&mut self, settings: &Settings) -> io::Result<()> {
        self.before = blank::interval();
        self.frames.write(Kind::Settings, &serde_json::to_vec(settings)?)
    }

    /// The next interval.
    ///
    /// # Errors
    /// When the output does not take it, or when it is no interval of one machine.
    pub fn interval(&mut self, mut interval: Interval) -> io::Result<()> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        check::interval(&interval).map_err(invalid)?;
        let mut sink = Sink::new();
        walk::interval(&mut sink, &mut interval, &self.before).map_err(invalid)?;
        let payload = sink.finish(&mut self.compressor)?;
        self.frames.write(Kind::Interval, &payload)?;
        self.before = interval;
        Ok(())
    }

    /// The end, early if there is a `reason`.
    ///
    /// # Errors
    /// When the output does not take it.
    pub fn end(&mut self, reason: Option<&str>) -> io::Result<()> {
        self.frames.write(Kind::End, reason.unwrap_or_default().as_bytes())
    }

    /// Bytes written: the header and whole frames.
    pub fn written_bytes(&self) -> u64 {
        self.frames.written
    }
}
