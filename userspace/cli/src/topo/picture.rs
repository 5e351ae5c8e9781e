// SPDX-License-Identifier: GPL-2.0-only
//! The machine as a picture: its nodes, and a matrix of distances, latencies and bandwidths in shades.

use std::fmt::Write as _;

use tandem_machine::format_cpu_list;
use tandem_policies::model::{Node, PAGE_BYTES, Topology};

use super::{Matrix, cell, distances};

const BOX_WIDTH: usize = 170;
const BOX_HEIGHT: usize = 92;
const CELL_WIDTH: usize = 62;
const CELL_HEIGHT: usize = 26;
const GAP: usize = 16;
/// Boxes beside each other.
const COLUMNS: usize = 4;
/// Looks right on light and on dark pages.
const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#222}.t{font-weight:600}.s{font-size:11px;fill:#666}.n{fill:#eef3fa;stroke:#5b7fb4}\
.m{fill:#f4f0e6;stroke:#a98f4a}.c{fill:#c0392b}.b{fill:#fff}.v{text-anchor:middle}.h{text-anchor:middle;fill:#666}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.s,.h{fill:#aaa}.n{fill:#1d2a3d;stroke:#6f94cc}.m{fill:#332d1c;stroke:#b89e5a}\
.b{fill:#16181c}.c{fill:#e06a5c}}";

/// The picture of a machine, with what is known between its nodes besides distances.
pub fn picture(name: &str, topology: &Topology, matrices: &[Matrix]) -> String {
    let nodes: Vec<&Node> = topology.nodes.values().collect();
    let ids: Vec<u32> = nodes.iter().map(|node| node.id.0).collect();
    let mut body = String::new();
    let mut y = 44;
    for (at, node) in nodes.iter().enumerate() {
        let (x, top) = (GAP + at % COLUMNS * (BOX_WIDTH + GAP), y + at / COLUMNS * (BOX_HEIGHT + GAP));
        draw_node(&mut body, node, x, top);
    }
    y += nodes.len().div_ceil(COLUMNS) * (BOX_HEIGHT + GAP);
    for matrix in std::iter::once(&distances(topology)).chain(matrices) {
        y = draw_matrix(&mut body, matrix, &ids, y);
    }
    let boxes = nodes.len().min(COLUMNS) * (BOX_WIDTH + GAP) + GAP;
    let width = boxes.max((nodes.len() + 1) * CELL_WIDTH + 2 * GAP).max(320);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {y}\" width=\"{width}\" height=\"{y}\" role=\"img\">\n\
         <title>{name}</title>\n<style>{STYLE}</style>\n<rect class=\"b\" width=\"{width}\" height=\"{y}\"/>\n\
         <text class=\"t\" x=\"{GAP}\" y=\"26\">{name}</text>\n{body}</svg>\n",
        name = escaped(name)
    )
}

/// Text as XML has it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn put(body: &mut String, element: std::fmt::Arguments<'_>) {
    writeln!(body, "{element}").expect("a String takes all");
}

fn draw_node(body: &mut String, node: &Node, x: usize, y: usize) {
    let class = if node.cpus.is_empty() { "m" } else { "n" };
    put(
        body,
        format_args!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"6\"/>"
        ),
    );
    let cpus = match node.cpus.len() {
        0 => "no CPU".to_owned(),
        count => format!("{count} CPUs: {}", format_cpu_list(&node.cpus.iter().map(|cpu| cpu.0).collect::<Vec<_>>())),
    };
    let caches = match node.llcs.len() {
        0 => String::new(),
        1 => "1 last-level cache".to_owned(),
        count => format!("{count} last-level caches"),
    };
    let mib = |pages: u64| (pages * PAGE_BYTES) >> 20;
    let memory = match node.memory_pages {
        0 => "no memory".to_owned(),
        pages => format!("{} MiB", mib(pages)),
    };
    let x = x + 10;
    put(body, format_args!("<text class=\"t\" x=\"{x}\" y=\"{}\">node {}</text>", y + 22, node.id));
    for (at, line) in [cpus, caches, memory].iter().filter(|line| !line.is_empty()).enumerate() {
        put(body, format_args!("<text class=\"s\" x=\"{x}\" y=\"{}\">{}</text>", y + 42 + 18 * at, escaped(line)));
    }
}

/// Draws a matrix in shades from its least to its greatest value; returns where the next thing may start.
fn draw_matrix(body: &mut String, matrix: &Matrix, ids: &[u32], y: usize) -> usize {
    let values = matrix.rows.iter().flatten().flatten();
    let (least, most) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), &value| (least.min(value), most.max(value)));
    put(body, format_args!("<text class=\"t\" x=\"{GAP}\" y=\"{}\">{}</text>", y + 18, matrix.title));
    let (left, top) = (GAP + CELL_WIDTH, y + 30 + CELL_HEIGHT);
    for (at, id) in ids.iter().enumerate() {
        let (x, middle) = (left + at * CELL_WIDTH + CELL_WIDTH / 2, GAP + CELL_WIDTH / 2);
        put(body, format_args!("<text class=\"h\" x=\"{x}\" y=\"{}\">{id}</text>", top - 8));
        put(body, format_args!("<text class=\"h\" x=\"{middle}\" y=\"{}\">{id}</text>", top + at * CELL_HEIGHT + 18));
    }
    for (row, cells) in matrix.rows.iter().enumerate() {
        for (column, &value) in cells.iter().enumerate() {
            let (x, y) = (left + column * CELL_WIDTH, top + row * CELL_HEIGHT);
            let shade = value.filter(|_| most > least).map_or(0.0, |value| (value - least) / (most - least) * 0.55);
            let (width, height) = (CELL_WIDTH - 2, CELL_HEIGHT - 2);
            put(
                body,
                format_args!(
                    "<rect class=\"c\" fill-opacity=\"{:.2}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>",
                    shade + 0.05
                ),
            );
            put(
                body,
                format_args!("<text class=\"v\" x=\"{}\" y=\"{}\">{}</text>", x + width / 2, y + 17, cell(value)),
            );
        }
    }
    top + matrix.rows.len() * CELL_HEIGHT + GAP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_the_picture() {
        assert_eq!(escaped("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
    }

    #[test]
    fn what_is_not_there_is_a_dash_in_the_lightest_shade() {
        let mut body = String::new();
        draw_matrix(
            &mut body,
            &Matrix { title: "x", rows: vec![vec![Some(90.5), Some(180.0)], vec![None, None]] },
            &[0, 1],
            0,
        );
        assert_eq!(body.matches(">-</text>").count(), 2, "{body}");
        assert_eq!(body.matches("fill-opacity=\"0.05\"").count(), 3, "{body}");
        assert!(body.contains(">90.5</text>"), "{body}");
    }

    #[test]
    fn a_matrix_is_shaded_from_its_least_to_its_greatest_value() {
        let mut body = String::new();
        let rows = [[10.0, 20.0], [15.0, 10.0]].map(|row| row.map(Some).to_vec()).to_vec();
        draw_matrix(&mut body, &Matrix { title: "x", rows }, &[0, 5], 0);
        let shades: Vec<&str> = body.split("fill-opacity=\"").skip(1).map(|rest| &rest[..4]).collect();
        assert_eq!(shades, ["0.05", "0.60", "0.33", "0.05"]);
        assert_eq!(body.matches(">5</text>").count(), 2, "a column and a row are named by the kernel's id");
    }
}
