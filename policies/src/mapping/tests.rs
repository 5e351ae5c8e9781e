// SPDX-License-Identifier: GPL-2.0-only
//! Quality on planted problems, agreement with brute force, validity on random requests, refusals.

use proptest::prelude::*;
use rand_core::SeedableRng;
use rand_pcg::Pcg64;

use super::annealing::{Annealing, Schedule};
use super::placement::Placement;
use super::planted::*;
use super::problem::Problem;
use super::tabu::Tabu;
use super::*;
use crate::anneal::below;

/// Cost by the definition.
fn cost(request: &Request, places: &[usize]) -> f64 {
    let of = |&(a, b, weight): &(usize, usize, f64)| {
        let (p, q) = (places[a], places[b]);
        weight * (request.distances[p][q] + request.distances[q][p]) / 2.0
    };
    request.weights.iter().map(of).sum()
}

/// Whether a mapping keeps capacities and goes only where it may.
fn is_valid(request: &Request, places: &[usize]) -> bool {
    let within = |place: usize| places.iter().filter(|&&at| at == place).count() <= request.capacities[place];
    let may = |(thread, &place): (usize, &usize)| request.allowed.as_ref().is_none_or(|rows| rows[thread][place]);
    places.len() == request.threads && (0..request.capacities.len()).all(within) && places.iter().enumerate().all(may)
}

/// The least cost of all mappings; none if there is no valid one.
fn brute_force(request: &Request) -> Option<f64> {
    let places = request.capacities.len();
    let mapping = |code: usize| (0..request.threads).map(move |thread| code / places.pow(thread as u32) % places);
    (0..places.pow(request.threads as u32))
        .map(|code| mapping(code).collect::<Vec<_>>())
        .filter(|mapping| is_valid(request, mapping))
        .map(|mapping| cost(request, &mapping))
        .reduce(f64::min)
}

/// A request of up to `most_threads` threads with whole weights and distances, drawn from `seed`; it may be impossible.
fn random_request(seed: u64, most_threads: usize, most_places: usize) -> Request {
    let mut rng = Pcg64::seed_from_u64(seed);
    let places = 1 + below(&mut rng, most_places);
    let threads = below(&mut rng, most_threads + 1);
    let pairs = (0..threads).flat_map(|a| (a + 1..threads).map(move |b| (a, b)));
    let density = 1 + below(&mut rng, 4);
    let weights = pairs.filter(|_| below(&mut rng, 4) < density).collect::<Vec<_>>();
    let weights = weights.into_iter().map(|(a, b)| (a, b, below(&mut rng, 10) as f64)).collect();
    let spare = threads / places + 2;
    let capacities = (0..places).map(|_| below(&mut rng, spare + 2)).collect();
    let distances = (0..places).map(|_| (0..places).map(|_| below(&mut rng, 30) as f64).collect()).collect();
    let row = |rng: &mut Pcg64| (0..places).map(|_| below(rng, 4) > 0).collect::<Vec<bool>>();
    let allowed = (below(&mut rng, 2) == 0).then(|| (0..threads).map(|_| row(&mut rng)).collect());
    let present = (below(&mut rng, 2) == 0).then(|| (0..threads).map(|_| below(&mut rng, places)).collect());
    Request { threads, weights, capacities, distances, allowed, present }
}

fn found(request: &Request, steps: u64, seed: u64) -> Mapping {
    map(request, Budget { steps }, seed).unwrap()
}

fn refusal(request: &Request) -> String {
    map(request, Budget { steps: 1000 }, 1).unwrap_err().to_string()
}

/// Costs over the optimum, lowest first, of `problem(seed)` with that many steps for each of these seeds.
fn ratios(problem: impl Fn(u64) -> Planted, seeds: u64, steps: u64) -> Vec<f64> {
    let ratio = |seed: u64| {
        let Planted { request, optimum } = problem(seed);
        map(&request, Budget { steps }, seed).expect("a planted request is valid").cost / optimum
    };
    let mut ratios: Vec<f64> = (0..seeds).map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}

/// Two threads that share, two places of one slot each.
fn pair() -> Request {
    Request {
        threads: 2,
        weights: vec![(0, 1, 5.0)],
        capacities: vec![1, 1],
        distances: vec![vec![0.0, 3.0], vec![3.0, 0.0]],
        ..Request::default()
    }
}

