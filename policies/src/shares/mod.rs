// SPDX-License-Identifier: GPL-2.0-only
//! How much of a divisible load each of two unlike processors should get, learnt from how long they took.
//!
//! Problem: two classes of processors (core classes, throttled nodes, thread pools) work on one load; who finishes first
//! waits. Mechanism (IHP, Thanos thesis, chapter 2): the load is done in windows. In each one the first class gets
//! the share alpha in \[0, 1\], the second the rest. From the times both took, in seconds, follows the next alpha:
//!
//! - [`Method::PerUnit`] (IHPv1, eq. 2.3): the share that would have made the last window's times equal.
//! - [`Method::Fitted`] (IHPv2): time over share is one of three one-parameter curves ([`Shape`]) for each class, by the
//!   last windows; the next alpha is where both take equally long.
//!
//! A share below .01 becomes 0 and above .99 becomes 1. Then one class is not measured any more, and it stays so.
//!
//! Errata of the source and what we do: eq. 2.3 holds for times per unit of work only; with the times of chunks a
//! balanced state would go to .5, ours is alpha t2 / (alpha t2 + (1 - alpha) t1). Eq. 2.13 forgets the weights in
//! its numerator. The denominator of eq. 2.15 must be f1'(alpha) + f2'(1 - alpha). Exponential weights do not add up to 1; we
//! divide by their sum. A curve through the averaged point misses curved data, so that an exponential is taken for a line;
//! by default the parameter is the average of those of the single points ([`Fit`]). The exponential curve depends on
//! the unit of time: seconds.

mod curve;
mod meet;
pub mod speeds;

use std::collections::VecDeque;

pub use curve::{Curve, Fit, Point, Shape, fit};
pub use meet::meet;

/// How the next share follows from the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// IHPv1: from the last window.
    PerUnit,
    /// IHPv2: from curves through the last windows.
    Fitted,
}

/// How much past windows count (eq. 2.4 to 2.8). The weights of all windows add up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weighting {
    /// All alike.
    Equal,
    /// The i-th counts i.
    Linear,
    /// The last counts `decay`, each one before it (1 - `decay`) of the next.
    Exponential {
        /// In (0, 1).
        decay: f64,
    },
    /// exp(-|t1 - t2| / max(t1, t2)): windows in which both finished together count most.
    Balance,
}

/// How shares are learnt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How the next share follows from the past.
    pub method: Method,
    /// Windows remembered; at least 1. The source uses 5 to 15.
    pub windows: usize,
    /// How much they count.
    pub weighting: Weighting,
    /// How a curve's parameter follows from points.
    pub fit: Fit,
    /// A change of the share at which Newton's method has arrived.
    pub delta: f64,
    /// Shares below this become 0, above 1 minus this become 1.
    pub cut_off: f64,
}

impl Default for Settings {
    /// IHPv2, ten windows with linear weights, cut off at .01.
    fn default() -> Self {
        Self {
            method: Method::Fitted,
            windows: 10,
            weighting: Weighting::Linear,
            fit: Fit::EachPoint,
            delta: 1e-9,
            cut_off: 0.01,
        }
    }
}

/// One window: the share of the first class and how long both took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Share of the first class.
    pub share: f64,
    /// Time that the first class took, in seconds.
    pub first_s: f64,
    /// Time that the second class took, in seconds.
    pub second_s: f64,
}

/// Learns the share of the first of two classes.
#[derive(Clone, Debug)]
pub struct Shares {
    settings: Settings,
    share: f64,
    history: VecDeque<Window>,
}

impl Shares {
    /// Begins at the shares of the two peak performances `first` and `second`, in any unit (eq. 2.1); at one half if
    /// they tell nothing.
    pub fn new(settings: Settings, first: f64, second: f64) -> Self {
        let share = first / (first + second);
        let share = if (0.0..=1.0).contains(&share) { share } else { 0.5 };
        Self { settings, share: cut(share, settings.cut_off), history: VecDeque::new() }
    }

    /// Share of the first class in the next window.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Takes in how long the window with [`Shares::share`] took, in seconds; the next share. A window in which a class
    /// had nothing to do, or with times that are no positive numbers, teaches nothing.
    pub fn observe(&mut self, first_s: f64, second_s: f64) -> f64 {
        self.observe_window(Window { share: self.share, first_s, second_s })
    }

    /// The same for a window whose share somebody else chose.
    pub fn observe_window(&mut self, last: Window) -> f64 {
        let is_time = |seconds: f64| seconds.is_finite() && seconds > 0.0;
        if !(is_time(last.first_s) && is_time(last.second_s) && last.share > 0.0 && last.share < 1.0) {
            return self.share;
        }
        self.history.push_back(last);
        while self.history.len() > self.settings.windows.max(1) {
            self.history.pop_front();
        }
        let next = match self.settings.method {
            Method::PerUnit => balanced(last),
            Method::Fitted => self.fitted().unwrap_or_else(|| balanced(last)),
        };
        // Times that differ by more than numbers can hold.
        if (0.0..=1.0).contains(&next) {
            self.share = cut(next, self.settings.cut_off);
        }
        self.share
    }

    /// The curves of both classes by the windows remembered; `None` before the first one.
    pub fn curves(&self) -> Option<(Curve, Curve)> {
        let windows: Vec<Window> = self.history.iter().copied().collect();
        let weights = weights(self.settings.weighting, &windows);
        let points = |point: fn(&Window) -> (f64, f64)| -> Vec<Point> {
            let with_weight = |(window, &weight): (&Window, &f64)| {
                let (share, seconds) = point(window);
                Point { share, seconds, weight }
            };
            windows.iter().zip(&weights).map(with_weight).collect()
        };
        let first = points(|window| (window.share, window.first_s));
        let second = points(|window| (1.0 - window.share, window.second_s));
        Some((fit(&first, self.settings.fit)?, fit(&second, self.settings.fit)?))
    }

    fn fitted(&self) -> Option<f64> {
        let (first, second) = self.curves()?;
        Some(meet(first, second, self.share, self.settings.delta))
    }
}

/// IHPv1: the share at which both classes would have finished `window` together, if time grows with the share.
pub fn balanced(window: Window) -> f64 {
    let Window { share, first_s, second_s } = window;
    share * second_s / (share * second_s + (1.0 - share) * first_s)
}

/// Iterations of window `index`: they double from `least` to at most `most` (Alg. 2.2).
pub fn window_iterations(index: u32, least: u64, most: u64) -> u64 {
    1u64.checked_shl(index).and_then(|factor| least.checked_mul(factor)).map_or(most, |iterations| iterations.min(most))
}

/// Weights of windows, the oldest first; they add up to 1.
pub fn weights(weighting: Weighting, windows: &[Window]) -> Vec<f64> {
    let apart = |window: &Window| (window.first_s - window.second_s).abs() / window.first_s.max(window.second_s);
    let weight = |(at, window): (usize, &Window)| match weighting {
        Weighting::Equal => 1.0,
        Weighting::Linear => (at + 1) as f64,
        Weighting::Exponential { decay } => decay * libm::pow(1.0 - decay, (windows.len() - at) as f64),
        Weighting::Balance => libm::exp(-apart(window)),
    };
    let weights: Vec<f64> = windows.iter().enumerate().map(weight).collect();
    let all: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / all).collect()
}

fn cut(share: f64, cut_off: f64) -> f64 {
    if share < cut_off {
        0.0
    } else if share > 1.0 - cut_off {
        1.0
    } else {
        share
    }
}

#[cfg(test)]
mod tests;
