// SPDX-License-Identifier: GPL-2.0-only
//! A profile as one HTML page, in the look of tandem-ab's reports: no network, no script, light and dark.

use std::fmt::Write as _;

use anyhow::Result;
use tandem_ab::charts::{Line, over_time};
use tandem_ab::page::{Page, STYLE, cell, escaped, figure, head};
use tandem_metrics::pages::PageSize;

use crate::charts::{bars, heat_map};
use crate::profile::{LocalCourse, Profile};
use crate::table::{number, threads_by_node};

const OWN_STYLE: &str = include_str!("report.css");
/// Colour of lines that mark a time: a grey.
const MARK: usize = 7;
/// Phases that have a heat map of their own, at most.
const MOST_PHASES: usize = 6;
const BY_PHASE: &str = "Who shares with whom, by phase";

/// The page of a profile, which knows its plots.
///
/// # Errors
/// A plot cannot be drawn.
pub fn page(profile: &Profile) -> Result<Page> {
    let command = profile.command.join(" ");
    let mut page = head(&format!("tandem profile: {command}"), &format!("{STYLE}{OWN_STYLE}"));
    writeln!(page, "<h1>{}</h1>", escaped(&command))?;
    writeln!(page, "<p>{}</p>", escaped(&circumstances(profile)))?;
    for note in &profile.notes {
        writeln!(page, "<p class=\"note\">{}</p>", escaped(note))?;
    }
    placements(&mut page, profile)?;
    names(&mut page, profile)?;
    communication(&mut page, profile)?;
    phases(&mut page, profile)?;
    pages(&mut page, profile)?;
    metrics(&mut page, profile)?;
    Ok(page)
}

/// How long, how many, where, and how it was seen.
fn circumstances(profile: &Profile) -> String {
    let busy = profile.threads.iter().filter(|thread| thread.busy).count();
    let Profile { clock, slices, threads, machine, .. } = profile;
    let seconds = number(profile.seconds);
    let on = format!("{busy} busy threads of {}, placed on {machine}", threads.len());
    let slices = format!("in {} slices of {} ms", slices.len(), clock.slice_ms);
    match &profile.sampler {
        Some(sampled) => {
            format!("{seconds} s {slices}; {on}. Sampled by {}: {} accesses.", sampled.name, sampled.samples)
        }
        None => format!(
            "{seconds} s by a clock of {} instructions a ms, {slices}; {on}. Exact: every memory access was seen.",
            clock.instructions_per_ms
        ),
    }
}

/// Which thread has which number, where threads have names.
fn names(page: &mut Page, profile: &Profile) -> Result<()> {
    let mut threads =
        profile.threads.iter().enumerate().filter(|(_, thread)| thread.busy && thread.name.is_some()).peekable();
    if threads.peek().is_none() {
        return Ok(());
    }
    *page += "<h2>Busy threads</h2>\n<div class=\"wide\"><table><tr><th>number</th><th>thread</th><th>CPU time, s</th>\
        <th>accesses seen</th></tr>\n";
    for (at, thread) in threads {
        writeln!(
            page,
            "<tr><td class=\"number\">{at}</td><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>",
            escaped(thread.name.as_deref().unwrap_or_default()),
            number(thread.instructions as f64 / 1e9),
            thread.accesses
        )?;
    }
    *page += "</table></div>\n";
    Ok(())
}

fn communication(page: &mut Page, profile: &Profile) -> Result<()> {
    let met = match &profile.sampler {
        Some(_) => "How often two threads were seen on the same page of 4 KiB",
        None => "How often two threads met on a 64-byte line",
    };
    let caption = format!(
        "{met}: the more colour, the more often. Threads are numbered in the order of their creation; the lower left corner is \
         thread 0 with itself, which is empty."
    );
    let map = heat_map(&profile.events, profile.threads.len(), (640, 560))?;
    if map.is_empty() {
        *page += "<h2>Who shares with whom</h2>\n<p>No two threads met.</p>\n";
        return Ok(());
    }
    figure(page, "Who shares with whom", &caption, &map, &[])?;
    if profile.phases.len() < 2 {
        return Ok(());
    }
    writeln!(page, "<h2>{BY_PHASE}</h2>\n<div class=\"grid\">")?;
    for phase in profile.phases.iter().take(MOST_PHASES) {
        let slices = &profile.slices[phase.first..phase.end];
        let events: Vec<_> = slices.iter().flat_map(|slice| slice.events.iter().copied()).collect();
        let map = heat_map(&events, profile.threads.len(), (320, 280))?;
        let [from, to] = [phase.first, phase.end].map(|slice| number(slice as f64 * profile.clock.slice_ms / 1e3));
        cell(page, BY_PHASE, &format!("{from} to {to} s, C_H {}", number(phase.c_h)), &map, &[])?;
    }
    writeln!(page, "</div>")?;
    let left_out = profile.phases.len().saturating_sub(MOST_PHASES);
    if left_out > 0 {
        writeln!(page, "<p class=\"caption\">{left_out} further phases are left out.</p>")?;
    }
    Ok(())
}

