// SPDX-License-Identifier: GPL-2.0-only
//! From decoded samples to accesses: whose, of what, and which of them count.

use std::collections::BTreeSet;

use tandem_policies::model::{CpuId, ProcessId};

use super::clock::CoreClocks;
use super::counters::PmuCounters;
use super::data_source;
use super::ibs::{self, Operation};
use super::plan::Decoder;
use super::record::{Moment, Sample};
use super::spe::{self, SourceCodes, SpeRecord, TickClock, Timeline};
use crate::KERNEL_ADDRESSES;
use crate::access::{Access, Measured};
use crate::source::DataSource;

/// Takes samples in and keeps the accesses of managed processes that left the caches.
pub(super) struct Intake {
    pub(super) managed: BTreeSet<ProcessId>,
    pub(super) clocks: CoreClocks,
    pub(super) counters: PmuCounters,
    pub(super) accesses: Vec<Access>,
}

/// A trace of one CPU and what is needed to understand it.
pub(super) struct CpuTrace<'a> {
    pub(super) bytes: &'a [u8],
    /// Where it begins in the buffer.
    pub(super) offset: u64,
    pub(super) cpu: CpuId,
    pub(super) codes: SourceCodes,
    pub(super) ticks: Option<TickClock>,
    pub(super) timeline: &'a Timeline,
    /// Operations between samples.
    pub(super) period: u64,
}

/// What hardware saw of an access.
struct Seen {
    address: u64,
    bytes: u16,
    store: bool,
    cycles: Option<u32>,
    source: DataSource,
    physical: Option<u64>,
    period: u64,
}

impl Intake {
    /// A sample; `scale` corrects its period for the time that the event was not on the hardware.
    pub(super) fn sample(&mut self, sample: &Sample<'_>, decoder: Decoder, scale: f64, now_ns: u64) {
        if !self.managed.contains(&sample.moment.process) {
            self.counters.unmanaged += 1;
            return;
        }
        self.counters.samples += 1;
        if !sample.user {
            self.counters.kernel += 1;
            return;
        }
        let period = (sample.period as f64 * scale).round() as u64;
        let seen = match decoder {
            Decoder::Kernel { store } => Some(Seen {
                address: sample.address,
                bytes: 0,
                store: data_source::is_store(sample.data_source).unwrap_or(store),
                cycles: Some(sample.latency_cycles).filter(|cycles| *cycles > 0),
                source: data_source::decode(sample.data_source),
                physical: Some(sample.physical).filter(|physical| *physical != 0),
                period,
            }),
            Decoder::Ibs(quirks) => match ibs::decode(sample.raw, quirks) {
                Operation::Access(access) => Some(Seen {
                    address: access.address,
                    bytes: access.bytes,
                    store: access.store,
                    cycles: access.latency_cycles,
                    source: access.source,
                    physical: access.physical,
                    period,
                }),
                Operation::NoAccess => None,
                Operation::Malformed => {
                    self.counters.malformed += 1;
                    return;
                }
            },
            // Their samples are in traces.
            Decoder::Spe(_) => None,
        };
        self.keep(sample.moment, seen, now_ns);
    }

    /// The operations of a trace.
    pub(super) fn trace(&mut self, trace: &CpuTrace<'_>, now_ns: u64) {
        let latest_ns = trace.timeline.latest_ns().unwrap_or(0);
        let loss = spe::records(trace.bytes, trace.offset, |record| {
            let perf_ns = record.ticks.zip(trace.ticks).map(|(ticks, clock)| clock.time_ns(ticks));
            let runner = perf_ns.and_then(|perf_ns| trace.timeline.at(perf_ns));
            // Around a switch the hardware knows better who ran, where the kernel tells it at all.
            let agreed = runner.filter(|(_, tid)| record.context.is_none_or(|context| context == u64::from(*tid)));
            let (Some((process, tid)), Some(perf_ns)) = (agreed, perf_ns) else {
                self.counters.unattributed += 1;
                return;
            };
            if !self.managed.contains(&process) {
                self.counters.unmanaged += 1;
                return;
            }
            self.counters.samples += 1;
            // Perf's clock and CLOCK_MONOTONIC differ by a constant that is not told: its latest reading is now.
            let time_ns = now_ns.saturating_sub(latest_ns.saturating_sub(perf_ns));
            let moment = Moment { process, tid, time_ns, cpu: trace.cpu };
            self.keep(moment, traced(&record, trace), now_ns);
        });
        self.counters.malformed += loss.bad_bytes;
        self.counters.gaps += loss.cut_records;
    }

    fn keep(&mut self, moment: Moment, seen: Option<Seen>, now_ns: u64) {
        let Some(seen) = seen.filter(|seen| seen.address != 0) else {
            self.counters.no_address += 1;
            return;
        };
        if seen.address >= KERNEL_ADDRESSES {
            self.counters.kernel += 1;
            return;
        }
        if !seen.source.may_leave_caches() {
            self.counters.cached += 1;
            return;
        }
        self.counters.accesses += 1;
        let latency_ns = seen.cycles.and_then(|cycles| self.clocks.ns(moment.cpu, cycles, now_ns));
        self.accesses.push(Access {
            process: moment.process,
            tid: moment.tid,
            address: seen.address,
            bytes: seen.bytes,
            store: seen.store,
            time_ns: moment.time_ns,
            cpu: moment.cpu,
            measured: Some(Measured {
                latency_ns,
                source: seen.source,
                node: None,
                physical: seen.physical,
                period: seen.period,
            }),
        });
    }
}

/// `None` if the operation accessed nothing or its address was not traced.
fn traced(record: &SpeRecord, trace: &CpuTrace<'_>) -> Option<Seen> {
    let store = record.store?;
    Some(Seen {
        address: record.address?,
        bytes: 0,
        store,
        // A store completes before its data is anywhere.
        cycles: record.cycles.filter(|cycles| !store && *cycles > 0).map(u32::from),
        source: spe::source::decode(record, trace.codes),
        physical: record.physical,
        period: trace.period,
    })
}

#[cfg(test)]
#[path = "intake_tests.rs"]
mod tests;