#[test]
fn of_64_threads_on_4_nodes_the_planted_optimum_is_found() {
    assert_eq!(ratios(|seed| squares(8, 8, 4, seed), 5, 20_000), [1.0; 5]);
}

#[test]
fn of_256_threads_on_16_nodes_the_median_is_within_5_percent_of_the_planted_optimum() {
    let ratios = ratios(|seed| squares(16, 16, 4, seed), 5, 280_000);
    assert!(ratios[0] >= 1.0 && ratios[2] <= 1.05, "{ratios:?}");
}

#[test]
fn of_1024_threads_on_64_nodes_the_median_is_within_10_percent_of_the_planted_optimum() {
    let ratios = ratios(|seed| squares(32, 32, 4, seed), 5, 2_000_000);
    assert!(ratios[0] >= 1.0 && ratios[2] <= 1.10, "{ratios:?}");
}

#[test]
fn of_4000_threads_on_40_nodes_a_mapping_near_the_planted_optimum_is_found() {
    let ratios = ratios(|seed| squares(50, 80, 10, seed), 1, 5_000_000);
    assert!(ratios[0] >= 1.0 && ratios[0] <= 1.3, "{ratios:?}");
}

#[test]
fn groups_planted_on_a_ring_are_found() {
    assert_eq!(ratios(|seed| ring_of_groups(16, 8, seed), 3, 100_000), [1.0; 3]);
    assert_eq!(ratios(|seed| ring_of_groups(5, 4, seed), 3, 100_000), [1.0; 3]);
}

#[test]
fn up_to_10_threads_the_optimum_of_all_mappings_is_found_and_proven() {
    let mut possible = 0;
    for seed in 0..300 {
        let request = random_request(seed, 6, 4);
        let answer = map(&request, Budget { steps: 1 << 22 }, seed);
        match brute_force(&request) {
            None => assert!(answer.is_err(), "seed {seed}"),
            Some(least) => {
                possible += 1;
                let mapping = answer.unwrap();
                assert!(is_valid(&request, &mapping.places), "seed {seed}");
                assert_eq!((mapping.cost, mapping.bound, mapping.optimal), (least, least, true), "seed {seed}");
            }
        }
    }
    assert!(possible > 100, "{possible} of 300 were possible");
}

/// The problem of a request of up to 7 threads, and the least cost of all mappings.
fn tiny_problem(seed: u64) -> Option<(Problem, Placement, f64)> {
    let request = random_request(seed, 7, 4);
    let least = brute_force(&request).filter(|_| request.threads > 1 && request.capacities.len() > 1)?;
    let (problem, start) = request.problem().unwrap();
    Some((problem, start, least))
}

#[test]
fn annealing_and_tabu_search_find_the_optimum_of_tiny_problems() {
    let (mut tried, mut annealed, mut tabued) = (0, 0, 0);
    for seed in 0..200 {
        let Some((problem, start, least)) = tiny_problem(seed) else { continue };
        tried += 1;
        let schedule = Schedule { hot: 0.5, cold: 0.01, steps: 5000 };
        let mut annealing = Annealing::new(&problem, start.clone(), schedule, seed);
        annealing.run(&problem, u64::MAX);
        annealed += usize::from(problem.cost(annealing.best()) < least + 1e-6);
        let mut tabu = Tabu::new(&problem, start, 5000, seed);
        tabu.run(&problem, u64::MAX);
        tabued += usize::from(problem.cost(tabu.best()) < least + 1e-6);
    }
    assert!(
        tried > 50 && annealed * 100 >= tried * 95 && tabued * 100 >= tried * 95,
        "{annealed}, {tabued} of {tried}"
    );
}

#[test]
fn a_budget_is_kept_but_for_the_last_piece_of_work() {
    for (request, piece) in [(squares(8, 8, 4, 1).request, 10_000), (pair(), 0), (squares(3, 6, 3, 1).request, 4000)] {
        for steps in [0, 1, 300, 30_000] {
            let made = found(&request, steps, 3).steps;
            assert!(made <= steps + if steps == 0 { 0 } else { piece }, "{made} of {steps}");
        }
    }
}

