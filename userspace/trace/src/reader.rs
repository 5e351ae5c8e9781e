// SPDX-License-Identifier: GPL-2.0-only
//! Reads a recording, up to its damage if it has any.

use std::io::Read;

use zstd::bulk::Decompressor;

use crate::coder::Malformed;
use crate::columns::Source;
use crate::frame::{Damage, FrameReader, Kind, NotReadable};
use crate::interval::Interval;
use crate::settings::Settings;
use crate::{blank, check, walk};

/// What a recording holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// An agent began; it remembered nothing of intervals before.
    Settings(Settings),
    /// The next interval.
    Interval(Box<Interval>),
}

/// Reads a recording as it comes; needs no more memory than two intervals do.
///
/// As an iterator it gives entries that are whole. If the recording does not go on to its end, the last item says why.
pub struct TraceReader<R> {
    frames: FrameReader<R>,
    decompressor: Decompressor<'static>,
    before: Interval,
    settled: bool,
    ended: bool,
}

impl<R: Read> TraceReader<R> {
    /// Looks at the header.
    ///
    /// # Errors
    /// When this is no recording, or one of an unknown version.
    pub fn new(input: R) -> Result<Self, NotReadable> {
        let (frames, decompressor) = (FrameReader::new(input)?, Decompressor::new()?);
        Ok(Self { frames, decompressor, before: blank::interval(), settled: false, ended: false })
    }

    fn read(&mut self) -> Result<Option<Entry>, Damage> {
        let frame_at = self.frames.at();
        let broken = |what: String| Damage::Broken { frame_at, what };
        let Some((kind, payload)) = self.frames.next()? else { return Err(Damage::NoEnd { at: frame_at }) };
        match kind {
            Kind::Settings => {
                let malformed = |error: serde_json::Error| broken(Malformed::Settings(error.to_string()).to_string());
                let settings = serde_json::from_slice(&payload).map_err(malformed)?;
                (self.before, self.settled) = (blank::interval(), true);
                Ok(Some(Entry::Settings(settings)))
            }
            Kind::Interval if !self.settled => Err(broken("is an interval without settings before it".to_owned())),
            Kind::Interval => {
                let interval = self.interval(&payload).map_err(|malformed| broken(malformed.to_string()))?;
                self.before = interval.clone();
                Ok(Some(Entry::Interval(Box::new(interval))))
            }
            Kind::End => self.end(&payload),
        }
    }

    fn interval(&mut self, payload: &[u8]) -> Result<Interval, Malformed> {
        let mut source = Source::new(payload, &mut self.decompressor)?;
        let mut interval = blank::interval();
        walk::interval(&mut source, &mut interval, &self.before)?;
        source.finish()?;
        check::interval(&interval)?;
        Ok(interval)
    }

    fn end(&mut self, reason: &[u8]) -> Result<Option<Entry>, Damage> {
        let frame_at = self.frames.at();
        if !reason.is_empty() {
            return Err(Damage::EndedEarly(String::from_utf8_lossy(reason).into_owned()));
        }
        match self.frames.next() {
            Ok(None) => Ok(None),
            _ => Err(Damage::Broken { frame_at, what: "comes after the end".to_owned() }),
        }
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Result<Entry, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let read = self.read().transpose();
        self.ended = !matches!(read, Some(Ok(_)));
        read
    }
}
