// SPDX-License-Identifier: GPL-2.0-only

use std::path::Path;

use tandem_machine::online_cpus;
use tandem_policies::model::CpuId;

use super::*;
use crate::seat::CpuSet;

/// A program in C, built into `directory`.
pub(super) fn build(directory: &Path, source: &str) -> Vec<OsString> {
    build_by("gcc", directory, source)
}

/// The same by this compiler, which brings its own OpenMP runtime.
pub(super) fn build_by(compiler: &str, directory: &Path, source: &str) -> Vec<OsString> {
    let (file, program) = (directory.join("program.c"), directory.join("program"));
    std::fs::write(&file, source).unwrap();
    let status =
        Command::new(compiler).args(["-O1", "-pthread", "-fopenmp", "-o"]).arg(&program).arg(&file).status().unwrap();
    assert!(status.success());
    vec![program.into_os_string()]
}

/// A program without input, whose output goes to a file.
pub(super) fn program(command: Vec<OsString>, output: &Path) -> Program {
    Program { command, streams: Streams::Files { input: None, output: output.to_owned() }, functions: vec![] }
}

fn shell(script: &str) -> Program {
    program(["sh", "-c", script].map(OsString::from).to_vec(), "/dev/null".as_ref())
}

pub(super) fn launch(program: &Program, places: &Places) -> Seen {
    run(program, places, Limit::default(), &Stop::default(), |_| ()).unwrap()
}

/// One set for each online CPU.
pub(super) fn single_cpus() -> Vec<CpuSet> {
    online_cpus().unwrap().iter().map(|&cpu| CpuSet::of(&[cpu])).collect()
}

#[test]
fn exit_codes_signals_and_processes_are_seen() {
    assert_eq!(launch(&shell("exit 3"), &Places::default()).end, End::Code(3));
    assert_eq!(launch(&shell("kill -TERM $$"), &Places::default()).end, End::Signal(libc::SIGTERM));
    let seen = launch(&shell("true & (true); wait"), &Places::default());
    assert_eq!((seen.end, seen.processes, seen.threads), (End::Code(0), 3, 1));
}

#[test]
fn files_of_code_are_seen_of_every_process_with_their_libraries() {
    let path = |name: &str| std::fs::canonicalize(format!("/bin/{name}")).unwrap().display().to_string();
    let seen = launch(&shell("cat /dev/null; exec sleep 0"), &Places::default());
    for name in ["sh", "cat", "sleep"] {
        assert!(seen.code.contains(&path(name)), "{name}: {:?}", seen.code);
    }
    assert!(seen.code.iter().any(|file| file.contains("/libc.so")), "{:?}", seen.code);
    let ours = Program { streams: Streams::Ours, ..shell("true") };
    assert!(launch(&ours, &Places::default()).code.is_empty(), "nobody asks");
}

/// The kernel sends these when a process that is not the terminal's asks for it, each time that it asks.
#[test]
fn a_program_that_asks_for_the_terminal_is_ended() {
    for signal in ["TTIN", "TTOU"] {
        let seen = launch(&shell(&format!("(kill -{signal} $$); exit 3")), &Places::default());
        assert_eq!(seen.end, End::WantsTerminal, "{signal}");
    }
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let program = Program { command: vec!["/no/such/program".into()], ..shell("") };
    let said =
        format!("{:#}", run(&program, &Places::default(), Limit::default(), &Stop::default(), |_| ()).unwrap_err());
    assert!(said.contains("/no/such/program: cannot be started"), "{said}");
}

#[test]
fn what_takes_too_long_is_ended_with_all_its_processes() {
    let directory = tempfile::tempdir().unwrap();
    let pid = directory.path().join("pid");
    let program = shell(&format!("sleep 1000 & echo $! > {}; wait", pid.display()));
    let limit = Limit { time: Some(Duration::from_secs(3)), ..Limit::default() };
    let seen = run(&program, &Places::default(), limit, &Stop::default(), |_| ()).unwrap();
    assert_eq!(seen.end, End::TooLong);
    // The limit begins a little before the program does.
    assert!((2.0..60.0).contains(&seen.seconds), "{seen:?}");
    let left: i32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    let state = std::fs::read_to_string(format!("/proc/{left}/stat")).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "{state}");
}

