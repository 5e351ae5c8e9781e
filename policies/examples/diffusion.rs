// SPDX-License-Identifier: GPL-2.0-only
//! Denoises an image by diffusion on two unlike thread pools, each of which gets the share of the rows that makes both finish
//! together:
//!
//!     cargo run --release -p tandem-policies --example diffusion
//!
//! Problem: a fast and a slow pool work on one image; who has done its rows waits for the other. Mechanism: the iterations are done in
//! windows, shorter ones first; after each window [`Shares`] learns from the seconds both pools took how to split the next one. The pools
//! differ in threads and in how often they compute each row (a processor of half the speed computes it twice). Seconds are CPU
//! time of a pool's slowest thread, so that programs that only wait for the same CPUs do not count.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tandem_policies::shares::{Settings, Shares, window_iterations};

/// Grey values by row and column.
#[derive(Clone, Debug, PartialEq)]
struct Image {
    columns: usize,
    pixels: Vec<f32>,
}

/// Threads of one kind.
struct Pool {
    threads: usize,
    /// How often a thread computes each row.
    passes: usize,
}

/// The measure of a thread's work by which the pools are to finish together, of the rows that it computed and its CPU time.
type Cost = fn(usize, Duration) -> f64;

/// How much of the difference to its neighbours a pixel takes over in an iteration; stable up to 1/4.
const RATE: f32 = 0.2;

impl Image {
    /// A bright square on a dark ground, with noise.
    fn noisy(rows: usize, columns: usize) -> Self {
        let mut state = 1u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let inside = |at: usize, size: usize| (size / 4..3 * size / 4).contains(&at);
        let bright = |at: usize| inside(at / columns, rows) && inside(at % columns, columns);
        let pixels = (0..rows * columns).map(|at| f32::from(u8::from(bright(at))) + 0.3 * noise()).collect();
        Self { columns, pixels }
    }

    fn rows(&self) -> usize {
        self.pixels.len() / self.columns
    }

    /// One iteration for one row. Beyond the rim is what is at the rim.
    fn diffuse_row(&self, row: usize, to: &mut [f32]) {
        let line = |row: usize| &self.pixels[row * self.columns..][..self.columns];
        let (above, here, below) = (line(row.saturating_sub(1)), line(row), line((row + 1).min(self.rows() - 1)));
        let last = self.columns - 1;
        for (at, to) in to.iter_mut().enumerate() {
            let around = above[at] + below[at] + here[at.saturating_sub(1)] + here[(at + 1).min(last)];
            *to = here[at] + RATE * (around - 4.0 * here[at]);
        }
    }
}

