// SPDX-License-Identifier: GPL-2.0-only
//! `tandem advise`: on which nodes a program of a known size should be started, for libvirt and batch systems.
//!
//! The fewest nodes whose idle CPUs and free memory suffice; among those the ones nearest to each other; among those the
//! ones with the most idle CPUs. Where nothing suffices as the machine is used now, the size of what is short counts instead, and it
//! is said. Memory is free if nobody has it, or if the kernel has it for files that it can read again.

use std::cmp::Ordering;
use std::io::{ErrorKind, Write as _};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use tandem_ab::say::say_line;
use tandem_machine::{format_cpu_list, read_running};
use tandem_policies::model::{NodeIndex, PAGE_BYTES, Topology};

/// Up to this many nodes all sets of nodes are looked at; beyond, each node with its nearest ones.
const EXHAUSTIVE_NODES: usize = 12;

/// What the program needs.
#[derive(Args)]
pub struct Arguments {
    /// CPUs it will use
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: u32,
    /// Memory it will use: a number of MiB, or one with K, M, G or T behind it, for example 4G
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = mebibytes)]
    memory: u64,
    /// How long the load is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    measure: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn mebibytes(text: &str) -> Result<u64, String> {
    let units = [(['k', 'K'], -10), (['m', 'M'], 0), (['g', 'G'], 10), (['t', 'T'], 20)];
    let of_unit = |(letters, shift): ([char; 2], i32)| Some((text.strip_suffix(letters)?, shift));
    let (number, shift) = units.into_iter().find_map(of_unit).unwrap_or((text, 0));
    let number: f64 = number.parse().map_err(|_| format!("{text} is no size, for example 4G"))?;
    if !(0.0..1e12).contains(&number) {
        return Err(format!("{text} is no size, for example 4G"));
    }
    Ok((number * 2f64.powi(shift)).ceil() as u64)
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text} is no number"))?;
    if (0.05..=60.0).contains(&seconds) { Ok(seconds) } else { Err("must be between 0.05 and 60 s".to_owned()) }
}

/// What a node has.
#[derive(Clone, Debug)]
struct Room {
    id: u32,
    cpus: f64,
    idle_cpus: f64,
    memory_mib: u64,
    free_mib: u64,
    distance: Vec<u32>,
}

/// What is advised.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Advice {
    /// Ids, ascending.
    nodes: Vec<u32>,
    /// The same as libvirt and numactl take them.
    nodeset: String,
    idle_cpus: f64,
    free_mib: u64,
    /// Whether that suffices as the machine is used now.
    suffices_now: bool,
    /// What does not, in words.
    #[serde(skip)]
    short_of: &'static str,
}

/// Prints the nodes.
///
/// # Errors
/// The machine cannot be read, or is too small.
pub fn run(arguments: &Arguments) -> Result<()> {
    let topology = read_running().context("the machine's topology cannot be read")?.topology;
    let rooms = rooms(&topology, Duration::from_secs_f64(arguments.measure))?;
    let Some(advice) = advise(&rooms, f64::from(arguments.cpus), arguments.memory) else {
        let (cpus, memory) =
            (rooms.iter().map(|room| room.cpus).sum::<f64>(), rooms.iter().map(|room| room.memory_mib).sum::<u64>());
        bail!(
            "this machine has {cpus} CPUs and {memory} MiB: {} CPUs and {} MiB are more",
            arguments.cpus,
            arguments.memory
        );
    };
    if !advice.suffices_now && !arguments.json {
        say_line(format_args!(
            "tandem: as the machine is used now no nodes have enough {}: advised by their size in that",
            advice.short_of
        ));
    }
    let text = if arguments.json { serde_json::to_string_pretty(&advice)? + "\n" } else { advice.nodeset + "\n" };
    std::io::stdout().write_all(text.as_bytes()).context("standard output cannot be written")
}

/// Measures how idle the CPUs are.
fn rooms(topology: &Topology, measured: Duration) -> Result<Vec<Room>> {
    let before = idle_ticks()?;
    std::thread::sleep(measured);
    let after = idle_ticks()?;
    let ticks = measured.as_secs_f64() * procfs::ticks_per_second() as f64;
    let idle = |cpu: u32| {
        let at = |ticks: &[u64]| ticks.get(cpu as usize).copied().unwrap_or(0);
        (at(&after).saturating_sub(at(&before)) as f64 / ticks).min(1.0)
    };
    let room = |(_, node): (NodeIndex, &tandem_policies::model::Node)| -> Result<Room> {
        Ok(Room {
            id: node.id.0,
            cpus: node.cpus.len() as f64,
            idle_cpus: node.cpus.iter().map(|cpu| idle(cpu.0)).sum(),
            memory_mib: (node.memory_pages * PAGE_BYTES) >> 20,
            free_mib: available_mib(node.id.0)?.unwrap_or((node.free_pages * PAGE_BYTES) >> 20),
            distance: node.distance.values().copied().collect(),
        })
    };
    topology.nodes.iter().map(room).collect()
}

