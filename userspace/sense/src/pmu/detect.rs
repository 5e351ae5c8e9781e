// SPDX-License-Identifier: GPL-2.0-only
//! What of the PMU can be used on a system, and if nothing, why not.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use tandem_machine::{Capabilities, Capability};
use tandem_policies::model::CpuId;
use thiserror::Error;

use super::model::{self, CpuModel, Processor};
use super::sysfs::{self, Device, Encoding, read_text};
use super::table::{self, Counter};

/// Capabilities that allow to watch everything, by their bits.
/// PMUs of Intel's cores.
const INTEL_CORES: [&str; 4] = ["cpu", "cpu_core", "cpu_atom", "cpu_lowpower"];

/// Why accesses cannot be sampled, or nothing be counted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Unavailable {
    /// The kernel shows no event source.
    #[error(
        "this kernel shows no perf events in /sys/bus/event_source: mount /sys, or use a kernel with CONFIG_PERF_EVENTS"
    )]
    NoPerf,
    /// No PMU in a virtual machine.
    #[error(
        "this virtual machine has no PMU: give it one (QEMU with KVM: -cpu host,pmu=on), or sample with `lookahead`"
    )]
    NoVirtualPmu,
    /// No PMU on hardware.
    #[error(
        "the kernel found no PMU on this machine: look for `Performance Events` in its log, or sample with `lookahead`"
    )]
    NoPmu,
    /// A PMU that only counts, in a virtual machine.
    #[error(
        "the PMU of this virtual machine counts but does not sample memory accesses ({missing} is missing): use the host, or sample with `lookahead`"
    )]
    NoVirtualSampling {
        /// What the kernel would show.
        missing: &'static str,
    },
    /// A PMU that only counts.
    #[error("the PMU of this machine counts but does not sample memory accesses: {missing} is missing; {remedy}")]
    NoSampling {
        /// What the kernel would show.
        missing: &'static str,
        /// What may help.
        remedy: &'static str,
    },
    /// A CPU of which nothing is known here.
    #[error(
        "memory accesses cannot be sampled on this CPU ({model}): only Intel, AMD, Hygon and Arm are supported; sample with `lookahead` on x86-64"
    )]
    UnknownCpu {
        /// The CPU.
        model: String,
    },
    /// Not allowed.
    #[error(
        "watching all CPUs is not allowed (perf_event_paranoid is {paranoid}): run as root or with CAP_PERFMON, or set /proc/sys/kernel/perf_event_paranoid to 0"
    )]
    NoRights {
        /// The setting.
        paranoid: i64,
    },
    /// The kernel shows what is not understood.
    #[error("{0}: report this CPU and kernel, and sample with `lookahead`")]
    Encoding(#[from] sysfs::EncodeError),
}

/// The hardware that samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hardware {
    /// Intel's load latency facility (PEBS), a PMU for each type of core.
    IntelLoadLatency(Vec<Device>),
    /// AMD's instruction-based sampling of operations.
    AmdIbs(Device),
    /// Arm's Statistical Profiling Extension, a PMU for each type of core.
    ArmSpe(Vec<Device>),
}

impl Hardware {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::IntelLoadLatency(_) => "Intel PEBS load latency",
            Self::AmdIbs(_) => "AMD IBS op",
            Self::ArmSpe(_) => "Arm SPE",
        }
    }
}

/// What one may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rights {
    /// Root, CAP_PERFMON or CAP_SYS_ADMIN.
    pub capable: bool,
    /// kernel.perf_event_paranoid.
    pub paranoid: i64,
}

impl Rights {
    /// Those of this process on the system whose root is `root`.
    pub fn read(root: &Path) -> Self {
        let held = Capabilities::read(root);
        let paranoid = read_text(&root.join("proc/sys/kernel/perf_event_paranoid"));
        // Without the file nothing but one's own threads may be expected.
        let paranoid = paranoid.and_then(|text| text.trim().parse().ok()).unwrap_or(2);
        Self { capable: held.has(Capability::SysAdmin) || held.has(Capability::Perfmon), paranoid }
    }

    /// May watch all threads of a CPU.
    pub fn whole_cpus(self) -> bool {
        self.capable || self.paranoid <= 0
    }

    /// May see physical addresses.
    pub fn physical(self) -> bool {
        self.capable || self.paranoid <= 1
    }
}

/// What can sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Available {
    /// The processor.
    pub processor: Processor,
    /// Its sampling hardware.
    pub hardware: Hardware,
    /// What one may do with it.
    pub rights: Rights,
}

/// How memory accesses can be sampled on the system whose root is `root` (`/` for this one).
///
/// # Errors
/// [`Unavailable`]: one sentence why not, with what to do.
pub fn detect(root: &Path) -> Result<Available, Unavailable> {
    let devices = sysfs::devices(root).ok_or(Unavailable::NoPerf)?;
    let processor = model::read(root);
    let hardware = hardware(&devices, &processor)?;
    let rights = Rights::read(root);
    if !rights.whole_cpus() {
        return Err(Unavailable::NoRights { paranoid: rights.paranoid });
    }
    Ok(Available { processor, hardware, rights })
}