impl Pool {
    /// One iteration for the rows from `first` that `to` holds: the cost of the thread that had most to do.
    fn diffuse(&self, image: &Image, first: usize, to: &mut [f32], cost: Cost) -> f64 {
        let rows_each = (to.len() / image.columns).div_ceil(self.threads).max(1);
        let work = |(part, to): (usize, &mut [f32])| {
            let begin = cpu_time();
            let mut rows = 0;
            for (row, to) in to.chunks_mut(image.columns).enumerate() {
                for _ in 0..self.passes {
                    image.diffuse_row(first + part * rows_each + row, std::hint::black_box(&mut *to));
                    rows += 1;
                }
            }
            cost(rows, cpu_time() - begin)
        };
        std::thread::scope(|scope| {
            let parts = to.chunks_mut(rows_each * image.columns).enumerate();
            let threads: Vec<_> = parts.map(|part| scope.spawn(|| work(part))).collect();
            threads.into_iter().map(|thread| thread.join().expect("rows are computed")).fold(0.0, f64::max)
        })
    }
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Iterations on both pools at once, the first `share` of the rows on the first one: what they cost each.
fn window(image: &mut Image, pools: &[Pool; 2], share: f64, iterations: u64, cost: Cost) -> [f64; 2] {
    let split = (share * image.rows() as f64).round() as usize;
    let mut next = image.clone();
    let mut taken = [0.0; 2];
    for _ in 0..iterations {
        let (upper, lower) = next.pixels.split_at_mut(split * image.columns);
        let seen = &*image;
        let both = std::thread::scope(|scope| {
            let first = scope.spawn(|| pools[0].diffuse(seen, 0, upper, cost));
            let second = pools[1].diffuse(seen, split, lower, cost);
            [first.join().expect("rows are computed"), second]
        });
        taken = [taken[0] + both[0], taken[1] + both[1]];
        std::mem::swap(image, &mut next);
    }
    taken
}

/// Diffuses in `windows` windows; by window the share of the first pool and what both cost.
fn diffuse(image: &mut Image, pools: &[Pool; 2], start: f64, windows: u32, cost: Cost) -> Vec<(f64, [f64; 2])> {
    let mut shares = Shares::new(Settings::default(), start, 1.0 - start);
    let mut seen = Vec::new();
    for index in 0..windows {
        let share = shares.share();
        let taken = window(image, pools, share, window_iterations(index, 2, 16), cost);
        shares.observe(taken[0], taken[1]);
        seen.push((share, taken));
    }
    seen
}

fn main() {
    let pools = [Pool { threads: 1, passes: 2 }, Pool { threads: 2, passes: 1 }];
    let mut image = Image::noisy(600, 800);
    let seconds: Cost = |_, cpu_time| cpu_time.as_secs_f64();
    println!("window  share of the slow pool  it took, ms  the fast pool took, ms");
    for (index, (share, [slow, fast])) in diffuse(&mut image, &pools, 0.5, 8, seconds).into_iter().enumerate() {
        println!("{index:>6}  {share:>22.3}  {:>11.2}  {:>22.2}", slow * 1e3, fast * 1e3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: usize = 200;
    const COLUMNS: usize = 30;
    /// Rows instead of seconds: the same on a machine whose caches and cores others use.
    const ROWS_DONE: Cost = |rows, _| rows as f64;

    /// The first pool has a third of the speed of the second.
    fn pools() -> [Pool; 2] {
        [Pool { threads: 1, passes: 3 }, Pool { threads: 1, passes: 1 }]
    }

    #[test]
    fn the_share_becomes_that_of_the_speeds_wherever_it_starts() {
        for start in [0.5, 0.05, 0.9] {
            let mut image = Image::noisy(ROWS, COLUMNS);
            let seen = diffuse(&mut image, &pools(), start, 8, ROWS_DONE);
            assert_eq!(seen[0].0, start);
            assert!((seen[7].0 - 0.25).abs() < 0.01, "{seen:?}");
        }
    }

    #[test]
    fn two_threads_of_a_pool_count_as_twice_the_speed() {
        let pools = [Pool { threads: 2, passes: 1 }, Pool { threads: 1, passes: 1 }];
        let seen = diffuse(&mut Image::noisy(ROWS, COLUMNS), &pools, 0.5, 8, ROWS_DONE);
        assert!((seen[7].0 - 2.0 / 3.0).abs() < 0.01, "{seen:?}");
    }

    #[test]
    fn a_thread_that_computes_takes_cpu_time() {
        let mut image = Image::noisy(ROWS, COLUMNS);
        let taken = window(&mut image, &pools(), 0.5, 1, |_, cpu_time| cpu_time.as_secs_f64());
        assert!(taken.iter().all(|&taken| taken > 0.0), "{taken:?}");
    }

    #[test]
    fn the_image_does_not_depend_on_the_split() {
        let mut split = Image::noisy(ROWS, COLUMNS);
        let mut whole = split.clone();
        window(&mut split, &[Pool { threads: 3, passes: 1 }, Pool { threads: 2, passes: 2 }], 0.37, 9, ROWS_DONE);
        window(&mut whole, &pools(), 1.0, 9, ROWS_DONE);
        assert_eq!(split, whole);
    }

    #[test]
    fn noise_goes_and_the_square_stays() {
        let mut image = Image::noisy(ROWS, ROWS);
        let roughness = |image: &Image| {
            let pairs = image.pixels.windows(2).map(|pair| f64::from((pair[1] - pair[0]).abs()));
            pairs.sum::<f64>() / image.pixels.len() as f64
        };
        let before = roughness(&image);
        window(&mut image, &pools(), 0.25, 20, ROWS_DONE);
        assert!(roughness(&image) < before / 4.0);
        let at = |row: usize, column: usize| image.pixels[row * ROWS + column];
        assert!(at(ROWS / 2, ROWS / 2) > 0.8 && at(5, 5) < 0.2);
    }
}
