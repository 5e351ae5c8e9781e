// SPDX-License-Identifier: GPL-2.0-only
//! A sampler that fails, and the one that takes its place.

use super::super::tests::{Faults, SECOND, Scripted, account_of, batch, process};
use super::super::*;
use crate::access::SamplerTraits;
use crate::testing::topology;

/// A sampler that works no more.
struct Broken;

impl Sampler for Broken {
    fn traits(&self) -> SamplerTraits {
        crate::lookahead::TRAITS
    }

    fn set_managed(&mut self, _managed: &BTreeSet<ProcessId>) {}

    fn drain(&mut self, _now_ns: u64) -> Result<Batch, SamplerError> {
        Err(crate::LookaheadError::NoCpu.into())
    }

    fn counters(&self) -> SamplerCounters {
        SamplerCounters::default()
    }
}

#[test]
fn a_sampler_that_fails_while_it_runs_is_followed_by_the_next_best() {
    let (machine, memory) = (topology(2), vec![1_u8; 1 << 21]);
    let seen = batch(memory.as_ptr() as u64 + 4096);
    let mut sensor = Sensor::over(Box::new(Broken), SensorConfig::default(), &machine);
    sensor.set_managed([process()].into());
    let next = seen.clone();
    sensor.successor = Some(Box::new(move |failed| {
        assert_eq!(failed, "lookahead");
        Ok(Box::new(Faults(next.clone())))
    }));
    sensor.sample(SECOND).unwrap();
    assert_eq!((sensor.name(), sensor.table_counters().replaced_samplers), ("fault", 1));
    assert!(sensor.frames.is_some() && sensor.fresh().is_empty());
    sensor.sample(SECOND).unwrap();
    assert_eq!(sensor.fresh(), seen.accesses);
}

#[test]
fn where_nothing_can_take_its_place_a_sampler_that_fails_ends_the_sampling() {
    let machine = topology(2);
    let mut sensor = Sensor::over(Box::new(Broken), SensorConfig::default(), &machine);
    let named = sensor.sample(SECOND).unwrap_err().to_string();
    assert!(named.starts_with("lookahead sampling needs at least one online CPU"), "{named}");
    sensor.successor = Some(Box::new(|_| Err(SamplerError::All("none".to_owned()))));
    let left = sensor.sample(SECOND).unwrap_err().to_string();
    assert_eq!(left, "no sampler can be used: none");
}

#[test]
fn what_a_sampler_left_behind_does_not_make_the_next_one_a_measuring_one() {
    let (machine, memory) = (topology(2), vec![1_u8; 1 << 21]);
    let mut sensor = Sensor::over(Box::new(Broken), SensorConfig::default(), &machine);
    sensor.set_managed([process()].into());
    sensor.successor = Some(Box::new(|_| Ok(Box::new(Scripted(Batch::default())))));
    let snapshot = |sensor: &mut Sensor| {
        let accounts = vec![account_of(batch(0).accesses[0].tid)];
        sensor.snapshot(&machine, accounts, SECOND, 2 * SECOND, |_, _| None).access_rates
    };
    snapshot(&mut sensor);
    sensor.pending.add(&batch(memory.as_ptr() as u64 + 4096));
    sensor.sees_turn(SECOND);
    sensor.sample(SECOND).unwrap();
    sensor.sees_turn(SECOND);
    assert_eq!(snapshot(&mut sensor), Some(AccessRates::Inferred));
}
