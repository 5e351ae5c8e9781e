// SPDX-License-Identifier: GPL-2.0-only
//! The numbers of a profile, each with its sentence. Those of pages are for the recommended placement unless their name
//! says otherwise.

use tandem_metrics::pages::PageSize;
use tandem_metrics::{Communication, meaning};

use crate::profile::{Metric, Profile, Sharing};

/// All metrics, in the order of their equations.
pub(crate) fn all(profile: &Profile, sharing: &Sharing) -> Vec<Metric> {
    let mut all = communication(profile, sharing);
    all.extend(pages(profile));
    let of_samples = profile.sampler.is_some();
    if let Some(footprint) = profile.footprint {
        let mib = footprint.touched_bytes as f64 / f64::from(1 << 20);
        all.push(metric("footprint", 14, Some(mib), "MiB", |_| meaning::footprint(footprint, of_samples)));
    }
    all
}

const NOTHING: &str = "Nothing to take it of.";

fn metric(name: &str, equation: u32, value: Option<f64>, unit: &str, meaning: impl FnOnce(f64) -> String) -> Metric {
    let meaning = value.map_or_else(|| NOTHING.to_owned(), meaning);
    Metric { name: name.to_owned(), equation, value, unit: unit.to_owned(), meaning }
}

fn communication(profile: &Profile, sharing: &Sharing) -> Vec<Metric> {
    let whole = Communication::of(&sharing.whole);
    let threads = sharing.whole.threads();
    let of_samples = profile.sampler.is_some();
    let events_per_s = whole.events / profile.seconds.max(1e-9);
    let [first, .., recommended] = &profile.placements[..] else { return vec![] };
    let as_printed = |_| "C_H with the empty diagonal counted, as published values have it.".to_owned();
    vec![
        metric("heterogeneity", 1, Some(whole.heterogeneity), "events^2", |_| meaning::heterogeneity()),
        metric("C_H", 2, Some(whole.c_h), "", |value| meaning::c_h(value, threads)),
        metric("C_H as printed", 2, Some(whole.c_h_as_printed), "", as_printed),
        metric("C_A (amount)", 3, Some(whole.amount), "events a cell", |_| meaning::amount(events_per_s, of_samples)),
        metric("events", 4, Some(events_per_s), "per s", |_| "All pairs of busy threads together.".to_owned()),
        metric("sharing that stays", 5, sharing.least_kept, "of 1, least", meaning::kept_partners),
        metric(&format!("across nodes, {}", first.name), 6, first.across_nodes, "of 1", meaning::across_nodes),
        metric("across nodes, recommended", 6, recommended.across_nodes, "of 1", meaning::across_nodes),
        metric("phases", 7, Some(profile.phases.len() as f64), "", |_| {
            meaning::phases(profile.phases.len(), sharing.least_kept)
        }),
    ]
}

fn pages(profile: &Profile) -> Vec<Metric> {
    let nodes = profile.node_ids.len();
    let placement = profile.recommended();
    let mut all = Vec::new();
    for (size, value) in PageSize::ALL.iter().zip(placement.exclusivity) {
        let name = format!("E_app at {}", size.name());
        all.push(metric(&name, 9, value, "of 1", |value| meaning::exclusivity(value, nodes)));
    }
    let touch = &placement.first_touch;
    let homes = if profile.sampler.is_some() { "pages as they are" } else { "first touch" };
    all.push(metric(&format!("Acc_app of {homes}"), 11, touch.accuracy, "of 1", meaning::accuracy));
    all.push(metric("pages to move", 11, touch.misplaced.map(|parts| parts.0), "of 1", |pages| {
        meaning::misplaced(pages, touch.misplaced.map_or(0.0, |parts| parts.1))
    }));
    for (name, homes) in [(homes, touch), ("best homes", &placement.best_homes)] {
        let local = |value| format!("{} of the accesses go to the thread's own node.", meaning::percent(value));
        all.push(metric(&format!("local, {name}"), 12, homes.local_share, "of 1", local));
    }
    for (name, homes) in [(homes, touch), ("best homes", &placement.best_homes)] {
        all.push(metric(&format!("balance, {name}"), 13, homes.balance, "of 1", meaning::balance));
    }
    all
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn numbers_of_samples_get_no_verdict_and_those_of_all_accesses_do() {
        let said = |profile: &crate::profile::Profile, name: &str| {
            profile.metrics.iter().find(|metric| metric.name == name).unwrap().meaning.clone()
        };
        let sampled = testing::running();
        assert!(said(&sampled, "C_A (amount)").starts_with("Counted of samples"), "{:?}", sampled.metrics);
        assert!(said(&sampled, "footprint").contains("may touch many more"), "{:?}", sampled.metrics);
        let exact = testing::profile(&[1], 1);
        assert!(!said(&exact, "C_A (amount)").starts_with("Counted of samples"), "{:?}", exact.metrics);
    }
}
