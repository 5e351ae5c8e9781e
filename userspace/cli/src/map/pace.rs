// SPDX-License-Identifier: GPL-2.0-only
//! A time limit for a search that knows steps only: chunks small enough for the time that is left, by the speed of those before.

use std::time::{Duration, Instant};

use tandem_policies::mapping::Search;

/// The first chunk.
const FIRST_STEPS: u64 = 256;
/// Part of the time left that a chunk may take.
const SHARE: f64 = 0.25;
/// Part of the whole time that it may take, so that one that is a few times slower than those before does no harm.
const MOST: f64 = 0.01;
/// With less than this part of the time left it is enough.
const ENOUGH: f64 = 0.01;

/// Runs `search` for `steps`, else until `limit` after `start`, and says how long after `start` it ended. It ends early if nothing
/// better can be found.
pub fn run(search: &mut Search, steps: Option<u64>, start: Instant, limit: Duration) -> Duration {
    if let Some(steps) = steps {
        search.run(steps);
        return start.elapsed();
    }
    let (mut chunk, mut asked) = (FIRST_STEPS, 0);
    loop {
        let (before, made) = (start.elapsed(), search.steps());
        // A piece of work that could not be cut may have made more steps than asked for.
        search.run(made + chunk - asked);
        asked = made + chunk;
        let now = start.elapsed();
        let left = limit.saturating_sub(now).as_secs_f64();
        if search.is_over() || left <= ENOUGH * limit.as_secs_f64() {
            return now;
        }
        let steps_per_s = (search.steps() - made) as f64 / (now - before).as_secs_f64().max(1e-9);
        // Not much more than before at a time: a speed taken from little work says little.
        let time = (left * SHARE).min(limit.as_secs_f64() * MOST);
        chunk = ((time * steps_per_s) as u64).clamp(1, chunk.saturating_mul(4).max(FIRST_STEPS));
    }
}

#[cfg(test)]
mod tests {
    use tandem_policies::mapping::Request;

    use super::*;

    /// A ring of threads, each of which shares more with the next one than the one before did, on a row of places.
    fn search(seed: u64) -> Search {
        let request = Request {
            threads: 60,
            weights: (0..60).map(|at| (at, (at + 1) % 60, 1.0 + at as f64)).collect(),
            capacities: vec![10; 6],
            distances: (0..6).map(|a: usize| (0..6).map(|b| a.abs_diff(b) as f64).collect()).collect(),
            ..Request::default()
        };
        Search::new(&request, seed).unwrap()
    }

    #[test]
    fn the_steps_of_a_timed_search_repeat_it() {
        let mut timed = search(3);
        run(&mut timed, None, Instant::now(), Duration::from_millis(50));
        assert!(timed.steps() > FIRST_STEPS);
        let mut counted = search(3);
        run(&mut counted, Some(timed.steps()), Instant::now(), Duration::ZERO);
        assert_eq!(counted.best(), timed.best());
    }

    #[test]
    fn a_search_without_time_makes_one_chunk() {
        let mut none = search(3);
        run(&mut none, None, Instant::now(), Duration::ZERO);
        assert!(none.steps() >= FIRST_STEPS && none.steps() < 100_000, "{}", none.steps());
    }
}
