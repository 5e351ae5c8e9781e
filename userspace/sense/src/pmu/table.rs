// SPDX-License-Identifier: GPL-2.0-only
//! Which events make which counter, by CPU model.
//!
//! The table is data/counters.toml, written by data/counters.py from the kernel's event tables. A model that is not in
//! it, or a counter that its model has no event for, is `None`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::model::CpuModel;

const TABLE: &str = include_str!("../../data/counters.toml");

/// What can be counted per thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counter {
    /// Instructions retired.
    Instructions,
    /// Cycles in which the thread did not halt.
    Cycles,
    /// Floating-point operations (O of 3DyRM).
    Operations,
    /// Loads that the core's own caches missed.
    L2Miss,
    /// Lines from memory, stores and prefetches included where the model counts them (SAM's bandwidth).
    L3Miss,
    /// Loads from memory of another node (SAM's remote memory).
    RemoteMemory,
    /// Loads from caches of other nodes (SAM's inter-socket coherence).
    TransfersAcrossNodes,
    /// Loads from other cores' caches of the node (SAM's intra-socket coherence).
    TransfersWithinNode,
}

impl Counter {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Instructions,
        Self::Cycles,
        Self::Operations,
        Self::L2Miss,
        Self::L3Miss,
        Self::RemoteMemory,
        Self::TransfersAcrossNodes,
        Self::TransfersWithinNode,
    ];

    /// Its name in the table and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Instructions => "instructions",
            Self::Cycles => "cycles",
            Self::Operations => "operations",
            Self::L2Miss => "l2_miss",
            Self::L3Miss => "l3_miss",
            Self::RemoteMemory => "remote_memory",
            Self::TransfersAcrossNodes => "transfers_across_nodes",
            Self::TransfersWithinNode => "transfers_within_node",
        }
    }
}

/// One event of a counter.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct CountedEvent {
    /// What one event adds to the counter.
    pub weight: u32,
    /// The vendor's name.
    pub name: String,
    /// The event in the terms of its PMU.
    pub terms: String,
}

/// The counters of one type of core.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct CoreTable {
    /// The kernel's name of the core.
    pub name: String,
    /// The PMU that counts it; `cpu` stands for the only one.
    pub pmu: String,
    cpus: Vec<String>,
    counters: BTreeMap<Counter, Vec<CountedEvent>>,
}

impl CoreTable {
    /// Events whose weighted sum is the counter; `None` if the core has none.
    pub fn get(&self, counter: Counter) -> Option<&[CountedEvent]> {
        self.counters.get(&counter).map(Vec::as_slice)
    }
}

#[derive(Deserialize)]
struct Tables {
    core: Vec<CoreTable>,
}

/// The tables of a CPU model: one for each of its types of core, none if the model is not known.
pub fn tables(model: &CpuModel) -> Vec<CoreTable> {
    let tables: Tables = toml::from_str(TABLE).expect("the table is tested");
    tables.core.into_iter().filter(|core| core.cpus.iter().any(|range| covers(range, model))).collect()
}

/// Whether a text such as `GenuineIntel-6-55-5..F` (steppings), `AuthenticAMD-25-10..1F` (models) or `0x410fd490`
/// covers the model.
fn covers(range: &str, cpu: &CpuModel) -> bool {
    match cpu {
        CpuModel::X86 { vendor, family, model, stepping } => {
            let mut parts = range.split('-');
            parts.next() == Some(vendor)
                && parts.next().and_then(|text| text.parse().ok()) == Some(*family)
                && parts.next().is_some_and(|models| within(models, *model))
                && parts.next().is_none_or(|steppings| within(steppings, *stepping))
        }
        // Without variant and revision.
        CpuModel::Arm { midr } => {
            let known = range.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
            known == Some(midr & 0xff0f_fff0)
        }
        CpuModel::Other(_) => false,
    }
}

