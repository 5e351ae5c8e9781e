// SPDX-License-Identifier: GPL-2.0-only
//! Machines for all tests, and what sessions on them are, see and find unless a test says otherwise.

use std::time::Instant;

use tandem_ab::stop::Stop;
use tandem_machine::MachineFile;
use tandem_policies::model::Topology;

use crate::launch::Seen;
use crate::search::{Choice, End, Found, Runs, Settings};
use crate::session::{AT_BIRTH, Outcome, Runner, Session, Trial};
use crate::space::{Configuration, PagePlacement, ThreadPlacement};
use crate::store::Store;

/// A machine of equal nodes, all equally far from each other.
pub fn machine(nodes: usize, cpus: usize) -> Topology {
    let row =
        |node: usize| (0..nodes).map(|other| if other == node { "10" } else { "20" }).collect::<Vec<_>>().join(",");
    let rows: Vec<String> = (0..nodes).map(|node| format!("[{}]", row(node))).collect();
    let text = format!(
        "name = \"m\"\nnodes = {nodes}\ncpus_per_node = {cpus}\nmemory_mb = 1024\ndistance = [{}]\n",
        rows.join(",")
    );
    MachineFile::parse(&text, "m.toml".as_ref()).unwrap().topology().unwrap()
}

/// A machine of the lab.
pub fn lab_machine(name: &str) -> Topology {
    let path = format!("{}/../../vm/machines/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    MachineFile::load(path).unwrap().topology().unwrap()
}

/// A session on a [machine] of two nodes and eight cores that tries what is possible at birth, has all the time in the world, and
/// says nothing.
pub fn session<'a>(topology: &'a Topology, store: &'a Store, stop: &'a Stop, run: &'a Runner<'a>) -> Session<'a> {
    Session {
        topology,
        cores: 8,
        page_placements: AT_BIRTH,
        left_out: None,
        one_by_one: true,
        replay: None,
        functions: &[],
        command_has_threads: false,
        store,
        settings: Settings::default(),
        started: Instant::now(),
        budget: None,
        only_whole_runs: true,
        first_entries: None,
        stop,
        say: &|_| (),
        run,
        kept: &|| Ok(()),
        mapping: None,
        run_many: None,
        machines: 1,
    }
}

/// A run of which this was seen, and nothing read.
pub fn trial(seen: Seen) -> Trial {
    Trial { seen, last_words: String::new(), moved_pages: None, host: None }
}

/// That all runs are evidence, of one candidate besides the reference.
pub const CHOICE: Choice = Choice { runs: 0, among: 1, reference: None, looks: 1 };

/// Runs that took so long.
pub fn runs(seconds: &[f64]) -> Runs {
    Runs { seconds: seconds.to_vec(), ..Runs::default() }
}

/// A search that is over: its configurations besides the program as it is, and the runs of that one and them.
pub fn outcome(configurations: &[Configuration], best: usize, runs: Vec<Runs>) -> Outcome {
    Outcome {
        candidates: std::iter::once(None).chain(configurations.iter().copied().map(Some)).collect(),
        found: Found { best: Some(best), runs, end: End::Decided, choice: CHOICE },
        pages_alike: vec![],
        regions: vec![],
        notes: vec![],
        one_by_one: None,
        is_complete: true,
        bimodal: None,
        page_map: None,
        first_entries: None,
    }
}

/// So many threads, in turn on the first of these two numbers of nodes, and pages on the second.
pub fn scattered(threads: usize, nodes: (usize, usize), page_placement: PagePlacement) -> Configuration {
    let (thread_nodes, page_nodes) = nodes;
    Configuration { threads, thread_nodes, thread_placement: ThreadPlacement::Scatter, page_nodes, page_placement }
}
