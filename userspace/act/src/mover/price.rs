// SPDX-License-Identifier: GPL-2.0-only
//! What moving a page costs, learnt from calls.
//!
//! A call takes some time whatever it moves, so a page of a small one costs several times as much as one of a large call: what
//! one page cost alone must not become the price of thousands. So a call counts by its pages, and nothing is said before some
//! were moved.

/// Call time per page, over the last pages that were moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Price {
    ns: f64,
    /// Pages that this stands for, at most `memory_pages`.
    pages: f64,
    enough_pages: f64,
    memory_pages: f64,
}

impl Price {
    /// A price that is known once `enough_pages` were moved, and mainly that of the last `memory_pages`.
    pub(super) fn new(enough_pages: u64, memory_pages: u64) -> Self {
        Self { ns: 0.0, pages: 0.0, enough_pages: enough_pages as f64, memory_pages: memory_pages as f64 }
    }

    /// A call moved so many pages.
    pub(super) fn learn(&mut self, pages: u64, time_ns: u64) {
        if pages == 0 {
            return;
        }
        let all = self.pages + pages as f64;
        self.ns = (self.ns * self.pages + time_ns as f64) / all;
        self.pages = all.min(self.memory_pages);
    }

    /// In ns a page.
    pub(super) fn known(&self) -> Option<f64> {
        (self.pages >= self.enough_pages).then_some(self.ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_single_pages_cost_is_no_price() {
        let mut price = Price::new(64, 4096);
        price.learn(1, 190_000);
        price.learn(0, 50_000);
        assert_eq!(price.known(), None);
        price.learn(511, 511 * 30_000);
        assert_eq!(price.known(), Some((190_000.0 + 511.0 * 30_000.0) / 512.0));
    }

    #[test]
    fn a_price_follows_what_large_calls_cost_now() {
        let mut price = Price::new(64, 4096);
        (0..100).for_each(|_| price.learn(512, 512 * 30_000));
        price.learn(1, 190_000);
        assert!((30_000.0..30_100.0).contains(&price.known().unwrap()));
        (0..40).for_each(|_| price.learn(512, 512 * 60_000));
        assert!((59_000.0..60_000.0).contains(&price.known().unwrap()));
    }
}
