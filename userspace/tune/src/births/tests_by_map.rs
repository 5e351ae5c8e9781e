// SPDX-License-Identifier: GPL-2.0-only

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use tandem_ab::stop::Stop;

use super::*;
use crate::launch::{End, Limit, Program, Seen, Streams, run};
use crate::page_map::{Mapped, PageMap};
use crate::places::Places;

/// Allocates in two places of its code, one of them in a loop; tells of each allocation where it is and which pages are bound. With
/// an argument, the second one of the loop is larger.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static char zeros[100 * 4096] __attribute__((aligned(4096)));
static void tell(const char *name, char *begin, size_t pages)
{
	size_t first = pages, last = 0, bound = 0;
	for (size_t at = 0; at < pages; at++) {
		int mode = -1;
		unsigned long nodes = 0;
		if (syscall(SYS_get_mempolicy, &mode, &nodes, 64, begin + at * 4096, 2 /* MPOL_F_ADDR */))
			exit(3);
		if (mode == 1 /* MPOL_PREFERRED */ && nodes == 1) {
			first = at < first ? at : first;
			last = at;
			bound++;
		}
	}
	fprintf(stderr, "%p\n", (void *)begin);
	if (bound)
		printf("%s: %zu of %zu, %zu to %zu\n", name, bound, pages, first, last);
	else
		printf("%s: 0 of %zu\n", name, pages);
}
__attribute__((noinline)) static char *map(size_t pages)
{
	char *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		exit(4);
	return memory;
}
int main(int words, char **word)
{
	char *loop[3], *one;
	for (int i = 0; i < 3; i++)
		loop[i] = map(100 + 10 * (words > 1 && i == 1));
	one = malloc(512 * 4096);
	one = (char *)(((size_t)one + 4095) & ~4095ul);
	tell("zeros", zeros, 100);
	tell("first", loop[0], 100);
	tell("second", loop[1], 100);
	tell("third", loop[2], 100);
	tell("malloc", one, 511);
	return 0;
}
"#;

fn build(directory: &Path) -> OsString {
    let (file, program) = (directory.join("program.c"), directory.join("program"));
    std::fs::write(&file, PROGRAM).unwrap();
    assert!(Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(&file).status().unwrap().success());
    program.into_os_string()
}

/// What was seen, what the program told, and the addresses that it had.
fn ran(command: &[OsString], places: &Places, directory: &Path) -> (Seen, String, Vec<String>) {
    let output = directory.join("output");
    let streams = Streams::Files { input: None, output: output.clone() };
    let program = Program { command: command.to_vec(), streams, functions: Vec::new() };
    let seen = run(&program, places, Limit::default(), &Stop::default(), |_| ()).unwrap();
    let told = std::fs::read_to_string(output).unwrap();
    let (addresses, words) = told.lines().map(str::to_owned).partition::<Vec<String>, _>(|line| line.starts_with("0x"));
    (seen, words.join("\n"), addresses)
}

fn told(command: &[OsString], directory: &Path) -> Vec<Born> {
    let (seen, ..) = ran(command, &Places { tells_allocations: true, ..Places::default() }, directory);
    assert_eq!(seen.end, End::Code(0));
    assert!(seen.members.iter().any(|one| one.rank == 0 && one.thread == one.process), "{:?}", seen.members);
    seen.allocations
}

/// A map of what was told: some of the second one of the loop, all of what malloc got, nothing else.
fn map(births: &[Born]) -> PageMap {
    let of_loop: Vec<&Born> = births.iter().filter(|one| one.pages == 100 && one.name.site != STATIC).collect();
    let malloc = births.iter().find(|one| one.pages > 500).unwrap();
    let mapped = |one: &Born, runs: String| Mapped {
        site: one.name.site.clone(),
        order: one.name.order,
        pages: one.pages,
        runs,
    };
    let allocations = vec![
        mapped(of_loop[1], "10-19 on 0, 90-99 on 0".into()),
        mapped(malloc, format!("0-{} on 0", malloc.pages - 1)),
    ];
    PageMap { sampler: "made up".into(), accesses: 100, allocations }
}

