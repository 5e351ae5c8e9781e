// SPDX-License-Identifier: GPL-2.0-only
//! Regions of what a program loads while it runs, in plugins of both runtimes.

use std::collections::BTreeMap;
use std::path::Path;

use super::tests::{build_by, launch, program, single_cpus};
use super::*;
use crate::places::ByRegion;
use crate::process::Seating;

/// Loads a plugin, which stays as its runtime's threads do, and two others one after the other, where the kernel has the second in the
/// place of the first; calls each four times. A process that it has started before does so as well. A short function of the first
/// is called 2000 times more if that is asked for.
const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>
static void (*tell)(int), (*last)(void);
static int call(char **names) {
	for (int i = 0; i < 3; i++) {
		void *plugin = dlopen(names[i], RTLD_NOW);
		if (!plugin)
			return 1;
		void (*work)(void) = (void (*)(void))dlsym(plugin, "work");
		for (int j = 0; j < 4; j++)
			work();
		tell = i ? tell : (void (*)(int))dlsym(plugin, "tell_threads");
		if (i == 2 && work != last)
			return 3;
		last = work;
		if (i > 0 && dlclose(plugin))
			return 2;
	}
	return 0;
}
int main(int count, char **arguments) {
	int status = 0;
	if (count == 5) {
		if (fork() == 0)
			_exit(call(arguments + 1));
		wait(&status);
	}
	status = status ? 9 : call(arguments + 1);
	for (int i = 0; count == 6 && i < 2000; i++)
		tell(0);
	return status;
}
"#;

/// Says how many threads it has.
const PLUGIN: &str = r#"
#include <omp.h>
#include <stdio.h>
#ifdef SHIFTED
__asm__(".text\n.skip 8192, 0x90");
#endif
__attribute__((noinline)) void tell_threads(int threads) {
	printf("%d\n", threads);
	fflush(stdout);
}
__attribute__((noinline)) static int REGION(void) {
	int threads = 0;
	#pragma omp parallel
	#pragma omp single
	threads = omp_get_num_threads();
	return threads;
}
void work(void) {
	tell_threads(REGION());
}
"#;

/// The names of the plugins' regions: as long as each other, so that all are in the same place of their files.
const REGIONS: [&str; 3] = ["first", "other", "third"];

/// A plugin with this region, which this compiler makes with these options.
fn plugin(compiler: &str, directory: &Path, region: &str, options: &[&str]) -> OsString {
    let plugin = directory.join(format!("{region}{}.so", options.concat()));
    let mut command = Command::new(compiler);
    command.args(["-O1", "-fopenmp", "-shared", "-fPIC", &format!("-DREGION={region}")]).args(options).arg("-o");
    assert!(command.arg(&plugin).arg(directory.join("plugin.c")).status().unwrap().success());
    plugin.into_os_string()
}

/// The program, and its plugins, which this compiler makes.
fn built_by(compiler: &str, directory: &Path) -> Vec<OsString> {
    let file = directory.join("plugin.c");
    std::fs::write(&file, PLUGIN).unwrap();
    let plugins = REGIONS.map(|region| plugin(compiler, directory, region, &[]));
    let (file, binary) = (directory.join("loads.c"), directory.join("loads"));
    std::fs::write(&file, PROGRAM).unwrap();
    // Without a runtime of its own.
    let status = Command::new("gcc").args(["-O1", "-o"]).arg(&binary).arg(&file).status().unwrap();
    assert!(status.success());
    std::iter::once(binary.into_os_string()).chain(plugins).collect()
}

