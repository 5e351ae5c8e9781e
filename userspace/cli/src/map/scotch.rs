// SPDX-License-Identifier: GPL-2.0-only
//! A second opinion: the mapping that Scotch's program gmap finds for the same request.
//!
//! Problem: whether a mapping is any good is best seen beside that of another mapper. Mechanism: graph and machine are written in Scotch's
//! formats, gmap is run on them, and its mapping is priced as ours are. Scotch fills nodes evenly, so the graph gets threads that share
//! nothing until the nodes are full; it knows whole weights and distances of at least 1 only, so others are scaled and rounded; and it may
//! overfill nodes: threads beyond a capacity are moved where they cost least.
//!
//! Formats: F. Pellegrini, Scotch and libScotch 7.0 User's Guide, sections "Graph format", "Target format" (decomposition-defined
//! architecture) and "Mapping format".

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use tandem_policies::mapping::{Request, Search, place_tree};

/// What Scotch says.
#[derive(Debug, Serialize)]
pub struct Opinion {
    /// Index of the node by thread.
    pub assignment: Vec<usize>,
    pub cost: f64,
    /// Threads moved because Scotch had put more on a node than it holds.
    pub moved: usize,
    /// How long its program ran.
    pub time_ms: f64,
}

/// Names of the program, Debian's first.
const PROGRAMS: [&str; 2] = ["scotch_gmap", "gmap"];
/// Greatest whole number that weights and distances that are not whole are scaled to.
const SCALE: f64 = 10_000.0;
/// Scotch adds up weights in 32 bits.
const MOST_WEIGHT: f64 = (1u32 << 30) as f64;

/// The mapping that Scotch finds for `request`.
///
/// # Errors
/// Scotch is not installed, or fails.
pub fn ask(request: &Request) -> Result<Opinion> {
    let program = program()?;
    let folder = tempfile::tempdir().context("there is no room for temporary files")?;
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("graph"), graph(request)).context("a temporary file cannot be written")?;
    std::fs::write(file("target"), target(request)?).context("a temporary file cannot be written")?;
    let start = Instant::now();
    let output = Command::new(&program).args([file("graph"), file("target"), file("map")]).arg("-b0").output();
    let time_ms = start.elapsed().as_secs_f64() * 1e3;
    let output = output.with_context(|| format!("{} cannot be started", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().next().unwrap_or("it does not say why");
    ensure!(output.status.success(), "{} failed: {first}", program.display());
    let text = std::fs::read_to_string(file("map")).context("Scotch has written no mapping")?;
    let places = mapping(&text, request)?;
    let priced = Request { present: Some(places.clone()), ..request.clone() };
    let kept = Search::new(&priced, 1)?.best();
    let moved = kept.places.iter().zip(&places).filter(|(kept, wanted)| kept != wanted).count();
    Ok(Opinion { assignment: kept.places, cost: kept.cost, moved, time_ms })
}

fn program() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let candidates = PROGRAMS.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let found = candidates.into_iter().find(|file| file.is_file());
    found.context("Scotch is not installed: install Debian's package scotch, or leave --with scotch out")
}

/// Whole numbers of at least 1 in proportion to `values`, which are positive.
fn whole(values: &[f64], most: f64) -> Vec<u64> {
    let greatest = values.iter().copied().fold(0.0, f64::max);
    let is_whole = values.iter().all(|value| value.fract() == 0.0) && greatest <= most;
    let factor = if is_whole || greatest == 0.0 { 1.0 } else { SCALE.min(most) / greatest };
    values.iter().map(|value| ((value * factor).round() as u64).max(1)).collect()
}

/// The graph, with idle threads in the free places.
fn graph(request: &Request) -> String {
    let edges: Vec<_> = request.weights.iter().filter(|&&(.., weight)| weight > 0.0).collect();
    let weights: Vec<f64> = edges.iter().map(|&&(.., weight)| weight).collect();
    let most = (MOST_WEIGHT / (1.0 + weights.len() as f64)).max(1.0);
    let room: usize = request.capacities.iter().sum();
    let mut neighbours = vec![std::collections::BTreeMap::new(); room.max(request.threads)];
    for (&&(first, second, _), weight) in edges.iter().zip(whole(&weights, most)) {
        *neighbours[first].entry(second).or_insert(0) += weight;
        *neighbours[second].entry(first).or_insert(0) += weight;
    }
    let ends: usize = neighbours.iter().map(|of| of.len()).sum();
    let mut text = format!("0\n{}\t{ends}\n0\t010\n", neighbours.len());
    for of in &neighbours {
        let list: String = of.iter().map(|(other, weight)| format!("\t{weight}\t{other}")).collect();
        let _ = writeln!(text, "{}{list}", of.len());
    }
    text
}