#[test]
fn allocations_have_the_same_names_in_every_run_and_other_addresses() {
    let directory = tempfile::tempdir().unwrap();
    let program = [build(directory.path())];
    let runs = [told(&program, directory.path()), told(&program, directory.path())];
    let names = |births: &[Born]| births.iter().map(|one| (one.name.clone(), one.pages)).collect::<Vec<_>>();
    assert_eq!(names(&runs[0]), names(&runs[1]));
    assert!(runs[0].iter().zip(&runs[1]).all(|(one, other)| one.begin != other.begin), "{runs:?}");
    assert!(runs[0].is_sorted_by_key(|one| one.at_ns), "{runs:?}");
    let [zeros, first, second, third, malloc] = &runs[0][..] else { panic!("{runs:?}") };
    assert_eq!((zeros.name.site.as_str(), zeros.pages), (STATIC, 100));
    let orders = [first, second, third].map(|one| one.name.order);
    assert!(orders == [0, 1, 2] && first.name.site == third.name.site, "{runs:?}");
    assert!(first.name.site.starts_with("program+0x") && malloc.name.site.starts_with("program+0x"), "{runs:?}");
    assert_ne!(first.name.site, malloc.name.site);
}

#[test]
fn a_map_holds_wherever_memory_is() {
    let directory = tempfile::tempdir().unwrap();
    let program = [build(directory.path())];
    let page_map = Some(Arc::new(map(&told(&program, directory.path()))));
    let places = Places { page_map, ..Places::default() };
    let runs: Vec<_> = (0..3).map(|_| ran(&program, &places, directory.path())).collect();
    let expected =
        "zeros: 0 of 100\nfirst: 0 of 100\nsecond: 20 of 100, 10 to 99\nthird: 0 of 100\nmalloc: 511 of 511, 0 to 510";
    for (seen, words, addresses) in &runs {
        assert_eq!((&seen.end, words.as_str(), addresses.len()), (&End::Code(0), expected, 5));
        let map_use = seen.map_use.as_ref().unwrap();
        assert!(map_use.fits() && map_use.in_words().is_none(), "{map_use:?}");
    }
    assert_ne!(runs[0].2, runs[1].2, "addresses are random on this machine");
}

#[test]
fn a_program_that_allocates_otherwise_is_told_and_goes_by_first_touch_there() {
    let directory = tempfile::tempdir().unwrap();
    let program = build(directory.path());
    let map = map(&told(std::slice::from_ref(&program), directory.path()));
    let other = [program.clone(), "more".into()];
    let places = |map: PageMap| Places { page_map: Some(Arc::new(map)), ..Places::default() };
    let (seen, words, _) = ran(&other, &places(map.clone()), directory.path());
    assert!(words.contains("second: 0 of 100") && words.contains("malloc: 511 of 511"), "{words}");
    let map_use = seen.map_use.unwrap();
    assert!(map_use.fits(), "most of it is as it was");
    let said = map_use.in_words().unwrap();
    let expected = format!("its allocations are not those that were profiled: {} of {} pages", 513, 613);
    assert!(said.starts_with(&expected) && said.contains("has 110 pages, it had 100"), "{said}");
    // Without what malloc got it is most of the map that does not fit.
    let part = PageMap { allocations: map.allocations[..1].to_vec(), ..map.clone() };
    let (seen, words, _) = ran(&other, &places(part), directory.path());
    assert!(seen.end == End::Code(0) && !seen.map_use.unwrap().fits(), "{words}");
    // Sites that are not there at all.
    let strange = Mapped { site: "program+0x1".into(), ..map.allocations[0].clone() };
    let strange = PageMap { allocations: vec![strange], ..map };
    let (seen, ..) = ran(&[program], &places(strange), directory.path());
    let said = seen.map_use.unwrap().in_words().unwrap();
    assert!(said.contains("0 of 100 pages") && said.contains("is not in the map"), "{said}");
}
