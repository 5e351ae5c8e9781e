// SPDX-License-Identifier: GPL-2.0-only
//! A result as one HTML page, in the look of the others: it needs no network and no script.

use std::fmt::Write as _;

use anyhow::Result;
use tandem_ab::charts::{Row, dots};
use tandem_ab::page::{Page, STYLE, escaped, figure, head};

use crate::axes::{Axis, Value, axes};
use crate::first_touch::{Bimodal, Group};
use crate::one_by_one::{Contender, OneByOne, Prediction};
use crate::search::Runs;
use crate::session::{Outcome, name};
use crate::tuned::{Measured, Tuned};

/// So many configurations are drawn; all are in the table.
const DRAWN: usize = 25;

/// The page of a result.
///
/// # Errors
/// A plot cannot be drawn.
pub fn page(tuned: &Tuned, outcome: &Outcome) -> Result<Page> {
    let title = format!("tandem tune: {}", tuned.subject.program);
    let mut page = head(&title, STYLE);
    writeln!(page, "<section><h1>{}</h1>", escaped(&title))?;
    let command = format!("{} {}", tuned.subject.program, tuned.subject.arguments.join(" "));
    writeln!(page, "<p>{} on {}</p>", escaped(&command), escaped(&tuned.subject.machine.join("; ")))?;
    writeln!(page, "<p><strong>{}</strong></p>", escaped(&tuned.in_words()))?;
    for note in &tuned.notes {
        writeln!(page, "<p>{}</p>", escaped(note))?;
    }
    figure(&mut page, "The fastest configurations", RANKED, &ranked(outcome)?, &[])?;
    if let Some(bimodal) = &outcome.bimodal {
        figure(&mut page, "Placed by chance", CHANCE, &by_chance(bimodal)?, &[])?;
    }
    let axes = axes(outcome);
    if !axes.is_empty() {
        writeln!(page, "<h2>Which axes mattered</h2>\n<pre>{}</pre>", escaped(&axes_table(&axes, tuned)))?;
        writeln!(page, "<p class=\"caption\">{AXES}</p>")?;
        figure(&mut page, "Speed-ups by axis", SPEED_UPS, &speed_ups(&axes, outcome)?, &[])?;
    }
    if !tuned.regions.is_empty() {
        writeln!(page, "<h2>Parallel regions</h2>\n<pre>{}</pre>", escaped(&tuned.regions_in_words()))?;
    }
    if !tuned.predictions.is_empty() {
        figure(&mut page, "Predicted against real", PREDICTED, &predicted(outcome)?, &[])?;
        writeln!(page, "<pre>{}</pre>", escaped(&predictions(&tuned.predictions)))?;
    }
    writeln!(page, "<h2>All configurations</h2>\n<pre>{}</pre>", escaped(&table(&tuned.measured)))?;
    page += "</section>\n";
    Ok(page)
}

const RANKED: &str = "Dots: runs. Tick: median. The line from top to bottom is the median of the program as it is.";

const CHANCE: &str = "Runs of the program as it is, by the node on which most of the memory was that the main thread had touched before its \
    other threads began. Tick: median. The line from top to bottom is the median with the main thread bound, if that was measured.";

const AXES: &str = "For each value of an axis, the best configuration that has it; at most, where all that have it were stopped. \
    Threads only: pages are where they are touched first. Pages only: as many threads as there can be, in turn over all nodes. Weight: how many times slower the best configuration is with the axis' worst value.";

const SPEED_UPS: &str = "For each value of an axis, how many times as fast as the program as it is the best configuration is \
    that has it. The line from top to bottom is the program as it is.";

const PREDICTED: &str = "Plans with seats of their own for single regions. Tick: time that was predicted from their regions. \
    Dots: runs. The line from top to bottom is the median of the best that has none.";

/// Predictions and what became of them, as text.
pub fn predictions(all: &[Prediction]) -> String {
    let mut text = format!(
        "{:<4}  {:>11}  {:>8}  {:>6}  {:>4}  {:<20}  plan\n",
        "plan", "predicted s", "real s", "error", "runs", "way"
    );
    for (at, one) in all.iter().enumerate() {
        let of_real = |words: &dyn Fn(f64) -> String| one.real_s.map_or("-".to_owned(), words);
        let real = of_real(&|seconds| format!("{seconds:.3}"));
        let error = of_real(&|seconds| format!("{:+.1}%", 100.0 * (one.predicted_s / seconds - 1.0)));
        let (number, predicted, runs, way, plan) = (at + 1, one.predicted_s, one.runs, &one.way, &one.plan);
        text += &format!("{number:<4}  {predicted:>11.3}  {real:>8}  {error:>6}  {runs:>4}  {way:<20}  {plan}\n");
    }
    text
}

