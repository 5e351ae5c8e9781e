// SPDX-License-Identifier: GPL-2.0-only

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::remapping::map_sharers;
use super::*;
use crate::mapping::Request;
use crate::model::{NodeIndex, Plan, Topology};
use crate::testing::{SnapshotBuilder, machine, ring_of_four, two_nodes};

/// `threads` threads that share in pairs, `apart` from each other.
fn pairs(threads: usize, apart: usize) -> SharingMatrix {
    let first = (0..threads).filter(|thread| (thread / apart).is_multiple_of(2));
    SharingMatrix::new(threads, first.map(|thread| (thread, thread + apart, 5.0)))
}

fn all_to_all(threads: usize, with_diagonal: bool) -> SharingMatrix {
    let cells = (0..threads).flat_map(|one| (0..threads).map(move |other| (one, other, 3.0)));
    SharingMatrix::new(threads, cells.filter(|cell| with_diagonal || cell.0 != cell.1))
}

fn close(value: f64, expected: f64) -> bool {
    (value - expected).abs() < 1e-6 * expected.abs().max(1.0)
}

#[test]
fn an_all_equal_matrix_has_no_heterogeneity() {
    assert_eq!(all_to_all(8, true).communication_heterogeneity(Diagonal::Counted), 0.0);
    assert_eq!(all_to_all(8, true).communication_heterogeneity(Diagonal::LeftOut), 0.0);
    assert_eq!(all_to_all(8, false).communication_heterogeneity(Diagonal::LeftOut), 0.0);
}

#[test]
fn both_pairings_of_eight_threads_have_the_same_heterogeneity() {
    for apart in [1, 4] {
        assert!(close(pairs(8, apart).communication_heterogeneity(Diagonal::Counted), 1093.75));
        assert!(close(pairs(8, apart).communication_heterogeneity(Diagonal::LeftOut), 7500.0 / 7.0));
    }
}

#[test]
fn with_an_empty_diagonal_counted_pairs_and_all_to_all_look_the_same() {
    for threads in [2, 8, 64] {
        let heterogeneity = |matrix: SharingMatrix| matrix.communication_heterogeneity(Diagonal::Counted);
        let expected = 1e4 * (threads - 1) as f64 / (threads * threads) as f64;
        assert!(close(heterogeneity(pairs(threads, 1)), expected));
        assert!(close(heterogeneity(all_to_all(threads, false)), expected));
    }
}

#[test]
fn pure_pairs_of_more_than_98_threads_are_below_100() {
    for diagonal in [Diagonal::Counted, Diagonal::LeftOut] {
        assert!(pairs(98, 1).communication_heterogeneity(diagonal) > 100.0);
        assert!(pairs(100, 1).communication_heterogeneity(diagonal) < 100.0);
    }
}

#[test]
fn normalising_scales_the_largest_cell_to_100() {
    let matrix = SharingMatrix::new(3, [(0, 1, 8.0), (1, 2, 2.0)]).normalised();
    assert_eq!((matrix.cell(1, 0), matrix.cell(2, 1), matrix.cell(0, 2)), (100.0, 25.0, 0.0));
    let zero = SharingMatrix::new(3, []);
    assert_eq!(zero.normalised(), zero);
    assert_eq!(zero.communication_heterogeneity(Diagonal::Counted), 0.0);
}

/// Rows (0, 8) and (8, 0): every cell is 4 from the mean.
#[test]
fn heterogeneity_and_amount_of_two_threads_are_what_the_formulas_say() {
    let matrix = SharingMatrix::new(2, [(0, 1, 8.0)]);
    assert_eq!(matrix.heterogeneity(Diagonal::Counted), 16.0);
    assert_eq!(matrix.heterogeneity(Diagonal::LeftOut), 0.0);
    assert_eq!(matrix.sharing_amount(), 4.0);
}

#[test]
fn metrics_of_no_thread_and_of_one_are_zero() {
    for threads in [0, 1] {
        let matrix = SharingMatrix::new(threads, []);
        for diagonal in [Diagonal::Counted, Diagonal::LeftOut] {
            assert_eq!(matrix.communication_heterogeneity(diagonal), 0.0);
        }
        assert_eq!(matrix.sharing_amount(), 0.0);
    }
}

#[test]
fn of_several_values_of_a_pair_the_largest_counts_and_bad_ones_do_not() {
    let cells = [(0, 1, 2.0), (1, 0, 3.0), (0, 1, f64::NAN), (1, 2, -4.0), (0, 2, f64::INFINITY)];
    let matrix = SharingMatrix::new(3, cells);
    assert_eq!(matrix.pairs().collect::<Vec<_>>(), [(0, 1, 3.0)]);
    assert!(!matrix.is_zero() && SharingMatrix::new(3, [(1, 2, -4.0)]).is_zero());
}

