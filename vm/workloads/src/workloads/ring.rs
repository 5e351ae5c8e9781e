// SPDX-License-Identifier: GPL-2.0-only
//! `ring`: a stencil on a ring of blocks, one block a thread; neighbours read each other's edges; one thread fills all.
//!
//! In each step every cell becomes the sum of itself and the cells an eighth of a block to its left and right (64-bit,
//! wrapping). A cell is a line. So the sum of all cells triples in each step, exactly, and a cell that was lost or
//! computed twice shows in it. Start under `none`: all memory on one node, threads spread.

use crate::frame::memory::{LINE_BYTES, Line, Memory};
use crate::frame::plan::{Fill, Home, Placement, Plan, Region, Request, Thread};
use crate::frame::seating::mix;
use crate::frame::spec::{Metric, Spec, THREADS, size};
use crate::frame::worker::Worker;
use anyhow::{Result, bail};
use std::ops::Range;

/// Blocks are this many times as long as the distance at which cells are added.
const REACHES_PER_BLOCK: usize = 8;

/// The workload.
pub const SPEC: Spec = Spec {
    name: "ring",
    summary: "a stencil on a ring of blocks, one a thread; neighbours read each other's edges; one thread fills all",
    sizes: &[
        THREADS,
        size("array-mib", 64, "MiB", "each of the two arrays; every thread has an equal block of both"),
        size("steps", 500, "steps", "steps of the stencil"),
    ],
    metric: Metric::Seconds,
    work_unit: "cells",
    best: "blocks in the order of the nodes, each with its thread",
    worst: "all blocks on one node, for which all threads wait, neighbours on different nodes",
    timed: false,
    plan,
};

fn plan(request: &Request) -> Result<Plan> {
    let threads = request.threads(1)?;
    let tour = request.tour()?;
    let seats = match request.placement {
        Placement::None | Placement::Oracle => request.seats(threads)?,
        Placement::Worst => request.seats_at(&(0..threads).map(|thread| tour[thread % tour.len()]).collect::<Vec<_>>()),
    };
    let home = match request.placement {
        Placement::None | Placement::Worst => Home::on(request.local_to(tour[0])),
        Placement::Oracle => Home::Parts(request.locals(&seats)),
    };
    let block_bytes = request.part_bytes("array-mib", threads)?;
    let (steps, seed) = (request.sizes.of("steps"), request.random(0));
    let cells = threads * block_bytes / LINE_BYTES;
    let array = |fill: Fill| Region { bytes: threads * block_bytes, home: home.clone(), fill };
    let first_values: Fill =
        Box::new(move |lines, range| range.for_each(|index| lines[index].set(0, mix(seed ^ index as u64))));
    let zeros: Fill = Box::new(|lines, range| range.for_each(|index| lines[index].set(0, 0)));
    let threads = seats.iter().map(|seat| {
        Thread::at(seat.cpu, move |worker| {
            work(worker, block_bytes / LINE_BYTES, steps);
            Ok(Vec::new())
        })
    });
    let mut plan = Plan::of_one(vec![array(first_values), array(zeros)], threads.collect());
    plan.programs[0].check = Some(Box::new(move |memory| check(memory, cells, seed, steps)));
    Ok(plan)
}

fn work(worker: &mut Worker, block: usize, steps: u64) {
    let own = worker.number * block..(worker.number + 1) * block;
    let arrays = [worker.lines(0), worker.lines(1)];
    for step in 0..steps as usize {
        advance(arrays[step % 2], arrays[(step + 1) % 2], own.clone());
        worker.notes.work += block as u64;
        worker.meet();
    }
}

/// One step of the cells in `own`, which are one block: from `old` to `new`.
fn advance(old: &[Line], new: &[Line], own: Range<usize>) {
    let (cells, reach) = (old.len(), own.len() / REACHES_PER_BLOCK);
    // In each piece the left and the right cells are contiguous too, wherever the ring closes.
    for piece in [own.start..own.start + reach, own.start + reach..own.end - reach, own.end - reach..own.end] {
        let left = &old[(piece.start + cells - reach) % cells..][..piece.len()];
        let right = &old[(piece.start + reach) % cells..][..piece.len()];
        for (((new, old), left), right) in new[piece.clone()].iter().zip(&old[piece]).zip(left).zip(right) {
            new.set(0, left.get(0).wrapping_add(old.get(0)).wrapping_add(right.get(0)));
        }
    }
}

/// Fails unless the sum of the cells has tripled in each step.
fn check(memory: &[Memory], cells: usize, seed: u64, steps: u64) -> Result<()> {
    let sum = |values: &mut dyn Iterator<Item = u64>| values.fold(0u64, u64::wrapping_add);
    let first = sum(&mut (0..cells).map(|index| mix(seed ^ index as u64)));
    let last = sum(&mut memory[steps as usize % 2].lines().iter().map(|cell| cell.get(0)));
    let expected = first.wrapping_mul(power(3, steps));
    if last != expected {
        bail!("self-check failed: the cells' sum is {last}, not {expected}: a block was lost or computed twice");
    }
    Ok(())
}

/// `base` to the `exponent`, modulo 2^64.
fn power(base: u64, exponent: u64) -> u64 {
    (0..64).rev().fold(1u64, |result, bit| {
        let squared = result.wrapping_mul(result);
        if exponent >> bit & 1 == 1 { squared.wrapping_mul(base) } else { squared }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::memory::PageSize;

    fn arrays(cells: usize) -> [Memory; 2] {
        let arrays = [(); 2].map(|()| Memory::map(cells * LINE_BYTES, PageSize::Base).unwrap());
        (0..cells).for_each(|index| arrays[0].lines()[index].set(0, mix(9 ^ index as u64)));
        arrays
    }

    #[test]
    fn a_step_adds_both_neighbours_at_reach_and_closes_the_ring() {
        let arrays = arrays(64);
        (0..4).for_each(|block| advance(arrays[0].lines(), arrays[1].lines(), block * 16..(block + 1) * 16));
        let value = |index: usize| mix(9 ^ (index % 64) as u64);
        for index in 0..64 {
            let expected = value(index).wrapping_add(value(index + 62)).wrapping_add(value(index + 2));
            assert_eq!(arrays[1].lines()[index].get(0), expected, "{index}");
        }
        check(&arrays, 64, 9, 1).unwrap();
    }

    #[test]
    fn a_block_that_was_left_out_fails_the_check() {
        let arrays = arrays(64);
        (0..3).for_each(|block| advance(arrays[0].lines(), arrays[1].lines(), block * 16..(block + 1) * 16));
        assert!(check(&arrays, 64, 9, 1).is_err());
    }

    #[test]
    fn powers_wrap() {
        assert_eq!((power(3, 0), power(3, 1), power(3, 5), power(2, 64)), (1, 3, 243, 0));
    }
}
