// SPDX-License-Identifier: GPL-2.0-only
use super::*;
use crate::testing::{machine, two_nodes};

/// All accesses go to pages of one region and miss.
const ALL_MEMORY: [Use; 1] = [Use { target: Target::Memory { region: 0, miss: 1.0, write: 0.0 }, share: 1.0 }];
const ALL_LINES: [Use; 1] = [Use { target: Target::Lines { set: 0 }, share: 1.0 }];

fn runner(node: usize, uses: &[Use]) -> Runner<'_> {
    Runner { node, cpu_share: 1.0, compute_ns: 0.0, overlap: 1.0, uses, group: None }
}

fn solved(machine: &Machine, runners: &[Runner], spreads: &[Spread]) -> Rates {
    let mut rates = Rates::new(machine);
    rates.solve(machine, runners, spreads, 1);
    rates
}

/// The wait that solves w = s u / (2 (1 - u)), u = s n / (t + w), by bisection.
fn wait_by_bisection(service_ns: f64, threads: f64, access_ns: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        let busy = service_ns * threads / (access_ns + middle);
        let above = busy >= 1.0 || service_ns * busy / (2.0 * (1.0 - busy)) > middle;
        if above { low = middle } else { high = middle }
    }
    low
}

#[test]
fn one_thread_pays_the_latency_of_where_its_pages_are() {
    let machine = two_nodes();
    // 90 ns and 3.2 ns of service: busy for .0356, wait .06 ns. Remotely the link's 6.4 ns come on top.
    let local = solved(&machine, &[runner(0, &ALL_MEMORY)], &[Spread::on(0)]).access_ns[0];
    assert!((local - 90.0 - wait_by_bisection(3.2, 1.0, 90.0)).abs() < 1e-5, "{local}");
    let remote = solved(&machine, &[runner(0, &ALL_MEMORY)], &[Spread::on(1)]).access_ns[0];
    assert!((180.0..180.2).contains(&remote), "{remote}");
    let half = solved(&machine, &[runner(0, &ALL_MEMORY)], &[Spread::over(&[0, 1])]).access_ns[0];
    assert!((135.0..135.1).contains(&half), "{half}");
}

#[test]
fn computing_and_cache_hits_add_and_overlap_divides_the_misses() {
    let machine = two_nodes();
    let uses = [Use { target: Target::Memory { region: 0, miss: 0.25, write: 0.0 }, share: 1.0 }];
    let thread = Runner { compute_ns: 8.0, overlap: 2.0, ..runner(0, &uses) };
    // 8 + .25 x 180 / 2 + .75 x 20 (hit).
    let access_ns = solved(&machine, &[thread], &[Spread::on(1)]).access_ns[0];
    assert!((45.5..45.6).contains(&access_ns), "{access_ns}");
}

#[test]
fn half_a_cpu_is_half_the_speed() {
    let machine = two_nodes();
    let half = Runner { cpu_share: 0.5, compute_ns: 100.0, ..runner(0, &[]) };
    let rates = solved(&machine, &[half], &[]);
    assert_eq!((rates.accesses_per_ns[0], rates.access_ns[0]), (0.005, 100.0));
}

#[test]
fn below_the_knee_the_wait_is_that_of_the_queue() {
    let machine = two_nodes();
    for threads in [2, 4] {
        let scanners = vec![Runner { overlap: 3.0, ..runner(0, &ALL_MEMORY) }; threads];
        let access_ns = solved(&machine, &scanners, &[Spread::on(0)]).access_ns[0];
        // Three in flight: as three times the threads at the whole latency.
        let wait_ns = wait_by_bisection(3.2, 3.0 * threads as f64, 90.0);
        assert!((access_ns * 3.0 - 90.0 - wait_ns).abs() < 1e-4, "{threads}: {access_ns}, wait {wait_ns}");
    }
}

#[test]
fn beyond_the_knee_memory_serves_what_it_can_and_no_more() {
    let machine = two_nodes();
    let scanners = vec![Runner { overlap: 10.0, ..runner(0, &ALL_MEMORY) }; 4];
    let rates = solved(&machine, &scanners, &[Spread::on(0)]);
    // One line in 3.2 ns for four: 12.8 ns each, so 38 ns of wait in each of ten misses in flight.
    let lines_per_ns: f64 = rates.accesses_per_ns.iter().sum();
    assert!((lines_per_ns * 3.2 - 1.0).abs() < 1e-5, "{lines_per_ns}");
    assert!((rates.access_ns[0] - 12.8).abs() < 1e-4, "{}", rates.access_ns[0]);
    assert!((rates.served_ns(&machine, 0).unwrap() - 128.0).abs() < 1e-3);
}

