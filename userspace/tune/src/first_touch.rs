// SPDX-License-Identifier: GPL-2.0-only
//! Where a program's main thread has touched memory before its other threads begin, and what chance makes of that.
//!
//! Problem: what the main thread initialises is on the node that it happens to run on, so the same program takes one of
//! several times, by chance. Mechanism: at the first parallel region of each run (or at the birth of the first thread
//! where no region is seen) the kernel is asked on which node the process's memory is. Runs of the program as it is are
//! grouped by the node that has most of it; the groups are told apart by the exact rank-sum test (Mann, Whitney 1947).

use std::collections::BTreeMap;
use std::fmt;

use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tandem_ab::statistics::Sample;
use tandem_machine::process_text;
use tandem_policies::model::{CpuId, PAGE_BYTES, Topology};

/// Groups whose medians differ by a smaller factor are one: placement does not matter then.
pub(crate) const MATTERS: f64 = 1.05;

/// As large a difference between groups may come by chance this often.
const CHANCE: f64 = 0.05;

/// Of more runs, ranks are counted by the normal distribution that they come near: counting them exactly takes time and memory by
/// the third power of their number.
const EXACT: usize = 100;

/// A page of numa_maps of this many KiB counts as one.
const PAGE_KIB: u64 = PAGE_BYTES >> 10;

/// Where the main thread and the memory of a process were when its work began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirstTouch {
    /// The CPU that the main thread was on.
    pub main_cpu: u32,
    /// Pages of 4 KiB without a file, by node (the kernel's id).
    pub pages: BTreeMap<u32, u64>,
}

impl FirstTouch {
    /// What the kernel tells of `process` now; `None` if it is gone, or the kernel has no nodes.
    pub fn of(process: Pid) -> Option<Self> {
        let stat = process_text(format!("/proc/{process}/stat").as_ref()).ok()?;
        let maps = process_text(format!("/proc/{process}/numa_maps").as_ref()).ok()?;
        Some(Self { main_cpu: cpu(&stat)?, pages: pages(&maps) })
    }

    /// The node that has most of the memory; that of the main thread if there is none.
    pub fn node(&self, topology: &Topology) -> Option<u32> {
        let most = self.pages.iter().max_by_key(|(node, pages)| (**pages, std::cmp::Reverse(**node)));
        most.map(|(node, _)| *node)
            .or_else(|| topology.node_of(CpuId(self.main_cpu)).map(|node| topology.nodes[node].id.0))
    }

    /// All pages.
    pub fn all_pages(&self) -> u64 {
        self.pages.values().sum()
    }
}

/// The CPU in a text like that of /proc/PID/stat: the 39th word; the second one may have spaces and brackets.
fn cpu(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(36)?.trim().parse().ok()
}

/// Pages by node in a text like that of /proc/PID/numa_maps, of memory that has no file.
fn pages(maps: &str) -> BTreeMap<u32, u64> {
    let mut pages = BTreeMap::new();
    for line in maps.lines().filter(|line| line.contains(" anon=")) {
        let size_kib = line.split(' ').find_map(|word| word.strip_prefix("kernelpagesize_kB=")?.parse::<u64>().ok());
        let on_node = |word: &str| {
            let (node, count) = word.strip_prefix('N')?.split_once('=')?;
            Some((node.parse::<u32>().ok()?, count.parse::<u64>().ok()?))
        };
        for (node, count) in line.split(' ').filter_map(on_node) {
            *pages.entry(node).or_default() += count * size_kib.unwrap_or(PAGE_KIB) / PAGE_KIB;
        }
    }
    pages
}

/// Runs of the program as it is whose first memory was on the same node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The kernel's id of it.
    pub node: u32,
    /// Of their times.
    pub median_s: f64,
    /// Their times, the least first.
    pub seconds: Vec<f64>,
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, all) = (self.node, &self.seconds);
        let runs = if all.len() == 1 { "run" } else { "runs" };
        let [least, greatest] = [all.first(), all.last()].map(|seconds| seconds.copied().unwrap_or_default());
        write!(f, "on node {node}: {} {runs}, {least:.3} to {greatest:.3} s", all.len())
    }
}

