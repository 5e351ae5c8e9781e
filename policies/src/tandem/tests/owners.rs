// SPDX-License-Identifier: GPL-2.0-only
//! Whose memory is, by the samples of its users.

use super::*;
use crate::tandem::owners::Owner;

/// Whose a group with these samples of threads 0, 1, ... is.
fn owner_of(samples: &[f64]) -> (Owner, Vec<(usize, f64)>) {
    let threads = (0..samples.len())
        .fold(SnapshotBuilder::new(two_nodes(4)), |all, tid| all.thread(tid as u32, tid % 2, Some(&[1e6, 1e6])));
    let users: Vec<(u32, f64)> = samples.iter().enumerate().map(|(tid, &seen)| (tid as u32, 1e3 * seen)).collect();
    let seen = samples.iter().sum();
    let snapshot = threads.group_used_by(&[ALL, 0], &users).with_group(|group| group.samples = seen).build();
    let defaults = POLICY.defaults();
    let owners = Seen::of(&snapshot, &defaults).owners;
    (owners.of[0].unwrap(), owners.parts.first().map_or(vec![], |part| part.users.clone()))
}

#[test]
fn a_group_belongs_to_the_threads_that_chance_does_not_explain() {
    let names = |samples: &[f64]| owner_of(samples).1.iter().map(|user| user.0).collect::<Vec<_>>();
    assert_eq!(names(&[20.0]), [0]);
    assert_eq!(names(&[1.0, 30.0, 32.0]), [1, 2]);
    assert_eq!(names(&[12.0, 48.0]), [0, 1], "the second is an owner too");
    assert_eq!(names(&[38.0, 4.0, 3.0, 5.0, 3.0, 4.0, 3.0]), [0], "one uses it most, and many a little");
    assert_eq!(owner_of(&[4.0]).0, Owner::Common(0), "too few samples");
    assert_eq!(owner_of(&[11.0, 6.0, 7.0, 8.0, 5.0, 9.0, 7.0, 7.0]).0, Owner::Common(0));
}

#[test]
fn a_group_with_too_few_samples_belongs_to_the_owner_of_the_one_next_to_it() {
    let few = |all: SnapshotBuilder| all.group_used_by(&[ALL, 0], &[(1, 1e3)]).with_group(|group| group.samples = 1.0);
    let thread = SnapshotBuilder::new(two_nodes(1)).thread_with_memory_on(1, 0, 0);
    let snapshot = few(few(thread).group_used_by(&[ALL, 0], &[(1, 1e5)])).build();
    let defaults = POLICY.defaults();
    assert_eq!(Seen::of(&snapshot, &defaults).owners.of, [Some(Owner::Part(0)); 3]);
}

/// Owners of neighbouring groups of 2 MiB in which the threads 1, 2, ... were seen so often.
fn owners_of<const THREADS: usize>(seen: &[[f64; THREADS]]) -> Vec<Owner> {
    let threads = (1..=THREADS as u32)
        .fold(SnapshotBuilder::new(two_nodes(4)), |all, tid| all.thread_with_memory_on(tid, tid as usize % 2, 0));
    let snapshot = seen.iter().fold(threads, |all, seen| {
        let users = (1..).zip(seen).filter(|(_, samples)| **samples > 0.0).map(|(tid, samples)| (tid, 1e3 * samples));
        let users: Vec<(u32, f64)> = users.collect();
        all.group_used_by(&[ALL, 0], &users).with_group(|group| group.samples = seen.iter().sum())
    });
    Seen::of(&snapshot.build(), &POLICY.defaults()).owners.of.into_iter().flatten().collect()
}

