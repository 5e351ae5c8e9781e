// SPDX-License-Identifier: GPL-2.0-only
//! Time over share as a curve with one parameter b (Thanos thesis, eq. 2.9 to 2.13).

/// The form of a curve through the origin: seconds at a share x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// b x.
    Linear,
    /// b log(x + 1).
    Logarithmic,
    /// exp(b x) - 1.
    Exponential,
}

/// How the parameter of a curve follows from points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The curve goes through the weighted mean of the points (the source).
    AveragedPoint,
    /// The weighted mean of the parameters of the curves through each point (ours).
    EachPoint,
}

/// A form with its parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Curve {
    /// The form.
    pub shape: Shape,
    /// The parameter.
    pub b: f64,
}

/// What was seen at a share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Share of the load, in (0, 1).
    pub share: f64,
    /// Time taken.
    pub seconds: f64,
    /// How much it counts.
    pub weight: f64,
}

impl Curve {
    /// The curve of a form through (`share`, `seconds`).
    pub fn through(shape: Shape, share: f64, seconds: f64) -> Self {
        let b = match shape {
            Shape::Linear => seconds / share,
            Shape::Logarithmic => seconds / libm::log1p(share),
            Shape::Exponential => libm::log1p(seconds) / share,
        };
        Self { shape, b }
    }

    /// Seconds at `share`.
    pub fn at(self, share: f64) -> f64 {
        match self.shape {
            Shape::Linear => self.b * share,
            Shape::Logarithmic => self.b * libm::log1p(share),
            Shape::Exponential => libm::expm1(self.b * share),
        }
    }

    /// Derivative at `share`.
    pub fn slope_at(self, share: f64) -> f64 {
        match self.shape {
            Shape::Linear => self.b,
            Shape::Logarithmic => self.b / (share + 1.0),
            Shape::Exponential => self.b * libm::exp(self.b * share),
        }
    }

    /// Weighted mean of the squared distances of `points`.
    pub fn error(self, points: &[Point]) -> f64 {
        mean(points, |point| {
            let distance = point.seconds - self.at(point.share);
            distance * distance
        })
    }
}

/// The curve of least weighted error; of equal ones the line. `None` without points.
pub fn fit(points: &[Point], fit: Fit) -> Option<Curve> {
    if points.is_empty() {
        return None;
    }
    let curve = |shape| match fit {
        Fit::AveragedPoint => {
            Curve::through(shape, mean(points, |point| point.share), mean(points, |point| point.seconds))
        }
        Fit::EachPoint => Curve { shape, b: mean(points, |point| Curve::through(shape, point.share, point.seconds).b) },
    };
    let curves = [Shape::Linear, Shape::Logarithmic, Shape::Exponential].map(curve);
    // What rounding makes of an exact fit is no reason to leave the line.
    let scale = mean(points, |point| point.seconds * point.seconds);
    let better = |best: Curve, next: Curve| next.error(points) + 1e-12 * scale < best.error(points);
    curves.into_iter().reduce(|best, next| if better(best, next) { next } else { best })
}

fn mean(points: &[Point], value: impl Fn(&Point) -> f64) -> f64 {
    let weights: f64 = points.iter().map(|point| point.weight).sum();
    points.iter().map(|point| point.weight * value(point)).sum::<f64>() / weights
}
