// SPDX-License-Identifier: GPL-2.0-only
//! Regions that are measured from checkpoints that CRIU makes.

use std::cell::RefCell;
use std::path::Path;

use anyhow::Result;
use tandem_ab::stop::Stop;
use tandem_tune::criu;
use tandem_tune::launch::{Codelet, End, Entry, Program, Streams};
use tandem_tune::plan::Plan;
use tandem_tune::session::{Ran, Replay, Trial};
use tandem_tune::surroundings::host_name;

use super::movers::is_root;
use super::trial::{What, told};

/// Why there can be none here, in words; `None` if there can.
pub fn obstacle() -> Option<String> {
    if !is_root() {
        return Some("checkpoints need root".to_owned());
    }
    criu::obstacle()
}

/// The checkpoint that was made last.
struct Last {
    base: Plan,
    threads: usize,
    entry: Entry,
    /// Or why there is none.
    codelet: Result<Codelet, String>,
}

/// Makes checkpoints of entries of regions, and replays them.
pub struct Checkpoints<'a> {
    what: &'a What<'a>,
    stop: &'a Stop,
    last: RefCell<Option<Last>>,
}

impl<'a> Checkpoints<'a> {
    /// Of this program, until a stop is wished.
    pub fn new(what: &'a What<'a>, stop: &'a Stop) -> Self {
        Self { what, stop, last: RefCell::default() }
    }

    /// Replays an entry, of which there is a checkpoint or one is made now; again if this process was suspended meanwhile.
    pub fn replay(&self, asked: &Replay) -> Ran {
        let mut last = self.last.borrow_mut();
        let fits = |last: &Last| last.base == asked.base && last.threads == asked.threads && last.entry == asked.entry;
        let last = match last.take() {
            Some(known) if fits(&known) => last.insert(known),
            // Another one has no room beside it, perhaps.
            other => {
                drop(other);
                last.insert(self.capture(asked))
            }
        };
        let codelet = last.codelet.as_ref().map_err(String::clone)?;
        let suspension = &self.what.suspension;
        suspension.was_there();
        loop {
            let seen = codelet.replay(&asked.places, asked.limit, self.stop).map_err(|error| format!("{error:#}"))?;
            if !suspension.was_there() || self.stop.wished() {
                return match seen.end {
                    End::Measured | End::TooLong | End::Stopped => {
                        Ok(Trial { seen, last_words: String::new(), moved_pages: None, host: host_name() })
                    }
                    end => Err(format!("replayed, {} before the end of {}", ended(&end), asked.entry.region)),
                };
            }
        }
    }

    fn capture(&self, asked: &Replay) -> Last {
        // What it writes is no part of what is measured; a file that grows meanwhile would not be what the checkpoint has.
        let streams = Streams::Files { input: self.what.input.map(Path::to_owned), output: "/dev/null".into() };
        let command = told(self.what.command, asked.threads);
        let program = Program { command, streams, functions: self.what.functions.to_vec() };
        let limit = asked.capture_limit.time;
        let codelet = match Codelet::capture(&program, &asked.base_places, &asked.entry, limit, self.stop) {
            Ok(Ok(codelet)) => Ok(codelet),
            Ok(Err(end)) => Err(no_entry(&asked.entry, &end)),
            Err(error) => Err(format!("{error:#}")),
        };
        Last { base: asked.base.clone(), threads: asked.threads, entry: asked.entry.clone(), codelet }
    }
}

/// Why there was no checkpoint of a program that ended so.
fn no_entry(entry: &Entry, end: &End) -> String {
    let number = entry.number + 1;
    format!("{} before it had entered {} {number} time{}", ended(end), entry.region, if number == 1 { "" } else { "s" })
}

fn ended(end: &End) -> String {
    match end {
        End::Code(code) => format!("it ended with exit code {code}"),
        End::Signal(signal) => format!("it was ended by signal {signal}"),
        End::TooLong => "it took too long".to_owned(),
        _ => "it was stopped".to_owned(),
    }
}
