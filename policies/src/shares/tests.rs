// SPDX-License-Identifier: GPL-2.0-only

use proptest::prelude::*;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::*;

const SHAPES: [Shape; 3] = [Shape::Linear, Shape::Logarithmic, Shape::Exponential];

fn settings(method: Method) -> Settings {
    Settings { method, ..Settings::default() }
}

/// Lets two classes with these curves work `windows` windows from `start`; the shares, the first one included.
fn shares(settings: Settings, start: f64, classes: (Curve, Curve), windows: usize) -> Vec<f64> {
    let mut shares = Shares::new(settings, start, 1.0 - start);
    let mut seen = vec![shares.share()];
    for _ in 0..windows {
        let share = shares.share();
        seen.push(shares.observe(classes.0.at(share), classes.1.at(1.0 - share)));
    }
    seen
}

fn curve(shape: Shape, b: f64) -> Curve {
    Curve { shape, b }
}

/// The first class twice as fast.
fn ratio_of_two() -> (Curve, Curve) {
    (curve(Shape::Linear, 0.5), curve(Shape::Linear, 1.0))
}

/// Points of a curve, all of one weight.
fn points(curve: Curve, at: &[f64]) -> Vec<Point> {
    at.iter().map(|&share| Point { share, seconds: curve.at(share), weight: 1.0 }).collect()
}

#[test]
fn at_a_speed_ratio_of_two_the_share_is_two_thirds_within_two_windows() {
    for method in [Method::PerUnit, Method::Fitted] {
        for start in [0.5, 0.05] {
            let seen = shares(settings(method), start, ratio_of_two(), 10);
            assert_eq!(seen[0], start);
            assert!(seen[2..].iter().all(|share| (share - 2.0 / 3.0).abs() < 1e-6), "{method:?}: {seen:?}");
        }
    }
}

#[test]
fn a_balanced_window_keeps_its_share_although_the_chunks_took_equally_long() {
    assert!((balanced(Window { share: 0.7, first_s: 3.0, second_s: 3.0 }) - 0.7).abs() < 1e-12);
}

#[test]
fn the_generator_of_points_is_recognised() {
    for shape in SHAPES {
        for b in [0.7, 3.0] {
            let found = fit(&points(curve(shape, b), &[0.2, 0.4, 0.6, 0.8]), Fit::EachPoint).unwrap();
            assert!(found.shape == shape && (found.b - b).abs() < 1e-9, "{shape:?} {b}: {found:?}");
        }
    }
}

#[test]
fn through_the_averaged_point_a_wide_exponential_is_taken_for_a_line() {
    let generator = curve(Shape::Exponential, 3.0);
    let found = fit(&points(generator, &[0.2, 0.4, 0.6, 0.8]), Fit::AveragedPoint).unwrap();
    assert_eq!(found.shape, Shape::Linear);
}

#[test]
fn a_single_point_gives_a_line() {
    for of in [Fit::AveragedPoint, Fit::EachPoint] {
        assert_eq!(fit(&points(curve(Shape::Exponential, 2.0), &[0.5]), of).unwrap().shape, Shape::Linear);
    }
    assert_eq!(fit(&[], Fit::EachPoint), None);
}

#[test]
fn the_error_of_a_curve_weighs_its_points() {
    let point = |seconds, weight| Point { share: 0.5, seconds, weight };
    // The line is .5 at .5; the distances are 1 and 2.
    let error = curve(Shape::Linear, 1.0).error(&[point(1.5, 3.0), point(2.5, 1.0)]);
    assert_eq!(error, (3.0 * 1.0 + 1.0 * 4.0) / 4.0);
}

#[test]
fn a_slope_is_the_limit_of_differences() {
    for shape in SHAPES {
        let curve = curve(shape, 2.5);
        let difference = (curve.at(0.4 + 1e-6) - curve.at(0.4 - 1e-6)) / 2e-6;
        assert!((curve.slope_at(0.4) - difference).abs() < 1e-6, "{shape:?}");
    }
}

