// SPDX-License-Identifier: GPL-2.0-only
//! How long the page moves of a plan may take.

/// How far the page moves of a plan are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// Some are still to come.
    UnderWay,
    /// Some are, and it has taken long already.
    Overdue,
    /// Some are, but wait for memory pressure to end.
    HeldUp,
    /// All have ended.
    Over,
}

/// After so long page moves that are still under way are planned anew: nothing else is decided meanwhile, and what paid when the
/// plan was made may not pay any more.
pub const LONGEST_NS: u64 = 10_000_000_000;

impl Moves {
    /// Where so many groups are queued still, so long after the plan was made.
    pub fn of(queued_groups: usize, is_paused: bool, since_plan_ns: u64) -> Self {
        match queued_groups {
            0 => Self::Over,
            _ if is_paused => Self::HeldUp,
            _ if since_plan_ns >= LONGEST_NS => Self::Overdue,
            _ => Self::UnderWay,
        }
    }

    /// Whether pages move.
    pub fn go_on(self) -> bool {
        matches!(self, Self::UnderWay | Self::Overdue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_are_overdue_after_ten_seconds_unless_they_are_held_up_or_over() {
        let of = |queued, paused| [9, 10].map(|at_s| Moves::of(queued, paused, at_s * 1_000_000_000));
        assert_eq!(of(1, false), [Moves::UnderWay, Moves::Overdue]);
        assert_eq!((of(1, true), of(0, true)), ([Moves::HeldUp; 2], [Moves::Over; 2]));
    }
}
