// SPDX-License-Identifier: GPL-2.0-only
//! Where the pages of a region are.

/// Shares of a region's pages by node; those above 0 only, ascending by node, their sum 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread(Vec<(usize, f64)>);

impl Spread {
    /// All pages on one node.
    pub fn on(node: usize) -> Self {
        Self(vec![(node, 1.0)])
    }

    /// Equal shares on these nodes, ascending.
    pub fn over(nodes: &[usize]) -> Self {
        Self(nodes.iter().map(|&node| (node, 1.0 / nodes.len() as f64)).collect())
    }

    /// In proportion to the pages of each node; nowhere without pages.
    pub fn of_pages(pages: impl Iterator<Item = f64>) -> Self {
        let pages: Vec<f64> = pages.collect();
        let all: f64 = pages.iter().sum();
        Self(pages.iter().enumerate().filter(|(_, on)| **on > 0.0).map(|(node, on)| (node, on / all)).collect())
    }

    /// The nodes with their shares.
    pub fn iter(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.0.iter().copied()
    }

    /// The share on a node.
    pub fn on_node(&self, node: usize) -> f64 {
        self.0.iter().find(|share| share.0 == node).map_or(0.0, |share| share.1)
    }
}
