// SPDX-License-Identifier: GPL-2.0-only
//! Which events to open on which CPUs, for each hardware that samples.
//!
//! Latency threshold: samples of loads that caches answered say nothing of where pages should be, and they drown those
//! that do (with a threshold of one cycle the mean sampled latency of a memory-bound program was 11 cycles). The
//! default of 50 ns lies above the last level of the machines in docs/signals.md and below their DRAM.

use tandem_policies::model::CpuId;

use super::detect::{Available, Hardware, Unavailable};
use super::event::{Attributes, Sampling};
use super::ibs::IbsQuirks;
use super::model::CpuModel;
use super::record::Fields;
use super::spe::SourceCodes;
use super::sysfs::{Device, EncodeError, Encoding};

/// Frequency to count cycles by where none is known.
const ASSUMED_KHZ: u64 = 3_000_000;
/// Operations that a core makes in a second, about: SPE samples by operations, not by time.
const OPERATIONS_PER_S: u64 = 1_000_000_000;
/// AMD's threshold goes in these steps, and up to 2048 cycles.
const IBS_STEP: u64 = 128;
const IBS_MOST: u64 = 2048;

/// How to sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PmuConfig {
    /// Loads that took less are not sampled, where the hardware can tell.
    pub threshold_ns: f64,
    /// Samples per second, event and CPU that are aimed at.
    pub frequency_hz: u64,
    /// Sample stores too.
    pub stores: bool,
}

impl Default for PmuConfig {
    /// 50 ns, 1000 Hz, stores too.
    fn default() -> Self {
        Self { threshold_ns: 50.0, frequency_hz: 1000, stores: true }
    }
}

/// What to make of the samples of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoder {
    /// The kernel decoded them; `store` is what they are when it does not say.
    Kernel {
        /// Stores; else loads.
        store: bool,
    },
    /// IBS registers.
    Ibs(IbsQuirks),
    /// SPE traces.
    Spe(SourceCodes),
}

/// An event to open on each of its CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedEvent {
    /// Must be in the group before it, only counting.
    pub leader: Option<Encoding>,
    /// The event.
    pub attributes: Attributes,
    /// CPUs that have it; `None`: all.
    pub cpus: Option<Vec<CpuId>>,
    /// What to make of its samples.
    pub decoder: Decoder,
}

/// The events of `available`. `highest_khz` is the frequency at which a latency has most cycles; `allowed_hz` is what
/// the kernel allows.
///
/// # Errors
/// [`Unavailable`] when the kernel shows formats that are not understood.
pub fn plan(
    available: &Available,
    config: &PmuConfig,
    highest_khz: Option<u64>,
    frequency_hz: u64,
) -> Result<Vec<PlannedEvent>, Unavailable> {
    let khz = highest_khz.unwrap_or(ASSUMED_KHZ);
    let cycles = (config.threshold_ns.max(0.0) * khz as f64 / 1e6).ceil().max(1.0) as u64;
    let request = Request { available, config, cycles, frequency_hz };
    match &available.hardware {
        Hardware::IntelLoadLatency(devices) => {
            Ok(devices.iter().map(|device| request.intel(device)).collect::<Result<Vec<_>, _>>()?.concat())
        }
        Hardware::AmdIbs(device) => Ok(vec![request.amd(device)?]),
        Hardware::ArmSpe(devices) => Ok(devices.iter().map(|device| request.arm(device)).collect::<Result<_, _>>()?),
    }
}

struct Request<'a> {
    available: &'a Available,
    config: &'a PmuConfig,
    /// The threshold.
    cycles: u64,
    frequency_hz: u64,
}