#[test]
fn the_heaviest_cells_are_those_of_either_thread() {
    let matrix = SharingMatrix::new(4, [(0, 1, 5.0), (0, 2, 9.0), (0, 3, 1.0), (1, 2, 2.0)]).heaviest(1);
    assert_eq!(matrix.pairs().collect::<Vec<_>>(), [(0, 1, 5.0), (0, 2, 9.0), (0, 3, 1.0)]);
    let ties = SharingMatrix::new(3, [(0, 1, 1.0), (0, 2, 1.0), (1, 2, 1.0)]).heaviest(1);
    assert_eq!(ties.pairs().collect::<Vec<_>>(), [(0, 1, 1.0), (0, 2, 1.0)]);
}

/// Threads on `nodes`, which share per second as `pairs` say.
fn sharers(topology: Topology, nodes: &[usize], pairs: &[(usize, usize, f64)]) -> Snapshot {
    let add = |all: SnapshotBuilder, (tid, &node): (usize, &usize)| all.thread(tid as u32, node, None);
    let builder = nodes.iter().enumerate().fold(SnapshotBuilder::new(topology), add);
    pairs.iter().fold(builder, |all, &(one, other, per_s)| all.shared(one, other, per_s)).build()
}

#[test]
fn a_history_adds_up_events_ages_and_forgets_who_is_gone() {
    let mut snapshot = sharers(two_nodes(2), &[0, 0, 1], &[(0, 1, 4.0), (1, 2, 8.0)]);
    snapshot.interval_ns = 500_000_000;
    let mut history = SharingHistory::default();
    assert!(history.is_empty());
    history.add(&snapshot);
    history.age(0.5);
    history.add(&snapshot);
    let threads: Vec<&Thread> = snapshot.threads.iter().collect();
    assert_eq!(history.matrix(&threads).pairs().collect::<Vec<_>>(), [(0, 1, 3.0), (1, 2, 6.0)]);
    assert_eq!(history.observed_s(), 0.75);
    let mut fewer = snapshot.clone();
    fewer.threads.remove(0);
    fewer.threads.iter_mut().for_each(|thread| thread.sharing.clear());
    history.add(&fewer);
    assert_eq!(history.matrix(&threads).pairs().collect::<Vec<_>>(), [(1, 2, 6.0)]);
    history.age(1e-9);
    assert!(history.is_empty());
}

/// Node by thread once it is mapped with no gate.
fn mapped(snapshot: &Snapshot) -> Vec<usize> {
    snapshot.after_thread_moves(&remapped(snapshot, 0.0)).threads.iter().map(|thread| thread.node.0).collect()
}

const EFFORT: Effort = Effort { steps: u64::MAX, seed: 1 };

fn remapped(snapshot: &Snapshot, min_gain_percent: f64) -> Plan {
    let threads: Vec<&Thread> = snapshot.threads.iter().collect();
    Remapping::new(snapshot, &threads, &SharingMatrix::seen(&threads), EFFORT).plan(min_gain_percent)
}

const CROSSED_PAIRS: [(usize, usize, f64); 4] = [(0, 4, 1e3), (1, 5, 1e3), (2, 6, 1e3), (3, 7, 1e3)];

#[test]
fn each_pair_ends_on_one_node_and_stays() {
    let mut snapshot = sharers(ring_of_four(2), &[0, 0, 1, 1, 2, 2, 3, 3], &CROSSED_PAIRS);
    let places = mapped(&snapshot);
    assert!(CROSSED_PAIRS.iter().all(|&(one, other, _)| places[one] == places[other]), "{places:?}");
    snapshot = snapshot.after_thread_moves(&remapped(&snapshot, 0.0));
    assert!(remapped(&snapshot, 0.0).is_empty());
}

/// Pairs of pairs share a little too: they go to nodes 12 apart and not to nodes 20 apart.
#[test]
fn pairs_that_share_a_little_go_to_near_nodes() {
    let weak = [(0, 1, 10.0), (2, 3, 10.0)];
    let snapshot = sharers(ring_of_four(2), &[0, 2, 1, 3, 0, 2, 1, 3], &[&CROSSED_PAIRS[..], &weak].concat());
    let places = mapped(&snapshot);
    for (one, other, _) in weak {
        assert_eq!(snapshot.topology.distance(NodeIndex(places[one]), NodeIndex(places[other])), 12, "{places:?}");
    }
}

