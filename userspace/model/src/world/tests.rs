// SPDX-License-Identifier: GPL-2.0-only
use super::*;
use crate::testing::{machine, scenario, two_nodes};

const RING: &str = include_str!("../../../../vm/machines/ring4.toml");

fn homes(machine: &Machine, world: &World) -> Vec<usize> {
    let node_of = |thread: usize| world.threads[thread].place.unwrap();
    let home = |region: usize| world.home(machine, region, None, node_of).iter().next().unwrap().0;
    (0..world.regions.len()).map(home).collect()
}

fn places(world: &World) -> Vec<usize> {
    world.threads.iter().map(|thread| thread.place.unwrap()).collect()
}

/// One program of `threads` threads with a private region each.
fn placed(place: &str, home: &str, threads: usize) -> Scenario {
    scenario(&format!(
        "[[program]]\nname = 'p'\nthreads = {threads}\nplace = '{place}'\nuses = [{{ region = 'own', share = 1 }}]\n\
         [[program.region]]\nname = 'own'\nmb = 2\nhome = '{home}'"
    ))
}

#[test]
fn places_and_homes_are_those_of_the_labs_crossed() {
    for (machine, at, private) in [
        (two_nodes(), [0, 0, 1, 1, 0, 0, 1, 1], [1, 1, 0, 0, 1, 1, 0, 0]),
        (machine(RING), [0, 1, 1, 2, 2, 3, 3, 0], [2, 2, 3, 3, 0, 0, 1, 1]),
    ] {
        let world = World::new(&machine, &placed("pairs-apart", "next", 8), 0);
        assert_eq!((places(&world), homes(&machine, &world)), (at.to_vec(), private.to_vec()));
    }
}

#[test]
fn blocks_scatter_fill_and_first() {
    let machine = two_nodes();
    let of = |place: &str| places(&World::new(&machine, &placed(place, "local", 6), 0));
    assert_eq!(of("blocks"), [0, 0, 0, 1, 1, 1]);
    assert_eq!(of("scatter"), [0, 1, 0, 1, 0, 1]);
    assert_eq!(of("fill"), [0, 0, 0, 0, 1, 1]);
    assert_eq!(of("first"), [0; 6]);
    assert_eq!(of("halves-apart"), [0, 0, 1, 1, 1, 0]);
    assert_eq!(of("two-blocks"), [0, 0, 0, 1, 1, 1]);
    assert_eq!(places(&World::new(&self::machine(RING), &placed("two-blocks", "local", 4), 1)), [1, 1, 3, 3]);
}

#[test]
fn the_seed_turns_the_tour() {
    let machine = two_nodes();
    assert_eq!(places(&World::new(&machine, &placed("first", "local", 2), 1)), [1, 1]);
    assert_eq!(homes(&machine, &World::new(&machine, &placed("first", "far", 2), 1)), [0, 0]);
}

#[test]
fn ideal_seconds_are_accesses_at_the_local_latency() {
    let world = World::new(&two_nodes(), &placed("blocks", "far", 1), 0);
    // 1 s of 90 ns each.
    assert!((world.threads[0].accesses - 1e9 / 90.0).abs() < 1.0);
}

#[test]
fn phases_are_cut_where_the_work_ends() {
    let text = "[[program]]\nname = 'p'\nthreads = 1\nwork = 0.5\n\
                [[program.region]]\nname = 'own'\nmb = 2\n\
                [[program.phase]]\nseconds = 0.2\nuses = [{ region = 'own', share = 1 }]\n\
                [[program.phase]]\nseconds = 0.1\nuses = [{ region = 'own', share = 1, miss = 0 }]";
    let world = World::new(&two_nodes(), &scenario(text), 0);
    // .2 s at 90 ns, .1 s at 20 ns, .2 s at 90 ns.
    let expected = 0.4e9 / 90.0 + 0.1e9 / 20.0;
    assert!((world.threads[0].accesses - expected).abs() < 1.0, "{}", world.threads[0].accesses);
}

