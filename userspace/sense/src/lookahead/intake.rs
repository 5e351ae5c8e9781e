// SPDX-License-Identifier: GPL-2.0-only
//! From records to samples that wait to be run: whose, and of which code.

use std::collections::BTreeSet;

use tandem_policies::model::ProcessId;

use super::counters::LookaheadCounters;
use super::perf::{UserRegisters, user_registers};
use super::queue::{FairQueue, Sample};
use crate::pmu::record::Record;

/// Takes a record in: samples of managed threads' 64-bit code wait in `queue`, all else is counted.
pub(super) fn take(
    record: &Record<'_>,
    managed: &BTreeSet<ProcessId>,
    queue: &mut FairQueue,
    counters: &mut LookaheadCounters,
) {
    let sample = match record {
        Record::Sample(sample) => sample,
        Record::Lost(lost) | Record::LostSamples(lost) => {
            counters.lost += lost;
            return;
        }
        Record::Malformed => {
            counters.malformed += 1;
            return;
        }
        _ => return,
    };
    let moment = sample.moment;
    if !managed.contains(&moment.process) {
        counters.unmanaged += 1;
        return;
    }
    let Some(registers) = sample.registers.as_ref().and_then(user_registers) else {
        counters.malformed += 1;
        return;
    };
    counters.samples += 1;
    match registers {
        UserRegisters::None => counters.kernel += 1,
        UserRegisters::Abi32 => counters.abi_32 += 1,
        UserRegisters::Abi64(registers) => {
            counters.superseded += u64::from(queue.push(Sample { moment, registers }));
        }
    }
}

#[cfg(test)]
mod tests {
    use perf_event_open_sys::bindings;

    use super::*;
    use crate::pmu::record::{Fields, parse};
    use crate::pmu::ring::testing::record;

    const OURS: u32 = 5;

    fn sample(process: u32, tid: u32, time_ns: u64, abi: u32) -> Vec<u8> {
        let head = [u64::from(tid) << 32 | u64::from(process), time_ns, 3, u64::from(abi)];
        let body: Vec<u8> = head.into_iter().chain(100..118).flat_map(u64::to_ne_bytes).collect();
        record(bindings::PERF_RECORD_SAMPLE, 2, &body)
    }

    fn taken(records: &[Vec<u8>]) -> (u64, LookaheadCounters) {
        let (mut queue, mut counters) = (FairQueue::default(), LookaheadCounters::default());
        let managed = [ProcessId(OURS)].into();
        for bytes in records {
            take(&parse(bytes, Fields::REGISTERS), &managed, &mut queue, &mut counters);
        }
        (queue.clear(), counters)
    }

    #[test]
    fn only_64_bit_code_of_managed_threads_waits_and_all_else_is_counted() {
        use bindings::{PERF_SAMPLE_REGS_ABI_32, PERF_SAMPLE_REGS_ABI_64, PERF_SAMPLE_REGS_ABI_NONE};
        let word = |word: u64| word.to_ne_bytes();
        let (waiting, counters) = taken(&[
            sample(OURS, 7, 10, PERF_SAMPLE_REGS_ABI_64),
            sample(OURS, 7, 11, PERF_SAMPLE_REGS_ABI_64),
            sample(OURS, 8, 12, PERF_SAMPLE_REGS_ABI_32),
            sample(OURS, 9, 13, PERF_SAMPLE_REGS_ABI_NONE),
            sample(OURS, 9, 14, 3),
            sample(OURS + 1, 6, 15, PERF_SAMPLE_REGS_ABI_64),
            record(bindings::PERF_RECORD_LOST, 0, &[word(1), word(40)].concat()),
            record(bindings::PERF_RECORD_LOST_SAMPLES, 0, &word(2)),
            record(bindings::PERF_RECORD_THROTTLE, 0, &[]),
            record(bindings::PERF_RECORD_LOST, 0, &[]),
        ]);
        let expected = LookaheadCounters {
            samples: 4,
            superseded: 1,
            abi_32: 1,
            kernel: 1,
            unmanaged: 1,
            lost: 42,
            malformed: 2,
            ..LookaheadCounters::default()
        };
        assert_eq!((waiting, counters), (1, expected));
    }
}
