// SPDX-License-Identifier: GPL-2.0-only
//! Tests of a loaded scheduler, in a guest. They take turns: there is one kernel.

mod agent;
mod assigned;
mod births;
mod cold;
mod configuration;
mod contested;
mod counting;
mod dump;
mod fairness;
mod faults;
mod fuzz;
mod groups;
mod homes;
mod hotplug;
mod kernel_moves;
mod lifecycle;
mod limits;
mod payback;
mod programs;
mod real_time;
mod recording;
mod refusals;
mod rest;
mod scheduling;
mod service;
mod storms;
mod timer;
mod toolbox;
mod transactions;
mod tuning;
mod tutorial;
mod visitor;

use std::time::Instant;

use libtest_mimic::{Arguments, Trial};
use tandem_guest_tests::OwnAffinity;

/// A test by its name; says how long it took. Where the test lets its own thread run is not where the next one's may.
fn trial(name: &'static str, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        let (start, _affinity) = (Instant::now(), OwnAffinity::keep());
        test();
        println!("took {:.1} s", start.elapsed().as_secs_f64());
        Ok(())
    })
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [tuning::PROGRAM, notes] = [words.first(), words.get(1)].map(|word| word.map_or("", String::as_str)) {
        return tuning::walk_parts(notes.as_ref());
    }
    if let [assigned::PROGRAM, notes] = [words.first(), words.get(1)].map(|word| word.map_or("", String::as_str)) {
        return assigned::tell_seats(notes.as_ref());
    }
    if words.first().is_some_and(|word| word == births::PROGRAM) {
        return births::tell_homes();
    }
    if words.first().is_some_and(|word| word == visitor::PROGRAM) {
        return visitor::visit_memory();
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let topology = tandem_machine::read_running().expect("the guest has a topology").topology;
    let trials = if topology.nodes_with_cpus().count() < 2 {
        refusals::on_one_node()
    } else {
        [
            lifecycle::tests(),
            hotplug::tests(),
            transactions::tests(),
            fuzz::tests(),
            scheduling::tests(),
            homes::tests(),
            real_time::tests(),
            fairness::tests(),
            groups::tests(),
            storms::tests(),
            dump::tests(),
            programs::tests(),
            agent::tests(),
            cold::tests(&topology),
            contested::tests(),
            rest::tests(),
            limits::tests(),
            payback::tests(&topology),
            faults::tests(),
            kernel_moves::tests(),
            counting::tests(),
            timer::tests(),
            recording::tests(),
            refusals::tests(),
            configuration::tests(),
            toolbox::tests(),
            tuning::tests(),
            assigned::tests(),
            births::tests(),
            service::tests(),
            tutorial::tests(),
        ]
        .into_iter()
        .flatten()
        .collect()
    };
    let done = libtest_mimic::run(&arguments, trials);
    if done.num_passed + done.num_failed + done.num_ignored == 0 && !arguments.list {
        eprintln!("guest-tests: no test has such a name: {:?}", arguments.filter);
        std::process::exit(2);
    }
    done.exit();
}