/// Runs of the plans that were run, with the times predicted of them.
fn predicted(outcome: &Outcome) -> Result<String> {
    let Some(all) = &outcome.one_by_one else { return Ok(String::new()) };
    let plans = all.contenders.iter().zip(&all.found.runs).filter(|(one, _)| one.predicted_s.is_some());
    let row = |(at, (one, runs)): (usize, (&Contender, &Runs))| Row {
        name: format!("plan {}", at + 1),
        values: runs.seconds.clone(),
        tick: one.predicted_s,
        bar: None,
    };
    let rows: Vec<Row> = plans.enumerate().map(row).collect();
    dots(&rows, "time [s]", all.found.runs[0].median())
}

/// Runs by the node where they began.
fn by_chance(bimodal: &Bimodal) -> Result<String> {
    let row = |group: &Group| Row {
        name: format!("begun on node {}", group.node),
        values: group.seconds.clone(),
        tick: Some(group.median_s),
        bar: None,
    };
    let rows: Vec<Row> = bimodal.groups.iter().map(row).collect();
    dots(&rows, "time [s]", bimodal.bound_s)
}

/// What each value of each axis can do, against the program as it is.
fn speed_ups(axes: &[Axis], outcome: &Outcome) -> Result<String> {
    let Some(as_it_is) = outcome.found.runs[0].median() else { return Ok(String::new()) };
    let of_axis = |axis: &Axis| -> Vec<Row> {
        let row = |value: &Value| Row {
            name: format!("{}: {}{}", axis.name, value.words, if value.at_least { " (at most)" } else { "" }),
            values: vec![as_it_is / value.seconds],
            tick: None,
            bar: None,
        };
        axis.values.iter().map(row).collect()
    };
    let rows: Vec<Row> = axes.iter().flat_map(of_axis).collect();
    dots(&rows, "times as fast", Some(1.0))
}

/// All configurations that ran, the fastest first, as text, with how many times as fast as the program as it is each one is.
pub fn table(measured: &[Measured]) -> String {
    let width = measured.iter().map(|one| one.configuration.chars().count()).max().unwrap_or(0);
    let as_it_is = measured.iter().find(|one| one.configuration == name(None)).and_then(|one| one.median_s);
    let mut text = format!(
        "{:>4}  {:<width$}  {:>4}  {:>9}  {:>8}  {:>18}\n",
        "rank", "configuration", "runs", "median s", "speed-up", "range s"
    );
    for (at, one) in measured.iter().enumerate() {
        let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
        let range = format!("{}..{}", number(one.least_s), number(one.greatest_s));
        let remark = match (&one.failure, one.slower_than_s) {
            (Some(why), _) => format!("  failed: {why}"),
            (None, Some(limit)) => format!("  stopped after {limit:.3} s"),
            (None, None) => String::new(),
        };
        let rank = one.median_s.map_or("-".to_owned(), |_| (at + 1).to_string());
        let times = one
            .median_s
            .zip(as_it_is)
            .map_or("-".to_owned(), |(median, as_it_is)| format!("{:.2}x", as_it_is / median));
        let (name, median) = (&one.configuration, number(one.median_s));
        text += &format!("{rank:>4}  {name:<width$}  {:>4}  {median:>9}  {times:>8}  {range:>18}{remark}\n", one.runs);
    }
    text
}

fn axes_table(axes: &[Axis], tuned: &Tuned) -> String {
    let as_it_is = tuned.measured.iter().find(|one| one.configuration == name(None)).and_then(|one| one.median_s);
    let mut text = format!("{:<22}  {:>6}  best with each value\n", "axis", "weight");
    for axis in axes {
        let value = |Value { words, seconds, at_least }: &Value| match (as_it_is, at_least) {
            (Some(as_it_is), false) => format!("{words} {:.2}x", as_it_is / seconds),
            (Some(as_it_is), true) => format!("{words} at most {:.2}x", as_it_is / seconds),
            (None, false) => format!("{words} {seconds:.3} s"),
            (None, true) => format!("{words} more than {seconds:.3} s"),
        };
        let values: Vec<String> = axis.values.iter().map(value).collect();
        text += &format!("{:<22}  {:>6.2}  {}\n", axis.name, axis.weight(), values.join(", "));
    }
    text
}