/// The machine: its places that hold anyone as ends of a tree of domains, then the distances between them.
fn target(request: &Request) -> Result<String> {
    let tree = place_tree(request, 1)?;
    let places: Vec<usize> = (0..tree.len()).filter(|&place| tree[place] > 0).collect();
    let last = tree.iter().max().copied().unwrap_or(0);
    let mut text = format!("deco\n0\n{} {last}\n", places.len());
    for &place in &places {
        let _ = writeln!(text, "{place} {} {}", request.capacities[place], tree[place]);
    }
    let distance = |a: usize, b: usize| (request.distances[a][b] + request.distances[b][a]) / 2.0;
    let pairs = places.iter().enumerate().flat_map(|(at, &a)| places[..at].iter().map(move |&b| distance(a, b)));
    let mut distances = whole(&pairs.map(|distance| distance.max(0.0)).collect::<Vec<_>>(), SCALE).into_iter();
    for at in 1..places.len() {
        let row: Vec<String> = distances.by_ref().take(at).map(|distance| distance.to_string()).collect();
        let _ = writeln!(text, "{}", row.join(" "));
    }
    Ok(text)
}

/// Place by thread: after their number, a line with a thread and a place for each.
fn mapping(text: &str, request: &Request) -> Result<Vec<usize>> {
    let mut places = vec![None; request.threads];
    for line in text.lines().skip(1) {
        let numbers: Vec<usize> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [thread, place] = numbers[..] else { bail!("Scotch's mapping has the line '{line}'") };
        ensure!(place < request.capacities.len(), "Scotch's mapping has place {place}, which does not exist");
        if let Some(entry) = places.get_mut(thread) {
            *entry = Some(place);
        }
    }
    places.into_iter().collect::<Option<_>>().context("Scotch's mapping leaves threads out")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three threads on two nodes that hold two each.
    fn request() -> Request {
        Request {
            threads: 3,
            weights: vec![(0, 1, 2.0), (1, 2, 1.0), (0, 2, 0.0)],
            capacities: vec![2, 2],
            distances: vec![vec![0.0, 4.0], vec![4.0, 0.0]],
            ..Request::default()
        }
    }

    #[test]
    fn the_graph_has_both_ends_of_every_edge_and_idle_threads_in_free_places() {
        assert_eq!(graph(&request()), "0\n4\t4\n0\t010\n1\t2\t1\n2\t2\t0\t1\t2\n1\t1\t1\n0\n");
    }

    #[test]
    fn the_target_is_a_tree_of_places_and_the_lower_half_of_the_distances() {
        let text = target(&request()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((&lines[..3], lines[5]), (&["deco", "0", "2 3"][..], "4"), "{text}");
        assert!(["0 2 2", "0 2 3"].contains(&lines[3]) && ["1 2 2", "1 2 3"].contains(&lines[4]), "{text}");
    }

    #[test]
    fn numbers_that_are_not_whole_are_scaled_and_never_nothing() {
        assert_eq!(whole(&[1.0, 3.0], 100.0), [1, 3]);
        assert_eq!(whole(&[0.5, 0.25, 1e-9], 100.0), [100, 50, 1]);
        assert_eq!(whole(&[400.0, 100.0], 100.0), [100, 25]);
    }

    #[test]
    fn a_mapping_is_read_and_one_that_is_none_refused() {
        assert_eq!(mapping("4\n0\t1\n2\t0\n1\t1\n3\t0\n", &request()).unwrap(), [1, 1, 0]);
        for text in ["2\n0\t1\n1\t1\n", "3\n0\t1\n1\t9\n2\t0\n", "3\n0\t1\n1\tx\n2\t0\n"] {
            assert!(mapping(text, &request()).is_err(), "{text}");
        }
    }
}
