// SPDX-License-Identifier: GPL-2.0-only
//! The model is quick enough. Prints the table of docs/machine-model.md:
//! `cargo test --release -p tandem-model --test speed -- --nocapture`

use std::fmt::Write as _;
use std::path::Path;

use tandem_machine::MachineFile;
use tandem_model::arm::Arm;
use tandem_model::machine::Machine;
use tandem_model::run::{Outcome, Settings, run};
use tandem_model::scenario::builtin;

/// CPU time of this thread so far, in s. By the clock, a run takes longer when others want the CPU.
fn cpu_s() -> f64 {
    // The kernel counts up to here when a thread gives way.
    std::thread::yield_now();
    let counts = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts the run time of threads");
    let ns = counts.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
    ns.expect("the first count is the run time in ns") as f64 / 1e9
}

/// Nodes of 16 CPUs in groups of eight: 16 to a node of the group, 32 to another.
fn machine(nodes: usize) -> Machine {
    let entry = |from: usize, to: usize| match (from == to, from / 8 == to / 8) {
        (true, _) => 10,
        (false, true) => 16,
        (false, false) => 32,
    };
    let mut text = format!("nodes = {nodes}\ncpus_per_node = 16\nmemory_mb = 16384\ndistance = [\n");
    for from in 0..nodes {
        let row: Vec<String> = (0..nodes).map(|to| entry(from, to).to_string()).collect();
        writeln!(text, "[{}],", row.join(", ")).unwrap();
    }
    Machine::new(&MachineFile::parse(&(text + "]\n"), Path::new("machine.toml")).unwrap()).unwrap()
}

/// What a run of `crossed` gives whose work takes `ideal_s` with local memory, and the CPU time it took, in s.
fn crossed(machine: &Machine, arm: &str, ideal_s: f64, step_ms: f64) -> (Outcome, f64) {
    let scenario = builtin("crossed").unwrap().lasting(ideal_s, false);
    let settings = Settings { step_ns: step_ms * 1e6, ..Settings::default() };
    let before_s = cpu_s();
    let outcome = run(machine, &scenario, Arm::parse(arm).unwrap(), &settings, 1, &mut |_| ());
    let took_s = cpu_s() - before_s;
    println!(
        "| {} threads on {} nodes, `{arm}` | {:.0} s | {} | {took_s:.1} s | {:.0} |",
        outcome.threads,
        machine.nodes(),
        outcome.time_s.unwrap_or(f64::NAN),
        outcome.steps,
        outcome.steps as f64 / took_s
    );
    (outcome, took_s)
}

const ARMS: [&str; 6] = ["eevdf", "autonuma", "sma+tmma", "kmaf+kmaf", "auto", "tandem"];

#[test]
#[cfg_attr(debug_assertions, ignore = "the limits are those of release builds")]
fn ten_minutes_of_1024_threads_take_less_than_one_and_64_threads_thousands_of_steps_a_second() {
    println!("| what | model time | steps | CPU time | steps a second |\n|---|---|---|---|---|");
    let large = machine(64);
    for arm in ARMS {
        let (outcome, took_s) = crossed(&large, arm, 600.0, 10.0);
        assert_eq!(outcome.threads, 1024);
        assert!(outcome.time_s.is_some_and(|time_s| time_s >= 600.0), "{arm}: {:?}", outcome.time_s);
        assert!(took_s < 60.0, "{arm}: {took_s:.1} s");
    }
    let small = machine(4);
    for arm in ARMS {
        let (outcome, took_s) = crossed(&small, arm, 60.0, 1.0);
        assert_eq!(outcome.threads, 64);
        assert!(outcome.steps as f64 / took_s > 2000.0, "{arm}: {} steps in {took_s:.1} s", outcome.steps);
    }
}
