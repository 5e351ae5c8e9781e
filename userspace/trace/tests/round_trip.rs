// SPDX-License-Identifier: GPL-2.0-only
//! Whatever is recorded comes back, to the last bit.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option::{of, weighted};
use proptest::prelude::*;
use tandem_policies::model::{
    AccessRates, Action, CpuId, GroupId, LatencySource, MemoryLines, Move, Node, NodeId, NodeIndex, NodeLoad,
    PageGroup, PerNode, Plan, ProcessId, ProcessMemory, Snapshot, Thread, ThreadId, Topology, Transfers, Unmovable,
};
use tandem_trace::testing::{Shape, choices, recording, settings};
use tandem_trace::{Answer, Decision, Entry, Interval, Outcome, TraceReader, TraceWriter};

/// Every number there is, with those that policies see more often than others.
fn number() -> impl Strategy<Value = f64> + Clone {
    let special = [0.0, -0.0, 1.0, f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE, f64::MAX];
    prop_oneof![any::<u64>().prop_map(f64::from_bits), proptest::sample::select(special.to_vec()), 0.0..1e9]
}

/// Few, so that intervals share them; and any.
fn thread_id() -> impl Strategy<Value = ThreadId> + Clone {
    let few = (0..6_u32).prop_map(|tid| ThreadId { tid, start_boottime_ns: 1 });
    let any = any::<(u32, u64)>().prop_map(|(tid, start_boottime_ns)| ThreadId { tid, start_boottime_ns });
    prop_oneof![4 => few, 1 => any]
}

fn group_id() -> impl Strategy<Value = GroupId> + Clone {
    let few = (0..2_u32, 0..8_u64).prop_map(|(process, at)| (process, at << 21));
    prop_oneof![4 => few, 1 => any::<(u32, u64)>()]
        .prop_map(|(process, start)| GroupId { process: ProcessId(process), start })
}

fn row<T: std::fmt::Debug>(nodes: usize, one: impl Strategy<Value = T>) -> impl Strategy<Value = PerNode<T>> {
    vec(one, nodes).prop_map(PerNode::from)
}

fn cpus() -> impl Strategy<Value = Vec<CpuId>> {
    vec(any::<u32>().prop_map(CpuId), 0..4)
}

fn topology(nodes: usize) -> impl Strategy<Value = Topology> {
    let source =
        proptest::sample::select(vec![LatencySource::Measured, LatencySource::MachineFile, LatencySource::Distance]);
    let capacities = vec(of(1u32..=1024), 4);
    let caches = (vec(cpus(), 0..3), capacities);
    let node = (cpus(), caches, any::<u64>(), any::<u64>(), row(nodes, any::<u32>()), row(nodes, number()));
    (btree_set(any::<u32>(), nodes), vec(node, nodes), source).prop_map(|(ids, nodes, source)| {
        let nodes = ids.into_iter().zip(nodes).map(
            |(id, (cpus, (llcs, capacities), memory_pages, free_pages, distance, latency_ns))| Node {
                id: NodeId(id),
                slow_cpus: cpus.iter().zip(capacities).filter_map(|(&cpu, slow)| Some((cpu, slow?))).collect(),
                cpus,
                llcs,
                memory_pages,
                free_pages,
                distance,
                latency_ns,
            },
        );
        Topology::new(nodes.collect(), source).unwrap()
    })
}

fn shares() -> impl Strategy<Value = Vec<(ThreadId, f64)>> {
    btree_map(thread_id(), number(), 0..5).prop_map(|shares| shares.into_iter().collect())
}

fn thread(nodes: usize) -> impl Strategy<Value = Thread> {
    let transfers = of((number(), number()))
        .prop_map(|both| both.map(|(within_node, across_nodes)| Transfers { within_node, across_nodes }));
    let who = (any::<u32>(), ".{0,8}", 0..nodes, any::<u32>(), any::<bool>(), of(1..u64::MAX), of(1..u64::MAX));
    let ran = (row(nodes, any::<bool>()), any::<u64>(), row(nodes, any::<u64>()), row(nodes, of(number())));
    let lines = (transfers, (of(number()), of(number())).prop_map(|(all, remote)| MemoryLines { all, remote }));
    let with = (shares(), of((thread_id(), number())), of(1..u64::MAX));
    let seen = (of(row(nodes, number())), of(number()), of(number()), of(number()), lines, with);
    (who, ran, seen).prop_map(|((process, command, node, cpu, on_cooldown, turned_ns, cgroup), ran, seen)| {
        let (allowed, cpu_time_ns, run_ns, performance) = ran;
        let (accesses_per_s, latency_ns, operations_per_s, cycles_per_s, lines, (sharing, woken_by, in_step_ns)) = seen;
        let (transfers_per_s, memory_lines_per_s) = lines;
        Thread {
            id: ThreadId { tid: 0, start_boottime_ns: 0 },
            process: ProcessId(process),
            cgroup,
            command,
            node: NodeIndex(node),
            cpu: CpuId(cpu),
            allowed,
            cpu_time_ns,
            run_ns,
            accesses_per_s,
            latency_ns,
            operations_per_s,
            cycles_per_s,
            transfers_per_s,
            memory_lines_per_s,
            performance,
            sharing,
            on_cooldown,
            turned_ns,
            in_step_ns,
            woken_by,
        }
    })
}

