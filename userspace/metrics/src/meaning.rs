// SPDX-License-Identifier: GPL-2.0-only
//! What a value means for someone who wants a program to run faster: one sentence each.
//!
//! Thresholds are the sources' where they have one (C_H 100, equation 14); the others are ours and only choose words.

use crate::Footprint;

/// C_H below which the source does not migrate threads.
const LEAST_HETEROGENEITY: f64 = 100.0;

/// C_H (equation 2) of `threads` threads.
pub fn c_h(value: f64, threads: usize) -> String {
    if value < 1.0 {
        "All threads share alike or not at all: it does not matter which of them are neighbours.".to_owned()
    } else if value >= LEAST_HETEROGENEITY {
        format!(
            "Some pairs share much more than others: putting them on one node pays (from {LEAST_HETEROGENEITY} on)."
        )
    } else if threads > 98 {
        format!(
            "Below {LEAST_HETEROGENEITY}, but with {threads} threads even pure pairs are: look at the heat map instead."
        )
    } else {
        format!("Pairs share a little unevenly; below {LEAST_HETEROGENEITY} placing threads hardly pays.")
    }
}

/// C_A (equation 3), with `events_per_s` over all pairs (equation 4). If they are of samples, how many there are says as much of
/// the sampler as of the program.
pub fn amount(events_per_s: f64, of_samples: bool) -> String {
    if of_samples {
        "Counted of samples: to be compared with profiles of the same sampler and budget only.".to_owned()
    } else if events_per_s > 150.0 {
        format!("Threads meet on {} lines a second: enough for their placement to matter.", rounded(events_per_s))
    } else {
        "At most 150 events a second: threads hardly meet, and who is beside whom does not matter.".to_owned()
    }
}

/// Heterogeneity of the matrix as it is (equation 1).
pub fn heterogeneity() -> String {
    "As C_H, but it grows with the amount: it compares slices of this program, not this program with others.".to_owned()
}

/// Number of phases (equation 7), and the least part of the sharing that stayed from one to the next (equation 5).
pub fn phases(count: usize, least_kept: Option<f64>) -> String {
    let kept = least_kept.map_or(String::new(), |kept| {
        format!(" From one to the next at least {} of the sharing stays between the same threads.", percent(kept))
    });
    match count {
        0 | 1 => "One phase: one placement is right for the whole run.".to_owned(),
        _ => format!("{count} phases: each may want a placement of its own.{kept}"),
    }
}

/// The part of the sharing that stays between the same threads from window to window (equation 5), at its least.
pub fn kept_partners(least: f64) -> String {
    if least >= 0.5 {
        "Threads keep their partners: a placement by who shares stays right.".to_owned()
    } else {
        "Threads change partners: a fixed placement of threads is right for a part of the run only.".to_owned()
    }
}

/// The part of the sharing across nodes (equation 6).
pub fn across_nodes(value: f64) -> String {
    format!(
        "{} of the sharing travels between nodes under this mapping; each such line costs a remote transfer.",
        percent(value)
    )
}

/// Application exclusivity (equation 9) on `nodes` nodes.
pub fn exclusivity(value: f64, nodes: usize) -> String {
    let least = 1.0 / nodes.max(1) as f64;
    let part = percent(value);
    if value >= 0.9 {
        format!("At best {part} of the accesses are local: nearly every page has one node where it belongs.")
    } else if value - least > 0.1 {
        format!("At best {part} of the accesses are local; the rest goes to pages that several nodes use.")
    } else {
        format!("At best {part} of the accesses are local, as with any placement: spread pages for bandwidth instead.")
    }
}

/// Application accuracy (equation 11) of pages that nobody moved.
pub fn accuracy(value: f64) -> String {
    if value >= 0.95 {
        format!("{} of the accesses go to pages that are where they are used most: little to move.", percent(value))
    } else {
        let wrong = percent(1.0 - value);
        format!("{wrong} of the accesses go to pages that are on the wrong node: moving those pages pays.")
    }
}

/// Pages that need moving, as parts of the pages and of the accesses.
pub fn misplaced(pages: f64, accesses: f64) -> String {
    format!("{} of the pages would have to move, and they carry {} of the accesses.", percent(pages), percent(accesses))
}

/// Balance of what the nodes' memories serve (equation 13).
pub fn balance(value: f64) -> String {
    if value >= 0.8 {
        "All memories serve about the same: no single one limits the bandwidth.".to_owned()
    } else {
        format!("The busiest memory serves {:.1} times the mean: its bandwidth may be the limit.", 1.0 / value)
    }
}

/// Footprint against caches (equation 14). Of samples it is the least that it can be.
pub fn footprint(footprint: Footprint, of_samples: bool) -> String {
    if footprint.exceeds_caches() {
        "The memory does not fit into the caches: where pages are matters.".to_owned()
    } else if of_samples {
        "Pages that were seen in samples: the program may touch many more.".to_owned()
    } else {
        "The memory fits into the caches: they serve the program after its first touches, wherever its pages are."
            .to_owned()
    }
}

/// A part as people read it.
pub fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// A large number to three digits.
fn rounded(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{:.3e}", value),
        value if value >= 1e6 => format!("{:.1} million", value / 1e6),
        value => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_acts_from_a_heterogeneity_of_100() {
        assert!(c_h(0.0, 8).starts_with("All threads share alike"));
        assert!(c_h(99.0, 8).contains("hardly pays") && c_h(100.0, 8).contains("on one node pays"));
        assert!(c_h(99.0, 100).contains("even pure pairs"));
    }

    #[test]
    fn a_sentence_follows_its_value() {
        assert!(amount(150.0, false).starts_with("At most") && amount(2.5e6, false).contains("2.5 million lines"));
        assert!(phases(1, None).starts_with("One phase") && phases(3, Some(0.25)).contains("least 25.0 %"));
        assert!(kept_partners(0.9).contains("keep") && kept_partners(0.1).contains("change"));
        assert!(exclusivity(0.95, 4).contains("one node where") && exclusivity(0.3, 4).contains("spread"));
        assert!(exclusivity(0.6, 4).contains("several nodes"));
        assert!(accuracy(1.0).contains("little to move") && accuracy(0.4).starts_with("60.0 %"));
        assert!(balance(1.0).starts_with("All") && balance(0.25).contains("4.0 times"));
        assert!(misplaced(0.22, 0.35).contains("22.0 % of the pages") && across_nodes(0.5).starts_with("50.0 %"));
        assert!(footprint(Footprint { touched_bytes: 2, cache_bytes: 1 }, false).contains("not fit"));
        assert!(footprint(Footprint { touched_bytes: 1, cache_bytes: 1 }, false).contains("fits"));
    }

    #[test]
    fn numbers_of_samples_are_no_verdict() {
        for events_per_s in [0.0, 150.0, 2.5e6] {
            assert!(amount(events_per_s, true).starts_with("Counted of samples"), "{events_per_s}");
        }
        assert!(footprint(Footprint { touched_bytes: 1, cache_bytes: 1 }, true).contains("may touch many more"));
        assert!(
            footprint(Footprint { touched_bytes: 2, cache_bytes: 1 }, true).contains("not fit"),
            "at least so much"
        );
    }
}
