// SPDX-License-Identifier: GPL-2.0-only
//! Which sampler to use.

use std::fmt;

use serde::Serialize;
use tandem_policies::model::CpuId;
use thiserror::Error;
use tracing::info;

use crate::access::Sampler;
use crate::counting::CountingError;
use crate::device::{Device, DeviceConfig, DeviceCounters, DeviceError};
use crate::fault::{Fault, FaultConfig, FaultCounters, FaultError};
use crate::lookahead::{Lookahead, LookaheadConfig, LookaheadCounters, LookaheadError};
use crate::pmu::{Pmu, PmuConfig, PmuCounters, PmuError};

/// A sampler by its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SamplerKind {
    /// Runs code ahead; works without hardware.
    #[default]
    Lookahead,
    /// Hardware.
    Pmu,
    /// The timing lab's.
    Device,
    /// Page faults.
    Fault,
}

/// What to sample with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplerChoice {
    /// The best that works.
    Auto,
    /// This one and no other.
    Named(SamplerKind),
}

impl Default for SamplerChoice {
    fn default() -> Self {
        Self::Named(SamplerKind::default())
    }
}

/// From the best to those that work almost everywhere: what measures comes before what infers, and what sees accesses
/// before what sees pages.
const BEST_FIRST: [SamplerKind; 4] =
    [SamplerKind::Pmu, SamplerKind::Device, SamplerKind::Lookahead, SamplerKind::Fault];

impl fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lookahead => crate::lookahead::TRAITS.name,
            Self::Pmu => crate::pmu::TRAITS.name,
            Self::Device => crate::device::TRAITS.name,
            Self::Fault => crate::fault::TRAITS.name,
        })
    }
}