/// What a program can have of a node's memory; `None` if the kernel does not tell by nodes.
///
/// # Errors
/// It cannot be read.
pub fn available_mib(node: u32) -> Result<Option<u64>> {
    let path = format!("/sys/devices/system/node/node{node}/meminfo");
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(available(&text).with_context(|| format!("{path} is no meminfo of a node"))?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{path} cannot be read")),
    }
}

/// The same in MiB by the text of its meminfo: what is free, and what the kernel gives away before anybody has to wait.
fn available(meminfo: &str) -> Option<u64> {
    let kib = |key: &str| {
        let (_, rest) = meminfo.lines().find_map(|line| line.split_once(key))?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let given_away = ["Active(file):", "Inactive(file):", "SReclaimable:"].map(|key| kib(key).unwrap_or(0));
    Some((kib("MemFree:")? + given_away.iter().sum::<u64>()) >> 10)
}

/// Ticks that each CPU was idle, by its number.
fn idle_ticks() -> Result<Vec<u64>> {
    let stat = std::fs::read_to_string("/proc/stat").context("/proc/stat cannot be read")?;
    let mut ticks = Vec::new();
    for line in stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")) {
        let mut words = line[3..].split_whitespace();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        let Some(cpu) = number() else { continue };
        // user, nice, system, idle, iowait
        let times: Vec<u64> = std::iter::from_fn(number).take(5).collect();
        if ticks.len() <= cpu as usize {
            ticks.resize(cpu as usize + 1, 0);
        }
        ticks[cpu as usize] = times.iter().skip(3).sum();
    }
    Ok(ticks)
}

/// The best nodes; `None` if the whole machine is too small.
fn advise(rooms: &[Room], cpus: f64, memory_mib: u64) -> Option<Advice> {
    // A CPU that is idle but for a few percent of a second is one.
    let idle = |room: &Room| (room.idle_cpus + 0.05 * room.cpus).min(room.cpus);
    // CPUs become idle sooner than memory free.
    let (chosen, short_of) = best(rooms, cpus, memory_mib, |room| (idle(room), room.free_mib))
        .map(|set| (set, ""))
        .or_else(|| Some((best(rooms, cpus, memory_mib, |room| (room.cpus, room.free_mib))?, "idle CPUs")))
        .or_else(|| Some((best(rooms, cpus, memory_mib, |room| (idle(room), room.memory_mib))?, "free memory")))
        .or_else(|| {
            Some((best(rooms, cpus, memory_mib, |room| (room.cpus, room.memory_mib))?, "idle CPUs and free memory"))
        })?;
    let nodes: Vec<u32> = chosen.iter().map(|&at| rooms[at].id).collect();
    Some(Advice {
        nodeset: format_cpu_list(&nodes),
        nodes,
        idle_cpus: chosen.iter().map(|&at| rooms[at].idle_cpus).sum(),
        free_mib: chosen.iter().map(|&at| rooms[at].free_mib).sum(),
        suffices_now: short_of.is_empty(),
        short_of,
    })
}