#[test]
fn neighbours_in_which_one_thread_was_seen_belong_to_it_if_it_was_seen_often_enough() {
    let alone = |samples: [f64; 4]| owners_of(&samples.map(|seen| [seen, 0.0, 0.0]));
    assert_eq!(alone([3.0, 2.0, 3.0, 1.0]), [Owner::Part(0); 4], "nine in all");
    assert_eq!(alone([3.0, 2.0, 2.0, 1.0]), [Owner::Common(0); 4], "one less");
    let another = [[3.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 3.0, 0.0], [3.0, 0.0, 0.0]];
    assert_eq!(owners_of(&another), [Owner::Common(0); 4], "another one between them");
    let faint = [[3.0, 0.0, 0.0], [2.0, 0.0, 0.2], [5.0, 0.0, 0.0], [1.0, 0.0, 0.0]];
    assert_eq!(owners_of(&faint), [Owner::Part(0); 4], "another one, but hardly");
}

#[test]
fn neighbours_in_which_the_same_few_threads_were_seen_belong_to_them() {
    // Too few samples in each to tell two users from one that chance made rarer.
    let pair = [[5.0, 3.0, 0.0], [4.0, 5.0, 0.2], [6.0, 6.0, 0.0], [4.0, 4.0, 0.0]];
    assert_eq!(owners_of(&pair), [Owner::Part(0); 4]);
    assert_eq!(owners_of(&pair[..1]), [Owner::Common(0)]);
    let three = [[3.0, 2.0, 0.0], [0.0, 2.0, 3.0], [3.0, 0.0, 2.0]];
    assert_eq!(owners_of(&three), [Owner::Common(0); 3], "who is seen changes: all use all of it");
}

#[test]
fn neighbours_that_one_thread_uses_most_belong_to_it_though_all_go_there() {
    let part = [
        [3.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0],
        [4.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0],
        [3.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0],
    ];
    assert_eq!(owners_of(&part), [Owner::Part(0); 3], "10 of 19 where 2.6 would be by chance");
    assert_eq!(owners_of(&part[..2]), [Owner::Common(0); 2], "7 of 13: too few samples");
    let less = [[27.0, 3.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0]];
    assert_eq!(owners_of(&less), [Owner::Common(0)], "27 of 60: less than half of them");
    let mut many = [[1.0; 80]];
    many[0][0] = 70.0;
    assert_eq!(owners_of(&many), [Owner::Common(0)], "70 of 149: less than half of them");
    many[0][0] = 100.0;
    assert_eq!(owners_of(&many), [Owner::Part(0)], "100 of 179, with more users than are told apart");
    let other = [part[0], [1.0, 4.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0], part[1], part[2]];
    assert_eq!(owners_of(&other), [Owner::Common(0); 4], "another one between them");
}

/// Of the first group 64 threads are seen, and of ten behind it the first of them and another one, hardly less often.
#[test]
fn a_user_that_comes_after_63_others_counts() {
    let mut seen = [[0.0; 65]; 11];
    seen[0][1..64].fill(0.01);
    seen[1..].iter_mut().for_each(|group| group[64] = 0.97);
    seen.iter_mut().for_each(|group| group[0] = 1.0);
    assert_eq!(owners_of(&seen)[0], Owner::Common(0), "eleven of 21 samples in all");
}

#[test]
fn who_uses_neighbours_most_by_chance_owns_nothing() {
    assert_eq!(owners_of(&[[10.0, 3.0, 3.0]]), [Owner::Common(0)], "of three users one often has ten of sixteen");
    let faint = [[6.0, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05]];
    assert_eq!(owners_of(&faint), [Owner::Common(0)], "six samples, whoever else is hardly there");
    let second = [[20.0, 9.0, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6]];
    assert_eq!(owners_of(&second), [Owner::Common(0)], "another one uses it too");
}

#[test]
fn what_two_threads_own_stays_theirs_where_one_of_them_is_seen_more() {
    let of_both = |one: f64, other: f64| [one, other, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25];
    let most_of_one = of_both(10.0, 4.2);
    let seen = [most_of_one, most_of_one, most_of_one, most_of_one, most_of_one, of_both(4.0, 10.0)];
    assert_eq!(owners_of(&seen), [Owner::Part(0); 6]);
}
