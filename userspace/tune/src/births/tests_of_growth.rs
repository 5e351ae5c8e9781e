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

/// What all programs here have.
const BEGIN: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static char *map(size_t pages)
{
	char *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		exit(4);
	return memory;
}
static int is_bound(char *page)
{
	int mode = -1;
	unsigned long nodes = 0;
	if (syscall(SYS_get_mempolicy, &mode, &nodes, 64, page, 2 /* MPOL_F_ADDR */))
		exit(3);
	return mode == 1 /* MPOL_PREFERRED */ && nodes == 1;
}
static void tell(const char *name, char *begin, size_t pages)
{
	size_t bound = 0, first = pages;
	for (size_t at = 0; at < pages; at++) {
		bound += is_bound(begin + at * 4096);
		if (first == pages && is_bound(begin + at * 4096))
			first = at;
	}
	printf("%s: %zu of %zu from %zu\n", name, bound, pages, first);
}
int main(void)
{
	/* What is written needs no heap. */
	static char written[4096];
	setvbuf(stdout, written, _IOFBF, sizeof written);
"#;

/// A heap that grows by 132 KiB at a time, is given back in part, and grows again.
const HEAP: &str = r#"
	char *begin = sbrk(0);
	for (int step = 0; step < 20; step++)
		if (sbrk(33 * 4096) == (void *)-1)
			return 4;
	tell("grown", begin, 660);
	sbrk(-330 * 4096);
	for (int step = 0; step < 10; step++)
		sbrk(33 * 4096);
	tell("again", begin, 660);
	return 0;
}
"#;

/// Memory that is small when it is asked for, and a file's.
const SMALL: &str = r#"
	char *memory = map(10), *file;
	FILE *opened = fopen("/proc/self/exe", "r");
	memory = mremap(memory, 10 * 4096, 30 * 4096, MREMAP_MAYMOVE);
	tell("still small", memory, 30);
	memory = mremap(memory, 30 * 4096, 300 * 4096, MREMAP_MAYMOVE);
	tell("grown", memory, 300);
	memory = mremap(memory, 300 * 4096, 600 * 4096, MREMAP_MAYMOVE);
	tell("more", memory, 600);
	file = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(opened), 0);
	file = mremap(file, 4096, 100 * 4096, MREMAP_MAYMOVE);
	tell("file", file, 100);
	return file == MAP_FAILED;
}
"#;

/// Many allocations in one place, each of which is gone before the next one.
const MANY: &str = r#"
	for (int i = 0; i < 140; i++) {
		char *memory = map(512);
		if (!is_bound(memory + 510 * 4096))
			return 9;
		munmap(memory, 512 * 4096);
	}
	return 0;
}
"#;

fn build(directory: &Path, source: &str) -> OsString {
    let (file, program) = (directory.join("program.c"), directory.join("program"));
    std::fs::write(&file, [BEGIN, source].concat()).unwrap();
    assert!(Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(&file).status().unwrap().success());
    program.into_os_string()
}

/// What was seen, and what the program told.
fn ran(program: &OsString, places: &Places, directory: &Path) -> (Seen, String) {
    let output = directory.join("output");
    let streams = Streams::Files { input: None, output: output.clone() };
    let program = Program { command: vec![program.clone()], streams, functions: Vec::new() };
    let seen = run(&program, places, Limit::default(), &Stop::default(), |_| ()).unwrap();
    (seen, std::fs::read_to_string(output).unwrap())
}

fn in_one_chunk() -> Places {
    Places { chunks: vec![0], ..Places::default() }
}

fn by_map(allocations: Vec<Mapped>) -> Places {
    let page_map = PageMap { sampler: "made up".into(), accesses: 100, allocations };
    Places { page_map: Some(Arc::new(page_map)), ..Places::default() }
}

#[test]
fn a_heap_that_grows_in_small_steps_is_bound_beyond_its_first_256_kib() {
    let directory = tempfile::tempdir().unwrap();
    let (seen, told) = ran(&build(directory.path(), HEAP), &in_one_chunk(), directory.path());
    let expected = "grown: 627 of 660 from 33\nagain: 627 of 660 from 33\n";
    assert_eq!((seen.end, told.as_str()), (End::Code(0), expected));
}

#[test]
fn a_heap_that_grows_in_small_steps_is_one_allocation_in_profiles_and_maps() {
    let directory = tempfile::tempdir().unwrap();
    let program = build(directory.path(), HEAP);
    let telling = Places { tells_allocations: true, ..Places::default() };
    let heaps = |seen: Seen| seen.allocations.into_iter().map(|one| (one.name, one.pages)).collect::<Vec<_>>();
    let name = Name { site: "heap".into(), order: 0 };
    for _ in 0..2 {
        assert_eq!(heaps(ran(&program, &telling, directory.path()).0), [(name.clone(), 627)]);
    }
    let heap = |pages: u64| Mapped { site: "heap".into(), order: 0, pages, runs: "30-39 on 0, 600-609 on 0".into() };
    let (seen, told) = ran(&program, &by_map(vec![heap(627)]), directory.path());
    assert!(told.ends_with("again: 20 of 660 from 63\n"), "{told}");
    assert_eq!(seen.map_use.unwrap().in_words(), None);
    // As far as it is the one that was profiled.
    let (seen, told) = ran(&program, &by_map(vec![heap(2000)]), directory.path());
    let map_use = seen.map_use.unwrap();
    assert!(told.ends_with("again: 20 of 660 from 63\n") && map_use.mapped_pages == 627, "{told} {map_use:?}");
}

#[test]
fn memory_that_grows_by_mremap_is_bound_as_soon_as_it_is_large() {
    let directory = tempfile::tempdir().unwrap();
    let (seen, told) = ran(&build(directory.path(), SMALL), &in_one_chunk(), directory.path());
    let expected =
        "still small: 0 of 30 from 30\ngrown: 300 of 300 from 0\nmore: 600 of 600 from 0\nfile: 0 of 100 from 100\n";
    assert_eq!((seen.end, told.as_str()), (End::Code(0), expected));
}

#[test]
fn parts_that_are_gone_make_room_for_others() {
    let directory = tempfile::tempdir().unwrap();
    let program = build(directory.path(), MANY);
    let telling = Places { tells_allocations: true, ..Places::default() };
    let site = ran(&program, &telling, directory.path()).0.allocations[0].name.site.clone();
    let runs = (0..256).map(|part| format!("{0}-{0} on 0", 2 * part)).collect::<Vec<_>>().join(", ");
    let mapped = |order| Mapped { site: site.clone(), order, pages: 512, runs: runs.clone() };
    let (seen, _) = ran(&program, &by_map((0..140).map(mapped).collect()), directory.path());
    assert_eq!(seen.end, End::Code(0), "more than 32,768 in all, 256 at a time");
}
