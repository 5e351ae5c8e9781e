// SPDX-License-Identifier: GPL-2.0-only
//! Real-time threads, which the kernel runs before all of ours: whoever one of them drives off its CPU runs elsewhere.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use tandem_guest_tests::{Scx, Worker, monotonic_ns, set_affinity, set_first_in_first_out, wait_until};

use crate::trial;

pub fn tests() -> Vec<Trial> {
    vec![
        trial(
            "whoever_a_real_time_thread_drives_off_runs_elsewhere",
            whoever_a_real_time_thread_drives_off_runs_elsewhere,
        ),
        trial(
            "whoever_a_real_time_thread_wakes_does_not_wait_for_it",
            whoever_a_real_time_thread_wakes_does_not_wait_for_it,
        ),
    ]
}

/// The CPUs of the last node that has several.
fn node_with_two_cpus(scx: &Scx) -> Option<Vec<u32>> {
    let cpus = scx.topology.nodes.values().map(|node| &node.cpus).rfind(|cpus| cpus.len() > 1);
    if cpus.is_none() {
        println!("skipped: no node has two CPUs");
    }
    cpus.map(|cpus| cpus.iter().map(|cpu| cpu.0).collect())
}

/// A real-time thread comes to the CPU where a normal one runs, again and again, while another CPU of that node is idle.
fn whoever_a_real_time_thread_drives_off_runs_elsewhere() {
    const ROUNDS: usize = 6;
    /// Shorter than what the kernel lets real-time threads have of each second.
    const WINDOW: Duration = Duration::from_millis(500);
    let scx = Scx::start_observing();
    let scheduler = scx.handle();
    let Some(cpus) = node_with_two_cpus(&scx) else { return };
    let driven_off = Worker::start();
    set_affinity(driven_off.tid, &cpus);
    let shares: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let on = || driven_off.record(&scheduler).cpu;
            wait_until("it runs on the node", || cpus.contains(&on()));
            let real_time = Worker::start();
            set_affinity(real_time.tid, &[on()]);
            set_first_in_first_out(real_time.tid);
            let before_ns = driven_off.cpu_time_ns();
            std::thread::sleep(WINDOW);
            (driven_off.cpu_time_ns() - before_ns) as f64 / WINDOW.as_nanos() as f64
        })
        .collect();
    // Others need these CPUs for moments as well.
    let fewest = shares.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(fewest > 0.5, "parts of the time in which it ran: {shares:.2?}");
}

/// A real-time thread wakes a normal one through a pipe, for which the kernel expects it to sleep at once; it goes on
/// instead, and normal threads run on all other CPUs that the woken one may use.
fn whoever_a_real_time_thread_wakes_does_not_wait_for_it() {
    const ROUNDS: usize = 6;
    const GOES_ON_FOR: Duration = Duration::from_millis(500);
    let scx = Scx::start_observing();
    let Some(cpus) = node_with_two_cpus(&scx) else { return };
    let others: Vec<Worker> = cpus[1..].iter().map(|_| Worker::start()).collect();
    others.iter().zip(&cpus[1..]).for_each(|(other, &cpu)| set_affinity(other.tid, &[cpu]));
    let (mut from, mut to) = std::io::pipe().expect("a pipe");
    let woken = std::thread::spawn({
        let cpus = cpus.clone();
        move || {
            set_affinity(tid(), &cpus);
            let wait_ns = |_| {
                let mut woken_at = [0; size_of::<u64>()];
                from.read_exact(&mut woken_at).expect("the other writes");
                monotonic_ns() - u64::from_ne_bytes(woken_at)
            };
            (0..ROUNDS).map(wait_ns).collect::<Vec<u64>>()
        }
    });
    let waker = std::thread::spawn(move || {
        set_affinity(tid(), &cpus[..1]);
        set_first_in_first_out(tid());
        for _ in 0..ROUNDS {
            // The other waits again by then, and the kernel keeps some of each second from real-time threads.
            std::thread::sleep(GOES_ON_FOR);
            let now = Instant::now();
            to.write_all(&monotonic_ns().to_ne_bytes()).expect("the other reads");
            while now.elapsed() < GOES_ON_FOR {}
        }
    });
    let mut waits_ns = woken.join().expect("it does not panic");
    waker.join().expect("it does not panic");
    waits_ns.sort_unstable();
    // The other CPU has to be left by whoever runs there, and some moments belong to others altogether.
    assert!(waits_ns[ROUNDS * 3 / 4] < GOES_ON_FOR.as_nanos() as u64 / 4, "it waited for {waits_ns:?} ns");
}

fn tid() -> u32 {
    // SAFETY: gettid cannot fail.
    unsafe { libc::gettid() as u32 }
}
