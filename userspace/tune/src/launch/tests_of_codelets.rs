// SPDX-License-Identifier: GPL-2.0-only
//! Codelets. These tests need root, and a `criu` that can make checkpoints here.

use super::tests::{build, build_by, program, single_cpus};
use super::*;
use crate::places::ByRegion;
use crate::process::Seating;

/// Its region, which is entered four times, loads a library, and leaves a file with its entry, the size of its team and a byte of its memory in its name.
const TEAMS: &str = r#"
#include <dlfcn.h>
#include <fcntl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static unsigned char *memory;
__attribute__((noinline)) static void region(const char *folder, int entry) {
	#pragma omp parallel
	{
		#pragma omp for
		for (int i = 0; i < 1 << 24; i++)
			memory[i]++;
		#pragma omp master
		{
			char name[1000];
			dlclose(dlopen("libm.so.6", RTLD_NOW));
			snprintf(name, sizeof(name), "%s/%d.%d.%d", folder, entry, omp_get_num_threads(), memory[1 << 23]);
			close(open(name, O_CREAT | O_WRONLY, 0600));
		}
	}
}
int main(int argc, char **argv) {
	memory = malloc(1 << 24);
	memset(memory, 30, 1 << 24);
	for (int entry = 0; entry < 4; entry++)
		region(argv[1], entry);
	return 7;
}
"#;

fn by_region(name: &str, threads: usize, most: usize) -> Places {
    let cpus = single_cpus();
    let seats = |threads: usize| (0..threads).map(|seat| cpus[seat % cpus.len()].clone()).collect::<Vec<_>>();
    let home = Seating { threads: 2, seats: seats(2) };
    let regions = [(name.to_owned(), Seating { threads, seats: seats(threads) })].into();
    let by_region = Some(ByRegion { home: home.clone(), regions, turns: None });
    Places { threads: Some(most), seats: home.seats, by_region, ..Places::default() }
}

fn names(folder: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

#[test]
#[ignore = "needs CRIU"]
fn an_entry_is_replayed_with_other_seats_as_often_as_is_wanted() {
    let cases = [
        ("gcc", "region._omp_fn.0", false),
        ("gcc", "region._omp_fn.0", true),
        ("clang-19", "region.omp_outlined", false),
    ];
    for (compiler, kind, is_bound) in cases {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        let mut command = build_by(compiler, directory.path(), TEAMS);
        command.push(folder.clone().into());
        let program = program(command, "/dev/null".as_ref());
        let entry = Entry { region: kind.to_owned(), number: 2 };
        // What filters its calls is restored as well.
        let chunks = if is_bound { vec![0, 0] } else { vec![] };
        let places = Places { chunks, ..by_region(kind, 2, 4) };
        let codelet = Codelet::capture(&program, &places, &entry, None, &Stop::default()).unwrap().unwrap();
        assert_eq!(names(&folder), ["0.2.31", "1.2.32"], "{compiler}: entries before");
        for threads in [4, 1, 2, 4] {
            let seen = codelet.replay(&by_region(kind, threads, 4), Limit::default(), &Stop::default()).unwrap();
            assert_eq!((&seen.end, seen.regions.len()), (&End::Measured, 1), "{compiler} {threads}: {seen:?}");
            assert_eq!((seen.regions[0].name.as_str(), seen.regions[0].entries), (kind, 1));
            assert!(seen.seconds > 0.0 && seen.seconds == seen.regions[0].seconds);
        }
        let of_replays = ["2.1.33", "2.2.33", "2.4.33"];
        assert_eq!(
            names(&folder),
            [&["0.2.31", "1.2.32"], &of_replays[..]].concat(),
            "{compiler}: nothing that follows is run"
        );
    }
}

#[test]
#[ignore = "needs CRIU"]
fn a_program_that_does_not_come_to_the_entry_tells_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = build(directory.path(), TEAMS);
    command.push(directory.path().into());
    let program = program(command, "/dev/null".as_ref());
    let entry = Entry { region: "region._omp_fn.0".to_owned(), number: 9 };
    let ended = Codelet::capture(&program, &by_region("", 2, 2), &entry, None, &Stop::default()).unwrap();
    assert_eq!(ended.err(), Some(End::Code(7)));
}