fn group(nodes: usize) -> impl Strategy<Value = PageGroup> {
    use Unmovable::{Bound, Contested, Cooldown, HugeTlb, MemoryPressure, Pinned, Shared};
    let reasons = vec![Cooldown, Shared, Pinned, Bound, HugeTlb, MemoryPressure, Contested];
    let unmovable = of(proptest::sample::select(reasons));
    let rows = (row(nodes, any::<u64>()), row(nodes, number()));
    ((any::<u64>(), any::<bool>()), rows, shares(), number(), of(number()), unmovable).prop_map(
        |((bytes, huge), (resident_pages, accesses_per_s), users, samples, latency_ns, unmovable)| PageGroup {
            id: GroupId { process: ProcessId(0), start: 0 },
            bytes,
            resident_pages,
            huge,
            accesses_per_s,
            users: users.into(),
            samples,
            latency_ns,
            unmovable,
        },
    )
}

fn load(nodes: usize) -> impl Strategy<Value = NodeLoad> {
    let latencies = prop_oneof![Just(PerNode::default()), row(nodes, of(number()))];
    (any::<u64>(), any::<u64>(), of(number()), latencies).prop_map(
        |(busy_ns, unmanaged_ns, served_latency_ns, latency_ns_from)| NodeLoad {
            busy_ns,
            unmanaged_ns,
            served_latency_ns,
            latency_ns_from,
        },
    )
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    (1..4_usize).prop_flat_map(|nodes| {
        let threads = btree_map(thread_id(), thread(nodes), 0..6);
        let groups = btree_map(group_id(), group(nodes), 0..8);
        let rates = of(proptest::sample::select(vec![AccessRates::Measured, AccessRates::Inferred]));
        let whole = (any::<(u64, u64)>(), (of(any::<f64>()), of(any::<f64>()), of(any::<f64>())), rates);
        let allowed = prop_oneof![Just(PerNode::default()), row(nodes, any::<bool>())];
        let memory = allowed.prop_map(|allowed| ProcessMemory { allowed });
        let processes = btree_map(any::<u32>().prop_map(ProcessId), memory, 0..3);
        (whole, topology(nodes), (threads, processes), groups, row(nodes, load(nodes))).prop_map(
            |(
                ((time_ns, interval_ns), (page_move_ns, huge_page_move_ns, realised_share), access_rates),
                topology,
                (threads, processes),
                groups,
                nodes,
            )| {
                Snapshot {
                    time_ns,
                    interval_ns,
                    topology,
                    threads: threads.into_iter().map(|(id, thread)| Thread { id, ..thread }).collect(),
                    groups: groups.into_iter().map(|(id, group)| PageGroup { id, ..group }).collect(),
                    nodes,
                    process_memory: processes,
                    page_move_ns,
                    huge_page_move_ns,
                    realised_share,
                    access_rates,
                }
            },
        )
    })
}

