// SPDX-License-Identifier: GPL-2.0-only
//! A profile as text.

use std::fmt::Write as _;

use tandem_machine::format_cpu_list;

use crate::profile::Profile;

/// What was run, every metric with its sentence, and the placements.
pub fn profile(profile: &Profile) -> String {
    let mut text = String::new();
    let busy = profile.threads.iter().filter(|thread| thread.busy).count();
    let (all, slices) = (profile.threads.len(), profile.slices.len());
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "{}: {:.3} s in {slices} slices of {} ms, {busy} busy threads of {all}; machine: {}\n",
        profile.command.join(" "),
        profile.seconds,
        profile.clock.slice_ms,
        profile.machine
    );
    for metric in &profile.metrics {
        let value = metric.value.map_or("-".to_owned(), number);
        let _ = writeln!(text, "{:<27} {:>10} {:<13}  {}", metric.name, value, metric.unit, metric.meaning);
    }
    let _ = writeln!(
        text,
        "\nplacement    transfer ms/s  across  E_app 4 KiB  local at first touch / best  threads by node"
    );
    for placement in &profile.placements {
        let share = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
        let _ = writeln!(
            text,
            "{:<12} {:>13}  {:>6}  {:>11}  {:>27}  {}",
            placement.name,
            number(placement.transfer_ms_per_s),
            share(placement.across_nodes),
            share(placement.exclusivity[0]),
            format!("{} / {}", share(placement.first_touch.local_share), share(placement.best_homes.local_share)),
            threads_by_node(profile, &placement.nodes)
        );
    }
    if let Some(sampled) = &profile.sampler {
        let _ =
            writeln!(text, "sampled by {}: {} accesses; first touch: where pages are", sampled.name, sampled.samples);
        for (at, thread) in profile.threads.iter().enumerate().filter(|(_, thread)| thread.busy) {
            let _ = writeln!(text, "thread {at}: {}", thread.name.as_deref().unwrap_or("-"));
        }
    }
    for note in &profile.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// `0: 1-2,5 | 1: 3-4` of the busy threads; a node without one has a dash.
pub fn threads_by_node(profile: &Profile, nodes: &[usize]) -> String {
    let on_node = |(index, id): (usize, &u32)| {
        let here = (0..nodes.len()).filter(|&thread| nodes[thread] == index && profile.threads[thread].busy);
        let here: Vec<u32> = here.map(|thread| thread as u32).collect();
        let list = if here.is_empty() { "-".to_owned() } else { format_cpu_list(&here) };
        format!("{id}: {list}")
    };
    profile.node_ids.iter().enumerate().map(on_node).collect::<Vec<_>>().join(" | ")
}

/// At most four significant digits where they matter.
pub fn number(value: f64) -> String {
    match value.abs() {
        // Zero may have a sign, and so may what is printed as one.
        0.0 => "0".to_owned(),
        size if size < 0.0005 => "0.000".to_owned(),
        size if size >= 1e7 => format!("{value:.3e}"),
        size if size >= 100.0 || value == value.trunc() => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_matter_and_no_sign_of_zero() {
        let cases = [
            (-0.0, "0"),
            (-0.0001, "0.000"),
            (-0.25, "-0.250"),
            (2.0, "2"),
            (-3.456, "-3.46"),
            (345.6, "346"),
            (2.5e7, "2.500e7"),
        ];
        for (value, expected) in cases {
            assert_eq!(number(value), expected);
        }
    }
}
