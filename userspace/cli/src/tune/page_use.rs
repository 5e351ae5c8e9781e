// SPDX-License-Identifier: GPL-2.0-only
//! One run that tells who uses which page: its allocations by the tracer, its accesses by a sampler beside it.

use std::collections::BTreeSet;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tandem_ab::stop::Stop;
use tandem_machine::online_cpus;
use tandem_policies::model::ProcessId;
use tandem_sense::{FaultConfig, LookaheadConfig, Sampler, SamplerChoice, monotonic_ns, samplers};
use tandem_tune::births;
use tandem_tune::launch::{self, End, Limit, Program, Streams};
use tandem_tune::mapping::Profiled;
use tandem_tune::page_use::{PageUse, Touch};
use tandem_tune::places::Places;
use tandem_tune::plan::Plan;

use super::trial::{What, is_cut_short, words};
use crate::observe::observed;

/// What is behind a sample must be read while it is fresh.
const TICK: Duration = Duration::from_millis(20);

/// How often new processes are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// CPU time for the sampler, of one CPU: there is one such run for each number of threads, and nobody measures its time.
const BUDGET: f64 = 0.3;

/// Why no map of pages can be made on this machine, if that is known beforehand.
pub fn obstacle_here() -> Option<String> {
    if !births::POSSIBLE {
        return Some("memory is bound as it is allocated on 64-bit x86 only".to_owned());
    }
    open().err().map(|error| format!("{error:#}"))
}

fn open() -> Result<Box<dyn Sampler>> {
    let cpus = online_cpus().context("the machine's CPUs cannot be read")?;
    let lookahead = LookaheadConfig { budget_fraction: Some(BUDGET), ..LookaheadConfig::default() };
    let fault = FaultConfig { budget_fraction: BUDGET, hints: false };
    Ok(samplers::open(SamplerChoice::Auto, lookahead, fault, &cpus)?)
}

/// Runs the program with its threads in these places, for so long at most.
///
/// # Errors
/// It cannot be run, or the sampler cannot go on.
pub fn profile(what: &What, plan: &Plan, places: &Places, limit: Limit, stop: &Stop) -> Result<Profiled> {
    let streams = Streams::Files { input: what.input.map(std::path::Path::to_owned), output: "/dev/null".into() };
    let functions = what.functions.to_vec();
    let program = Program { command: words(what.command, Some(plan)), streams, functions };
    let Places { threads, seats, .. } = places.clone();
    let places = Places { threads, seats, tells_allocations: true, ..Places::default() };
    let sampler = match open() {
        Ok(sampler) => sampler.traits().name,
        Err(error) => return Ok(Profiled::Impossible(format!("{error:#}"))),
    };
    let (tell, started) = mpsc::channel();
    let (seen, touches) = std::thread::scope(|scope| {
        let (ended, wait_for_end) = mpsc::channel::<()>();
        let sampling = scope.spawn(move || match started.recv() {
            Ok(root) => sample(root, &wait_for_end),
            // It was not started, which is told by who could not.
            Err(_) => Ok(Vec::new()),
        });
        // Nobody listens any more if the sampler has failed, which is told below.
        let seen = launch::run(&program, &places, limit, stop, move |pid| {
            let _ = tell.send(pid.cast_unsigned());
        });
        drop(ended);
        (seen, sampling.join().expect("sampling does not panic"))
    });
    let (seen, touches) = (seen?, touches?);
    Ok(match seen.end {
        end if is_cut_short(&end, stop) => Profiled::Stopped,
        End::TooLong => Profiled::Impossible("the time was over before the program ended".to_owned()),
        End::Code(0) | End::Measured => match PageUse::of(sampler, &seen.allocations, &seen.members, &touches) {
            Ok(found) => Profiled::Use(found),
            Err(why) => Profiled::Impossible(why.to_string()),
        },
        end => Profiled::Impossible(format!("the program failed while it was looked at: {end:?}")),
    })
}