fn hardware(devices: &BTreeMap<String, Device>, processor: &Processor) -> Result<Hardware, Unavailable> {
    let counts = core_devices(devices).next().is_some();
    let missing = |missing, remedy| {
        Err(match (counts, processor.virtual_machine) {
            (false, true) => Unavailable::NoVirtualPmu,
            (false, false) => Unavailable::NoPmu,
            (true, true) => Unavailable::NoVirtualSampling { missing },
            (true, false) => Unavailable::NoSampling { missing, remedy },
        })
    };
    match &processor.model {
        CpuModel::X86 { vendor, .. } if vendor == "GenuineIntel" => {
            let samples = |device: &Device| {
                device.event("mem-loads").is_some()
                    && device.has_term("ldlat")
                    && device.cap("max_precise") != Some("0")
            };
            let found: Vec<_> =
                INTEL_CORES.iter().filter_map(|name| devices.get(*name)).filter(|at| samples(at)).cloned().collect();
            if found.is_empty() {
                return missing("event mem-loads", "sample with `lookahead`");
            }
            Ok(Hardware::IntelLoadLatency(found))
        }
        CpuModel::X86 { vendor, .. } if vendor == "AuthenticAMD" || vendor == "HygonGenuine" => {
            match devices.get("ibs_op") {
                Some(device) => Ok(Hardware::AmdIbs(device.clone())),
                None => missing("PMU ibs_op", "enable IBS in the firmware's settings, or sample with `lookahead`"),
            }
        }
        CpuModel::Arm { .. } => {
            let found: Vec<_> =
                devices.values().filter(|device| device.name.starts_with("arm_spe_")).cloned().collect();
            if found.is_empty() {
                return missing("PMU arm_spe", "load the module arm_spe_pmu; the kernel may need kpti=off for it");
            }
            Ok(Hardware::ArmSpe(found))
        }
        model => Err(Unavailable::UnknownCpu { model: model.to_string() }),
    }
}

/// PMUs of cores, which count events of threads.
fn core_devices(devices: &BTreeMap<String, Device>) -> impl Iterator<Item = &Device> {
    let arm = |name: &str| ["armv8_", "armv9_"].iter().any(|prefix| name.starts_with(prefix));
    devices.values().filter(move |device| INTEL_CORES.contains(&device.name.as_str()) || arm(&device.name))
}

/// An event of a counter, ready to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyEvent {
    /// What one event adds to the counter.
    pub weight: u32,
    /// The vendor's name.
    pub name: String,
    /// The event.
    pub encoding: Encoding,
}

/// The counters of the cores of one PMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterSet {
    /// The PMU.
    pub device: String,
    /// The kernel's name of the core; `None`: the model is not in the table.
    pub core: Option<String>,
    /// CPUs that have it; `None`: all.
    pub cpus: Option<Vec<CpuId>>,
    counters: BTreeMap<Counter, Vec<ReadyEvent>>,
}

impl CounterSet {
    /// Events whose weighted sum is the counter; `None` if this core has none.
    pub fn get(&self, counter: Counter) -> Option<&[ReadyEvent]> {
        self.counters.get(&counter).map(Vec::as_slice)
    }
}

/// What can be counted per thread on the system whose root is `root`, a set for each PMU of cores.
///
/// # Errors
/// [`Unavailable`]: one sentence why nothing can, with what to do.
pub fn counters(root: &Path) -> Result<Vec<CounterSet>, Unavailable> {
    let devices = sysfs::devices(root).ok_or(Unavailable::NoPerf)?;
    let processor = model::read(root);
    let tables = table::tables(&processor.model);
    let set = |device: &Device| {
        let table = tables.iter().find(|table| table.pmu == device.name || table.pmu == "cpu");
        let ready = |counter| {
            let events = table?.get(counter)?.iter().map(|event| {
                let encoding = device.encode(&event.terms, &[]).ok()?;
                Some(ReadyEvent { weight: event.weight, name: event.name.clone(), encoding })
            });
            Some((counter, events.collect::<Option<Vec<_>>>()?))
        };
        let counters = Counter::ALL.into_iter().filter_map(ready).collect();
        CounterSet {
            device: device.name.clone(),
            core: table.map(|table| table.name.clone()),
            cpus: device.covered_cpus(),
            counters,
        }
    };
    let sets: Vec<_> = core_devices(&devices).map(set).collect();
    match (sets.is_empty(), processor.virtual_machine) {
        (false, _) => Ok(sets),
        (true, true) => Err(Unavailable::NoVirtualPmu),
        (true, false) => Err(Unavailable::NoPmu),
    }
}

#[cfg(test)]
#[path = "detect_tests.rs"]
mod tests;