fn within(range: &str, value: u32) -> bool {
    let (low, high) = range.split_once("..").unwrap_or((range, range));
    let number = |text| u32::from_str_radix(text, 16).ok();
    number(low).zip(number(high)).is_some_and(|(low, high)| (low..=high).contains(&value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn x86(vendor: &str, family: u32, model: u32, stepping: u32) -> CpuModel {
        CpuModel::X86 { vendor: vendor.to_owned(), family, model, stepping }
    }

    fn names(model: &CpuModel) -> Vec<String> {
        tables(model).into_iter().map(|core| core.name).collect()
    }

    fn terms(model: &CpuModel, counter: Counter) -> Option<Vec<String>> {
        let table = tables(model).into_iter().next()?;
        Some(table.get(counter)?.iter().map(|event| format!("{}x {}", event.weight, event.terms)).collect())
    }

    #[test]
    fn models_and_steppings_find_their_tables() {
        assert_eq!(names(&x86("GenuineIntel", 6, 0x3e, 4)), ["ivytown"]);
        assert_eq!(names(&x86("GenuineIntel", 6, 0x55, 4)), ["skylakex"]);
        assert_eq!(names(&x86("GenuineIntel", 6, 0x55, 7)), ["cascadelakex"]);
        assert_eq!(names(&x86("GenuineIntel", 6, 0x97, 2)), ["alderlake", "alderlake"]);
        assert_eq!(names(&x86("AuthenticAMD", 0x19, 0x1, 1)), ["amdzen3"]);
        assert_eq!(names(&x86("AuthenticAMD", 0x19, 0x11, 1)), ["amdzen4"]);
        assert_eq!(names(&x86("AuthenticAMD", 0x1a, 0x2, 1)), ["amdzen5"]);
        assert_eq!(names(&CpuModel::Arm { midr: 0x413f_d0c1 }), ["arm neoverse-n1"]);
        assert!(names(&x86("GenuineIntel", 5, 1, 1)).is_empty());
        assert!(names(&x86("HygonGenuine", 0x18, 0, 1)).is_empty());
    }

    /// The signals of SAM with the names that the paper has, on the machine that it used, and elsewhere.
    #[test]
    fn sams_signals_have_the_events_of_each_model() {
        let ivy_bridge = x86("GenuineIntel", 6, 0x3e, 4);
        let across = tables(&ivy_bridge)[0].get(Counter::TransfersAcrossNodes).unwrap().to_vec();
        let said: Vec<_> = across.iter().map(|event| event.name.as_str()).collect();
        let family = "MEM_LOAD_UOPS_LLC_MISS_RETIRED";
        assert_eq!(said, [format!("{family}.REMOTE_HITM"), format!("{family}.REMOTE_FWD")]);
        assert_eq!(terms(&ivy_bridge, Counter::RemoteMemory).unwrap(), ["1x event=0xd3,umask=0xc"]);
        assert_eq!(terms(&ivy_bridge, Counter::Operations), None);
        let zen4 = x86("AuthenticAMD", 0x19, 0x11, 1);
        assert_eq!(terms(&zen4, Counter::TransfersAcrossNodes).unwrap(), ["1x event=0x44,umask=0x10"]);
        assert_eq!(terms(&zen4, Counter::L3Miss).unwrap(), ["1x event=0x44,umask=0x48"]);
        let neoverse = CpuModel::Arm { midr: 0x410f_d4f1 };
        assert_eq!(terms(&neoverse, Counter::RemoteMemory).unwrap(), ["1x event=0x31"]);
        assert_eq!(terms(&neoverse, Counter::TransfersAcrossNodes), None);
    }

    #[test]
    fn vector_operations_weigh_by_their_width() {
        let found = terms(&x86("GenuineIntel", 6, 0x8f, 8), Counter::Operations).unwrap();
        let expected = [(1, 0x3), (2, 0x4), (4, 0x18), (8, 0x60), (16, 0x80)]
            .map(|(weight, mask)| format!("{weight}x event=0xc7,umask={mask:#x}"));
        assert_eq!(found, expected);
    }

    #[test]
    fn every_entry_is_used_and_well_formed() {
        let tables: Tables = toml::from_str(TABLE).unwrap();
        assert!(tables.core.len() > 60, "{}", tables.core.len());
        for core in &tables.core {
            assert!(!core.cpus.is_empty() && !core.counters.is_empty(), "{}", core.name);
            for event in core.counters.values().flatten() {
                assert!(event.weight > 0 && event.terms.starts_with("event=0x"), "{event:?}");
            }
        }
    }
}