#[test]
fn threads_that_share_nothing_make_room_but_move_for_nothing_else() {
    let pair = [(0, 2, 1e3)];
    assert_eq!(mapped(&sharers(two_nodes(2), &[0, 0, 1, 1], &pair)).iter().filter(|&&node| node == 0).count(), 2);
    let plan = remapped(&sharers(two_nodes(2), &[0, 0, 1, 1], &pair), 0.0);
    assert_eq!(plan.moves.len(), 1);
    let plan = remapped(&sharers(two_nodes(2), &[0, 1, 1], &[(0, 1, 1e3)]), 0.0);
    assert_eq!(plan.moves.len(), 1);
    assert!(remapped(&sharers(two_nodes(2), &[0, 0, 1, 1], &[]), 0.0).is_empty());
}

#[test]
fn a_thread_on_cooldown_stays_and_its_partner_comes() {
    for (stays, places) in [(0, [0, 0]), (1, [1, 1])] {
        let mut snapshot = sharers(two_nodes(2), &[0, 1], &[(0, 1, 1e3)]);
        snapshot.threads[stays].on_cooldown = true;
        assert_eq!(mapped(&snapshot), places);
    }
}

#[test]
fn threads_go_where_they_are_allowed_and_where_there_is_a_cpu() {
    let topology = machine(&[1, 0, 2], &[&[10, 12, 20], &[12, 10, 12], &[20, 12, 10]]);
    let mut snapshot = sharers(topology, &[0, 2], &[(0, 1, 1e3)]);
    assert_eq!(mapped(&snapshot), [2, 2]);
    snapshot.threads[0].allowed = vec![true, true, false].into();
    assert!(remapped(&snapshot, 0.0).is_empty());
}

#[test]
fn a_node_with_too_many_threads_gives_some_away_and_not_a_pair_apart() {
    let snapshot = sharers(two_nodes(2), &[0, 0, 0, 0], &[(0, 3, 1e3), (1, 2, 1e3)]);
    let places = mapped(&snapshot);
    assert_eq!(places.iter().sum::<usize>(), 2);
    assert_eq!((places[0], places[1]), (places[3], places[2]));
}

#[test]
fn a_small_gain_does_not_pay() {
    let snapshot = sharers(two_nodes(2), &[0, 1, 0, 1], &[(0, 1, 100.0), (2, 3, 100.0), (0, 3, 95.0), (1, 2, 95.0)]);
    assert!(!remapped(&snapshot, 40.0).is_empty());
    assert!(remapped(&snapshot, 60.0).is_empty());
}

/// Threads 0 and 1 have to leave node 2, which lost its CPUs. The others could save 5 % of what they share.
#[test]
fn threads_that_must_leave_do_though_nothing_else_pays() {
    let topology = machine(&[3, 3, 0], &[&[10, 21, 21], &[21, 10, 21], &[21, 21, 10]]);
    let sharing = [(2, 3, 100.0), (2, 4, 95.0), (3, 5, 95.0)];
    let snapshot = sharers(topology, &[2, 2, 0, 1, 0, 1], &sharing);
    let plan = remapped(&snapshot, 60.0);
    let after = snapshot.after_thread_moves(&plan);
    assert!(after.threads[..2].iter().all(|thread| thread.node.0 != 2));
    assert_eq!(plan.moves.len(), 2);
}

/// A graph of `groups` groups of `size` threads, heavy within and light between, scattered over two nodes or more.
fn planted(seed: u64, groups: usize, size: usize) -> SharingMatrix {
    let mut random = Pcg64::seed_from_u64(seed);
    let threads = groups * size;
    let cells: Vec<_> = (0..threads)
        .flat_map(|one| (one + 1..threads).map(move |other| (one, other)))
        .map(|(one, other)| {
            let most = if one % groups == other % groups { 100 } else { 10 };
            (one, other, f64::from(1 + random.next_u32() % most))
        })
        .collect();
    SharingMatrix::new(threads, cells)
}

/// As many threads a node as fit, all nodes alike, 11 apart.
fn on_nodes(sharing: &SharingMatrix, nodes: usize) -> Request {
    let threads = sharing.threads();
    Request {
        threads,
        weights: sharing.pairs().collect(),
        capacities: vec![threads / nodes; nodes],
        distances: (0..nodes).map(|a| (0..nodes).map(|b| if a == b { 0.0 } else { 11.0 }).collect()).collect(),
        allowed: None,
        present: Some((0..threads).map(|thread| thread * nodes / threads).collect()),
    }
}

fn price(request: &Request, place: &[usize]) -> f64 {
    let of = |&(one, other, events): &(usize, usize, f64)| events * request.distances[place[one]][place[other]];
    request.weights.iter().map(of).sum()
}