fn best(rooms: &[Room], cpus: f64, memory_mib: u64, has: impl Fn(&Room) -> (f64, u64)) -> Option<Vec<usize>> {
    let suffices = |set: &[usize]| {
        let (has_cpus, has_mib) =
            set.iter().map(|&at| has(&rooms[at])).fold((0.0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        has_cpus >= cpus && has_mib >= memory_mib
    };
    let by_merit = |one: &Vec<usize>, other: &Vec<usize>| -> Ordering {
        let idle = |set: &[usize]| set.iter().map(|&at| rooms[at].idle_cpus).sum::<f64>();
        spread(rooms, one).cmp(&spread(rooms, other)).then_with(|| idle(other).total_cmp(&idle(one)))
    };
    (1..=rooms.len()).find_map(|size| candidates(rooms, size).into_iter().filter(|set| suffices(set)).min_by(by_merit))
}

/// Sum of the distances between the nodes of a set.
fn spread(rooms: &[Room], set: &[usize]) -> u32 {
    set.iter().flat_map(|&one| set.iter().map(move |&other| rooms[one].distance[other])).sum()
}

/// Sets of `size` nodes, each ascending.
fn candidates(rooms: &[Room], size: usize) -> Vec<Vec<usize>> {
    if rooms.len() <= EXHAUSTIVE_NODES {
        let sets = (0_u32..1 << rooms.len()).filter(|bits| bits.count_ones() as usize == size);
        return sets.map(|bits| (0..rooms.len()).filter(|at| bits & (1 << at) != 0).collect()).collect();
    }
    let around = |first: usize| {
        let mut nearest: Vec<usize> = (0..rooms.len()).collect();
        nearest.sort_by_key(|&at| (at != first, rooms[first].distance[at], at));
        nearest.truncate(size);
        nearest.sort_unstable();
        nearest
    };
    (0..rooms.len()).map(around).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit_and_all_else_is_refused_in_words() {
        assert_eq!(
            [mebibytes("2048k"), mebibytes("3"), mebibytes("1G"), mebibytes("1T")],
            [2, 3, 1024, 1 << 20].map(Ok)
        );
        for wrong in ["", "K", "4X", "1\u{fb05}", "-1", "nan"] {
            assert!(mebibytes(wrong).unwrap_err().ends_with("is no size, for example 4G"), "{wrong}");
        }
    }

    /// Nodes of four CPUs and 1 GiB in a ring, with idle CPUs and free MiB.
    fn ring(free: &[(f64, u64)]) -> Vec<Room> {
        let count = free.len();
        let hops = |one: usize, other: usize| (one.abs_diff(other)).min(count - one.abs_diff(other)) as u32;
        let room = |(at, &(idle_cpus, free_mib)): (usize, &(f64, u64))| Room {
            id: 2 * at as u32,
            cpus: 4.0,
            idle_cpus,
            memory_mib: 1024,
            free_mib,
            distance: (0..count).map(|other| 10 + 5 * hops(at, other)).collect(),
        };
        free.iter().enumerate().map(room).collect()
    }

    fn nodes(rooms: &[Room], cpus: f64, memory_mib: u64) -> (Vec<u32>, bool) {
        let advice = advise(rooms, cpus, memory_mib).unwrap();
        (advice.nodes, advice.suffices_now)
    }

    #[test]
    fn one_node_is_better_than_two() {
        let rooms = ring(&[(3.0, 1000), (4.0, 200), (4.0, 900), (2.0, 1000)]);
        assert_eq!(nodes(&rooms, 4.0, 800), (vec![4], true));
        assert_eq!(nodes(&rooms, 2.0, 0), (vec![2], true), "the idlest, and the first of two");
    }

    #[test]
    fn several_nodes_are_near_each_other() {
        let rooms = ring(&[(4.0, 1000), (0.0, 1000), (4.0, 1000), (3.0, 1000)]);
        assert_eq!(nodes(&rooms, 7.0, 0), (vec![0, 6], true), "0 and 4 are idler, but farther apart");
    }

    #[test]
    fn a_busy_machine_is_advised_by_its_size() {
        let rooms = ring(&[(0.0, 10), (1.0, 10), (0.0, 10), (0.0, 10)]);
        assert_eq!(nodes(&rooms, 3.0, 512), (vec![2], false));
        assert!(advise(&rooms, 17.0, 0).is_none());
        assert!(advise(&rooms, 1.0, 5000).is_none());
    }

    #[test]
    fn only_what_cannot_be_had_now_is_given_up() {
        let advice = |free: &[(f64, u64)], cpus: f64, memory_mib: u64| {
            let advice = advise(&ring(free), cpus, memory_mib).unwrap();
            assert!(!advice.suffices_now);
            (advice.nodes, advice.short_of)
        };
        let all_busy = [(0.0, 10), (1.0, 10), (0.0, 900), (0.0, 10)];
        assert_eq!(advice(&all_busy, 3.0, 512), (vec![4], "idle CPUs"), "the idlest node has no memory");
        let all_full = [(0.0, 10), (1.0, 10), (4.0, 10), (0.0, 10)];
        assert_eq!(advice(&all_full, 3.0, 512), (vec![4], "free memory"));
        let nothing = [(0.0, 10), (1.0, 10), (0.0, 10), (0.0, 10)];
        assert_eq!(advice(&nothing, 3.0, 512), (vec![2], "idle CPUs and free memory"));
    }

    #[test]
    fn memory_that_holds_files_is_free_for_programs() {
        let meminfo = "Node 0 MemTotal: 4096 kB\nNode 0 MemFree: 1024 kB\nNode 0 Active: 9999 kB\nNode 0 Active(anon): 512 kB\n\
            Node 0 Active(file): 1024 kB\nNode 0 Inactive(file): 512 kB\nNode 0 KReclaimable: 700 kB\nNode 0 SReclaimable: 512 kB\n";
        assert_eq!(
            (available(meminfo), available("Node 0 MemFree: 2048 kB\n"), available("")),
            (Some(3), Some(2), None)
        );
    }

    #[test]
    fn many_nodes_are_not_all_combined() {
        let rooms = ring(&[(4.0, 1000); 32]);
        assert_eq!(nodes(&rooms, 8.0, 0).0.len(), 2);
        assert_eq!(candidates(&rooms, 3).len(), 32);
    }

    #[test]
    fn sizes_are_read() {
        for (text, mib) in [("4G", 4096), ("512", 512), ("0.5g", 512), ("1T", 1 << 20), ("100K", 1), ("0", 0)] {
            assert_eq!(mebibytes(text), Ok(mib), "{text}");
        }
        for bad in ["", "G", "-1", "4X", "nan"] {
            assert!(mebibytes(bad).is_err(), "{bad}");
        }
    }
}
