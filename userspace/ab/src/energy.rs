// SPDX-License-Identifier: GPL-2.0-only
//! Energy of the processor packages: differences of readings of powercap's counters, which wrap.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Where the kernel has the counters.
pub const POWERCAP: &str = "/sys/class/powercap";

const UJ_PER_J: f64 = 1e6;

/// One package's counter in uJ.
struct Counter<'a> {
    zone: &'a str,
    energy_uj: u64,
    wraps_at_uj: u64,
}

/// Energy in J that all packages took from `before` to `after`, with readings `meanwhile`: each a line `ZONE ENERGY WRAPS_AT`
/// per package; `None` when the machine has no such counter. Between two readings a counter may wrap once.
///
/// # Errors
/// A line is something else, or a package came or went.
pub fn over(before: &str, meanwhile: &[String], after: &str) -> Result<Option<f64>> {
    let mut earlier = counters(before)?;
    if earlier.is_empty() && after.is_empty() {
        return Ok(None);
    }
    let mut sum_uj = 0;
    for reading in meanwhile.iter().map(String::as_str).chain([after]) {
        let later = counters(reading)?;
        sum_uj += used_uj(&earlier, &later)?;
        earlier = later;
    }
    Ok(Some(sum_uj as f64 / UJ_PER_J))
}

fn used_uj(before: &[Counter<'_>], after: &[Counter<'_>]) -> Result<u64> {
    if before.len() != after.len() || before.iter().zip(after).any(|(first, second)| first.zone != second.zone) {
        bail!("the machine's energy counters changed while a workload ran");
    }
    let used_uj = |(first, second): (&Counter<'_>, &Counter<'_>)| {
        if second.energy_uj >= first.energy_uj {
            second.energy_uj - first.energy_uj
        } else {
            (second.wraps_at_uj - first.energy_uj) + second.energy_uj
        }
    };
    Ok(before.iter().zip(after).map(used_uj).sum())
}

/// A reading of all packages below `powercap`, as the arm's script takes it; empty where there are none.
///
/// # Errors
/// A counter cannot be read.
pub fn read(powercap: &Path) -> Result<String> {
    let mut text = String::new();
    let in_words = || format!("{} cannot be read", powercap.display());
    let entries = match fs::read_dir(powercap) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(text),
        entries => entries.with_context(in_words)?,
    };
    for entry in entries {
        let path = entry.with_context(in_words)?.path();
        let zone = path.file_name().unwrap_or_default().to_string_lossy();
        let word = |name: &str| {
            let file = path.join(name);
            let text = fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))?;
            anyhow::Ok(text.trim().to_owned())
        };
        // Some machines show the same packages again as intel-rapl-mmio.
        if zone.starts_with("intel-rapl:") && path.join("energy_uj").exists() && word("name")?.starts_with("package-") {
            text += &format!("{zone} {} {}\n", word("energy_uj")?, word("max_energy_range_uj")?);
        }
    }
    Ok(text)
}

/// The counters of a reading, by zone: a shell and a directory have their own orders.
fn counters(text: &str) -> Result<Vec<Counter<'_>>> {
    let counter = |line| parse(line).with_context(|| format!("this is no energy counter: '{line}'"));
    let mut counters = text.lines().map(counter).collect::<Result<Vec<_>>>()?;
    counters.sort_by_key(|counter| counter.zone);
    Ok(counters)
}

fn parse(line: &str) -> Option<Counter<'_>> {
    let mut words = line.split_whitespace();
    let (zone, energy_uj, wraps_at_uj) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    (energy_uj <= wraps_at_uj).then_some(Counter { zone, energy_uj, wraps_at_uj })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(before: &str, after: &str) -> Result<Option<f64>> {
        over(before, &[], after)
    }

    #[test]
    fn packages_are_summed_and_counters_may_wrap() {
        let before = "intel-rapl:0 1000000 9000000\nintel-rapl:1 8000000 9000000\n";
        let after = "intel-rapl:0 3500000 9000000\nintel-rapl:1 500000 9000000\n";
        assert_eq!(between(before, after).unwrap(), Some(4.0));
    }

    #[test]
    fn a_counter_that_wraps_again_and_again_is_counted_by_the_readings_meanwhile() {
        let line = |joules: f64| format!("intel-rapl:0 {:.0} 9000000\n", joules * 1e6);
        // 25 J: it wraps after 9 J each.
        let meanwhile = [7.0, 5.0, 8.0].map(line);
        assert_eq!(over(&line(1.0), &meanwhile, &line(8.0)).unwrap(), Some(16.0));
        assert_eq!(over(&line(1.0), &[7.0, 4.0, 1.0].map(line), &line(8.0)).unwrap(), Some(25.0));
    }

    #[test]
    fn a_machine_without_counters_has_no_energy_rather_than_none_used() {
        assert_eq!(between("", "").unwrap(), None);
        assert!(between("intel-rapl:0 1 9\n", "").is_err());
        assert!(between("", "intel-rapl:0 1 9\n").is_err());
        assert!(between("intel-rapl:0 x 9\n", "intel-rapl:0 1 9\n").is_err());
    }

    #[test]
    fn packages_are_read_once_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let zones = [
            ("intel-rapl:1", "package-1"),
            ("intel-rapl:0", "package-0"),
            ("intel-rapl:0:0", "core"),
            ("intel-rapl-mmio:0", "package-0"),
        ];
        for (zone, name) in zones {
            let zone = folder.path().join(zone);
            fs::create_dir(&zone).unwrap();
            for (file, text) in [("name", name), ("energy_uj", "5"), ("max_energy_range_uj", "9")] {
                fs::write(zone.join(file), format!("{text}\n")).unwrap();
            }
        }
        fs::create_dir(folder.path().join("intel-rapl:2")).unwrap();
        let read = read(folder.path()).unwrap();
        let zones: Vec<_> = counters(&read).unwrap().iter().map(|counter| counter.zone.to_owned()).collect();
        assert_eq!(zones, ["intel-rapl:0", "intel-rapl:1"]);
        assert_eq!(over("", &[], &super::read(Path::new("/no/such/folder")).unwrap()).unwrap(), None);
    }
}