#[test]
fn curves_meet_where_both_take_equally_long_wherever_the_search_starts() {
    for (first, second) in SHAPES.iter().flat_map(|&first| SHAPES.map(|second| (first, second))) {
        for (a, b) in [(1.0, 1.0), (0.1, 5.0), (60.0, 2.0)] {
            let (first, second) = (curve(first, a), curve(second, b));
            for start in [0.0, 0.01, 0.5, 0.99, 1.0] {
                let share = meet(first, second, start, 1e-12);
                let (one, other) = (first.at(share), second.at(1.0 - share));
                assert!((one - other).abs() <= 1e-6 * one.max(other), "{first:?} {second:?} {start}: {share}");
            }
        }
    }
}

#[test]
fn linear_curves_meet_in_one_step_of_newton() {
    // With a larger delta than any step only one is made; a wrong denominator would end elsewhere.
    let share = meet(curve(Shape::Linear, 0.5), curve(Shape::Linear, 1.0), 0.5, 1.0);
    assert!((share - 2.0 / 3.0).abs() < 1e-12);
}

#[test]
fn curved_classes_are_balanced_within_a_few_windows() {
    let exponential = (curve(Shape::Exponential, 2.0), curve(Shape::Exponential, 1.0));
    let seen = shares(settings(Method::Fitted), 0.6, exponential, 8);
    assert!((seen[8] - 1.0 / 3.0).abs() < 1e-3, "{seen:?}");
    let logarithmic = (curve(Shape::Logarithmic, 3.0), curve(Shape::Logarithmic, 6.0));
    let seen = shares(settings(Method::Fitted), 0.2, logarithmic, 8);
    assert!((seen[8] - meet(logarithmic.0, logarithmic.1, 0.5, 1e-12)).abs() < 1e-3, "{seen:?}");
}