/// As daemons are: the parent ends as soon as its child is there. Many times, as it is a race.
#[test]
fn a_child_that_outlives_the_program_from_its_first_moment_runs_on() {
    let directory = tempfile::tempdir().unwrap();
    let source = r#"
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words)
{
	if (fork())
		_exit(3);
	FILE *file = fopen(words[1], "w");
	return file == NULL || fclose(file);
}
"#;
    let command = build(directory.path(), source);
    for at in 0..200 {
        let there = directory.path().join(at.to_string());
        let words = command.iter().cloned().chain([there.clone().into_os_string()]).collect();
        let program = Program { command: words, streams: Streams::Ours, functions: Vec::new() };
        let seats = single_cpus();
        let places = Places { seats, ..Places::default() };
        let seen = run(&program, &places, Limit::default(), &Stop::default(), |_| ()).unwrap();
        assert_eq!(seen.end, End::Code(3));
        let since = std::time::Instant::now();
        while !there.exists() {
            assert!(since.elapsed() < Duration::from_secs(20), "the child of run {at} stands still");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn it_ends_when_the_user_wishes() {
    let stop = Stop::default();
    stop.wish();
    assert_eq!(
        run(&shell("sleep 1000"), &Places::default(), Limit::default(), &stop, |_| ()).unwrap().end,
        End::Stopped
    );
}

#[test]
fn every_thread_is_in_its_seat_from_its_first_instruction() {
    let directory = tempfile::tempdir().unwrap();
    let source = r#"
#define _GNU_SOURCE
#include <omp.h>
#include <sched.h>
#include <stdio.h>
static int first_cpu(void) {
	cpu_set_t set;
	sched_getaffinity(0, sizeof set, &set);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &set))
			return CPU_COUNT(&set) == 1 ? cpu : -1;
	return -1;
}
int main(void) {
	int at[16], mine = first_cpu();
	#pragma omp parallel
	at[omp_get_thread_num()] = first_cpu();
	printf("%d %d:", omp_get_max_threads(), mine);
	for (int i = 0; i < omp_get_max_threads(); i++)
		printf(" %d", at[i]);
	printf("\n");
}
"#;
    let command = build(directory.path(), source);
    let output = directory.path().join("output");
    let program = program(command, &output);
    let cpus: Vec<CpuId> = online_cpus().unwrap();
    let places = Places { threads: Some(5), seats: single_cpus(), ..Places::default() };
    let seat = |thread: usize| cpus[thread % cpus.len()].0.to_string();
    let expected = format!("5 {}: {}\n", seat(0), (0..5).map(seat).collect::<Vec<_>>().join(" "));
    // Births and first stops are told in any order: many times, so that all are met.
    for _ in 0..20 {
        let seen = launch(&program, &places);
        assert_eq!(std::fs::read_to_string(&output).unwrap(), expected);
        assert_eq!((seen.end, seen.threads, seen.processes), (End::Code(0), 5, 1));
    }
}

#[test]
fn the_runtime_of_a_program_that_another_one_starts_counts_all_cpus_too() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("output");
    let source = r#"
#define _GNU_SOURCE
#include <omp.h>
#include <sched.h>
#include <stdio.h>
int main(void) {
	cpu_set_t set;
	sched_getaffinity(0, sizeof set, &set);
	printf("%d %d\n", omp_get_max_threads(), CPU_COUNT(&set));
}
"#;
    let built = build(directory.path(), source).remove(0).into_string().unwrap();
    let all = online_cpus().unwrap().len();
    for script in [format!("exec {built}"), format!("{built}; true")] {
        let program = program(["sh", "-c", &script].map(OsString::from).to_vec(), &output);
        assert_eq!(launch(&program, &Places { seats: single_cpus(), ..Places::default() }).end, End::Code(0));
        assert_eq!(std::fs::read_to_string(&output).unwrap(), format!("{all} 1\n"), "{script}");
    }
}

#[test]
fn a_seat_that_is_free_again_is_taken_first_and_signals_of_the_c_library_pass() {
    let directory = tempfile::tempdir().unwrap();
    // pthread_cancel works by a real-time signal.
    let source = r#"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *wait_for_ever(void *none) { for (;;) pause(); }
int main(void) {
	pthread_t thread;
	for (int i = 0; i < 20; i++) {
		pthread_create(&thread, NULL, wait_for_ever, NULL);
		pthread_cancel(thread);
		pthread_join(thread, NULL);
	}
	return 7;
}
"#;
    let program = program(build(directory.path(), source), "/dev/null".as_ref());
    let seen = launch(&program, &Places { seats: single_cpus(), ..Places::default() });
    assert_eq!(seen.end, End::Code(7));
    assert!((2..5).contains(&seen.threads), "an end may be seen after the next birth: {seen:?}");
}

#[test]
fn pages_come_from_the_nodes_that_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("output");
    let command = ["grep", "-c", "interleave:0", "/proc/self/numa_maps"].map(OsString::from).to_vec();
    let program = program(command, &output);
    let seen = launch(&program, &Places { page_nodes: vec![0], ..Places::default() });
    assert_eq!(seen.end, End::Code(0));
    assert_ne!(std::fs::read_to_string(&output).unwrap().trim(), "0");
    assert_eq!(launch(&program, &Places::default()).end, End::Code(1), "no such line without");
}

#[test]
fn its_input_is_the_file_that_is_named_or_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let input = directory.path().join("input");
    std::fs::write(&input, "three\n").unwrap();
    let reads = shell("read word && [ $word = three ]");
    let streams = Streams::Files { input: Some(input), output: "/dev/null".into() };
    assert_eq!(launch(&Program { streams, ..reads.clone() }, &Places::default()).end, End::Code(0));
    assert_eq!(launch(&reads, &Places::default()).end, End::Code(1));
}

