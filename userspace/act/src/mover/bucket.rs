// SPDX-License-Identifier: GPL-2.0-only
//! A budget that comes at a rate.

const NS_PER_S: u128 = 1_000_000_000;

/// Tokens that come at a rate; may be overdrawn, then the debt is paid first.
#[derive(Debug)]
pub(super) struct Bucket {
    per_s: u64,
    capacity: i64,
    tokens: i64,
    remainder: u128,
}

impl Bucket {
    /// A full bucket.
    pub(super) fn new(per_s: u64, capacity: u64) -> Self {
        let capacity = i64::try_from(capacity).unwrap_or(i64::MAX);
        Self { per_s, capacity, tokens: capacity, remainder: 0 }
    }

    /// Tokens come at another rate from now on. Those that are there stay, as far as there is room for them, and so does a debt.
    pub(super) fn change(&mut self, per_s: u64, capacity: u64) {
        *self = Self { tokens: self.tokens.min(Self::new(per_s, capacity).capacity), ..Self::new(per_s, capacity) };
    }

    /// Time passes.
    pub(super) fn refill(&mut self, elapsed_ns: u64) {
        let due = u128::from(self.per_s) * u128::from(elapsed_ns) + self.remainder;
        self.remainder = due % NS_PER_S;
        let tokens = i64::try_from(due / NS_PER_S).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_add(tokens).min(self.capacity);
    }

    /// Whether so many are there.
    pub(super) fn has(&self, tokens: u64) -> bool {
        i64::try_from(tokens).is_ok_and(|tokens| self.tokens >= tokens)
    }

    /// Takes tokens, whether or not they are there.
    pub(super) fn spend(&mut self, tokens: u64) {
        self.tokens = self.tokens.saturating_sub(i64::try_from(tokens).unwrap_or(i64::MAX));
    }
}