fn phases(page: &mut Page, profile: &Profile) -> Result<()> {
    let end_s = |slice: usize| (slice + 1) as f64 * profile.clock.slice_ms / 1e3;
    let by_slice = |value: &dyn Fn(usize) -> f64| -> Vec<(f64, f64)> {
        let points = (0..profile.slices.len()).map(|slice| (end_s(slice), value(slice)));
        // A point tells of the slice before it.
        points.clone().take(1).map(|(_, first)| (0.0, first)).chain(points).collect()
    };
    let c_h = by_slice(&|slice| profile.slices[slice].c_h);
    let top = c_h.iter().map(|point| point.1).fold(1.0, f64::max);
    let mark = |slice: usize| {
        let at_s = slice as f64 * profile.clock.slice_ms / 1e3;
        Line { colour: MARK, points: vec![(at_s, 0.0), (at_s, top)] }
    };
    let mut lines: Vec<Line> = profile.phases.iter().skip(1).map(|phase| mark(phase.first)).collect();
    lines.push(Line { colour: 0, points: c_h });
    let caption = "C_H of each slice: how unevenly the busy threads share. Grey lines: a new phase was noticed.";
    figure(page, "Phases", caption, &over_time(&lines, "", (860, 260))?, &[])?;
    let slice_s = profile.clock.slice_ms / 1e3;
    let meetings = |slice: usize| profile.slices[slice].events.iter().map(|event| event.2).sum::<u64>();
    let (unit, caption) = match &profile.sampler {
        Some(_) => (1.0, "Samples of one thread on a page on which another was seen too, per second."),
        None => (1e6, "Meetings of any two threads on a line, millions per second of the program."),
    };
    let rate = Line { colour: 1, points: by_slice(&|slice| meetings(slice) as f64 / slice_s / unit) };
    figure(page, "Amount of sharing", caption, &over_time(&[rate], "", (860, 220))?, &[])
}

fn pages(page: &mut Page, profile: &Profile) -> Result<()> {
    let legend: Vec<(usize, String)> =
        profile.placements.iter().enumerate().map(|(at, placement)| (at, placement.name.clone())).collect();
    let group = |(at, size): (usize, &PageSize)| {
        let values = profile.placements.iter().map(|placement| placement.exclusivity[at].unwrap_or(0.0)).collect();
        (size.name().to_owned(), values)
    };
    let groups: Vec<_> = PageSize::ALL.iter().enumerate().map(group).collect();
    let caption = "E_app by page size: the part of the accesses that is local when every page is on its best node.";
    figure(page, "Exclusivity of pages", caption, &bars(&groups, "E_app", 1.0, (640, 260))?, &legend)?;
    let lines: Vec<Line> = profile
        .local
        .iter()
        .enumerate()
        .map(|(colour, course)| Line { colour, points: course.points.clone() })
        .collect();
    let legend: Vec<(usize, String)> =
        profile.local.iter().enumerate().map(|(at, course)| (at, course.name.clone())).collect();
    let caption = "The part of the accesses that goes to the thread's own node, by placement of threads and pages.";
    figure(page, "Local accesses over time", caption, &over_time(&lines, "local part", (860, 260))?, &legend)?;
    memory(page, profile)?;
    served(page, profile)?;
    footprint(page, profile)
}