/// Shares after ten windows at a ratio of two, with times up to 5 % off.
fn noisy(settings: Settings, seed: u64) -> Vec<f64> {
    let mut rng = Pcg64::seed_from_u64(seed);
    let mut factor = || 0.95 + 0.1 * (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let (first, second) = ratio_of_two();
    let mut shares = Shares::new(settings, 1.0, 1.0);
    let mut observe = |_| {
        let share = shares.share();
        shares.observe(first.at(share) * factor(), second.at(1.0 - share) * factor())
    };
    (0..60).map(&mut observe).skip(10).collect()
}

#[test]
fn five_percent_of_noise_make_no_oscillation() {
    for seed in 0..100 {
        let seen = noisy(settings(Method::Fitted), seed);
        assert!(seen.iter().all(|share| (share - 2.0 / 3.0).abs() < 0.015), "{seed}: {seen:?}");
        assert!(seen.windows(2).all(|pair| (pair[1] - pair[0]).abs() < 0.01), "{seed}: {seen:?}");
    }
}

#[test]
fn history_makes_shares_steadier_than_the_last_window_alone() {
    let change = |method| -> f64 {
        let of = |seed| noisy(settings(method), seed).windows(2).map(|pair| (pair[1] - pair[0]).abs()).sum::<f64>();
        (0..20).map(of).sum()
    };
    assert!(change(Method::Fitted) < 0.5 * change(Method::PerUnit));
}

#[test]
fn shares_beyond_the_cut_offs_are_all_or_nothing_and_stay() {
    let of = |first: f64| shares(settings(Method::Fitted), 0.5, (curve(Shape::Linear, first), ratio_of_two().1), 3);
    assert_eq!(of(200.0)[1..], [0.0; 3]);
    assert_eq!(of(1.0 / 200.0)[1..], [1.0; 3]);
    assert!((of(98.0)[1] - 1.0 / 99.0).abs() < 1e-9);
}

#[test]
fn weights_add_up_to_one_and_favour_what_they_should() {
    let window = |second_s| Window { share: 0.5, first_s: 1.0, second_s };
    let windows = [window(1.0), window(4.0), window(2.0)];
    let of = |weighting| weights(weighting, &windows);
    assert_eq!(of(Weighting::Equal), [1.0 / 3.0; 3]);
    assert_eq!(of(Weighting::Linear), [1.0 / 6.0, 2.0 / 6.0, 3.0 / 6.0]);
    let exponential = of(Weighting::Exponential { decay: 0.5 });
    for (weight, expected) in exponential.iter().zip([1.0 / 7.0, 2.0 / 7.0, 4.0 / 7.0]) {
        assert!((weight - expected).abs() < 1e-12);
    }
    let balance = of(Weighting::Balance);
    assert!((balance.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    assert!((balance[1] / balance[0] - (-0.75f64).exp()).abs() < 1e-12 && balance[2] > balance[1]);
}

#[test]
fn no_more_windows_are_remembered_than_asked_for() {
    let settings = Settings { windows: 1, weighting: Weighting::Equal, ..Settings::default() };
    let mut shares = Shares::new(settings, 1.0, 1.0);
    shares.observe(9.0, 1.0);
    let share = shares.share();
    // One window alone is a line: what came before is forgotten.
    let next = shares.observe(0.5 * share, 1.0 - share);
    assert!((next - 2.0 / 3.0).abs() < 1e-6);
}

#[test]
fn it_begins_at_the_shares_of_the_peaks() {
    let start = |first, second| Shares::new(Settings::default(), first, second).share();
    assert_eq!((start(3.0, 1.0), start(0.0, 0.0), start(f64::NAN, 1.0), start(-3.0, 1.0)), (0.75, 0.5, 0.5, 0.5));
}

#[test]
fn times_that_are_no_positive_numbers_teach_nothing() {
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let mut shares = Shares::new(Settings::default(), 1.0, 1.0);
        assert_eq!((shares.observe(bad, 1.0), shares.observe(1.0, bad)), (0.5, 0.5));
        assert!(shares.curves().is_none());
    }
}

#[test]
fn windows_double_up_to_the_most() {
    let of: Vec<u64> = [0, 1, 2, 3, 70].iter().map(|&index| window_iterations(index, 10, 50)).collect();
    assert_eq!(of, [10, 20, 40, 50, 50]);
}

/// The least times there are: half of one is nothing, and nothing by nothing is no number.
#[test]
fn times_too_small_to_be_halved_leave_the_share_as_it_was() {
    let mut shares = Shares::new(settings(Method::PerUnit), 1.0, 1.0);
    assert_eq!(shares.observe(5e-324, 5e-324), 0.5);
}

/// Any number, with those that go wrong most often.
fn any_number() -> impl Strategy<Value = f64> {
    let odd = vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 5e-324, 1e-300, 1e300, f64::MAX];
    prop_oneof![any::<f64>(), 0.0..=1.0, proptest::sample::select(odd)]
}

fn any_settings() -> impl Strategy<Value = Settings> {
    let method = prop_oneof![Just(Method::PerUnit), Just(Method::Fitted)];
    let weighting = prop_oneof![
        Just(Weighting::Equal),
        Just(Weighting::Linear),
        Just(Weighting::Balance),
        any_number().prop_map(|decay| Weighting::Exponential { decay })
    ];
    let fit = prop_oneof![Just(Fit::AveragedPoint), Just(Fit::EachPoint)];
    let all = (method, 0usize..20, weighting, fit, any_number(), any_number());
    all.prop_map(|(method, windows, weighting, fit, delta, cut_off)| Settings {
        method,
        windows,
        weighting,
        fit,
        delta,
        cut_off,
    })
}

proptest! {
    #[test]
    fn a_share_stays_between_0_and_1_whatever_is_set_and_observed(
        settings in any_settings(), peaks in (any_number(), any_number()),
        windows in proptest::collection::vec((any_number(), any_number(), any_number()), 1..20)
    ) {
        let mut shares = Shares::new(settings, peaks.0, peaks.1);
        prop_assert!((0.0..=1.0).contains(&shares.share()), "{} at first", shares.share());
        for (share, first_s, second_s) in windows {
            for next in [shares.observe(first_s, second_s), shares.observe_window(Window { share, first_s, second_s })] {
                prop_assert!((0.0..=1.0).contains(&next), "{next} after {share}, {first_s} s and {second_s} s");
            }
        }
    }
}