/// What keeps the main thread from being placed by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remedy {
    /// The configuration: it binds the main thread, and all others, from before `main` on.
    Configuration,
    /// The main thread alone is bound, from before `main` until its first thread is born.
    MainThread,
    /// None: binding it is slower than leaving it to chance, or could not be measured.
    None,
}

/// A program whose time depends on where its main thread happens to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bimodal {
    /// What is done about it.
    pub remedy: Remedy,
    /// The kernel's id of the node that the main thread is bound to; without a remedy, that of the fastest runs.
    pub node: u32,
    /// Median of the runs with the main thread alone bound, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_s: Option<f64>,
    /// Runs of the program as it is, the fastest group first.
    #[serde(rename = "group")]
    pub groups: Vec<Group>,
}

impl Bimodal {
    /// What `runs` (seconds, and the node of their first memory) show, as far as it is no chance; without a remedy.
    pub fn of(runs: &[(f64, u32)]) -> Option<Self> {
        let mut by_node: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for &(seconds, node) in runs {
            by_node.entry(node).or_default().push(seconds);
        }
        let tests = if by_node.len() == 2 { 1.0 } else { by_node.len() as f64 };
        let differs = |(node, own): (&u32, &Vec<f64>)| {
            let others: Vec<f64> = runs.iter().filter(|run| run.1 != *node).map(|run| run.0).collect();
            let (Some(one), Some(rest)) = (Sample::new(own), Sample::new(&others)) else { return false };
            let (one_s, rest_s) = (one.median(), rest.median());
            one_s.max(rest_s) >= MATTERS * one_s.min(rest_s) && by_chance(own, &others) * tests < CHANCE
        };
        if by_node.len() < 2 || !by_node.iter().any(differs) {
            return None;
        }
        let mut groups: Vec<Group> = by_node.iter().filter_map(|(&node, seconds)| group(node, seconds)).collect();
        groups.sort_by(|one, other| one.median_s.total_cmp(&other.median_s));
        Some(Self { remedy: Remedy::None, node: groups.first()?.node, bound_s: None, groups })
    }

    /// It in a sentence, and what is done about it.
    pub fn in_words(&self) -> String {
        let groups: Vec<String> = self.groups.iter().map(Group::to_string).collect();
        let node = self.node;
        let bound = self.bound_s.map_or(String::new(), |seconds| format!(", {seconds:.3} s"));
        let remedy = match self.remedy {
            Remedy::Configuration => format!(
                "the configuration has the main thread on node {node} before the program initialises, so `tandem run \
                 --tuned` leaves nothing to chance"
            ),
            Remedy::MainThread => format!(
                "`tandem run --tuned` binds the main thread to node {node} before the program initialises, until its \
                 first thread is born{bound}"
            ),
            Remedy::None if self.bound_s.is_some() => {
                format!("to bind the main thread to node {node} before the program initialises does not help{bound}")
            }
            Remedy::None => format!("to bind the main thread to node {node} was not tried"),
        };
        format!(
            "the main thread is placed by chance: as it is, the memory that it had touched before its other threads began was \
             {}; {remedy}",
            groups.join("; ")
        )
    }
}

fn group(node: u32, seconds: &[f64]) -> Option<Group> {
    let median_s = Sample::new(seconds)?.median();
    let mut seconds = seconds.to_vec();
    seconds.sort_by(f64::total_cmp);
    Some(Group { node, median_s, seconds })
}

/// How often two groups of these sizes are as far apart as these, by chance: the two-sided rank-sum test. Of equal values the first
/// group's counts as the lesser.
fn by_chance(one: &[f64], other: &[f64]) -> f64 {
    let mut all: Vec<(f64, bool)> =
        one.iter().map(|&value| (value, true)).chain(other.iter().map(|&value| (value, false))).collect();
    all.sort_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)));
    let ranks: usize = all.iter().enumerate().filter(|(_, value)| value.1).map(|(rank, _)| rank).sum();
    if all.len() > EXACT { normal(one.len(), other.len(), ranks) } else { exact(one.len(), other.len(), ranks) }
}

