// SPDX-License-Identifier: GPL-2.0-only
use super::super::ibs::IbsQuirks;
use super::super::testing::FakeSystem;
use super::*;
use crate::source::Level;

const LOADS: Decoder = Decoder::Kernel { store: false };
/// A load that hit in DRAM, in L3, and a store that missed the first level.
const FROM_DRAM: u64 = 0x2 | 0x82 << 5 | 0xd << 33;
const FROM_L3: u64 = 0x2 | 0x42 << 5 | 0x3 << 33;
const STORE_MISS: u64 = 0x4 | 0xc << 5;

/// Manages process 70 on a machine of 2 GHz.
fn intake() -> Intake {
    let system = FakeSystem::ivy_bridge();
    Intake {
        managed: [ProcessId(70)].into(),
        clocks: CoreClocks::new(system.root()),
        counters: PmuCounters::default(),
        accesses: Vec::new(),
    }
}

fn moment() -> Moment {
    Moment { process: ProcessId(70), tid: 71, time_ns: 5_000, cpu: CpuId(3) }
}

fn sample(data_source: u64) -> Sample<'static> {
    Sample {
        moment: moment(),
        user: true,
        instruction: 0x40_1000,
        address: 0x7f00_1238,
        period: 1000,
        latency_cycles: 400,
        data_source,
        physical: 0xabc_d238,
        raw: &[],
        registers: None,
    }
}

#[test]
fn a_load_from_memory_is_an_access_with_its_latency() {
    let mut intake = intake();
    intake.sample(&sample(FROM_DRAM), LOADS, 1.5, 0);
    let expected = Access {
        process: ProcessId(70),
        tid: 71,
        address: 0x7f00_1238,
        bytes: 0,
        store: false,
        time_ns: 5_000,
        cpu: CpuId(3),
        measured: Some(Measured {
            latency_ns: Some(200),
            source: data_source::decode(FROM_DRAM),
            node: None,
            physical: Some(0xabc_d238),
            period: 1500,
        }),
    };
    assert_eq!(intake.accesses, [expected]);
    intake.sample(&Sample { latency_cycles: 0, ..sample(STORE_MISS) }, LOADS, 1.0, 0);
    let store = intake.accesses[1];
    assert!(store.store && store.measured.unwrap().latency_ns.is_none());
}

#[test]
fn what_does_not_count_is_dropped_and_counted() {
    let mut intake = intake();
    let stranger = Moment { process: ProcessId(1), ..moment() };
    for dropped in [
        Sample { moment: stranger, ..sample(FROM_DRAM) },
        Sample { user: false, ..sample(FROM_DRAM) },
        Sample { address: 0xffff_8880_0000_0000, ..sample(FROM_DRAM) },
        Sample { address: 0, ..sample(FROM_DRAM) },
        sample(FROM_L3),
    ] {
        intake.sample(&dropped, LOADS, 1.0, 0);
    }
    assert_eq!(intake.accesses, []);
    let expected =
        PmuCounters { samples: 4, unmanaged: 1, kernel: 2, no_address: 1, cached: 1, ..PmuCounters::default() };
    assert_eq!(intake.counters, expected);
}

#[test]
fn ibs_registers_become_accesses_or_are_counted() {
    let mut intake = intake();
    let mut raw = 0x8ff_u32.to_le_bytes().to_vec();
    // OP_DATA3: a load of 8 bytes that missed both levels, both addresses valid, 300 cycles. OP_DATA2: DRAM.
    let data3 = 1 | 1 << 7 | 1 << 17 | 1 << 18 | 1 << 20 | 4 << 22 | 300 << 32;
    raw.extend([0, 0, 0, 3 | 1 << 5, data3, 0x7f00_1238, 0xabc_d238].iter().flat_map(|word: &u64| word.to_le_bytes()));
    let decoder = Decoder::Ibs(IbsQuirks::default());
    intake.sample(&Sample { raw: &raw, ..sample(0) }, decoder, 1.0, 0);
    intake.sample(&Sample { raw: &raw[..20], ..sample(0) }, decoder, 1.0, 0);
    let access = intake.accesses[0];
    assert_eq!((intake.accesses.len(), access.bytes, intake.counters.malformed), (1, 8, 1));
    let measured = access.measured.unwrap();
    assert_eq!((measured.latency_ns, measured.source.level), (Some(150), Level::Memory));
}

/// A load from remote DRAM in 400 cycles at this tick, with the context of a thread.
fn operation(tick: u8, context: u8) -> Vec<u8> {
    let mut bytes = vec![0x64, context, 0, 0, 0, 0x49, 0, 0x98, 0x90, 0x01, 0x52, 0x08, 0x04, 0x43, 0x0e];
    bytes.extend([0xb2, 0x38, 0x12, 0x00, 0x7f, 0, 0, 0, 0]);
    bytes.extend([0x71, tick, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

#[test]
fn traced_operations_belong_to_whoever_ran() {
    let mut intake = intake();
    let mut timeline = Timeline::default();
    timeline.switch(1_100, Some((ProcessId(70), 71)));
    timeline.switch(1_200, Some((ProcessId(1), 1)));
    timeline.switch(1_300, None);
    let ticks = Some(TickClock { zero_ns: 1_000, multiplier: 10, shift: 0 });
    // Before anything is known, in the managed thread, the same with another context, in a stranger, in nobody.
    let bytes = [operation(5, 71), operation(15, 71), operation(16, 72), operation(25, 1), operation(35, 9)].concat();
    let trace = CpuTrace {
        bytes: &bytes,
        offset: 0,
        cpu: CpuId(3),
        codes: SourceCodes::Arm,
        ticks,
        timeline: &timeline,
        period: 4096,
    };
    intake.trace(&trace, 1_000_000);
    let access = intake.accesses[0];
    assert_eq!((intake.accesses.len(), access.tid, access.address, access.cpu), (1, 71, 0x7f00_1238, CpuId(3)));
    assert_eq!(access.time_ns, 1_000_000 - 150, "the last switch was now");
    let measured = access.measured.unwrap();
    assert_eq!((measured.source.remote, measured.latency_ns, measured.period), (Some(true), Some(200), 4096));
    let expected = PmuCounters { samples: 1, accesses: 1, unmanaged: 1, unattributed: 3, ..PmuCounters::default() };
    assert_eq!(intake.counters, expected);
    intake.trace(&CpuTrace { ticks: None, ..trace }, 0);
    assert_eq!(intake.counters.unattributed, 8, "without a clock nobody is known");
}
