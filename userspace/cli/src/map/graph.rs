// SPDX-License-Identifier: GPL-2.0-only
//! Graphs of what threads share, in the forms that `tandem map` reads.
//!
//! | form | text |
//! |---|---|
//! | edges | `thread thread weight` a line, threads from 0, each pair once; `#` begins a comment |
//! | json | {"threads": T, "weights": [[thread, thread, weight], ...]}, threads from 0, each pair once |
//! | csv | a T x T matrix, a row a line; of a pair the mean of both entries counts, the diagonal does not |
//! | metis | METIS's graph format: `vertices edges [format [weights]]`, then a line a vertex, from 1, each edge at both ends |

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::Deserialize;

/// Threads and what pairs of them share.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    pub threads: usize,
    pub weights: Vec<(usize, usize, f64)>,
}

/// The form of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Lines of two threads and a weight
    Edges,
    /// {"threads": T, "weights": [[thread, thread, weight], ...]}
    Json,
    /// A matrix
    Csv,
    /// METIS's graph format
    Metis,
}

/// Reads a graph; without a form, in that of the file's name.
pub fn read(path: &Path, format: Option<Format>) -> Result<Graph> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let format = format.unwrap_or_else(|| match path.extension().and_then(|end| end.to_str()) {
        Some("json") => Format::Json,
        Some("csv") => Format::Csv,
        Some("graph" | "metis") => Format::Metis,
        _ => Format::Edges,
    });
    let graph = match format {
        Format::Edges => edges(&text),
        Format::Json => {
            serde_json::from_str(&text).context("this is no {\"threads\": T, \"weights\": [[i, j, w], ...]}")
        }
        Format::Csv => csv(&text),
        Format::Metis => metis(&text),
    };
    graph.with_context(|| path.display().to_string())
}

fn number<T: std::str::FromStr>(text: &str, what: &str, line: usize) -> Result<T> {
    text.parse().ok().with_context(|| format!("line {line}: {what} '{text}' is not a number of the right kind"))
}

fn edges(text: &str) -> Result<Graph> {
    let mut graph = Graph { threads: 0, weights: Vec::new() };
    for (at, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        match words[..] {
            [] => {}
            [first, second, weight] => {
                // Threads are counted in 32 bits, so that one more than the last is a number, too.
                let thread = |word| number::<u32>(word, "thread", at + 1).map(|thread| thread as usize);
                let (first, second) = (thread(first)?, thread(second)?);
                graph.threads = graph.threads.max(first + 1).max(second + 1);
                graph.weights.push((first, second, number(weight, "weight", at + 1)?));
            }
            _ => bail!("line {}: give two threads and a weight, not {} words", at + 1, words.len()),
        }
    }
    Ok(graph)
}

fn csv(text: &str) -> Result<Graph> {
    let lines: Vec<(usize, &str)> = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).collect();
    let mut graph = Graph { threads: lines.len(), weights: Vec::new() };
    for (row, (at, line)) in lines.iter().enumerate() {
        let entries: Vec<&str> = line.split(',').map(str::trim).collect();
        let (found, threads) = (entries.len(), graph.threads);
        ensure!(found == threads, "line {}: {found} entries in a matrix of {threads} rows; it must be square", at + 1);
        for (column, entry) in entries.iter().enumerate() {
            let weight: f64 = number(entry, "weight", at + 1)?;
            if column != row && weight != 0.0 {
                graph.weights.push((row, column, weight / 2.0));
            }
        }
    }
    Ok(graph)
}

