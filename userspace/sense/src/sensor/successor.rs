// SPDX-License-Identifier: GPL-2.0-only
//! What follows a sampler that cannot go on.

use super::{Sensor, frames_for};
use crate::access::Sampler;
use crate::rate::RateTable;
use crate::samplers::SamplerError;

/// Opens the sampler that is to follow one that failed.
pub(super) type Successor = Box<dyn Fn(&'static str) -> Result<Box<dyn Sampler>, SamplerError>>;

impl Sensor {
    /// Opens the next best sampler. What is known from before stays; what is pending goes, for the next one may tell of it otherwise.
    pub(super) fn replace_sampler(&mut self, error: SamplerError) -> Result<(), SamplerError> {
        let failed = self.name();
        let Some(successor) = &self.successor else { return Err(error) };
        tracing::warn!("the sampler {failed} cannot go on: {error}; another one takes its place");
        self.sampler = successor(failed)?;
        self.sampler.set_managed(&self.managed);
        self.sampler.take_share(self.share);
        self.frames = frames_for(&*self.sampler, &self.config);
        self.drop_pending(|_| false);
        self.measuring = false;
        self.rates = RateTable::new(self.config.affinity.half_life_ns);
        self.counters.replaced_samplers += 1;
        Ok(())
    }
}

#[cfg(test)]
#[path = "successor_tests.rs"]
mod tests;