fn memory(page: &mut Page, profile: &Profile) -> Result<()> {
    let line = |(colour, course): (usize, &LocalCourse)| Line { colour, points: course.points.clone() };
    let lines: Vec<Line> = profile.memory.iter().enumerate().map(line).collect();
    let legend: Vec<(usize, String)> = profile.memory.iter().map(|course| course.name.clone()).enumerate().collect();
    let caption = match &profile.sampler {
        Some(_) => "Memory of the program on each node, as it was.",
        None => {
            "Memory of the program on each node where scattered threads run and pages stay where they are first touched."
        }
    };
    figure(page, "Memory by node over time", caption, &over_time(&lines, "MiB", (860, 260))?, &legend)
}

fn served(page: &mut Page, profile: &Profile) -> Result<()> {
    let placement = profile.recommended();
    let millions = |homes: &crate::placement::Homes, node: usize| homes.served[node] as f64 / 1e6;
    let group = |(node, id): (usize, &u32)| {
        let values = vec![millions(&placement.first_touch, node), millions(&placement.best_homes, node)];
        (format!("node {id}"), values)
    };
    let groups: Vec<_> = profile.node_ids.iter().enumerate().map(group).collect();
    let legend = [(0, format!("pages {}", pages_now(profile))), (1, "pages on their best nodes".to_owned())];
    let caption = "Accesses that each node's memory serves under the recommended placement, before caches.";
    figure(page, "Balance of memories", caption, &bars(&groups, "million accesses", 0.0, (640, 240))?, &legend)
}

/// Where pages are that nobody moved.
fn pages_now(profile: &Profile) -> &'static str {
    if profile.sampler.is_some() { "where they are" } else { "at first touch" }
}

fn footprint(page: &mut Page, profile: &Profile) -> Result<()> {
    let Some(footprint) = profile.footprint else { return Ok(()) };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let groups = [
        ("touched".to_owned(), vec![mib(footprint.touched_bytes)]),
        ("all caches".to_owned(), vec![mib(footprint.cache_bytes)]),
    ];
    figure(
        page,
        "Footprint",
        "Memory that was touched, and all caches of the machine.",
        &bars(&groups, "MiB", 0.0, (420, 220))?,
        &[],
    )
}

fn placements(page: &mut Page, profile: &Profile) -> Result<()> {
    writeln!(
        page,
        "<h2>Where threads should run</h2>\n<div class=\"wide\"><table><tr><th>placement</th><th>transfers between nodes, \
         ms/s</th><th>sharing across nodes</th><th>local, pages {}</th><th>local, best</th><th>busy threads by node</th></tr>",
        pages_now(profile)
    )?;
    let share = |value: Option<f64>| value.map_or("-".to_owned(), tandem_metrics::meaning::percent);
    for placement in &profile.placements {
        writeln!(
            page,
            "<tr><td class=\"name\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td><td>{}</td></tr>",
            escaped(&placement.name),
            number(placement.transfer_ms_per_s),
            share(placement.across_nodes),
            share(placement.first_touch.local_share),
            share(placement.best_homes.local_share),
            escaped(&threads_by_node(profile, &placement.nodes))
        )?;
    }
    let first = match &profile.sampler {
        Some(_) => "Present: where threads ran last.",
        None => "Scattered: thread after thread to the next node, as an idle system spreads them.",
    };
    writeln!(
        page,
        "</table></div>\n<p class=\"caption\">{first} Compact: node after node. Recommended: by what the threads share. Transfers: events x latency beyond the local one, all \
        threads together.</p>"
    )?;
    Ok(())
}

fn metrics(page: &mut Page, profile: &Profile) -> Result<()> {
    *page += "<h2>All metrics</h2>\n<div class=\"wide\"><table><tr><th>metric</th><th>equation</th><th>value</th><th>what it means</th></tr>\n";
    for metric in &profile.metrics {
        writeln!(
            page,
            "<tr><td class=\"name\">{}</td><td class=\"number\">{}</td><td class=\"number\">{} {}</td><td>{}</td></tr>",
            escaped(&metric.name),
            metric.equation,
            metric.value.map_or("-".to_owned(), number),
            escaped(&metric.unit),
            escaped(&metric.meaning)
        )?;
    }
    *page += "</table></div>\n<p class=\"caption\">Equations: docs/profile.md. Those of pages are for the recommended placement.</p>\n";
    Ok(())
}

#[cfg(test)]
mod tests;