#[test]
fn a_search_in_chunks_finds_what_one_in_one_piece_does() {
    let (tiny, one_a_place) = (squares(3, 3, 1, 1).request, squares(6, 6, 1, 4).request);
    let (middle, large) = (squares(8, 8, 2, 2).request, squares(20, 20, 5, 3).request);
    for request in [tiny, one_a_place, middle, large] {
        let mut chunked = Search::new(&request, 9).unwrap();
        let (mut asked, mut chunk) = (0, 1);
        while asked < 150_000 {
            chunked.run(chunk);
            asked += chunk;
            chunk = chunk * 3 / 2 + 1;
            chunked.best();
        }
        let whole = found(&request, asked, 9);
        assert_eq!(chunked.best(), whole);
        assert_eq!(found(&request, whole.steps, 9), whole, "the steps made, asked for, repeat the result");
    }
}

/// A piece of work that cannot be cut is at most a look at every edge, of which eight count as a step.
#[test]
fn a_search_of_thousands_of_threads_stops_soon_after_the_steps_asked_for() {
    let request = squares(50, 80, 10, 1).request;
    let look = (request.threads + 2 * request.weights.len()) as u64 / 8;
    let mut search = Search::new(&request, 1).unwrap();
    for chunk in 1..800 {
        search.run(500);
        assert!(
            search.steps() >= chunk * 500 && search.steps() <= chunk * 500 + 2 * look,
            "{chunk}: {}",
            search.steps()
        );
    }
}

#[test]
fn what_is_best_already_stays_where_it_is() {
    for (rows, block) in [(3, 1), (8, 4), (20, 5)] {
        let Planted { request, optimum } = squares(rows, rows, block, 4);
        let places = found(&request, 700_000, 1).places;
        assert_eq!(cost(&request, &places), optimum, "{rows}");
        let again = Request { present: Some(places.clone()), ..request };
        let mapping = found(&again, 100_000, 2);
        assert_eq!((mapping.places, mapping.method), (places, Method::Present), "{rows}");
    }
}

#[test]
fn a_thread_that_shares_with_nobody_stays() {
    let present = Some(vec![0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1]);
    let weights = vec![(0, 1, 1.0)];
    let far = vec![vec![0.0, 3.0], vec![3.0, 0.0]];
    let request =
        Request { threads: 12, weights, capacities: vec![8; 2], distances: far, present, ..Request::default() };
    let mapping = found(&request, 10_000, 1);
    let moved = mapping.places.iter().zip(request.present.as_ref().unwrap()).filter(|(a, b)| a != b).count();
    assert_eq!((mapping.cost, moved), (0.0, 1));
}

#[test]
fn nothing_to_map_is_no_error() {
    let empty = found(&Request::default(), 100, 1);
    assert_eq!((empty.places, empty.cost, empty.optimal, empty.steps), (vec![], 0.0, true, 0));
    let idle = Request { weights: vec![(0, 1, 0.0)], ..pair() };
    assert_eq!((found(&idle, 100, 1).cost, found(&idle, 100, 1).optimal), (0.0, true));
}

#[test]
fn what_is_no_number_is_refused_in_words() {
    let weight = Request { weights: vec![(0, 1, f64::NAN)], ..pair() };
    assert_eq!(refusal(&weight), "the weight between threads 0 and 1 is NaN; give a number of at least 0");
    let negative = Request { weights: vec![(0, 1, -2.0)], ..pair() };
    assert_eq!(refusal(&negative), "the weight between threads 0 and 1 is -2; give a number of at least 0");
    let distance = Request { distances: vec![vec![0.0, f64::NAN], vec![3.0, 0.0]], ..pair() };
    assert_eq!(refusal(&distance), "the distance from place 0 to place 1 is NaN; give a finite number");
    let large = Request { weights: vec![(0, 1, 1e300)], distances: vec![vec![1e300; 2]; 2], ..pair() };
    assert!(refusal(&large).starts_with("the weights times the distances are too large"));
}

#[test]
fn more_threads_than_room_are_refused_in_words() {
    let full = Request { capacities: vec![1, 0], ..pair() };
    assert_eq!(refusal(&full), "2 threads do not fit: the capacities of 2 places add up to 1");
    let nowhere = Request { allowed: Some(vec![vec![true, true], vec![false, false]]), ..pair() };
    let sentence =
        "thread 1 finds no place: those it may use are full of threads that may go nowhere else, or it may use none";
    assert_eq!(refusal(&nowhere), sentence);
    let crowded = Request { allowed: Some(vec![vec![true, false]; 2]), ..pair() };
    assert_eq!(refusal(&crowded), sentence);
}

