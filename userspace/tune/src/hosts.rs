// SPDX-License-Identifier: GPL-2.0-only
//! Whether one of several machines that are said to be alike is slower than the others.
//!
//! Runs of all machines count alike, and a round is dealt to whoever is free: a machine that is slower, by another job, a broken
//! fan or memory of another kind, makes the configurations look bad that it happens to get. The configurations that others ran too
//! tell: were it like them, half of these would take longer on it by chance. Each counts once, for runs that are compared with the same
//! run elsewhere say the same.

use std::collections::{BTreeMap, BTreeSet};

use tandem_ab::statistics::median;

/// A run that ended, by whom.
#[derive(Clone, Debug, PartialEq)]
pub struct HostRun {
    /// What ran.
    pub configuration: String,
    /// The machine's name.
    pub host: String,
    /// How long.
    pub seconds: f64,
}

/// So much longer must its runs take at least, as a median of ratios.
const SLOWER: f64 = 1.05;
/// On a machine that is like the others so many configurations take longer less often than this.
const CHANCE: f64 = 0.005;

/// One sentence for each machine that is slower than the others.
pub fn notes(runs: &[HostRun]) -> Vec<String> {
    let mut by_configuration: BTreeMap<&str, Vec<&HostRun>> = BTreeMap::new();
    runs.iter().for_each(|run| by_configuration.entry(&run.configuration).or_default().push(run));
    let hosts: BTreeSet<&str> = runs.iter().map(|run| run.host.as_str()).collect();
    let note = |host: &str| {
        let ratios: Vec<f64> = by_configuration.values().filter_map(|runs| ratio(host, runs)).collect();
        let slower = ratios.iter().filter(|&&ratio| ratio > 1.0).count();
        let longer = median(ratios.iter().copied()).filter(|&longer| longer > SLOWER)?;
        (chance_of(slower, ratios.len()) < CHANCE).then(|| {
            format!(
                "{host} takes {:.0} % longer than the other machines ({slower} of the {} configurations that these ran too): \
                 what it ran seems slower than it is, and a session without it tells more",
                100.0 * (longer - 1.0),
                ratios.len()
            )
        })
    };
    hosts.into_iter().filter_map(note).collect()
}

/// What a configuration takes on a host, of what it takes elsewhere, if it ran on both.
fn ratio(host: &str, runs: &[&HostRun]) -> Option<f64> {
    let median_where = |here: bool| median(runs.iter().filter(|run| (run.host == host) == here).map(|run| run.seconds));
    Some(median_where(true)? / median_where(false)?)
}

/// How probable it is that of `all` tosses of a coin at least `heads` are heads.
fn chance_of(heads: usize, all: usize) -> f64 {
    // As logarithms: of a thousand tosses there are too many ways for a number.
    let mut ways = -(all as f64) * 2f64.ln();
    let mut sum = 0.0;
    for tails in 0..=all.saturating_sub(heads) {
        sum += ways.exp();
        ways += ((all - tails) as f64 / (tails + 1) as f64).ln();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of so many configurations on two machines, of which `b` takes `factor(configuration)` as long.
    fn of_two(configurations: usize, factor: impl Fn(usize) -> f64) -> Vec<HostRun> {
        let run = |configuration: usize, host: &str, seconds| HostRun {
            configuration: format!("{configuration} threads"),
            host: host.to_owned(),
            seconds,
        };
        let both = |at: usize| [run(at, "a", 1.0 + at as f64), run(at, "b", (1.0 + at as f64) * factor(at))];
        (0..configurations).flat_map(both).collect()
    }

    #[test]
    fn a_machine_that_takes_longer_is_named_and_the_faster_one_is_not() {
        let notes = notes(&of_two(10, |_| 1.2));
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(
            notes[0].starts_with("b takes 20 % longer than the other machines (10 of the 10 configurations "),
            "{notes:?}"
        );
    }

    #[test]
    fn what_chance_does_is_not_told() {
        assert_eq!(notes(&of_two(7, |_| 1.2)), [""; 0], "seven of seven are so in 0.8 % of all cases");
        assert_eq!(notes(&of_two(40, |_| 1.03)), [""; 0], "three per cent do not matter");
        assert_eq!(notes(&of_two(10, |at| if at < 3 { 0.9 } else { 1.2 })), [""; 0], "seven of ten");
        let apart: Vec<HostRun> = of_two(40, |_| 2.0)
            .into_iter()
            .enumerate()
            .filter(|(at, _)| at % 4 != 0 && at % 4 != 3)
            .map(|one| one.1)
            .collect();
        assert_eq!(notes(&apart), [""; 0], "none was run by both");
    }

    #[test]
    fn tosses_are_counted_as_they_come() {
        // 11 of 1024 ways to have nine heads of ten at least.
        let is_close = |one: f64, other: f64| (one - other).abs() < 1e-9;
        assert!(is_close(chance_of(9, 10), 11.0 / 1024.0));
        assert!([chance_of(0, 3), chance_of(0, 0), chance_of(0, 5000)].iter().all(|&chance| is_close(chance, 1.0)));
        assert!((0.0023..0.0025).contains(&chance_of(2600, 5000)), "2.8 standard deviations");
    }
}
