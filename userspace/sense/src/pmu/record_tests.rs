// SPDX-License-Identifier: GPL-2.0-only
use proptest::prelude::*;

use super::super::ring::testing::record;
use super::*;

const USER: u16 = bindings::PERF_RECORD_MISC_USER as u16;

/// The bytes of `words`.
fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Two 32-bit halves as they lie in memory.
fn pair(first: u32, second: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

fn moment() -> Moment {
    Moment { process: ProcessId(70), tid: 71, time_ns: 5_000, cpu: CpuId(3) }
}

#[test]
fn a_decoded_sample_has_each_field_in_its_place() {
    let body =
        words(&[0x40_1000, pair(70, 71), 5_000, 0x7f00_1234, pair(3, 0), 1009, pair(420, 7), 0x6810_0842, 0xabc_d000]);
    let bytes = record(bindings::PERF_RECORD_SAMPLE, USER, &body);
    let expected = Sample {
        moment: moment(),
        user: true,
        instruction: 0x40_1000,
        address: 0x7f00_1234,
        period: 1009,
        latency_cycles: 420,
        data_source: 0x6810_0842,
        physical: 0xabc_d000,
        raw: &[],
        registers: None,
    };
    assert_eq!(parse(&bytes, Fields::DECODED_PHYSICAL), Record::Sample(expected));
    let without = Sample { physical: 0, ..expected };
    assert_eq!(parse(&bytes[..bytes.len() - 8], Fields::DECODED), Record::Sample(without));
    assert_eq!(parse(&bytes[..bytes.len() - 8], Fields::DECODED_PHYSICAL), Record::Malformed, "a word is missing");
}

#[test]
fn raw_data_has_a_32_bit_size_before_it() {
    let mut body = words(&[0x40_1000, pair(70, 71), 5_000, pair(3, 0), 4096]);
    body.extend(12_u32.to_ne_bytes());
    body.extend(1..=12);
    let bytes = record(bindings::PERF_RECORD_SAMPLE, 1, &body);
    let Record::Sample(sample) = parse(&bytes, Fields::RAW) else { panic!("a sample") };
    assert_eq!(sample.raw, (1..=12).collect::<Vec<u8>>());
    assert_eq!((sample.moment, sample.user, sample.period), (moment(), false, 4096));
    let cut = record(bindings::PERF_RECORD_SAMPLE, 1, &body[..body.len() - 1]);
    assert_eq!(parse(&cut, Fields::RAW), Record::Malformed);
}

#[test]
fn losses_and_throttling_are_told_apart() {
    let lost = record(bindings::PERF_RECORD_LOST, 0, &words(&[99, 12]));
    assert_eq!(parse(&lost, Fields::DECODED), Record::Lost(12));
    assert_eq!(parse(&lost[..16], Fields::DECODED), Record::Malformed);
    let dropped = record(bindings::PERF_RECORD_LOST_SAMPLES, 0, &words(&[13]));
    assert_eq!(parse(&dropped, Fields::DECODED), Record::LostSamples(13));
    let throttled = record(bindings::PERF_RECORD_THROTTLE, 0, &words(&[1, 2, 3]));
    assert_eq!(parse(&throttled, Fields::DECODED), Record::Throttled);
    let again = record(bindings::PERF_RECORD_UNTHROTTLE, 0, &words(&[1, 2, 3]));
    assert_eq!(parse(&again, Fields::DECODED), Record::Unthrottled);
    assert_eq!(parse(&record(bindings::PERF_RECORD_COMM, 0, &[]), Fields::DECODED), Record::Other);
}

#[test]
fn traces_and_switches_carry_where_and_who() {
    let aux = record(bindings::PERF_RECORD_AUX, 0, &words(&[4096, 512, AUX_TRUNCATED | AUX_COLLISION]));
    assert_eq!(parse(&aux, Fields::COMMON), Record::Aux { offset: 4096, size: 512, flags: 0x9 });
    let body = words(&[pair(1, 1), pair(70, 71), 5_000, pair(3, 0)]);
    let kind = bindings::PERF_RECORD_SWITCH_CPU_WIDE;
    assert_eq!(parse(&record(kind, 0, &body), Fields::COMMON), Record::SwitchIn(moment()));
    assert_eq!(parse(&record(kind, 1 << 13, &body), Fields::COMMON), Record::SwitchOut(moment()));
    assert_eq!(parse(&record(kind, 0, &body[..24]), Fields::COMMON), Record::Malformed);
}

#[test]
fn fields_that_are_not_parsed_cannot_be_asked_for() {
    assert_eq!(Fields::from_bits(Fields::RAW.bits()), Some(Fields::RAW));
    assert_eq!(Fields::from_bits(u64::from(bindings::PERF_SAMPLE_CALLCHAIN)), None);
}

proptest! {
    #[test]
    fn any_bytes_are_some_record(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u32..24) {
        for fields in [Fields::DECODED, Fields::DECODED_PHYSICAL, Fields::RAW, Fields::COMMON, Fields::FAULT, Fields::REGISTERS] {
            parse(&bytes, fields);
            parse(&record(kind, 0, &bytes), fields);
        }
    }
}
