// SPDX-License-Identifier: GPL-2.0-only
//! Weighted graphs that are divided in two, what a division costs, and coarser graphs made by pairing vertices.

use rand_pcg::Pcg64;

use crate::anneal::below;

/// Vertices with sizes, leans and weighted edges.
#[derive(Default)]
pub struct Graph {
    /// Where the edges of each vertex begin; one more at the end.
    pub first: Vec<usize>,
    /// Neighbour and weight, by vertex.
    pub edges: Vec<(u32, f64)>,
    pub size: Vec<usize>,
    /// Cost on the first side less cost on the second.
    pub lean: Vec<f64>,
    /// The side of vertices that may be on one only.
    pub fixed: Vec<Option<bool>>,
}

/// Least and most size of the first side.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub least: usize,
    pub most: usize,
}

/// Whether each vertex is on the first side, with what that costs.
#[derive(Clone)]
pub struct Division {
    pub first: Vec<bool>,
    pub size: usize,
    pub cost: f64,
}

impl Bounds {
    pub fn violation(self, size: usize) -> usize {
        self.least.saturating_sub(size).max(size.saturating_sub(self.most))
    }
}

impl Division {
    pub fn key(&self, bounds: Bounds) -> (usize, f64) {
        (bounds.violation(self.size), self.cost)
    }

    pub fn is_better(&self, other: &Division, bounds: Bounds) -> bool {
        let (mine, theirs) = (self.key(bounds), other.key(bounds));
        mine.0.cmp(&theirs.0).then(mine.1.total_cmp(&theirs.1)).is_lt()
    }
}

impl Graph {
    pub fn len(&self) -> usize {
        self.size.len()
    }

    pub fn edges(&self, vertex: usize) -> &[(u32, f64)] {
        &self.edges[self.first[vertex]..self.first[vertex + 1]]
    }

    /// Steps that looking at every edge once counts as.
    pub fn sweep_steps(&self) -> u64 {
        1 + (self.len() + self.edges.len()) as u64 / 8
    }

    pub fn division(&self, first: Vec<bool>) -> Division {
        let (mut size, mut cost) = (0, 0.0);
        for vertex in 0..self.len() {
            if first[vertex] {
                size += self.size[vertex];
                cost += self.lean[vertex];
                cost +=
                    self.edges(vertex).iter().filter(|edge| !first[edge.0 as usize]).map(|edge| edge.1).sum::<f64>();
            }
        }
        Division { first, size, cost }
    }

    /// How much less it costs when `vertex` changes sides.
    pub fn gain(&self, first: &[bool], vertex: usize) -> f64 {
        let side = first[vertex];
        let cut = |&(other, weight): &(u32, f64)| if first[other as usize] == side { -weight } else { weight };
        let lean = self.lean[vertex];
        self.edges(vertex).iter().map(cut).sum::<f64>() + if side { lean } else { -lean }
    }

    /// A graph of pairs of vertices, and the pair of each vertex; none if hardly any can be paired.
    pub fn coarsen(&self, rng: &mut Pcg64) -> Option<(Graph, Vec<u32>)> {
        const UNPAIRED: u32 = u32::MAX;
        let most = (self.size.iter().sum::<usize>() / 24).max(2);
        let mut of = vec![UNPAIRED; self.len()];
        let mut pairs = Vec::with_capacity(self.len() / 2 + 1);
        for vertex in shuffled(self.len(), rng) {
            if of[vertex] != UNPAIRED {
                continue;
            }
            let fits = |other: usize| {
                let sides = (self.fixed[vertex], self.fixed[other]);
                of[other] == UNPAIRED && self.size[vertex] + self.size[other] <= most && sides.0 == sides.1
            };
            let open = self.edges(vertex).iter().filter(|&&(other, weight)| weight > 0.0 && fits(other as usize));
            // Small partners first among the equally heavy: sizes stay even.
            let density = |&(other, weight): &(u32, f64)| weight / self.size[other as usize] as f64;
            let partner = open.max_by(|a, b| density(a).total_cmp(&density(b))).map_or(vertex, |edge| edge.0 as usize);
            of[vertex] = pairs.len() as u32;
            of[partner] = pairs.len() as u32;
            pairs.push((vertex, partner));
        }
        (pairs.len() * 20 <= self.len() * 19).then(|| (self.contracted(&pairs, &of), of))
    }

    fn contracted(&self, pairs: &[(usize, usize)], of: &[u32]) -> Graph {
        let mut coarse = Graph { first: vec![0], ..Graph::default() };
        // Where the edge to a coarse vertex is, if it was made since the edges of the present one began.
        let mut at = vec![usize::MAX; pairs.len()];
        for (vertex, &(a, b)) in pairs.iter().enumerate() {
            let begin = coarse.edges.len();
            let members = if a == b { &[a][..] } else { &[a, b][..] };
            for &member in members {
                for &(other, weight) in self.edges(member) {
                    let other = of[other as usize] as usize;
                    if other == vertex {
                        continue;
                    }
                    if at[other] == usize::MAX || at[other] < begin {
                        at[other] = coarse.edges.len();
                        coarse.edges.push((other as u32, 0.0));
                    }
                    coarse.edges[at[other]].1 += weight;
                }
            }
            coarse.first.push(coarse.edges.len());
            coarse.size.push(members.iter().map(|&member| self.size[member]).sum());
            coarse.lean.push(members.iter().map(|&member| self.lean[member]).sum());
            coarse.fixed.push(self.fixed[a]);
        }
        coarse
    }
}

/// 0, 1, ... in random order.
pub fn shuffled(count: usize, rng: &mut Pcg64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for at in (1..count).rev() {
        order.swap(at, below(rng, at + 1));
    }
    order
}
