// SPDX-License-Identifier: GPL-2.0-only
//! Fuzz target of the reader: no bytes make it fail other than in words, and what it reads can be written and read again.
//!
//! The input is tried as a file, and as columns under right checksums, which no fuzzer would guess: pieces, each with its
//! length as u16 before it. Run it with `tests/fuzz.sh tandem-trace reader SECONDS`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_trace::testing::{sealed, settings};
use tandem_trace::{Entry, Interval, TraceReader, TraceWriter};

fn read(bytes: &[u8]) -> Vec<Interval> {
    let Ok(reader) = TraceReader::new(bytes) else { return Vec::new() };
    let mut intervals = Vec::new();
    for entry in reader {
        match entry {
            Ok(Entry::Interval(interval)) => intervals.push(*interval),
            Ok(Entry::Settings(_)) => {}
            Err(damage) => assert!(!damage.to_string().is_empty()),
        }
    }
    intervals
}

fn pieces(mut input: &[u8]) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    while let Some((length, rest)) = input.split_first_chunk::<2>() {
        let (piece, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
        pieces.push(piece);
        input = rest;
    }
    pieces
}

fuzz_target!(|input: &[u8]| {
    read(input);
    let settings = settings(&[], 1, 1);
    let intervals = read(&sealed(&settings, pieces(input)));
    let mut again = Vec::new();
    let mut writer = TraceWriter::new(&mut again).expect("memory takes all");
    writer.settings(&settings).expect("memory takes all");
    for interval in &intervals {
        writer.interval(interval.clone()).expect("what was read fits together");
    }
    writer.end(None).expect("memory takes all");
    // As text, since a number that is none does not equal itself.
    assert_eq!(format!("{:?}", read(&again)), format!("{intervals:?}"));
});
