// SPDX-License-Identifier: GPL-2.0-only
//! Graphs of what threads share, in the forms that `tandem map` reads.
//!
//! | form | text |
//! |---|---|
//! | edges | `thread thread weight` a line, threads from 0, each pair once, nobody with itself; `#` begins a comment |
//! | json | {"threads": T, "weights": [[thread, thread, weight], ...]}, threads from 0, each pair once |
//! | csv | a T x T matrix, a row a line; of a pair the mean of both entries counts, the diagonal does not |
//! | metis | METIS's graph format: `vertices edges [format [weights]]`, then a line a vertex, from 1, each edge at both ends |

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use serde::Deserialize;
use tandem_policies::foreign::{message, quoted};

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
        Format::Json => json(&text),
        Format::Csv => csv(&text),
        Format::Metis => metis(&text),
    };
    let graph = graph.and_then(|graph| {
        ensure!(graph.threads > 0, "it says nothing of any thread; give what at least one pair of threads shares");
        Ok(graph)
    });
    graph.with_context(|| path.display().to_string())
}

/// Pairs given so far, with where: the line, or the position in a list.
#[derive(Default)]
struct Pairs {
    given: HashMap<(usize, usize), usize>,
}

impl Pairs {
    /// Takes a pair in that is given at `at`, a `what`.
    fn add(&mut self, first: usize, second: usize, what: &str, at: usize) -> Result<()> {
        ensure!(first != second, "{what} {at}: thread {first} cannot share with itself; leave it out");
        let before = self.given.insert((first.min(second), first.max(second)), at);
        match before {
            Some(before) => {
                bail!("{what} {at}: threads {first} and {second} are in {what} {before} already; give each pair once")
            }
            None => Ok(()),
        }
    }
}

fn number<T: std::str::FromStr>(text: &str, what: &str, line: usize) -> Result<T> {
    text.parse().ok().with_context(|| format!("line {line}: {what} {} is not a number of the right kind", quoted(text)))
}

fn weight(text: &str, line: usize) -> Result<f64> {
    let weight: f64 = number(text, "weight", line)?;
    ensure!(weight >= 0.0 && weight.is_finite(), "line {line}: the weight is {weight}; give a number of at least 0");
    Ok(weight)
}

fn json(text: &str) -> Result<Graph> {
    let graph: Graph = serde_json::from_str(text).map_err(|error| {
        anyhow!("this is no {{\"threads\": T, \"weights\": [[i, j, w], ...]}}: {}", message(&error.to_string()))
    })?;
    let mut pairs = Pairs::default();
    for (at, &(first, second, _)) in graph.weights.iter().enumerate() {
        pairs.add(first, second, "weight", at + 1)?;
    }
    Ok(graph)
}