#[test]
fn regions_are_shared_as_said() {
    let ranks_of = |per: Per, shift: usize, of: Of| {
        let region = scenario::Region { name: String::new(), per, shift, mb: 1.0, home: Home::Local, lines: false };
        (0..6).map(|rank| ranks(&region, of, rank, 6)).collect::<Vec<_>>()
    };
    assert_eq!(ranks_of(Per::Pair, 0, Of::Own), [[0], [0], [1], [1], [2], [2]]);
    assert_eq!(ranks_of(Per::Pair, 1, Of::Own), [[2], [0], [0], [1], [1], [2]]);
    assert_eq!(ranks_of(Per::Half, 0, Of::Own), [[0], [0], [0], [1], [1], [1]]);
    assert_eq!(ranks_of(Per::Half, 0, Of::Opposite), [[1], [1], [1], [0], [0], [0]]);
    assert_eq!(ranks_of(Per::HalfPair, 0, Of::Own), [[0], [1], [2], [0], [1], [2]]);
    assert_eq!(ranks_of(Per::Thread, 0, Of::Neighbours)[0], [5, 1]);
    assert_eq!(ranks_of(Per::Thread, 0, Of::Grid)[0], [5, 1, 3, 3]);
}

#[test]
fn groups_cover_a_region_and_grow_with_it() {
    let text = "[[program]]\nname = 'p'\nthreads = 1\nuses = [{ region = 'own', share = 1 }]\n\
                [[program.region]]\nname = 'own'\nmb = 5\n[[program.region]]\nname = 'big'\nmb = 2000";
    let world = World::new(&two_nodes(), &scenario(text), 0);
    let [small, big] = &world.regions[..] else { panic!("two regions") };
    assert_eq!((0..small.groups()).map(|group| small.pages_of_group(group)).collect::<Vec<_>>(), [512, 512, 256]);
    assert_eq!((big.group_pages, big.groups()), (2048, 250));
    assert_eq!(big.start, small.start + (6 << 20), "regions begin at a multiple of 2 MiB");
}

#[test]
fn a_program_that_is_larger_than_the_machine_is_named() {
    let machine = two_nodes();
    let memory: u64 = (0..machine.nodes()).map(|node| machine.memory_pages(node)).sum();
    let large = |mb: u64| {
        let text = format!(
            "[[program]]\nname = 'small'\nthreads = 1\ncompute_ns = 1\n[[program]]\nname = 'p'\nthreads = 2\n\
             uses = [{{ region = 'own', share = 1 }}]\n[[program.region]]\nname = 'own'\nmb = {mb}"
        );
        let world = World::new(&machine, &scenario(&text), 0);
        world.too_large(&machine)
    };
    assert_eq!(large(memory / 512), None, "two regions that fit exactly");
    assert_eq!(large(memory / 512 + 1), Some(("p".to_owned(), memory + 512, memory)));
}

#[test]
fn programs_that_may_run_at_the_same_time_must_have_room_together() {
    let machine = two_nodes();
    let memory: u64 = (0..machine.nodes()).map(|node| machine.memory_pages(node)).sum();
    let half = memory / 256 / 2;
    let with = |start_of_third: &str, mb: u64| {
        let program = |name: &str, mb: u64, start: &str| {
            format!(
                "[[program]]\nname = '{name}'\nthreads = 1\n{start}\nuses = [{{ region = 'own', share = 1 }}]\n\
                 [[program.region]]\nname = 'own'\nmb = {mb}\n"
            )
        };
        let text = program("a", half, "") + &program("b", half, "start_s = 9") + &program("c", mb, start_of_third);
        World::new(&machine, &scenario(&text), 0).too_large(&machine)
    };
    assert_eq!(with("after = 'a'", half), None, "it has the memory of the one before");
    let told = |name: &str| Some((format!("{name} with those that may run beside it"), memory + 256, memory));
    assert_eq!(with("after = 'b'", half + 1), told("c"), "but no more");
    assert_eq!(with("", 1), told("b"));
}

#[test]
fn every_scenario_of_ours_has_room_in_the_memory_of_the_labs_machines() {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scenarios")).unwrap();
    let files: Vec<Scenario> = folder.map(|file| Scenario::load(file.unwrap().path()).unwrap()).collect();
    assert!(!files.is_empty());
    for file in ["2node", "ring4", "8node", "thanos-a", "thanos-b", "cascadelake"] {
        let path = format!("{}/../../vm/machines/{file}.toml", env!("CARGO_MANIFEST_DIR"));
        let machine = Machine::new(&tandem_machine::MachineFile::load(path).unwrap()).unwrap();
        for scenario in scenario::builtins().iter().chain(&files) {
            let world = World::new(&machine, scenario, 0);
            assert_eq!(world.too_large(&machine), None, "{} on {file}", scenario.name);
        }
    }
}