/// The lowest price of 8 threads on 2 nodes of 4, of all there are.
fn optimum(request: &Request) -> f64 {
    let places = (0u32..256).filter(|bits| bits.count_ones() == 4);
    let of = |bits: u32| price(request, &(0..8).map(|thread| (bits >> thread & 1) as usize).collect::<Vec<_>>());
    places.map(of).fold(f64::INFINITY, f64::min)
}

#[test]
fn eight_threads_on_two_nodes_cost_the_optimum() {
    for seed in 0..50 {
        let request = on_nodes(&planted(seed, 2, 4), 2);
        let best = map_sharers(request.clone(), EFFORT).best;
        assert_eq!(price(&request, &best), optimum(&request), "seed {seed}");
    }
}

#[test]
fn planted_groups_of_64_threads_are_found() {
    for seed in 0..5 {
        let place = map_sharers(on_nodes(&planted(seed, 4, 16), 4), EFFORT).best;
        assert!((0..64).all(|thread| place[thread] == place[thread % 4]), "seed {seed}: {place:?}");
    }
}

#[test]
fn no_exchange_of_two_threads_lowers_the_price_any_more() {
    for seed in 0..10 {
        let request = on_nodes(&planted(seed, 8, 2), 4);
        let place = map_sharers(request.clone(), EFFORT).best;
        let found = price(&request, &place);
        for one in 0..16 {
            for other in 0..one {
                let mut exchanged = place.clone();
                exchanged.swap(one, other);
                assert!(price(&request, &exchanged) >= found, "seed {seed}: {one} and {other} of {place:?}");
            }
        }
    }
}

/// Groups of four, three of whose threads are on one node: the fourth of each comes, whichever node the mapper liked for
/// the group.
#[test]
fn groups_go_where_most_of_their_threads_are() {
    for threads in [8, 64] {
        let group = |thread: usize| (thread + usize::from(thread.is_multiple_of(4)) * 4) % threads / 4;
        let all = (0..threads).flat_map(|one| (one + 1..threads).map(move |other| (one, other)));
        let pairs = all.filter(|&(one, other)| group(one) == group(other)).map(|(one, other)| (one, other, 1.0));
        let request = on_nodes(&SharingMatrix::new(threads, pairs), threads / 4);
        let present = request.present.clone().unwrap();
        for seed in 0..5 {
            let best = map_sharers(request.clone(), Effort { seed, ..EFFORT }).best;
            let moved = best.iter().zip(&present).filter(|(then, now)| then != now).count();
            assert_eq!((price(&request, &best), moved), (0.0, threads / 4), "seed {seed}");
        }
    }
}

/// 12 threads may run on nodes 0 and 1 only, which have 4 slots in all; pairs of these share.
#[test]
fn nodes_take_their_share_of_the_threads_that_may_go_nowhere_else() {
    let pairs: Vec<_> = (0..6).map(|pair| (pair, pair + 6, 1e3)).collect();
    let mut snapshot = sharers(
        machine(&[2; 4], &[&[10, 21, 21, 21], &[21, 10, 21, 21], &[21, 21, 10, 21], &[21, 21, 21, 10]]),
        &[0; 12],
        &pairs,
    );
    snapshot.threads.iter_mut().for_each(|thread| thread.allowed = vec![true, true, false, false].into());
    let places = mapped(&snapshot);
    assert_eq!(places.iter().filter(|&&node| node == 0).count(), 6, "{places:?}");
    assert!(pairs.iter().all(|&(one, other, _)| places[one] == places[other]), "{places:?}");
}

/// Threads 0 and 2 share, and 3 and 4. Were 2 beside 0 and 4 beside 3, then 1, which may run nowhere else, would be one
/// too many on node 0, and 2 could not give way: it may not go to node 2, where there is room.
#[test]
fn a_node_is_not_overfilled_by_threads_that_can_go_nowhere_else() {
    let topology = machine(&[2; 3], &[&[10, 21, 21], &[21, 10, 21], &[21, 21, 10]]);
    let mut snapshot = sharers(topology, &[0, 0, 1, 1, 2, 2], &[(0, 2, 1e3), (3, 4, 500.0)]);
    let allowed: [&[usize]; 6] = [&[0], &[0], &[0, 1], &[1], &[1, 2], &[2]];
    for (thread, allowed) in snapshot.threads.iter_mut().zip(allowed) {
        thread.allowed = (0..3).map(|node| allowed.contains(&node)).collect::<Vec<_>>().into();
    }
    assert!(remapped(&snapshot, 0.0).is_empty());
}
