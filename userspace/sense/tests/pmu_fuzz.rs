// SPDX-License-Identifier: GPL-2.0-only
//! The decoders of perf records against whatever may be in a ring: nothing is a panic, nothing is read twice or beyond.
//!
//! Each rule is tried for a second, or as long as TANDEM_FUZZ_SECONDS says.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use tandem_policies::model::ProcessId;
use tandem_sense::pmu::ibs::{IbsQuirks, Operation};
use tandem_sense::pmu::record::{Fields, Record, parse};
use tandem_sense::pmu::ring::{RingBytes, walk};
use tandem_sense::pmu::spe::{SourceCodes, TickClock, Timeline};
use tandem_sense::pmu::{data_source, ibs, spe};

const RING_BYTES: usize = 1 << 12;

fn fuzz<S: Strategy>(strategy: &S, rule: impl Fn(S::Value) -> TestCaseResult) {
    let seconds = std::env::var("TANDEM_FUZZ_SECONDS").map_or(1, |text| text.parse().expect("a number of seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let config = Config { cases: 512, failure_persistence: None, ..Config::default() };
    let cases = std::cell::Cell::new(0_u64);
    while Instant::now() < end {
        // A runner that has made its cases makes no more.
        let tried = TestRunner::new(config.clone()).run(strategy, |value| {
            cases.set(cases.get() + 1);
            rule(value)
        });
        tried.unwrap_or_else(|failure| panic!("{failure}"));
    }
    println!("{} cases in {seconds} s", cases.get());
    assert!(cases.get() >= 512);
}

struct Ring(Vec<u8>);

impl RingBytes for Ring {
    fn size(&self) -> usize {
        self.0.len()
    }

    fn copy_piece(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.0[at..at + into.len()]);
    }
}

/// A record of any kind and body; most have a true size.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let size = prop_oneof![8 => Just(None), 1 => any::<u16>().prop_map(Some)];
    (0_u32..24, any::<u16>(), size, prop::collection::vec(any::<u8>(), 0..160)).prop_map(|(kind, misc, size, body)| {
        let size = size.unwrap_or(8 + body.len() as u16);
        [kind.to_ne_bytes().as_slice(), &misc.to_ne_bytes(), &size.to_ne_bytes(), &body].concat()
    })
}

const HEADERS: [u8; 13] = [0x00, 0x01, 0x71, 0xb0, 0xb2, 0xb3, 0x98, 0x64, 0x49, 0x52, 0x43, 0x20, 0x22];

/// A packet of a trace; most have a known header.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    let header = prop_oneof![6 => prop::sample::select(&HEADERS[..]), 1 => any::<u8>()];
    (header, prop::collection::vec(any::<u8>(), 0..=8)).prop_map(|(header, payload)| {
        let bytes = 1 << (header >> 4 & 3);
        let payload = payload.into_iter().chain(std::iter::repeat(0)).take(bytes);
        std::iter::once(header).chain(payload).collect()
    })
}

#[test]
fn rings_of_any_records_are_walked_to_their_head() {
    let strategy = (any::<u32>(), prop::collection::vec(record(), 0..20), 0_u64..8);
    fuzz(&strategy, |(start, records, cut)| {
        let mut ring = Ring(vec![0; RING_BYTES]);
        let bytes = records.concat();
        let tail = u64::from(start);
        for (offset, byte) in bytes.iter().enumerate() {
            ring.0[(tail as usize + offset) % RING_BYTES] = *byte;
        }
        let head = (tail + bytes.len() as u64).saturating_sub(cut);
        let (mut taken, mut scratch) = (0, Vec::new());
        let walked = walk(&ring, tail, head, &mut scratch, |record| {
            taken += record.len() as u64;
            for fields in [
                Fields::DECODED,
                Fields::DECODED_PHYSICAL,
                Fields::RAW,
                Fields::COMMON,
                Fields::FAULT,
                Fields::REGISTERS,
            ] {
                if let Record::Sample(sample) = parse(record, fields) {
                    data_source::decode(sample.data_source);
                    data_source::is_store(sample.data_source);
                    ibs::decode(sample.raw, IbsQuirks::default());
                }
            }
        });
        prop_assert_eq!(walked.tail, head);
        prop_assert!(taken <= head.saturating_sub(tail));
        prop_assert!(walked.broken || taken == head - tail);
        Ok(())
    });
}

#[test]
fn any_registers_are_an_access_or_none() {
    let strategy = (prop::collection::vec(any::<u8>(), 0..96), any::<bool>(), any::<bool>());
    fuzz(&strategy, |(raw, void_after_prefetch, hit_state_void)| {
        let operation = ibs::decode(&raw, IbsQuirks { void_after_prefetch, hit_state_void });
        prop_assert_eq!(operation == Operation::Malformed, raw.len() < 4 + 7 * 8);
        Ok(())
    });
}

#[test]
fn traces_of_any_packets_yield_records_and_losses() {
    let codes = [SourceCodes::Arm, SourceCodes::Ampere, SourceCodes::HiSilicon, SourceCodes::Unknown];
    let strategy = (prop::collection::vec(packet(), 0..60), any::<u64>(), 0_usize..4);
    fuzz(&strategy, move |(packets, offset, cut)| {
        let mut trace = packets.concat();
        trace.truncate(trace.len().saturating_sub(cut));
        let mut records = 0;
        let loss = spe::records(&trace, offset, |record| {
            records += 1;
            for codes in codes {
                spe::source::decode(&record, codes);
            }
        });
        prop_assert!(records as u64 + loss.bad_bytes <= trace.len() as u64);
        Ok(())
    });
}

#[test]
fn any_order_of_switches_and_times_finds_somebody_who_ran_or_nobody() {
    let switch = (any::<u64>(), prop::option::of(1_u32..9));
    let strategy = (prop::collection::vec(switch, 0..40), any::<(u64, u64, u32, u16)>());
    fuzz(&strategy, |(switches, (zero_ns, ticks, multiplier, shift))| {
        let mut timeline = Timeline::default();
        for (time_ns, tid) in &switches {
            timeline.switch(*time_ns, tid.map(|tid| (ProcessId(1), tid)));
        }
        let time_ns = TickClock { zero_ns, multiplier, shift }.time_ns(ticks);
        let before = timeline.at(time_ns);
        timeline.forget_before(time_ns);
        prop_assert_eq!(timeline.at(time_ns), before, "what is forgotten is over");
        Ok(())
    });
}
