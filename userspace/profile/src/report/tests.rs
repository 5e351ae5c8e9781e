// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::testing::{profile, running};

fn html(profile: &Profile) -> Result<String> {
    Ok(page(profile)?.into_html())
}

#[test]
fn the_page_has_all_plots_and_all_metrics() {
    let profile = profile(&[1], 60);
    let page = page(&profile).unwrap();
    assert_eq!(page.plots().len(), 8);
    let page = page.into_html();
    // Heat map, C_H, amount, exclusivity, local accesses, memory, balance, footprint.
    assert_eq!((page.matches("<svg").count(), page.matches("</svg>").count()), (8, 8));
    for metric in &profile.metrics {
        assert!(page.contains(&escaped(&metric.meaning)), "{}", metric.name);
    }
    for title in ["Where threads should run", "Who shares with whom", "Phases", "Exclusivity of pages", "Footprint"] {
        assert!(page.contains(&format!("<h2>{title}")), "{title}");
    }
}

#[test]
fn every_phase_has_its_heat_map() {
    let mut profile = profile(&[1], 60);
    let phase = |first: usize| tandem_metrics::Phase { first, end: first + 20, c_h: 1.0 };
    profile.phases = [0, 20, 40].map(phase).to_vec();
    let page = page(&profile).unwrap();
    assert!(page.plots().iter().any(|plot| plot.title.starts_with("Who shares with whom, by phase: 0.200 to 0.400 s")));
    let page = page.into_html();
    assert_eq!(page.matches("<svg").count(), 8 + 3);
    assert!(page.contains("0.200 to 0.400 s"), "{page}");
}

#[test]
fn the_page_needs_no_network_and_no_script_and_is_for_light_and_dark() {
    let page = html(&profile(&[1], 3)).unwrap();
    let without_names = page.replace("http://www.w3.org/2000/svg", "");
    for word in ["http", "<script", "<link", "@import", "url("] {
        assert!(!without_names.contains(word), "{word}");
    }
    assert!(page.contains("content=\"light dark\"") && page.contains("prefers-color-scheme: dark"));
}

#[test]
fn names_cannot_break_the_page_and_notes_are_on_it() {
    let mut profile = profile(&[1], 3);
    profile.notes.push("process 4 & 5".to_owned());
    let page = html(&profile).unwrap();
    assert!(!page.contains("--<b>") && page.contains("--&lt;b&gt;") && page.contains("process 4 &amp; 5"));
}

#[test]
fn a_program_that_shares_nothing_has_a_page_too() {
    let mut profile = profile(&[1], 3);
    profile.events.clear();
    profile.slices.iter_mut().for_each(|slice| slice.events.clear());
    assert!(html(&profile).unwrap().contains("No two threads met."));
}

#[test]
fn a_program_that_was_sampled_has_its_threads_names_and_is_judged_where_it_was() {
    let profile = running();
    let page = html(&profile).unwrap();
    assert!(page.contains("Sampled by lookahead: 12 accesses") && !page.contains("Exact:"), "{page}");
    assert!(page.contains("41 (a &lt;b&gt;)") && page.contains("<td class=\"name\">present</td>"), "{page}");
    assert!(
        page.contains("Memory of the program on each node, as it was.") && page.contains("on the same page of 4 KiB")
    );
    assert!(!page.contains("pages at first touch") && !page.contains("first touch puts"), "{page}");
}