/// Two regions of different lengths, of which the second has one inside; and signals meanwhile.
const TWO_REGIONS: &str = r#"
#include <omp.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
static volatile long ticks;
static void tick(int signal) { ticks++; }
static void pass(long milliseconds) {
	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < milliseconds);
}
__attribute__((noinline)) void brief(void) {
	#pragma omp parallel num_threads(2)
	pass(5);
}
__attribute__((noinline)) void lengthy(void) {
	#pragma omp parallel num_threads(2)
	{
		#pragma omp parallel num_threads(1)
		pass(20);
	}
}
int main(void) {
	struct itimerval every = { { 0, 1000 }, { 0, 1000 } };
	signal(SIGALRM, tick);
	setitimer(ITIMER_REAL, &every, NULL);
	for (int i = 0; i < 10; i++)
		brief(), lengthy();
	return ticks > 20 ? 0 : 9;
}
"#;

#[test]
fn regions_are_told_by_their_functions_with_entries_and_times() {
    let directory = tempfile::tempdir().unwrap();
    let program = program(build(directory.path(), TWO_REGIONS), "/dev/null".as_ref());
    let seen = launch(&program, &Places::default());
    assert_eq!(seen.end, End::Code(0), "every signal arrives");
    let [lengthy, brief] = &seen.regions[..] else { panic!("{:?}", seen.regions) };
    assert!(lengthy.name.starts_with("lengthy._omp_fn") && brief.name.starts_with("brief._omp_fn"), "{seen:?}");
    assert_eq!((lengthy.entries, brief.entries), (10, 10));
    assert!(lengthy.seconds >= 0.2 && brief.seconds >= 0.05, "{seen:?}");
    assert!(lengthy.seconds + brief.seconds <= seen.seconds, "{seen:?}");
    let seats = launch(&program, &Places { seats: single_cpus(), ..Places::default() });
    assert_eq!((seats.end, seats.regions.len()), (End::Code(0), 2));
}

#[test]
fn regions_that_are_too_short_are_let_alone() {
    let directory = tempfile::tempdir().unwrap();
    let source = r#"
int main(void) {
	volatile int passes = 0;
	for (int i = 0; i < 100000; i++) {
		#pragma omp parallel num_threads(1)
		passes++;
	}
	return passes != 100000;
}
"#;
    let program = program(build(directory.path(), source), "/dev/null".as_ref());
    let seen = launch(&program, &Places::default());
    assert_eq!((seen.end, seen.regions), (End::Code(0), vec![]));
    assert!(seen.seconds < 20.0, "{} s: 200,000 stops would take longer", seen.seconds);
}

#[test]
fn a_program_that_forks_within_its_regions_lives() {
    let directory = tempfile::tempdir().unwrap();
    let source = r#"
#include <sys/wait.h>
#include <unistd.h>
static void region(void) {
	#pragma omp parallel num_threads(1)
	usleep(1000);
}
int main(void) {
	int status = 0;
	region();
	if (!fork()) {
		region();
		_exit(5);
	}
	wait(&status);
	region();
	return WEXITSTATUS(status);
}
"#;
    let program = program(build(directory.path(), source), "/dev/null".as_ref());
    let seen = launch(&program, &Places::default());
    assert_eq!((seen.end, seen.processes), (End::Code(5), 2));
    assert_eq!(seen.regions.iter().map(|region| region.entries).sum::<u64>(), 3, "{:?}", seen.regions);
}

/// Says on how many CPUs the main thread may run before its first thread, and then on how many both may.
const MAIN_FIRST: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static int cpus(void) {
	cpu_set_t set;
	sched_getaffinity(0, sizeof set, &set);
	return CPU_COUNT(&set);
}
static void *tell(void *none) { printf(" %d", cpus()); return none; }
int main(void) {
	pthread_t thread;
	memset(malloc(8 << 20), 1, 8 << 20);
	printf("%d", cpus());
	fflush(stdout);
	if (!fork()) {
		printf(" %d", cpus());
		return 0;
	}
	wait(NULL);
	pthread_create(&thread, NULL, tell, NULL);
	pthread_join(thread, NULL);
	printf(" %d\n", cpus());
}
"#;

#[test]
fn the_main_thread_alone_is_bound_until_its_first_thread_is_born_and_where_its_memory_was_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("output");
    let program = program(build(directory.path(), MAIN_FIRST), &output);
    let all = online_cpus().unwrap().len();
    let main = single_cpus().pop();
    let seen = launch(&program, &Places { main, ..Places::default() });
    assert_eq!(seen.end, End::Code(0));
    assert_eq!(std::fs::read_to_string(&output).unwrap(), format!("1 {all} {all} {all}\n"), "of a copy, too");
    let first_touch = seen.first_touch.unwrap();
    assert!(first_touch.all_pages() >= 2048, "the memory that it had touched: {first_touch:?}");
    assert_eq!(Some(first_touch.main_cpu), online_cpus().unwrap().last().map(|cpu| cpu.0));
    let ours = Program { streams: Streams::Ours, command: ["true"].map(OsString::from).to_vec(), ..program };
    assert_eq!(launch(&ours, &Places::default()).first_touch, None, "whoever applies a result does not look");
}
