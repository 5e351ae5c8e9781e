// SPDX-License-Identifier: GPL-2.0-only
//! Timer samples on a real kernel: it writes those of managed processes only.

use std::cell::RefCell;

use libtest_mimic::Trial;
use tandem_guest_tests::{Hog, wait_until};
use tandem_policies::model::{CpuId, ProcessId};
use tandem_sense::{Lookahead, LookaheadConfig, Sampler, monotonic_ns};

use crate::trial;

pub fn tests() -> Vec<Trial> {
    vec![trial("the_kernel_writes_no_timer_samples_of_others", the_kernel_writes_no_timer_samples_of_others)]
}

fn the_kernel_writes_no_timer_samples_of_others() {
    let topology = tandem_machine::read_running().expect("the guest has a topology").topology;
    let numbers: Vec<CpuId> = topology.nodes.values().flat_map(|node| node.cpus.iter().copied()).collect();
    let cpus: Vec<u32> = numbers.iter().map(|cpu| cpu.0).collect();
    let [managed, _other] = [Hog::on(&cpus), Hog::on(&cpus)];
    let opened = Lookahead::open(LookaheadConfig::default(), &numbers).unwrap_or_else(|error| panic!("{error}"));
    let sampler = RefCell::new(opened);
    for processes in [&[][..], &[ProcessId(managed.pid())]] {
        let before = Lookahead::counters(&sampler.borrow()).clone();
        sampler.borrow_mut().set_managed(&processes.iter().copied().collect());
        wait_until("samples of others are declined, and those of the managed process come", || {
            sampler.borrow_mut().drain(monotonic_ns()).expect("the sampler goes on");
            let now = Lookahead::counters(&sampler.borrow()).clone();
            now.declined >= before.declined + 20 && (processes.is_empty() || now.samples >= before.samples + 20)
        });
    }
    let counters = Lookahead::counters(&sampler.borrow()).clone();
    println!("{counters:?}");
    assert_eq!(counters.unmanaged, 0);
}
