// SPDX-License-Identifier: GPL-2.0-only
//! Which pages of an allocation go where.

use tandem_policies::model::PAGE_BYTES;

use super::LEAST_BYTES;

/// Pages of a heap that go to one chunk's node before it is the next one's turn.
const BLOCK: u64 = LEAST_BYTES / PAGE_BYTES;

/// Neighbouring pages on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first one, counted from the allocation's begin.
    pub first_page: u64,
    /// How many.
    pub pages: u64,
    /// The kernel's id of their node.
    pub node: u32,
}

impl Run {
    /// The page behind its last one.
    pub fn end(&self) -> u64 {
        self.first_page + self.pages
    }

    /// The part of it from page `first` to page `end`, this one left out.
    pub fn within(&self, first: u64, end: u64) -> Option<Self> {
        let (first_page, end) = (self.first_page.max(first), self.end().min(end));
        (first_page < end).then(|| Self { first_page, pages: end - first_page, ..*self })
    }
}

/// An allocation of `pages` pages in equal chunks, chunk i on the i-th of these nodes.
pub fn in_chunks(pages: u64, chunks: &[u32]) -> Vec<Run> {
    let many = chunks.len() as u64;
    let part = |(chunk, &node): (u64, &u32)| {
        let (begin, end) = (pages * chunk / many, pages * (chunk + 1) / many);
        Run { first_page: begin, pages: end - begin, node }
    };
    joined((0..).zip(chunks).map(part))
}

/// The pages from `first` to `end`, this one left out, of an allocation that grows, so that nobody knows what equal chunks of it will
/// be: each chunk gets [`BLOCK`] pages in turn.
pub(super) fn in_turn(first: u64, end: u64, chunks: &[u32]) -> Vec<Run> {
    let block = |block: u64| {
        let node = chunks[(block % chunks.len() as u64) as usize];
        Run { first_page: block * BLOCK, pages: BLOCK, node }.within(first, end)
    };
    joined((first / BLOCK..end.div_ceil(BLOCK)).filter_map(block))
}

/// Parts that follow each other: those on one node as one, empty ones left out.
fn joined(parts: impl Iterator<Item = Run>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for part in parts.filter(|part| part.pages > 0) {
        match runs.last_mut() {
            Some(last) if last.node == part.node => last.pages += part.pages,
            _ => runs.push(part),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_on_the_node_of_its_chunk() {
        for pages in [0, 1, 2, 3, 7, 64, 1000] {
            for chunks in [vec![0], vec![0, 1], vec![0, 0, 1, 1], vec![0, 1, 0, 1, 2], vec![5; 8]] {
                let many = chunks.len() as u64;
                // Chunk i begins where i of so many equal parts end.
                let expected: Vec<u32> = (0..pages)
                    .map(|page| chunks[(0..many).rfind(|chunk| pages * chunk / many <= page).unwrap() as usize])
                    .collect();
                let runs = in_chunks(pages, &chunks);
                let found: Vec<u32> = runs.iter().flat_map(|run| vec![run.node; run.pages as usize]).collect();
                assert_eq!(found, expected, "{pages} pages, {chunks:?}");
                let begins: Vec<u64> = runs.iter().map(|run| run.first_page).collect();
                let lengths = runs.iter().scan(0, |sum, run| Some(std::mem::replace(sum, *sum + run.pages)));
                assert_eq!(begins, lengths.collect::<Vec<u64>>());
                assert!(runs.windows(2).all(|two| two[0].node != two[1].node), "{runs:?}");
            }
        }
    }

    #[test]
    fn pages_of_what_grows_are_where_they_are_in_whatever_steps_it_grows() {
        for chunks in [vec![0], vec![0, 1], vec![0, 0, 1, 1], vec![3, 1, 2]] {
            for step in [1, 33, 64, 200] {
                let mut node_of = Vec::new();
                for first in (0..1000).step_by(step) {
                    for run in in_turn(first, first + step as u64, &chunks) {
                        assert_eq!(run.first_page, node_of.len() as u64);
                        node_of.extend(vec![run.node; run.pages as usize]);
                    }
                }
                let expected: Vec<u32> =
                    (0..node_of.len()).map(|page| chunks[page / BLOCK as usize % chunks.len()]).collect();
                assert_eq!(node_of, expected, "{step} pages a step, {chunks:?}");
            }
        }
    }
}
