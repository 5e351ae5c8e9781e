// SPDX-License-Identifier: GPL-2.0-only
//! Which samplers and counters work on this machine, and why others do not.
//!
//! A sampler, and the counters, count as working when their events were opened, on one CPU; nothing is sampled.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use tandem_machine::parse_cpu_list;
use tandem_policies::model::CpuId;

use crate::access::SamplerTraits;
use crate::counting::Counting;
use crate::device::{self, Device, DeviceConfig};
use crate::fault::{self, Fault, FaultConfig};
use crate::lookahead::{self, Lookahead, LookaheadConfig};
use crate::pmu::detect::{self, CounterSet, Rights, Unavailable};
use crate::pmu::table::Counter;
use crate::pmu::{self, Pmu, PmuConfig, model};

/// What was found out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Examination {
    /// CPU model, in the form of the kernel's event tables.
    pub cpu: String,
    /// A hypervisor runs below.
    pub virtual_machine: bool,
    /// What this process may do.
    pub rights: Rights,
    /// Every sampler.
    pub samplers: Vec<SamplerState>,
    /// What can be counted per thread.
    pub counters: CounterState,
}

/// One sampler here.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SamplerState {
    /// Name, coverage, bias and cost.
    #[serde(flatten)]
    pub traits: SamplerTraits,
    /// It can be used.
    pub works: bool,
    /// Hardware that it uses, if it needs any and it is there.
    pub hardware: Option<&'static str>,
    /// If not, why, and what to do.
    pub why_not: Option<String>,
}

/// Counters here.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CounterState {
    /// Why nothing can be counted, and what to do.
    pub why_not: Option<String>,
    /// PMUs of cores.
    pub pmus: Vec<CounterPmu>,
}

/// Counters of one type of core.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CounterPmu {
    /// The PMU.
    pub pmu: String,
    /// The kernel's name of the core; `None`: its events are not known.
    pub core: Option<String>,
    /// Names of the events whose sum a counter is; `None`: the core has none.
    pub counters: BTreeMap<&'static str, Option<Vec<String>>>,
}

/// The model of this machine's first CPU, in the form of the kernel's event tables.
pub fn cpu_model() -> String {
    model::read(Path::new("/")).model.to_string()
}

/// Examines this machine.
pub fn examine() -> Examination {
    let root = Path::new("/");
    let processor = model::read(root);
    Examination {
        cpu: processor.model.to_string(),
        virtual_machine: processor.virtual_machine,
        rights: Rights::read(root),
        samplers: vec![lookahead_state(root), pmu_state(root), device_state(root), fault_state(root)],
        counters: with_refusal(counter_state(detect::counters(root)), &first_cpu(root)),
    }
}

/// Events that are known may still be refused.
fn with_refusal(state: CounterState, cpu: &[CpuId]) -> CounterState {
    let refusal = || Counting::open(cpu).err().map(|error| error.to_string());
    CounterState { why_not: state.why_not.clone().or_else(refusal), ..state }
}

fn lookahead_state(root: &Path) -> SamplerState {
    let opened = Lookahead::open(LookaheadConfig::default(), &first_cpu(root));
    let why_not = opened.err().map(|error| error.to_string());
    SamplerState { traits: lookahead::TRAITS, works: why_not.is_none(), hardware: None, why_not }
}

fn pmu_state(root: &Path) -> SamplerState {
    let detected = detect::detect(root);
    let hardware = detected.as_ref().ok().map(|available| available.hardware.name());
    let why_not = match detected {
        Ok(_) => Pmu::open(&PmuConfig::default(), &first_cpu(root)).err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    };
    SamplerState { traits: pmu::TRAITS, works: why_not.is_none(), hardware, why_not }
}

fn device_state(root: &Path) -> SamplerState {
    let why_not = Device::open(DeviceConfig::default(), &first_cpu(root)).err().map(|error| error.to_string());
    SamplerState { traits: device::TRAITS, works: why_not.is_none(), hardware: None, why_not }
}

fn fault_state(root: &Path) -> SamplerState {
    let why_not = Fault::open(FaultConfig::default(), &first_cpu(root)).err().map(|error| error.to_string());
    SamplerState { traits: fault::TRAITS, works: why_not.is_none(), hardware: None, why_not }
}

/// The first online CPU; none if the list cannot be read, which samplers then report.
fn first_cpu(root: &Path) -> Vec<CpuId> {
    let online = std::fs::read_to_string(root.join("sys/devices/system/cpu/online")).unwrap_or_default();
    parse_cpu_list(online.trim()).unwrap_or_default().first().map(|&cpu| CpuId(cpu)).into_iter().collect()
}

fn counter_state(found: Result<Vec<CounterSet>, Unavailable>) -> CounterState {
    match found {
        Err(error) => CounterState { why_not: Some(error.to_string()), pmus: Vec::new() },
        Ok(sets) => {
            let unknown = sets.iter().all(|set| set.core.is_none());
            let said = "the events of this CPU model are not known: add it to userspace/sense/data/counters.toml";
            CounterState { why_not: unknown.then(|| said.to_owned()), pmus: sets.iter().map(counter_pmu).collect() }
        }
    }
}

fn counter_pmu(set: &CounterSet) -> CounterPmu {
    let names = |counter| Some(set.get(counter)?.iter().map(|event| event.name.clone()).collect());
    CounterPmu {
        pmu: set.device.clone(),
        core: set.core.clone(),
        counters: Counter::ALL.into_iter().map(|counter| (counter.name(), names(counter))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmu::testing::FakeSystem;

    #[test]
    fn a_known_model_names_its_events_and_what_it_lacks() {
        let state = counter_state(detect::counters(FakeSystem::ivy_bridge().root()));
        assert_eq!((state.why_not, state.pmus.len()), (None, 1));
        let counters = &state.pmus[0].counters;
        assert_eq!(counters["l3_miss"], Some(vec!["LONGEST_LAT_CACHE.MISS".to_owned()]));
        assert_eq!(counters["operations"], None);
        assert_eq!(counters.len(), Counter::ALL.len());
    }

    #[test]
    fn an_unknown_model_and_a_machine_without_pmu_say_so() {
        let unknown = FakeSystem::new().x86("GenuineIntel", 6, 0xfe, 0, "").counting("cpu", 4);
        assert!(counter_state(detect::counters(unknown.root())).why_not.unwrap().contains("are not known"));
        let guest = FakeSystem::new().x86("GenuineIntel", 6, 0x8f, 8, "hypervisor");
        let state = counter_state(detect::counters(guest.root()));
        assert_eq!((state.why_not.unwrap().contains("no PMU"), state.pmus.len()), (true, 0));
        let pmu = pmu_state(guest.root());
        assert!(!pmu.works && pmu.hardware.is_none() && pmu.why_not.unwrap().contains("no PMU"));
    }

    #[test]
    fn counters_are_named_alike_in_the_table_and_in_json() {
        for counter in Counter::ALL {
            let read: BTreeMap<Counter, u8> = toml::from_str(&format!("{} = 1", counter.name())).unwrap();
            assert_eq!(read.keys().collect::<Vec<_>>(), [&counter]);
        }
    }
}