/// Accesses of a process and its descendants, until `ended` hangs up.
fn sample(root: u32, ended: &mpsc::Receiver<()>) -> Result<Vec<Touch>> {
    let mut sampler = open()?;
    let mut touches = Vec::new();
    let mut looked: Option<Instant> = None;
    loop {
        if looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
            let processes: BTreeSet<ProcessId> = observed(Some(root))?.keys().map(|&pid| ProcessId(pid)).collect();
            sampler.set_managed(&processes);
            looked = Some(Instant::now());
        }
        let is_over = ended.recv_timeout(TICK) == Err(RecvTimeoutError::Disconnected);
        for access in sampler.drain(monotonic_ns())?.accesses {
            let (thread, process) = (access.tid.cast_signed(), access.process.0.cast_signed());
            touches.push(Touch { thread, process, address: access.address, at_ns: access.time_ns });
        }
        if is_over {
            return Ok(touches);
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_tune::page_map::{Nodes, PageMap};
    use tandem_tune::page_use::Used;
    use tandem_tune::plan::Plan;
    use tandem_tune::space::{Configuration, PagePlacement, ThreadPlacement};

    use super::*;
    use crate::signals::Suspension;
    use tandem_tune::placer::ThreadsBy;

    /// The main thread touches all of an array first; then each of two threads walks through its own half, in no order, for a second.
    const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define BYTES (64ul << 20)
static char *all;
static void *walk(void *number)
{
	struct timespec now;
	char *own = all + (size_t)number * BYTES / 2;
	unsigned long at = 1, sum = 0, end;
	clock_gettime(CLOCK_MONOTONIC, &now);
	end = now.tv_sec * 1000 + now.tv_nsec / 1000000 + 1000;
	do {
		for (int i = 0; i < 10000; i++) {
			at = at * 6364136223846793005ul + 1442695040888963407ul;
			sum += own[(at >> 33) % (BYTES / 2)]++;
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec * 1000 + now.tv_nsec / 1000000 < end);
	return (void *)sum;
}
int main(void)
{
	pthread_t other;
	all = malloc(BYTES);
	memset(all, 1, BYTES);
	pthread_create(&other, NULL, walk, (void *)1);
	walk(0);
	pthread_join(other, NULL);
	return 0;
}
"#;

    fn one() -> Configuration {
        Configuration {
            threads: 2,
            thread_nodes: 2,
            thread_placement: ThreadPlacement::Scatter,
            page_nodes: 2,
            page_placement: PagePlacement::Locality,
        }
    }

    fn profiled(command: &[&str]) -> Profiled {
        profiled_to(Limit::default(), command)
    }

    /// Of a program in which calls of `step` count as regions.
    fn profiled_to(limit: Limit, command: &[&str]) -> Profiled {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let suspension = Suspension::noted().unwrap();
        let threads_by = ThreadsBy::Affinity;
        let what = What { command: &command, input: None, functions: &["step".to_owned()], threads_by, suspension };
        profile(&what, &Plan::from(one()), &Places::default(), limit, &Stop::default()).unwrap()
    }

    #[test]
    fn of_a_program_that_never_ends_the_beginning_tells_by_named_functions_too() {
        let directory = tempfile::tempdir().unwrap();
        let (file, program) = (directory.path().join("endless.c"), directory.path().join("endless"));
        let endless = "#include <unistd.h>\n__attribute__((noinline)) void step(void) { usleep(5000); }\n\
            int main(void) { for (;;) step(); }\n";
        std::fs::write(&file, endless).unwrap();
        let mut gcc = std::process::Command::new("gcc");
        assert!(gcc.args(["-O1", "-o"]).arg(&program).arg(&file).status().unwrap().success());
        let limit = Limit { time: Some(Duration::from_secs(20)), entries: Some(40) };
        let Profiled::Impossible(why) = profiled_to(limit, &[program.to_str().unwrap()]) else { panic!("no memory") };
        assert!(!why.contains("the time was over"), "{why}");
    }

    #[test]
    fn halves_of_an_array_that_one_thread_has_initialised_belong_to_those_who_use_them() {
        let directory = tempfile::tempdir().unwrap();
        let (file, program) = (directory.path().join("halves.c"), directory.path().join("halves"));
        std::fs::write(&file, PROGRAM).unwrap();
        let mut gcc = std::process::Command::new("gcc");
        assert!(gcc.args(["-O1", "-pthread", "-o"]).arg(&program).arg(&file).status().unwrap().success());
        let Profiled::Use(found) = profiled(&[program.to_str().unwrap()]) else { panic!("nothing was seen") };
        let [Used { pages, .. }] = found.allocations[..] else { panic!("one array: {found:?}") };
        let nodes = Nodes { of_threads: vec![0, 1], of_pages: vec![0, 1] };
        let map = PageMap::of(&found, PagePlacement::Locality, &nodes).unwrap();
        let (_, (_, runs)) = map.by_name().unwrap().pop_first().unwrap();
        let right: u64 = runs
            .iter()
            .flat_map(|run| (run.first_page..run.first_page + run.pages).map(|page| (page, run.node)))
            .map(|(page, node)| u64::from(u64::from(node) == page * 2 / pages))
            .sum();
        assert!(right * 100 >= pages * 95, "{right} of {pages} pages: {map:?}");
    }

    #[test]
    fn a_program_that_shows_nothing_or_fails_is_told() {
        let Profiled::Impossible(why) = profiled(&["sleep", "0.1"]) else { panic!("it has no memory") };
        assert!(why.contains("accesses to allocations") || why.contains("saw no access"), "{why}");
        let Profiled::Impossible(why) = profiled(&["sh", "-c", "exit 3"]) else { panic!("it fails") };
        assert!(why.contains("failed while it was looked at: Code(3)"), "{why}");
    }
}
