// SPDX-License-Identifier: GPL-2.0-only
//! Energy of the processor packages: differences of two readings of powercap's counters, which wrap.

use anyhow::{Context, Result, bail};

const UJ_PER_J: f64 = 1e6;

/// One package's counter in uJ.
struct Counter<'a> {
    zone: &'a str,
    energy_uj: u64,
    wraps_at_uj: u64,
}

/// Energy in J that all packages took from `before` to `after`, each a line `ZONE ENERGY WRAPS_AT` per package; `None`
/// when the machine has no such counter.
///
/// # Errors
/// A line is something else, or a package came or went.
pub fn between(before: &str, after: &str) -> Result<Option<f64>> {
    let (before, after) = (counters(before)?, counters(after)?);
    if before.len() != after.len() || before.iter().zip(&after).any(|(first, second)| first.zone != second.zone) {
        bail!("the machine's energy counters changed while a workload ran");
    }
    let used_uj = before.iter().zip(&after).map(|(first, second)| {
        if second.energy_uj >= first.energy_uj {
            second.energy_uj - first.energy_uj
        } else {
            (second.wraps_at_uj - first.energy_uj) + second.energy_uj
        }
    });
    let sum_uj: u64 = used_uj.sum();
    Ok((!before.is_empty()).then_some(sum_uj as f64 / UJ_PER_J))
}

fn counters(text: &str) -> Result<Vec<Counter<'_>>> {
    let counter = |line| parse(line).with_context(|| format!("this is no energy counter: '{line}'"));
    text.lines().map(counter).collect()
}

fn parse(line: &str) -> Option<Counter<'_>> {
    let mut words = line.split_whitespace();
    let (zone, energy_uj, wraps_at_uj) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    (energy_uj <= wraps_at_uj).then_some(Counter { zone, energy_uj, wraps_at_uj })
}

#[cfg(test)]
mod tests {
    use super::between;

    #[test]
    fn packages_are_summed_and_counters_may_wrap() {
        let before = "intel-rapl:0 1000000 9000000\nintel-rapl:1 8000000 9000000\n";
        let after = "intel-rapl:0 3500000 9000000\nintel-rapl:1 500000 9000000\n";
        assert_eq!(between(before, after).unwrap(), Some(4.0));
    }

    #[test]
    fn a_machine_without_counters_has_no_energy_rather_than_none_used() {
        assert_eq!(between("", "").unwrap(), None);
        assert!(between("intel-rapl:0 1 9\n", "").is_err());
        assert!(between("intel-rapl:0 x 9\n", "intel-rapl:0 1 9\n").is_err());
    }
}