#[test]
fn tables_that_do_not_fit_together_are_refused_in_words() {
    let row = Request { distances: vec![vec![0.0], vec![3.0, 0.0]], ..pair() };
    assert_eq!(refusal(&row), "row 0 of the distances has 1 entries, but 2 are needed: one for each place");
    let present = Request { present: Some(vec![0]), ..pair() };
    assert_eq!(refusal(&present), "the present mapping has 1 entries, but 2 are needed: one for each thread");
    let allowed = Request { allowed: Some(vec![vec![true; 2]]), ..pair() };
    assert_eq!(refusal(&allowed), "the table of allowed places has 1 entries, but 2 are needed: one for each thread");
    let unknown = Request { weights: vec![(0, 2, 1.0)], ..pair() };
    assert_eq!(refusal(&unknown), "pair 0 (0, 2) is not one of two different threads; threads are 0 to 1");
    let place = Request { present: Some(vec![0, 7]), ..pair() };
    let sentence = "thread 1 is said to be at place 7, but there are only 2 places (0 is the first)";
    assert_eq!(refusal(&place), sentence);
    let many = Request { threads: (1 << 20) + 1, ..pair() };
    assert_eq!(refusal(&many), "1048577 threads are too many; 1048576 is the most");
}

#[test]
fn threads_that_may_go_to_few_places_make_room_for_each_other() {
    let only = |place: usize| (0..40).map(|at| at == place || at == place + 1).collect::<Vec<bool>>();
    // Thread t may go to t or t + 1, the last one to 39 only: each thread has one place in the end.
    let allowed = (0..40).map(only).collect();
    let distances = manhattan(1, 40);
    let weights = stencil(1, 40, 1);
    let request =
        Request { threads: 40, weights, capacities: vec![1; 40], distances, allowed: Some(allowed), present: None };
    assert_eq!(found(&request, 2000, 1).places, (0..40).collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_answer_is_valid_and_costs_what_it_says(seed: u64, size in 0usize..60, places in 1usize..9, steps in 0u64..20_000) {
        let request = random_request(seed, size, places);
        if let Ok(mapping) = map(&request, Budget { steps }, seed) {
            prop_assert!(is_valid(&request, &mapping.places));
            prop_assert!((mapping.cost - cost(&request, &mapping.places)).abs() < 1e-6);
            prop_assert!(mapping.bound <= mapping.cost + 1e-6);
            if let Some(present) = request.present.as_ref().filter(|present| is_valid(&request, present)) {
                prop_assert!(mapping.cost <= cost(&request, present) + 1e-6);
            }
        }
    }

    #[test]
    fn large_answers_are_valid_too(seed: u64, threads in 257usize..400, places in 2usize..40, spare in 0usize..50) {
        let request = Request {
            threads,
            weights: stencil(1, threads, seed),
            capacities: (0..places).map(|at| (threads + spare + at) / places).collect(),
            distances: manhattan(1, places),
            ..Request::default()
        };
        let mapping = map(&request, Budget { steps: 30_000 }, seed).unwrap();
        prop_assert!(is_valid(&request, &mapping.places));
        prop_assert!((mapping.cost - cost(&request, &mapping.places)).abs() < 1e-6);
    }

    #[test]
    fn changes_of_cost_are_those_of_the_costs_from_scratch(seed: u64) {
        let text = qap::tests::random_text(seed, 7, true);
        let problem = qap::Qap::parse(&text).unwrap().problem();
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut place: Vec<u32> = (0..7).map(|_| below(&mut rng, 7) as u32).collect();
        let mut pulls: Vec<f64> = (0..7).flat_map(|thread| problem.pulls(&place, thread, |_| true)).collect();
        for _ in 0..20 {
            let (thread, to, other) = (below(&mut rng, 7), below(&mut rng, 7), below(&mut rng, 7));
            let (before, from) = (problem.cost(&place), place[thread] as usize);
            if place[other] != place[thread] {
                let mut swapped = place.clone();
                swapped.swap(thread, other);
                let change = problem.cost(&swapped) - before;
                prop_assert!((problem.swap_change(&place, thread, other) - change).abs() < 1e-6);
            }
            let change = problem.move_change(&place, thread, to);
            prop_assert!((pulls[thread * 7 + to] - pulls[thread * 7 + from] - change).abs() < 1e-6);
            problem.carry(&mut pulls, thread, from, to);
            place[thread] = to as u32;
            prop_assert!((problem.cost(&place) - before - change).abs() < 1e-6);
        }
    }
}