fn action() -> impl Strategy<Value = Action> {
    let node = || any::<usize>().prop_map(NodeIndex);
    prop_oneof![
        (thread_id(), node(), node(), of(any::<u32>().prop_map(CpuId)))
            .prop_map(|(thread, from, to, cpu)| Action::MoveThread { thread, from, to, cpu }),
        (thread_id(), thread_id(), node(), node()).prop_map(|(first, second, first_node, second_node)| {
            Action::Interchange { first, second, first_node, second_node }
        }),
        (group_id(), any::<u64>(), node()).prop_map(|(group, bytes, to)| Action::MovePages { group, bytes, to }),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    let planned = (action(), of(number()), ".{0,9}").prop_map(|(action, gain_ns_per_s, reason)| Move {
        action,
        gain_ns_per_s,
        reason,
    });
    prop_oneof![vec(planned, 0..4).prop_map(|moves| Answer::Plan(Plan { moves })), ".{0,9}".prop_map(Answer::Missing)]
}

fn decision() -> impl Strategy<Value = Decision> {
    (any::<u64>(), vec(answer(), 0..3), of(any::<usize>()), of(any::<u64>()))
        .prop_map(|(seed, answers, taken, generation)| Decision { seed, answers, taken, generation })
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let pages = (any::<(u64, bool, u32, u64, u64, u64)>(), group_id(), ".{0,9}");
    prop_oneof![
        pages.prop_map(|((generation, undo, to, requested_pages, moved_pages, time_ns), group, ended)| {
            let to = NodeId(to);
            Outcome::Pages { generation, undo, group, to, requested_pages, moved_pages, time_ns, ended }
        }),
        (thread_id(), ".{0,9}").prop_map(|(thread, why)| Outcome::Refused { thread, why }),
        (any::<u64>(), of(number()), of(number()), any::<bool>()).prop_map(
            |(generation, before_ns, after_ns, undone)| Outcome::Judged { generation, before_ns, after_ns, undone }
        ),
    ]
}

fn interval() -> impl Strategy<Value = Interval> {
    (snapshot(), vec(outcome(), 0..3), weighted(0.7, decision())).prop_map(|(snapshot, outcomes, decision)| Interval {
        snapshot,
        outcomes,
        decision,
    })
}

fn written(intervals: &[Interval]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = TraceWriter::new(&mut bytes).unwrap();
    writer.settings(&settings(&choices("sma", "tmma"), 1, 1)).unwrap();
    for interval in intervals {
        writer.interval(interval.clone()).unwrap();
    }
    writer.end(None).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Vec<Interval> {
    let entries = TraceReader::new(bytes).unwrap().map(Result::unwrap);
    entries
        .filter_map(|entry| match entry {
            Entry::Interval(interval) => Some(*interval),
            Entry::Settings(_) => None,
        })
        .collect()
}

/// The bits of a NaN are not part of its text; writing again tells them apart.
fn assert_comes_back(intervals: &[Interval]) {
    let bytes = written(intervals);
    let read = read(&bytes);
    assert_eq!(format!("{read:?}"), format!("{intervals:?}"));
    assert_eq!(written(&read), bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_intervals_come_back(intervals in vec(interval(), 0..4)) {
        assert_comes_back(&intervals);
    }
}

#[test]
fn intervals_of_the_sensor_come_back() {
    let (bytes, intervals) = recording(Shape::SMALL, &choices("sma", "tmma"), 7, 30);
    assert_eq!(read(&bytes), intervals);
}

#[test]
fn the_bits_of_numbers_that_are_none_come_back() {
    let (_, mut intervals) = recording(Shape::SMALL, &choices("none", "none"), 1, 2);
    let odd = [f64::from_bits(0x7ff8_0000_dead_beef), f64::from_bits(0xfff0_0000_0000_0001), f64::NEG_INFINITY];
    for interval in &mut intervals {
        for (group, value) in interval.snapshot.groups.iter_mut().zip(odd) {
            group.samples = value;
            group.accesses_per_s[NodeIndex(0)] = value;
        }
    }
    let read = read(&written(&intervals));
    for (at, value) in odd.iter().enumerate() {
        for group in read.iter().map(|interval| &interval.snapshot.groups[at]) {
            assert_eq!(group.samples.to_bits(), value.to_bits());
            assert_eq!(group.accesses_per_s[NodeIndex(0)].to_bits(), value.to_bits());
        }
    }
}

#[test]
fn what_is_no_interval_of_one_machine_is_refused_in_words() {
    let (_, intervals) = recording(Shape::SMALL, &choices("none", "none"), 1, 2);
    let refused = |change: fn(&mut Snapshot)| {
        let mut interval = intervals[0].clone();
        change(&mut interval.snapshot);
        TraceWriter::new(Vec::new()).unwrap().interval(interval).unwrap_err().to_string()
    };
    let said = refused(|snapshot| snapshot.threads[0].run_ns = vec![1].into());
    assert_eq!(said, "holds no snapshot: thread 1000 has 1 run times, the machine has 2 nodes");
    let said = refused(|snapshot| snapshot.groups.swap(0, 1));
    assert_eq!(said, "holds no snapshot: page groups do not ascend by id");
    let said = refused(|snapshot| snapshot.threads[0].node = NodeIndex(2));
    assert_eq!(said, "holds no snapshot: thread 1000 is on node 2 of 2");
}