/// Why a sampler cannot work, or cannot go on. Says what to do about it.
#[derive(Debug, Error)]
pub enum SamplerError {
    /// See [`LookaheadError`].
    #[error(transparent)]
    Lookahead(#[from] LookaheadError),
    /// See [`PmuError`].
    #[error(transparent)]
    Pmu(#[from] PmuError),
    /// See [`DeviceError`].
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// See [`FaultError`].
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// Hardware counters were asked for.
    #[error("hardware counters cannot be used: {0}; leave out --counters")]
    Counting(#[from] CountingError),
    /// The one that was named.
    #[error("the sampler {0} cannot be used: {1}")]
    Named(SamplerKind, Box<SamplerError>),
    /// All that could be chosen, with their reasons.
    #[error("no sampler can be used: {0}")]
    All(String),
}

/// What a sampler did so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum SamplerCounters {
    /// Of `lookahead`.
    Lookahead(LookaheadCounters),
    /// Of `pmu`.
    Pmu(PmuCounters),
    /// Of `device`.
    Device(DeviceCounters),
    /// Of `fault`.
    Fault(FaultCounters),
}

impl Default for SamplerCounters {
    fn default() -> Self {
        Self::Lookahead(LookaheadCounters::default())
    }
}

impl SamplerCounters {
    /// CPU time spent, with what faults cost the threads where it is they that are seen.
    pub fn cost_ns(&self) -> u64 {
        match self {
            Self::Lookahead(counters) => counters.cost_ns,
            Self::Pmu(counters) => counters.cost_ns,
            Self::Device(counters) => counters.cost_ns,
            Self::Fault(counters) => counters.own_ns + counters.threads_ns,
        }
    }

    /// Accesses handed out.
    pub fn accesses(&self) -> u64 {
        match self {
            Self::Lookahead(counters) => counters.accesses,
            Self::Pmu(counters) => counters.accesses,
            Self::Device(counters) => counters.accesses,
            Self::Fault(counters) => counters.accesses,
        }
    }
}

/// Opens the chosen sampler on `cpus`. If it was left to us and a better one does not work, says so in one line.
///
/// # Errors
/// [`SamplerError`] when the one that was named does not work, or none does.
pub fn open(
    choice: SamplerChoice,
    lookahead: LookaheadConfig,
    fault: FaultConfig,
    cpus: &[CpuId],
) -> Result<Box<dyn Sampler>, SamplerError> {
    let open = |kind| open_one(kind, lookahead, fault, cpus);
    match choice {
        SamplerChoice::Named(kind) => open(kind).map_err(|error| SamplerError::Named(kind, Box::new(error))),
        SamplerChoice::Auto => best(&BEST_FIRST, open),
    }
}

/// Opens the best sampler that comes after the one of the name `failed`, which was opened and then failed.
///
/// # Errors
/// [`SamplerError::All`] when none of them works.
pub fn open_next(
    failed: &str,
    lookahead: LookaheadConfig,
    fault: FaultConfig,
    cpus: &[CpuId],
) -> Result<Box<dyn Sampler>, SamplerError> {
    best(after(failed), |kind| open_one(kind, lookahead, fault, cpus))
}

/// Samplers that are not as good.
fn after(failed: &str) -> &'static [SamplerKind] {
    let at = BEST_FIRST.iter().position(|kind| kind.to_string() == failed);
    at.map_or(&[], |at| &BEST_FIRST[at + 1..])
}

fn open_one(
    kind: SamplerKind,
    lookahead: LookaheadConfig,
    fault: FaultConfig,
    cpus: &[CpuId],
) -> Result<Box<dyn Sampler>, SamplerError> {
    Ok(match kind {
        SamplerKind::Lookahead => Box::new(Lookahead::open(lookahead, cpus)?),
        SamplerKind::Pmu => Box::new(Pmu::open(&PmuConfig::default(), cpus)?),
        SamplerKind::Device => Box::new(Device::open(DeviceConfig::default(), cpus)?),
        SamplerKind::Fault => Box::new(Fault::open(fault, cpus)?),
    })
}

fn best<T>(kinds: &[SamplerKind], open: impl Fn(SamplerKind) -> Result<T, SamplerError>) -> Result<T, SamplerError> {
    let mut refused = Vec::new();
    for &kind in kinds {
        match open(kind) {
            Ok(sampler) => {
                if !refused.is_empty() {
                    info!("sampling with {kind}, since better samplers cannot be used: {}", refused.join("; "));
                }
                return Ok(sampler);
            }
            // Nobody misses the lab's ring outside the lab.
            Err(SamplerError::Device(DeviceError::None)) => {}
            Err(error) => refused.push(format!("{kind}: {error}")),
        }
    }
    if refused.is_empty() {
        refused.push("all that could be tried have failed".to_owned());
    }
    Err(SamplerError::All(refused.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chooses among samplers of which only these work.
    fn best_of(working: &[SamplerKind]) -> Result<SamplerKind, SamplerError> {
        best(&BEST_FIRST, |kind| match kind {
            kind if working.contains(&kind) => Ok(kind),
            SamplerKind::Lookahead => Err(LookaheadError::NoCpu.into()),
            SamplerKind::Pmu => Err(PmuError::NoCpu.into()),
            SamplerKind::Device => Err(DeviceError::None.into()),
            SamplerKind::Fault => Err(FaultError::NoCpu.into()),
        })
    }

    #[test]
    fn the_best_that_works_is_taken() {
        let [pmu, device, lookahead, fault] = BEST_FIRST;
        for working in [&[fault][..], &[lookahead, fault], &[device, lookahead], &BEST_FIRST, &[device], &[pmu]] {
            assert_eq!(best_of(working).unwrap(), working[0]);
        }
    }

    #[test]
    fn after_one_that_failed_only_those_come_that_are_not_as_good() {
        let [_, _, lookahead, fault] = BEST_FIRST;
        assert_eq!((after("device"), after("fault"), after("?")), (&[lookahead, fault][..], &[][..], &[][..]));
        let error = best(after("fault"), |_| Ok(())).unwrap_err().to_string();
        assert_eq!(error, "no sampler can be used: all that could be tried have failed");
    }

    #[test]
    fn where_none_works_all_reasons_are_told_but_that_there_is_no_lab() {
        let error = best_of(&[]).unwrap_err().to_string();
        assert!(error.contains("pmu: none of the CPUs") && error.contains("lookahead: "), "{error}");
        assert!(!error.contains("device"), "{error}");
    }

    #[test]
    fn the_one_that_was_named_is_the_only_one_tried() {
        let named = SamplerChoice::Named(SamplerKind::Device);
        let opened = open(named, LookaheadConfig::default(), FaultConfig::default(), &[CpuId(0)]);
        let error = opened.err().expect("no timing guest").to_string();
        assert!(error.starts_with("the sampler device cannot be used: there is no PCI device"), "{error}");
    }
}