impl Request<'_> {
    fn intel(&self, device: &Device) -> Result<Vec<PlannedEvent>, EncodeError> {
        let most = device.largest("ldlat").unwrap_or(1);
        let leader = match device.event("mem-loads-aux") {
            Some(_) => Some(device.encode_event("mem-loads-aux", &[])?),
            None => None,
        };
        let fields = if self.available.rights.physical() { Fields::DECODED_PHYSICAL } else { Fields::DECODED };
        let event = |encoding, leader, store| PlannedEvent {
            leader,
            attributes: Attributes {
                encoding,
                fields,
                sampling: Sampling::Frequency(self.frequency_hz),
                // The address belongs to the sampled instruction from level 2 on.
                precise: 2,
                user_only: true,
                monotonic: true,
                switches: false,
                disabled: false,
            },
            cpus: device.covered_cpus(),
            decoder: Decoder::Kernel { store },
        };
        let mut events =
            vec![event(device.encode_event("mem-loads", &[("ldlat", self.cycles.min(most))])?, leader, false)];
        if self.config.stores && device.event("mem-stores").is_some() {
            events.push(event(device.encode_event("mem-stores", &[])?, None, true));
        }
        Ok(events)
    }

    /// One event for loads and stores. A latency filter, where there is one, samples loads only.
    fn amd(&self, device: &Device) -> Result<PlannedEvent, EncodeError> {
        let mut terms = Vec::new();
        // By operations: sampling by cycles prefers operations that wait.
        if device.has_term("cnt_ctl") {
            terms.push(("cnt_ctl", 1));
        }
        if device.has_term("ldlat") && !self.config.stores {
            terms.push(("ldlat", (self.cycles.div_ceil(IBS_STEP) * IBS_STEP).clamp(IBS_STEP, IBS_MOST)));
        } else if device.has_term("l3missonly") {
            terms.push(("l3missonly", 1));
        }
        // Without it such kernels refuse to leave the kernel out; its samples are dropped here then.
        let user_only = device.has_term("swfilt");
        if user_only {
            terms.push(("swfilt", 1));
        }
        let quirks = IbsQuirks::of(&self.available.processor.model);
        Ok(PlannedEvent {
            leader: None,
            attributes: Attributes {
                encoding: device.encode("", &terms)?,
                fields: Fields::RAW,
                sampling: Sampling::Frequency(self.frequency_hz),
                precise: 0,
                user_only,
                monotonic: true,
                switches: false,
                disabled: false,
            },
            cpus: None,
            decoder: Decoder::Ibs(quirks),
        })
    }

    fn arm(&self, device: &Device) -> Result<PlannedEvent, EncodeError> {
        let stores = u64::from(self.config.stores);
        let most = device.largest("min_latency").unwrap_or(0);
        let mut terms = vec![("ts_enable", 1), ("load_filter", 1), ("store_filter", stores), ("jitter", 1)];
        terms.push(("pa_enable", u64::from(self.available.rights.physical())));
        terms.push(("min_latency", self.cycles.min(most)));
        terms.retain(|(term, _)| device.has_term(term));
        let midr = match self.available.processor.model {
            CpuModel::Arm { midr } => midr,
            _ => 0,
        };
        Ok(PlannedEvent {
            leader: None,
            attributes: Attributes {
                encoding: device.encode("", &terms)?,
                fields: Fields::COMMON,
                sampling: Sampling::Period((OPERATIONS_PER_S / self.frequency_hz.max(1)).max(1)),
                precise: 0,
                user_only: true,
                // Ticks of the trace convert to perf's own clock only.
                monotonic: false,
                switches: true,
                disabled: false,
            },
            cpus: device.covered_cpus(),
            decoder: Decoder::Spe(SourceCodes::of(midr)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::detect::detect;
    use super::super::testing::FakeSystem;
    use super::*;

    fn planned(system: &FakeSystem, config: PmuConfig, khz: Option<u64>) -> Vec<PlannedEvent> {
        plan(&detect(system.root()).unwrap(), &config, khz, config.frequency_hz).unwrap()
    }

    fn words(event: &PlannedEvent) -> [u64; 3] {
        let config = event.attributes.encoding.config;
        [config[0], config[1], config[2]]
    }

    #[test]
    fn intel_samples_loads_above_the_threshold_and_stores() {
        let events = planned(&FakeSystem::ivy_bridge(), PmuConfig::default(), Some(3_500_000));
        assert_eq!(events.iter().map(words).collect::<Vec<_>>(), [[0x1cd, 175, 0], [0x82d0, 0, 0]]);
        let decoders = [Decoder::Kernel { store: false }, Decoder::Kernel { store: true }];
        assert_eq!(events.iter().map(|event| event.decoder).collect::<Vec<_>>(), decoders);
        assert!(
            events.iter().all(|event| event.leader.is_none() && event.attributes.fields == Fields::DECODED_PHYSICAL)
        );
        let loads = PmuConfig { stores: false, threshold_ns: 1e9, ..PmuConfig::default() };
        let events = planned(&FakeSystem::ivy_bridge(), loads, None);
        assert_eq!(events.iter().map(words).collect::<Vec<_>>(), [[0x1cd, 0xffff, 0]], "as high as it goes");
    }

    #[test]
    fn newer_intel_has_the_auxiliary_event_before_loads() {
        let events = planned(&FakeSystem::sapphire_rapids(), PmuConfig::default(), None);
        assert_eq!(events[0].leader.map(|leader| leader.config[0]), Some(0x8203));
        assert_eq!((words(&events[0])[1], events[1].leader), (150, None));
        let events = planned(&FakeSystem::alder_lake(), PmuConfig::default(), None);
        let where_and_how: Vec<_> =
            events.iter().map(|event| (event.cpus.as_ref().unwrap()[0].0, event.leader.is_some())).collect();
        assert_eq!(where_and_how, [(0, true), (0, false), (8, false), (8, false)]);
    }

    #[test]
    fn amd_filters_as_far_as_the_generation_can() {
        let (zen4, zen5) =
            ([("format/l3missonly", "config:16")], [("format/ldlat", "config1:0-11"), ("format/swfilt", "config2:0")]);
        let both = PmuConfig::default();
        let loads = PmuConfig { stores: false, ..both };
        let event =
            |format: &[(&str, &str)], config| planned(&FakeSystem::amd(0x19, 1, format), config, None).remove(0);
        assert_eq!(words(&event(&[], both)), [1 << 19, 0, 0]);
        assert_eq!(words(&event(&zen4, both)), [1 << 19 | 1 << 16, 0, 0]);
        // 150 cycles, in steps of 128.
        assert_eq!(words(&event(&zen5, loads)), [1 << 19, 256, 1]);
        assert_eq!(words(&event(&zen5, both)), [1 << 19, 0, 1], "a latency filter would lose the stores");
        assert!(!event(&[], both).attributes.user_only && event(&zen5, both).attributes.user_only);
        let quirks = IbsQuirks { void_after_prefetch: true, hit_state_void: true };
        assert_eq!(event(&[], both).decoder, Decoder::Ibs(quirks));
    }

    #[test]
    fn spe_filters_by_latency_and_tells_switches() {
        let event = planned(&FakeSystem::neoverse_v2(), PmuConfig::default(), Some(3_000_000)).remove(0);
        assert_eq!(words(&event), [1 | 1 << 1 | 1 << 16 | 1 << 33 | 1 << 34, 0, 150]);
        assert_eq!(event.attributes.sampling, Sampling::Period(1_000_000));
        assert!(event.attributes.switches && !event.attributes.monotonic);
        assert_eq!(event.cpus.unwrap().len(), 4);
        assert_eq!(event.decoder, Decoder::Spe(SourceCodes::Arm));
    }

    #[test]
    fn physical_addresses_are_asked_for_only_where_allowed() {
        let mut available = detect(FakeSystem::ivy_bridge().root()).unwrap();
        available.rights = super::super::detect::Rights { capable: false, paranoid: 2 };
        let events = plan(&available, &PmuConfig::default(), None, 1).unwrap();
        assert_eq!(events[0].attributes.fields, Fields::DECODED);
    }
}