fn edges(text: &str) -> Result<Graph> {
    let mut graph = Graph { threads: 0, weights: Vec::new() };
    let mut pairs = Pairs::default();
    for (at, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        match words[..] {
            [] => {}
            [first, second, shared] => {
                // Threads are counted in 32 bits, so that one more than the last is a number, too.
                let thread = |word| number::<u32>(word, "thread", at + 1).map(|thread| thread as usize);
                let (first, second) = (thread(first)?, thread(second)?);
                pairs.add(first, second, "line", at + 1)?;
                graph.threads = graph.threads.max(first + 1).max(second + 1);
                graph.weights.push((first, second, weight(shared, at + 1)?));
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
            let weight = if column == row { 0.0 } else { weight(entry, at + 1)? };
            if weight != 0.0 {
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
    // Ends given so far, by vertex and neighbour.
    let mut given: HashMap<(usize, usize), f64> = HashMap::new();
    for vertex in 1..=threads {
        let (at, line) =
            lines.next().with_context(|| format!("there are lines for {} of {threads} vertices", vertex - 1))?;
        let words: Vec<&str> = line.split_whitespace().skip(skip).collect();
        for edge in words.chunks(if weighted { 2 } else { 1 }) {
            let other: usize = number(edge[0], "vertex", at + 1)?;
            ensure!((1..=threads).contains(&other), "line {}: there is no vertex {other} of {threads}", at + 1);
            ensure!(other != vertex, "line {}: vertex {vertex} cannot share with itself; leave it out", at + 1);
            let weight = match edge.get(1) {
                Some(word) => weight(word, at + 1)?,
                None if weighted => bail!("line {}: the edge to vertex {other} has no weight", at + 1),
                None => 1.0,
            };
            let twice = given.insert((vertex, other), weight).is_some();
            ensure!(!twice, "line {}: the edge to vertex {other} is there twice; give it once", at + 1);
            // Each edge stands at both ends; it counts at the later one.
            if other < vertex {
                let there = given.get(&(other, vertex)).copied();
                let same = there == Some(weight);
                ensure!(same, "line {}: the edge to vertex {other} is not the same in the line of that one", at + 1);
                graph.weights.push((other - 1, vertex - 1, weight));
            }
        }
    }
    let ends = given.len();
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

    fn sentence(result: Result<Graph>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        assert_eq!(sentence(edges("0 1")), "line 1: give two threads and a weight, not 2 words");
        assert_eq!(sentence(edges("0 -1 2")), "line 1: thread \"-1\" is not a number of the right kind");
        assert_eq!(sentence(csv("0,1\n1,0,3")), "line 2: 3 entries in a matrix of 2 rows; it must be square");
        assert_eq!(sentence(metis("2 1\n3\n1")), "line 2: there is no vertex 3 of 2");
        assert_eq!(sentence(metis("2 1\n2\n")), "there are lines for 1 of 2 vertices");
        assert_eq!(sentence(metis("2 2\n2\n1")), "2 edges are announced, but 2 ends of edges follow instead of 4");
        assert_eq!(sentence(metis("2 1 1\n2\n1")), "line 2: the edge to vertex 2 has no weight");
    }

    #[test]
    fn what_is_wrong_is_repeated_without_orders_to_a_terminal_and_not_at_length() {
        let word = format!("\u{1b}[31m{}", "x".repeat(200_000));
        let json = format!(r#"{{"threads": 2, "weights": [["{}", 1, 1]]}}"#, "x".repeat(200_000));
        let metis = metis(&format!("{word} 1"));
        for sentence in [edges(&format!("0 {word} 1")), csv(&format!("0,{word}\n1,0")), metis, super::json(&json)] {
            let sentence = format!("{:#}", sentence.unwrap_err());
            assert!(
                !sentence.contains('\u{1b}') && sentence.contains("xxx") && sentence.len() < 500,
                "{sentence:.600}"
            );
        }
    }

    #[test]
    fn a_thread_that_shares_with_itself_is_refused_with_its_line() {
        assert_eq!(sentence(edges("0 1 1\n2 2 1")), "line 2: thread 2 cannot share with itself; leave it out");
        assert_eq!(sentence(metis("2 1\n1 2\n1")), "line 2: vertex 1 cannot share with itself; leave it out");
        let json = json(r#"{"threads": 3, "weights": [[0,1,1],[2,2,1]]}"#);
        assert_eq!(sentence(json), "weight 2: thread 2 cannot share with itself; leave it out");
    }

    #[test]
    fn what_is_given_twice_is_refused_with_both_lines() {
        let twice = sentence(edges("0 1 1\n# again\n1 0 2"));
        assert_eq!(twice, "line 3: threads 1 and 0 are in line 1 already; give each pair once");
        let twice = sentence(json(r#"{"threads": 3, "weights": [[0,1,1],[0,1,1]]}"#));
        assert_eq!(twice, "weight 2: threads 0 and 1 are in weight 1 already; give each pair once");
        assert_eq!(sentence(metis("2 1\n2 2\n1")), "line 2: the edge to vertex 2 is there twice; give it once");
    }

    #[test]
    fn an_edge_of_metis_that_its_other_end_does_not_know_is_refused() {
        let not_the_same = "line 3: the edge to vertex 1 is not the same in the line of that one";
        assert_eq!(sentence(metis("2 1 1\n2 5\n1 6")), not_the_same);
        assert_eq!(sentence(metis("2 1\n\n1")), not_the_same);
    }

    #[test]
    fn a_weight_that_is_no_number_of_at_least_0_is_refused_with_its_line() {
        for weight in ["NaN", "-2", "inf"] {
            let expected = format!("the weight is {weight}; give a number of at least 0");
            assert_eq!(sentence(edges(&format!("0 1 {weight}"))), format!("line 1: {expected}"));
            assert_eq!(sentence(csv(&format!("0,1\n{weight},0"))), format!("line 2: {expected}"));
            assert_eq!(sentence(metis(&format!("2 1 1\n2 {weight}\n1 1"))), format!("line 2: {expected}"));
        }
    }
}