fn assert_regions_of_plugins_have_their_teams(compiler: &str, kind: &str) {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("output");
    let command = built_by(compiler, directory.path());
    let seating = |threads| Seating { threads, seats: single_cpus() };
    let (home, regions) = (seating(4), REGIONS.map(|region| (format!("{region}{kind}"), seating(2))));
    let by_region = Some(ByRegion { home: home.clone(), regions: regions.into(), turns: None });
    let places = Places { threads: Some(4), seats: home.seats, by_region, ..Places::default() };
    for (processes, words) in [(1, &[][..]), (2, &["fork"])] {
        let command = command.iter().cloned().chain(words.iter().map(OsString::from)).collect();
        let named = Program { functions: vec!["tell_threads".to_owned()], ..program(command, &output) };
        for (places, threads) in [(&Places { threads: Some(4), ..Places::default() }, "4"), (&places, "2")] {
            let seen = launch(&named, places);
            assert_eq!((seen.end, seen.processes), (End::Code(0), processes), "{compiler}");
            let entries: BTreeMap<&str, u64> =
                seen.regions.iter().map(|region| (region.name.as_str(), region.entries)).collect();
            let each = 4 * processes as u64;
            let names = REGIONS.map(|region| format!("{region}{kind}"));
            let expected = names.iter().map(|name| (name.as_str(), each)).chain([("tell_threads", 3 * each)]);
            assert_eq!(entries, expected.collect(), "{compiler}");
            let said = std::fs::read_to_string(&output).unwrap();
            assert!(said.lines().count() as u64 == 3 * each && said.lines().all(|line| line == threads), "{said}");
            let is_known = |region| seen.code.iter().any(|file| file.ends_with(&format!("/{region}.so")));
            assert!(REGIONS.into_iter().all(is_known), "{:?}", seen.code);
        }
    }
    let command = command.iter().cloned().chain(["far", "too often"].map(OsString::from)).collect();
    let named = Program { functions: vec!["tell_threads".to_owned()], ..program(command, &output) };
    let seen = launch(&named, &Places::default());
    assert_eq!((seen.end, seen.regions), (End::Code(0), vec![]), "what is unloaded has no breakpoints to take out");
}

#[test]
fn regions_of_a_plugin_are_seen_and_have_their_teams_whenever_it_is_loaded() {
    assert_regions_of_plugins_have_their_teams("gcc", "._omp_fn.0");
}

#[test]
fn regions_of_a_plugin_with_llvms_runtime_are_seen_and_have_their_teams_whenever_it_is_loaded() {
    assert_regions_of_plugins_have_their_teams("clang-19", ".omp_outlined");
}

/// Where the program runs another file has the name of its first plugin: its functions are elsewhere.
#[test]
fn regions_are_those_of_the_files_that_the_program_sees() {
    let directory = tempfile::tempdir().unwrap();
    let program_and_plugins = built_by("gcc", directory.path());
    let other = plugin("gcc", directory.path(), "first", &["-DSHIFTED"]);
    let mount = "mount --bind \"$5\" \"$2\" && exec \"$1\" \"$2\" \"$3\" \"$4\"";
    let words = ["unshare", "-rm", "sh", "-c", mount, "sh"].map(OsString::from).to_vec();
    let command = words.into_iter().chain(program_and_plugins).chain([other]).collect();
    let seen = launch(&program(command, "/dev/null".as_ref()), &Places::default());
    assert_eq!(seen.end, End::Code(0));
    let names: Vec<&str> = seen.regions.iter().map(|region| region.name.as_str()).collect();
    assert!(names.contains(&"first._omp_fn.0"), "{names:?}");
}

/// Each time it stops twice, which takes a good part of its time.
#[test]
fn a_program_that_loads_and_unloads_all_the_time_goes_on_without_being_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let source = r#"
#include <dlfcn.h>
int main(void) {
	for (int i = 0; i < 3000; i++) {
		void *plugin = dlopen("libm.so.6", RTLD_NOW);
		if (!plugin || dlclose(plugin))
			return 1;
	}
	return !dlopen("libresolv.so.2", RTLD_NOW);
}
"#;
    let command = build_by("gcc", directory.path(), source);
    let seen = launch(&program(command, "/dev/null".as_ref()), &Places::default());
    assert_eq!(seen.end, End::Code(0));
    let has = |name: &str| seen.code.iter().any(|file| file.contains(name));
    assert!(has("/libm.so.6") && !has("/libresolv.so.2"), "{:?}", seen.code);
}