/// Weights of vertices are read over: each thread needs one CPU.
fn metis(text: &str) -> Result<Graph> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with('%'));
    let (at, header) = lines.next().context("there is no line with the numbers of vertices and edges")?;
    let words: Vec<&str> = header.split_whitespace().collect();
    ensure!((2..=4).contains(&words.len()), "line {}: give the numbers of vertices and edges", at + 1);
    let threads: usize = number(words[0], "number of vertices", at + 1)?;
    let expected: usize = number(words[1], "number of edges", at + 1)?;
    let flags: u32 = number(words.get(2).unwrap_or(&"0"), "format", at + 1)?;
    ensure!(matches!(flags, 0 | 1 | 10 | 11 | 100 | 101 | 110 | 111), "line {}: there is no format {flags}", at + 1);
    let (sizes, vertex_weights, weighted) = (flags / 100 == 1, flags / 10 % 10 == 1, flags % 10 == 1);
    let per_vertex: usize = words.get(3).map_or(Ok(1), |word| number(word, "number of vertex weights", at + 1))?;
    let skip = usize::from(sizes) + if vertex_weights { per_vertex } else { 0 };
    let mut graph = Graph { threads, weights: Vec::new() };
    let mut ends = 0;
    for vertex in 0..threads {
        let (at, line) = lines.next().with_context(|| format!("there are lines for {vertex} of {threads} vertices"))?;
        let words: Vec<&str> = line.split_whitespace().skip(skip).collect();
        for edge in words.chunks(if weighted { 2 } else { 1 }) {
            let other: usize = number(edge[0], "vertex", at + 1)?;
            ensure!((1..=threads).contains(&other), "line {}: there is no vertex {other} of {threads}", at + 1);
            let weight = match edge.get(1) {
                Some(word) => number(word, "weight", at + 1)?,
                None if weighted => bail!("line {}: the edge to vertex {other} has no weight", at + 1),
                None => 1.0,
            };
            ends += 1;
            // Each edge stands at both ends; it counts where the other end has the higher number.
            if other - 1 > vertex {
                graph.weights.push((vertex, other - 1, weight));
            }
        }
    }
    ensure!(
        ends == 2 * expected,
        "{expected} edges are announced, but {ends} ends of edges follow instead of {}",
        2 * expected
    );
    Ok(graph)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pair that shares 2, and a third thread that shares 1 with the second.
    fn graph() -> Graph {
        Graph { threads: 3, weights: vec![(0, 1, 2.0), (1, 2, 1.0)] }
    }

    /// Each pair once, as the mapper adds it up.
    fn summed(graph: &Graph) -> Graph {
        let mut sums = std::collections::BTreeMap::new();
        for &(a, b, weight) in &graph.weights {
            *sums.entry((a.min(b), a.max(b))).or_insert(0.0) += weight;
        }
        Graph { threads: graph.threads, weights: sums.into_iter().map(|((a, b), weight)| (a, b, weight)).collect() }
    }

    #[test]
    fn every_form_says_the_same() {
        assert_eq!(edges("# pairs\n0 1 2\n\n1 2 1 # the last\n").unwrap(), graph());
        assert_eq!(summed(&csv("9,2,0\n2,9,1\n0,1,9\n").unwrap()), graph());
        assert_eq!(metis("% threads\n3 2 1\n2 2\n1 2 3 1\n2 1\n").unwrap(), graph());
        assert_eq!(metis("3 2 011 2\n7 7 2 2\n7 7 1 2 3 1\n7 7 2 1\n").unwrap(), graph());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let sentence = |result: Result<Graph>| result.unwrap_err().to_string();
        assert_eq!(sentence(edges("0 1")), "line 1: give two threads and a weight, not 2 words");
        assert_eq!(sentence(edges("0 -1 2")), "line 1: thread '-1' is not a number of the right kind");
        assert_eq!(sentence(csv("0,1\n1,0,3")), "line 2: 3 entries in a matrix of 2 rows; it must be square");
        assert_eq!(sentence(metis("2 1\n3\n1")), "line 2: there is no vertex 3 of 2");
        assert_eq!(sentence(metis("2 1\n2\n")), "there are lines for 1 of 2 vertices");
        assert_eq!(sentence(metis("2 2\n2\n1")), "2 edges are announced, but 2 ends of edges follow instead of 4");
        assert_eq!(sentence(metis("2 1 1\n2\n1")), "line 2: the edge to vertex 2 has no weight");
    }
}
