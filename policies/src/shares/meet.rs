// SPDX-License-Identifier: GPL-2.0-only
//! The share at which two classes take equally long, by Newton's method (Thanos thesis, eq. 2.15).

use super::Curve;

/// More steps than halving the interval needs for the last bit.
const MOST_STEPS: usize = 100;

/// The share of the first class at which f1(share) = f2(1 - share), from `start` until a step is below `delta`.
///
/// Both curves rise, so there is exactly one. A step that would leave the interval in which it must be, or is no number,
/// is replaced by halving that interval.
pub fn meet(first: Curve, second: Curve, start: f64, delta: f64) -> f64 {
    let (mut least, mut most) = (0.0, 1.0);
    let mut share = start.clamp(least, most);
    for _ in 0..MOST_STEPS {
        let apart = first.at(share) - second.at(1.0 - share);
        if apart > 0.0 {
            most = share;
        } else {
            least = share;
        }
        let newton = share - apart / (first.slope_at(share) + second.slope_at(1.0 - share));
        let next = if newton > least && newton < most { newton } else { (least + most) / 2.0 };
        let step = (next - share).abs();
        share = if apart == 0.0 { share } else { next };
        if apart == 0.0 || step < delta {
            break;
        }
    }
    share
}