/// Runs of the fastest configurations, plans for single regions among them, and of the program as it is.
fn ranked(outcome: &Outcome) -> Result<String> {
    let mut rows: Vec<(Row, f64)> = Vec::new();
    let configurations = outcome.candidates.iter().map(|one| name(one.as_ref())).zip(&outcome.found.runs);
    let plans = outcome.one_by_one.iter().flat_map(OneByOne::plans_by_region);
    for (name, runs) in configurations.chain(plans.map(|(plan, runs)| (plan.to_string(), runs))) {
        let row = |median| Row { name, values: runs.seconds.clone(), tick: Some(median), bar: None };
        rows.extend(runs.median().map(|median| (row(median), median)));
    }
    rows.sort_by(|one, other| one.1.total_cmp(&other.1));
    let place = rows.iter().position(|row| row.0.name == name(None));
    if let Some(place) = place.filter(|&place| place >= DRAWN) {
        rows.swap(DRAWN - 1, place);
    }
    let rows: Vec<Row> = rows.into_iter().take(DRAWN).map(|row| row.0).collect();
    dots(&rows, "time [s]", outcome.found.runs[0].median())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_by_one::OneByOne;
    use crate::plan::{Plan, RegionSeats};
    use crate::search::{End, Found};
    use crate::session::AT_BIRTH;
    use crate::space::Space;
    use crate::subject::Subject;
    use crate::testing::{self, machine};

    /// A result on two nodes in which one configuration failed and one was stopped.
    fn page() -> String {
        let topology = machine(2, 4);
        let all = Space::of(&topology, 8, AT_BIRTH).configurations(&topology);
        let mut runs: Vec<Runs> =
            (0..=all.len()).map(|at| testing::runs(&[3.0, 3.1].map(|most| most - 0.1 * at as f64))).collect();
        runs[2] = Runs { failure: Some("exit code 3, its last words: <b>oh".into()), ..Runs::default() };
        runs[3] = Runs { slower_than: Some(6.0), ..Runs::default() };
        let best = all.len();
        let one = all[0];
        let plan = Plan { regions: [("a<b>".to_owned(), RegionSeats::from(one))].into(), ..one.into() };
        let single = Contender { plan: None, predicted_s: None, way: String::new() };
        let contenders = vec![single, Contender { plan: Some(plan), predicted_s: Some(2.5), way: "in place".into() }];
        let of_plans = vec![runs[best].clone(), testing::runs(&[2.25, 2.75])];
        let found = Found { best: Some(0), runs: of_plans, end: End::Decided, choice: testing::CHOICE };
        let outcome = Outcome {
            notes: vec!["a note with <i>".into()],
            one_by_one: Some(OneByOne { contenders, found, regions: vec![], chosen: None }),
            bimodal: Bimodal::of(&[1.0, 2.0].repeat(4).into_iter().map(|s| (s, s as u32)).collect::<Vec<_>>()),
            ..testing::outcome(&all, best, runs)
        };
        let subject = Subject::of(&["sh".into(), "<x>".into()], None, &topology).unwrap();
        super::page(&Tuned::new(subject, &outcome), &outcome).unwrap().into_html()
    }

    #[test]
    fn the_page_has_the_ranking_the_axes_and_every_configuration() {
        let page = page();
        assert_eq!(page.matches("<svg").count(), 4);
        for words in [
            "Placed by chance",
            "begun on node 2",
            "Which axes mattered",
            "Speed-ups by axis",
            "Predicted against real",
            "1           2.500     2.500   +0.0%     2  in place ",
            "number of threads",
            "threads only ",
            "threads and pages ",
            "stopped after 6.000 s",
            "failed: exit code 3",
            "times as fast",
        ] {
            assert!(page.contains(words), "{words}");
        }
        assert_eq!(
            page.matches(" threads scatter on ").count() + page.matches(" threads contiguous on ").count(),
            26 + 23 + 1 + 3 * 2,
            "a plan says two, in both tables and where the fastest are drawn"
        );
    }

    #[test]
    fn it_needs_no_network_and_no_script_and_names_cannot_break_it() {
        let page = page().replace("http://www.w3.org/2000/svg", "");
        for word in ["http", "<script", "<link", "@import", "url(", "<b>", "<i>", "<x>"] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(page.contains("content=\"light dark\""));
    }
}