/// How often the ranks, from 0 on, of one of two groups of these sizes have a sum as far from its mean.
fn exact(one: usize, other: usize, ranks: usize) -> f64 {
    // ways[k][s]: so many choices of k ranks have the sum s.
    let most = (one + other) * (one + other) / 2;
    let mut ways = vec![vec![0.0; most + 1]; one + 1];
    ways[0][0] = 1.0;
    for rank in 0..one + other {
        for chosen in (1..=one).rev() {
            for sum in (rank..=most).rev() {
                ways[chosen][sum] += ways[chosen - 1][sum - rank];
            }
        }
    }
    let (ways, total): (&[f64], f64) = (&ways[one], ways[one].iter().sum());
    let (low, high): (f64, f64) = (ways[..=ranks].iter().sum(), ways[ranks..].iter().sum());
    (2.0 * low.min(high) / total).min(1.0)
}

/// The same of many, by the normal distribution with the same mean and variance.
fn normal(one: usize, other: usize, ranks: usize) -> f64 {
    let (one, other) = (one as f64, other as f64);
    let (mean, variance) = (one * (one + other - 1.0) / 2.0, one * other * (one + other + 1.0) / 12.0);
    // A sum is a whole number, which stands for all that is nearer to it than to the next.
    let away = ((ranks as f64 - mean).abs() - 0.5).max(0.0) / variance.sqrt();
    two_tails(away)
}