#[test]
fn a_link_has_a_knee_of_its_own() {
    let machine = two_nodes();
    let scanners = vec![Runner { overlap: 10.0, ..runner(0, &ALL_MEMORY) }; 4];
    let rates = solved(&machine, &scanners, &[Spread::on(1)]);
    let lines_per_ns: f64 = rates.accesses_per_ns.iter().sum();
    assert!((lines_per_ns * 6.4 - 1.0).abs() < 1e-5, "{lines_per_ns}");
}

#[test]
fn write_backs_load_memory_and_cost_no_time_of_their_own() {
    let machine = two_nodes();
    let uses = [Use { target: Target::Memory { region: 0, miss: 1.0, write: 1.0 }, share: 1.0 }];
    let rates = solved(&machine, &vec![Runner { overlap: 10.0, ..runner(0, &uses) }; 4], &[Spread::on(0)]);
    let lines_per_ns: f64 = rates.accesses_per_ns.iter().sum();
    assert!((lines_per_ns * 6.4 - 1.0).abs() < 1e-5, "{lines_per_ns}");
}

#[test]
fn threads_that_write_the_same_lines_pay_a_transfer_for_each() {
    let machine = two_nodes();
    let at = |node: usize| Runner { compute_ns: 10.0, ..runner(node, &ALL_LINES) };
    let access_ns = |runners: &[Runner]| solved(&machine, runners, &[]).access_ns[0];
    assert!((access_ns(&[at(0), at(0)]) - 50.0).abs() < 1e-5);
    assert!((access_ns(&[at(0), at(1)]) - 160.0).abs() < 1e-5);
    // One of three others is here.
    assert!((access_ns(&[at(0), at(0), at(1), at(1)]) - (10.0 + (40.0 + 2.0 * 150.0) / 3.0)).abs() < 1e-4);
    assert_eq!(access_ns(&[at(0)]), 10.0);
}

#[test]
fn a_thread_pays_for_no_more_lines_than_others_used_meanwhile() {
    let machine = two_nodes();
    let fast = Runner { compute_ns: 10.0, ..runner(0, &ALL_LINES) };
    let slow = Runner { compute_ns: 1000.0, ..runner(1, &ALL_LINES) };
    let rates = solved(&machine, &[fast, slow], &[]);
    // The slow one makes an access in 1150 ns; each costs the fast one a transfer.
    assert!((rates.access_ns[1] - 1150.0).abs() < 1e-3, "{:?}", rates.access_ns);
    let taken = rates.accesses_per_ns[1] / rates.accesses_per_ns[0];
    assert!((rates.access_ns[0] - (10.0 + 150.0 * taken)).abs() < 1e-3, "{:?}", rates.access_ns);
    assert!((rates.transfers(0, 0, rates.accesses_per_ns[0]).nth(1).unwrap().1 * 1150.0 - 1.0).abs() < 1e-3);
}

#[test]
fn threads_that_wait_for_each_other_go_as_fast_as_the_slowest() {
    let machine = two_nodes();
    let of = |node: usize| Runner { group: Some(0), ..runner(node, &ALL_MEMORY) };
    let rates = solved(&machine, &[of(0), of(1)], &[Spread::on(0)]);
    assert_eq!(rates.accesses_per_ns[0], rates.accesses_per_ns[1]);
    assert!((1.0 / rates.accesses_per_ns[0] - 180.0).abs() < 0.5);
}

#[test]
fn every_server_keeps_its_limit_on_a_machine_with_uneven_load() {
    let machine = machine(include_str!("../../../../vm/machines/8node.toml"));
    // Every node's threads scan the memory of the next node, and all of them that of node 0.
    let uses: Vec<[Use; 2]> = (0..8)
        .map(|node| {
            let to = |region| Target::Memory { region, miss: 1.0, write: 0.3 };
            [Use { target: to((node + 1) % 8), share: 0.7 }, Use { target: to(0), share: 0.3 }]
        })
        .collect();
    let runners: Vec<Runner> = (0..16).map(|at| Runner { overlap: 10.0, ..runner(at / 2, &uses[at / 2]) }).collect();
    let spreads: Vec<Spread> = (0..8).map(Spread::on).collect();
    let rates = solved(&machine, &runners, &spreads);
    for memory in 0..8 {
        let served: f64 = (0..8).map(|node| rates.flow[node * 8 + memory]).sum();
        assert!(served * machine.memory_service_ns < 1.0 + 1e-5, "memory {memory}: {served}");
        for node in 0..8 {
            let busy = rates.flow[node * 8 + memory] * machine.link_service_ns[node][memory];
            assert!(busy < 1.0 + 1e-5, "link {node} to {memory}: {busy}");
        }
    }
}
