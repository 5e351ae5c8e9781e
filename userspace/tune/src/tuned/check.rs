// SPDX-License-Identifier: GPL-2.0-only
//! Whether a result can be applied: a file may have been written by hand, or come from another machine.

use std::path::Path;

use anyhow::{Result, bail};
use tandem_policies::model::Topology;

use super::Tuned;
use crate::plan::RegionSeats;
use crate::seat::MOST_CPUS;
use crate::space::memory_nodes;
use crate::subject::Subject;
use crate::surroundings::name_of;
use crate::symbols::has_function;

impl Tuned {
    /// Whether its numbers make sense on the machine of `topology`, and its regions are of the program `here`.
    ///
    /// # Errors
    /// One sentence: which is wrong, and what it may be.
    pub fn check(&self, here: &Subject, topology: &Topology) -> Result<()> {
        let Some(one) = self.configuration else { return Ok(()) };
        check_seats("configuration", one.into(), topology)?;
        let with_memory = format!("{} here", in_words(memory_nodes(topology).count(), "with memory"));
        within("configuration.page_nodes", one.page_nodes, memory_nodes(topology).count(), &with_memory)?;
        let then = &self.subject;
        let is_the_same = then.program_sha256 == here.program_sha256 && then.libraries == here.libraries;
        let had = |region: &str| self.regions.iter().any(|known| known.name == region);
        for (region, &seats) in &self.seats {
            check_seats(&format!("seats.\"{region}\""), seats, topology)?;
            if !(is_of(here, region) || is_the_same && had(region)) {
                bail!("seats.\"{region}\": neither {} nor its libraries have a function of this name", here.program);
            }
        }
        Ok(())
    }
}

fn check_seats(what: &str, seats: RegionSeats, topology: &Topology) -> Result<()> {
    within(&format!("{what}.threads"), seats.threads, MOST_CPUS, "no kernel has more CPUs")?;
    let nodes = topology.nodes_with_cpus().count();
    let why = format!("{} here", in_words(nodes, "with CPUs that may be used"));
    within(&format!("{what}.thread_nodes"), seats.thread_nodes, nodes, &why)
}

fn in_words(nodes: usize, with: &str) -> String {
    if nodes == 1 { format!("there is 1 node {with}") } else { format!("there are {nodes} nodes {with}") }
}

fn within(what: &str, number: usize, most: usize, why: &str) -> Result<()> {
    if !(1..=most).contains(&number) {
        bail!("{what} = {number}: it has to be 1 to {most}, as {why}");
    }
    Ok(())
}

/// Whether the program, one of its libraries or its other code has a function of this name.
fn is_of(here: &Subject, name: &str) -> bool {
    let others = here.libraries.iter().chain(&here.code).flatten().map(|one| name_of(one));
    others.chain([here.program.as_str()]).any(|file| has_function(Path::new(file), name))
}
