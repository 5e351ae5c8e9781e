// SPDX-License-Identifier: GPL-2.0-only
//! Fuzz target of the decoders of perf records: nothing that may be in a ring makes them fail, and a ring is walked to its head,
//! by each byte once.
//!
//! The input is where the ring begins (u16), then pieces: kind of the record, misc (u16) and length of its body, one byte
//! each way, and the body. It is tried as records of these sizes, and as a ring of just these bytes. Run it with
//! `tests/fuzz.sh tandem-sense records SECONDS`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_sense::lookahead::perf::user_registers;
use tandem_sense::pmu::ibs::IbsQuirks;
use tandem_sense::pmu::record::{Fields, Record, Sample, parse};
use tandem_sense::pmu::ring::{RingBytes, walk};
use tandem_sense::pmu::spe::SourceCodes;
use tandem_sense::pmu::{data_source, ibs, spe};

const RING_BYTES: usize = 1 << 12;
const FIELDS: [Fields; 6] =
    [Fields::DECODED, Fields::DECODED_PHYSICAL, Fields::RAW, Fields::COMMON, Fields::FAULT, Fields::REGISTERS];
const QUIRKS: [IbsQuirks; 2] = [
    IbsQuirks { void_after_prefetch: false, hit_state_void: false },
    IbsQuirks { void_after_prefetch: true, hit_state_void: true },
];

struct Ring(Vec<u8>);

impl RingBytes for Ring {
    fn size(&self) -> usize {
        self.0.len()
    }

    fn copy_piece(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0[at..at + into.len()]);
    }
}

/// Walks a ring that begins at `start` and holds `bytes`.
fn walk_ring(start: u64, bytes: &[u8]) {
    let mut ring = Ring(vec![0; RING_BYTES]);
    for (offset, byte) in bytes.iter().enumerate() {
        ring.0[(start as usize + offset) % RING_BYTES] = *byte;
    }
    let head = start + bytes.len() as u64;
    let (mut taken, mut scratch) = (0, Vec::new());
    let walked = walk(&ring, start, head, &mut scratch, |record| {
        taken += record.len() as u64;
        FIELDS.iter().for_each(|fields| decode(record, *fields));
    });
    assert_eq!(walked.tail, head, "the tail is never beyond the head, nor behind");
    assert!(taken <= bytes.len() as u64 && (walked.broken || taken == bytes.len() as u64));
}

fn decode(record: &[u8], fields: Fields) {
    if let Record::Sample(Sample { data_source, raw, registers, .. }) = parse(record, fields) {
        data_source::decode(data_source);
        data_source::is_store(data_source);
        QUIRKS.iter().for_each(|quirks| _ = ibs::decode(raw, *quirks));
        registers.as_ref().map(user_registers);
    }
}

fn records(mut input: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some((&[kind, low, high, length], rest)) = input.split_first_chunk::<4>() {
        let (body, rest) = rest.split_at(usize::from(length).min(rest.len()));
        bytes.extend(u32::from(kind).to_ne_bytes());
        bytes.extend([low, high]);
        bytes.extend((8 + body.len() as u16).to_ne_bytes());
        bytes.extend(body);
        input = rest;
    }
    bytes
}

fuzz_target!(|input: &[u8]| {
    let Some((start, input)) = input.split_first_chunk::<2>() else { return };
    let start = u64::from(u16::from_le_bytes(*start));
    walk_ring(start, input);
    walk_ring(start, &records(input));
    let loss = spe::records(input, start, |record| {
        let codes = [SourceCodes::Arm, SourceCodes::Ampere, SourceCodes::HiSilicon, SourceCodes::Unknown];
        codes.into_iter().for_each(|codes| _ = spe::source::decode(&record, codes));
    });
    assert!(loss.bad_bytes <= input.len() as u64);
});
