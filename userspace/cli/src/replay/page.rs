// SPDX-License-Identifier: GPL-2.0-only
//! A replay as one HTML page, in the look of tandem-ab's reports.

use std::fmt::Write as _;

use anyhow::Result;
use tandem_ab::charts::{Line, over_time};
use tandem_ab::page::{Page, STYLE, escaped, figure, head};
use tandem_policies::model::{Plan, Snapshot};
use tandem_policies::stall::latency_ns;
use tandem_trace::{Interval, Replayed};

use super::report::Report;

/// Lines of decisions on the page, at most; the program prints all.
const MOST_LINES: usize = 2000;

/// What is drawn over the time of the recording.
#[derive(Default)]
pub struct Courses {
    first_ns: Option<u64>,
    /// (s, part of the accesses to other nodes).
    remote: Vec<(f64, f64)>,
    /// (s, mean latency of an access in ns).
    latency_ns: Vec<(f64, f64)>,
    recorded: Sums,
    replayed: Sums,
}

/// Sums of plans so far.
#[derive(Default)]
struct Sums {
    /// (s, ms of stall per second that the moves so far should save).
    gain: Vec<(f64, f64)>,
    /// (s, moves so far).
    moves: Vec<(f64, f64)>,
}

impl Sums {
    fn add(&mut self, at_s: f64, plan: Option<&Plan>) {
        let last = |points: &[(f64, f64)]| points.last().map_or(0.0, |point| point.1);
        let moves = plan.map_or(&[][..], |plan| &plan.moves);
        let gain_ns_per_s: f64 = moves.iter().filter_map(|planned| planned.gain_ns_per_s).sum();
        self.gain.push((at_s, last(&self.gain) + gain_ns_per_s * 1e-6));
        self.moves.push((at_s, last(&self.moves) + moves.len() as f64));
    }
}

impl Courses {
    /// An interval of the recording, and what was decided again at its end.
    pub fn add(&mut self, interval: &Interval, replayed: Option<&Replayed>) {
        let snapshot = &interval.snapshot;
        let first_ns = *self.first_ns.get_or_insert(snapshot.time_ns);
        let at_s = snapshot.time_ns.saturating_sub(first_ns) as f64 * 1e-9;
        self.remote.extend(remote_share(snapshot).map(|share| (at_s, share)));
        self.latency_ns.extend(latency_ns(snapshot).map(|latency_ns| (at_s, latency_ns)));
        self.recorded.add(at_s, interval.decision.as_ref().and_then(|decision| decision.plan()));
        self.replayed.add(at_s, replayed.and_then(|replayed| replayed.decision.plan()));
    }
}

/// The part of all threads' accesses that goes to other nodes than those they ran on; `None` without a signal.
fn remote_share(snapshot: &Snapshot) -> Option<f64> {
    let (mut remote, mut all) = (0.0, 0.0);
    for thread in &snapshot.threads {
        let ran_ns: u64 = thread.run_ns.values().sum();
        let Some(accesses) = thread.accesses_per_s.as_ref().filter(|_| ran_ns > 0) else { continue };
        for (memory, &per_s) in accesses.iter() {
            all += per_s;
            remote += per_s * (1.0 - thread.run_ns[memory] as f64 / ran_ns as f64);
        }
    }
    (all > 0.0).then(|| remote / all)
}

/// The page of a replay, with what was said about its decisions.
///
/// # Errors
/// A plot cannot be drawn.
pub fn page(report: &Report, courses: &Courses, words: &str) -> Result<Page> {
    let mut page = head(&format!("tandem replay: {}", report.file), STYLE);
    writeln!(page, "<h1>{}</h1>", escaped(&report.file))?;
    if let Some(warning) = &report.warning {
        writeln!(page, "<p class=\"void\">{}</p>", escaped(warning))?;
    }
    let lines: Vec<&str> = words.lines().collect();
    for line in lines.iter().filter(|line| line.starts_with("recorded by ")) {
        writeln!(page, "<p>{}</p>", escaped(line))?;
    }
    let totals = &lines[lines.len().saturating_sub(3)..];
    writeln!(page, "<pre>{}</pre>", escaped(&totals.join("\n")))?;
    plots(&mut page, courses)?;
    writeln!(page, "<h2>Decisions</h2>\n<pre>{}</pre>", escaped(&lines[..lines.len().min(MOST_LINES)].join("\n")))?;
    if lines.len() > MOST_LINES {
        let more = lines.len() - MOST_LINES;
        writeln!(page, "<p class=\"caption\">{more} further lines: the command prints them all.</p>")?;
    }
    Ok(page)
}

fn plots(page: &mut Page, courses: &Courses) -> Result<()> {
    let size = (860, 260);
    let one = |colour: usize, points: &Vec<(f64, f64)>| Line { colour, points: points.clone() };
    let caption = "Accesses to memory of other nodes, of all; as it was recorded, whatever was decided again.";
    let plot = over_time(&[one(0, &courses.remote)], "remote part", size)?;
    figure(page, "Remote share of memory accesses over time", caption, &plot, &[])?;
    let caption = "Of an access, from where threads ran and where the memory was; as it was recorded.";
    figure(page, "Mean latency over time", caption, &over_time(&[one(0, &courses.latency_ns)], "ns", size)?, &[])?;
    let both = |of: fn(&Sums) -> &Vec<(f64, f64)>| [one(0, of(&courses.recorded)), one(1, of(&courses.replayed))];
    // The second line is drawn over the first.
    let legend = [(0, "recorded".to_owned()), (1, "replayed (alone where both are the same)".to_owned())];
    let caption = "Stall that the moves so far should save, in ms per second. The snapshots are those that followed the recorded \
        plans: a replayed plan that was not carried out is planned again.";
    let gain = over_time(&both(|sums| &sums.gain), "ms/s", size)?;
    figure(page, "Predicted gain", caption, &gain, &legend)?;
    let moves = over_time(&both(|sums| &sums.moves), "moves", size)?;
    figure(page, "Moves", "Threads, interchanges and page groups moved so far.", &moves, &legend)
}