/// How much of the normal distribution is farther from its mean than so many standard deviations: Abramowitz and Stegun 26.2.17, to
/// within 2e-7.
fn two_tails(away: f64) -> f64 {
    const FACTORS: [f64; 5] = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let by = 1.0 / (1.0 + 0.231_641_9 * away);
    let series = FACTORS.iter().rev().fold(0.0, |sum, factor| by * (factor + sum));
    (2.0 * series * (-away * away / 2.0).exp() / std::f64::consts::TAU.sqrt()).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::machine;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let stat = "12 (a) b (c) S 1 ".to_owned() + &"0 ".repeat(34) + "5 0 0";
        assert_eq!(cpu(&stat), Some(5));
        let maps = "\
7f00 default anon=3 dirty=3 active=0 N0=1 N3=2 kernelpagesize_kB=2048
7f10 default file=/lib/a N0=700 mapped=700 kernelpagesize_kB=4
7f20 interleave:0-1 heap anon=5 dirty=5 N1=5 kernelpagesize_kB=4
";
        assert_eq!(pages(maps), BTreeMap::from([(0, 512), (1, 5), (3, 1024)]));
    }

    #[test]
    fn its_node_is_that_of_most_of_its_memory_and_without_memory_that_of_the_main_thread() {
        let topology = machine(2, 2);
        let on = |pages: &[(u32, u64)]| FirstTouch { main_cpu: 3, pages: pages.iter().copied().collect() };
        assert_eq!(on(&[(0, 9), (1, 4)]).node(&topology), Some(0));
        assert_eq!(on(&[(0, 9), (1, 9)]).node(&topology), Some(0));
        assert_eq!(on(&[]).node(&topology), Some(1));
        let this = FirstTouch::of(Pid::this()).map(|this| this.all_pages() > 0);
        assert_eq!(this, std::path::Path::new("/proc/self/numa_maps").exists().then_some(true));
    }

    #[test]
    fn chance_is_counted_as_by_hand() {
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        near(by_chance(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]), 2.0 / 70.0);
        near(by_chance(&[5.0, 6.0, 7.0], &[1.0, 2.0, 3.0]), 2.0 / 20.0);
        // 1 and 4 of 1..4: of the 6 pairs 4 have a sum of 5 at most.
        near(by_chance(&[1.0, 4.0], &[2.0, 3.0]), 1.0);
        near(by_chance(&[1.0, 3.0], &[2.0, 4.0]), 4.0 / 6.0);
    }

    #[test]
    fn of_many_runs_chance_is_told_soon_and_as_it_is_told_of_few() {
        // Whose ranks are how far from the others', in steps of one: run i of one group comes after i + shift of the other.
        let groups = |each: usize, shift: f64| {
            let of = |shift: f64| (0..each).map(|run| run as f64 + shift).collect::<Vec<_>>();
            (of(0.0), of(shift + 0.5))
        };
        for shift in [1.0, 5.0, 8.0, 12.0] {
            let [(few, others), (more, rest)] = [groups(50, shift), groups(51, shift)];
            let (exact, near) = (by_chance(&few, &others), by_chance(&more, &rest));
            assert!((exact - near).abs() < 0.02, "{shift}: {exact} {near}");
        }
        let begin = std::time::Instant::now();
        let (one, other) = groups(500, 26.0);
        let chance = by_chance(&one, &other);
        assert!((0.002..0.01).contains(&chance) && begin.elapsed().as_secs() < 2, "{chance}, {:?}", begin.elapsed());
    }

    #[test]
    fn two_groups_by_node_are_told_and_the_fastest_comes_first() {
        let runs = [(2.0, 0), (1.0, 1), (2.1, 0), (1.05, 1), (1.9, 0), (2.05, 0), (0.98, 1), (1.02, 1)];
        let found = Bimodal::of(&runs).unwrap();
        assert_eq!((found.node, found.remedy), (1, Remedy::None));
        let expected = [
            Group { node: 1, median_s: 1.01, seconds: vec![0.98, 1.0, 1.02, 1.05] },
            Group { node: 0, median_s: 2.025, seconds: vec![1.9, 2.0, 2.05, 2.1] },
        ];
        assert_eq!(found.groups, expected);
        let words = found.in_words();
        assert!(words.contains("on node 1: 4 runs, 0.980 to 1.050 s; on node 0: 4 runs, 1.900 to 2.100 s"), "{words}");
        assert!(words.ends_with("to bind the main thread to node 1 was not tried"), "{words}");
        let bound = Bimodal { remedy: Remedy::MainThread, bound_s: Some(1.01), ..found };
        assert!(bound.in_words().ends_with("until its first thread is born, 1.010 s"), "{}", bound.in_words());
    }

    #[test]
    fn of_several_nodes_one_that_stands_out_is_enough() {
        let of_node = |node: u32, seconds: f64| (0..5).map(move |run| (seconds + 0.01 * f64::from(run), node));
        let runs: Vec<(f64, u32)> = of_node(0, 1.0).chain(of_node(2, 1.001)).chain(of_node(3, 1.5)).collect();
        let nodes: Vec<u32> = Bimodal::of(&runs).unwrap().groups.iter().map(|group| group.node).collect();
        assert_eq!(nodes, [0, 2, 3]);
    }

    #[test]
    fn what_chance_explains_or_does_not_matter_is_not_told() {
        // Bimodal, but not by node.
        assert_eq!(Bimodal::of(&[(1.0, 0), (2.0, 0), (1.0, 1), (2.0, 1), (1.0, 0), (2.0, 1)]), None);
        // Too few runs: three and three are so far apart in one of ten cases.
        assert_eq!(Bimodal::of(&[(1.0, 0), (1.0, 0), (1.0, 0), (2.0, 1), (2.0, 1), (2.0, 1)]), None);
        // One per cent.
        let runs: Vec<(f64, u32)> = (0..10).map(|run| (1.0 + 0.01 * f64::from(run % 2), run % 2)).collect();
        assert_eq!(Bimodal::of(&runs), None);
        let runs: Vec<(f64, u32)> = (0..10).map(|run| (f64::from(run % 3 + 1), 0)).collect();
        assert_eq!(Bimodal::of(&runs), None, "always on the same node");
    }
}
