// SPDX-License-Identifier: GPL-2.0-only
//! Regions with seats of their own, in programs of both runtimes.

use std::collections::BTreeMap;
use std::path::Path;

use super::tests::{build, build_by, launch, program, single_cpus};
use super::*;
use crate::places::{ByRegion, InTurns};
use crate::process::Seating;

/// Says of each region how many threads it has and which CPU each may use, and goes on with the next; `rounds` times, of
/// which only what differs from the first round is said.
pub(super) const TEAMS: &str = r#"
#define _GNU_SOURCE
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
static int only_cpu(void) {
	cpu_set_t set;
	sched_getaffinity(0, sizeof set, &set);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &set))
			return CPU_COUNT(&set) == 1 && sched_getcpu() == cpu ? cpu : -1;
	return -1;
}
static char now[400], before[400];
static int at[64], team;
static void note(const char *name) {
	char text[100], *end = text;
	end += sprintf(end, "%s %d:", name, team);
	for (int i = 0; i < team; i++)
		end += sprintf(end, " %d", at[i]);
	strcat(strcat(now, text), "\n");
}
#define RECORD at[omp_get_thread_num()] = only_cpu(), team = omp_get_num_threads()
__attribute__((noinline)) void few(void) {
	#pragma omp parallel
	RECORD;
	note("few");
}
__attribute__((noinline)) void many(void) {
	#pragma omp parallel
	RECORD;
	note("many");
}
__attribute__((noinline)) void one(void) {
	#pragma omp parallel
	RECORD;
	note("one");
}
__attribute__((noinline)) void own(void) {
	#pragma omp parallel num_threads(3)
	RECORD;
	note("own");
}
__attribute__((noinline)) void other(void) {
	#pragma omp parallel
	RECORD;
	note("other");
}
int main(int count, char **arguments) {
	int rounds = count > 1 ? 1000 : 1;
	printf("told %d\n", omp_get_max_threads());
	for (int i = 0; i < rounds; i++) {
		now[0] = 0;
		many(), few(), own(), one(), few(), other(), one(), many();
		if (strcmp(now, before))
			printf("%s", now);
		strcpy(before, now);
	}
}
"#;

fn seating(threads: usize, cpus: &[usize]) -> Seating {
    let all = single_cpus();
    Seating { threads, seats: cpus.iter().map(|&at| all[at % all.len()].clone()).collect() }
}

/// Seats by region, whose functions' names end so.
pub(super) fn by_region(kind: &str) -> Places {
    let regions = [("few", seating(2, &[1, 0])), ("many", seating(5, &[0, 1, 1, 0, 0])), ("one", seating(1, &[1]))];
    let own = ("own", seating(5, &[1, 1, 0]));
    let regions = regions.into_iter().chain([own]).map(|(name, seating)| (format!("{name}{kind}"), seating)).collect();
    let home = seating(4, &[0, 0, 1, 1]);
    let seats = home.seats.clone();
    Places { threads: Some(5), seats, by_region: Some(ByRegion { home, regions, turns: None }), ..Places::default() }
}

/// What the program says then: the CPU of each rank.
pub(super) fn expected() -> String {
    let cpus: Vec<u32> = tandem_machine::online_cpus().unwrap().iter().map(|cpu| cpu.0).collect();
    let team = |name: &str, seats: &[usize]| {
        let at: Vec<String> = seats.iter().map(|&seat| cpus[seat % cpus.len()].to_string()).collect();
        format!("{name} {}: {}\n", seats.len(), at.join(" "))
    };
    let (few, many, one) = (team("few", &[1, 0]), team("many", &[0, 1, 1, 0, 0]), team("one", &[1]));
    let (own, other) = (team("own", &[1, 1, 0]), team("other", &[0, 0, 1, 1]));
    format!("told 5\n{many}{few}{own}{one}{few}{other}{one}{many}")
}

/// Runs it once, and with a thousand times growing and shrinking teams.
fn assert_every_region_has_its_team(command: Vec<OsString>, kind: &str, directory: &Path) {
    let output = directory.join("output");
    let once = program(command.clone(), &output);
    for _ in 0..5 {
        let seen = launch(&once, &by_region(kind));
        assert_eq!(seen.end, End::Code(0));
        assert_eq!(std::fs::read_to_string(&output).unwrap(), expected());
        let own = |region: &Region| (region.own_threads, region.name.starts_with("own"));
        assert!(seen.regions.iter().map(own).all(|own| own == (None, false) || own == (Some(3), true)), "{seen:?}");
    }
    let often = program(command.into_iter().chain(["often".into()]).collect(), &output);
    let seen = launch(&often, &by_region(kind));
    assert_eq!((seen.end, seen.regions.iter().map(|region| region.entries).sum::<u64>()), (End::Code(0), 8000));
    assert_eq!(std::fs::read_to_string(&output).unwrap(), expected());
}

#[test]
fn each_region_has_its_own_team_and_seats() {
    let directory = tempfile::tempdir().unwrap();
    let command = build(directory.path(), TEAMS);
    assert_every_region_has_its_team(command, "._omp_fn.0", directory.path());
}

#[test]
fn each_region_of_llvms_runtime_has_its_own_team_and_seats() {
    let directory = tempfile::tempdir().unwrap();
    let command = build_by("clang-19", directory.path(), TEAMS);
    assert_every_region_has_its_team(command, ".omp_outlined", directory.path());
}

#[test]
fn a_number_of_threads_that_the_program_sets_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let source = r#"
#include <omp.h>
#include <stdio.h>
void omp_set_num_threads_(const int *);
__attribute__((noinline)) void region(void) {
	#pragma omp parallel
	#pragma omp single
	printf("%d\n", omp_get_num_threads());
}
int main(void) {
	int number = 3;
	region();
	SET;
	region();
	number = 5;
	SET;
	region();
}
"#;
    let [by_gcc, by_clang] = [("gcc", "._omp_fn.0"), ("clang-19", ".omp_outlined")];
    let [in_c, as_in_fortran] = ["omp_set_num_threads(number)", "omp_set_num_threads_(&number)"];
    let output = directory.path().join("output");
    for ((compiler, kind), call) in
        [(by_gcc, in_c), (by_gcc, as_in_fortran), (by_clang, in_c), (by_clang, as_in_fortran)]
    {
        let program = program(build_by(compiler, directory.path(), &source.replace("SET", call)), &output);
        let regions = [(format!("region{kind}"), seating(2, &[0]))].into();
        let by_region = Some(ByRegion { home: seating(5, &[0]), regions, turns: None });
        let seen = launch(&program, &Places { threads: Some(5), by_region, ..Places::default() });
        assert_eq!(std::fs::read_to_string(&output).unwrap(), "2\n3\n2\n", "5 is what it was told");
        assert_eq!((seen.regions.len(), seen.regions[0].own_threads), (1, Some(3)), "{seen:?}");
    }
}

/// All of them return to the same place, where a breakpoint is while the main thread is in there: some run into it just before it
/// is taken out.
#[test]
fn a_named_function_that_all_threads_call_ends_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let source = r#"
#include <pthread.h>
static volatile unsigned long sum[4];
__attribute__((noinline)) void step(volatile unsigned long *mine) {
	for (int i = 0; i < 1000; i++)
		*mine += i;
}
static void *work(void *mine) {
	for (int i = 0; i < 3000; i++)
		step(mine);
	return NULL;
}
int main(void) {
	pthread_t threads[4];
	for (int i = 1; i < 4; i++)
		pthread_create(&threads[i], NULL, work, (void *)&sum[i]);
	work((void *)&sum[0]);
	for (int i = 1; i < 4; i++)
		pthread_join(threads[i], NULL);
}
"#;
    let functions = vec!["step".to_owned()];
    let program = Program { functions, ..program(build(directory.path(), source), &directory.path().join("output")) };
    for _ in 0..3 {
        let seen = launch(&program, &Places::default());
        assert_eq!(seen.end, End::Code(0));
    }
}

#[test]
fn a_named_function_gives_all_threads_their_seats() {
    let directory = tempfile::tempdir().unwrap();
    let source = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
static pthread_barrier_t before, after;
static int at[4];
static int only_cpu(void) {
	cpu_set_t set;
	sched_getaffinity(0, sizeof set, &set);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &set))
			return CPU_COUNT(&set) == 1 ? cpu : -1;
	return -1;
}
static void *work(void *mine) {
	for (int i = 0; i < 6; i++) {
		pthread_barrier_wait(&before);
		*(int *)mine = only_cpu();
		pthread_barrier_wait(&after);
	}
	return NULL;
}
static void step(const char *name) {
	pthread_barrier_wait(&before);
	pthread_barrier_wait(&after);
	printf("%s %d %d %d\n", name, at[1], at[2], at[3]);
}
__attribute__((noinline)) void first(void) { step("first"); }
__attribute__((noinline)) void second(void) { step("second"); }
int main(void) {
	pthread_t threads[4];
	pthread_barrier_init(&before, NULL, 4);
	pthread_barrier_init(&after, NULL, 4);
	for (int i = 1; i < 4; i++)
		pthread_create(&threads[i], NULL, work, &at[i]);
	for (int i = 0; i < 3; i++)
		first(), second();
	for (int i = 1; i < 4; i++)
		pthread_join(threads[i], NULL);
}
"#;
    let output = directory.path().join("output");
    let functions = vec!["first".to_owned(), "second".to_owned()];
    let program = Program { functions, ..program(build(directory.path(), source), &output) };
    let regions = [("second".to_owned(), seating(4, &[0, 1, 0, 1]))].into();
    let by_region = Some(ByRegion { home: seating(4, &[0, 0, 0, 0]), regions, turns: None });
    let seen = launch(&program, &Places { seats: seating(4, &[0, 0, 0, 0]).seats, by_region, ..Places::default() });
    let cpus: Vec<u32> = tandem_machine::online_cpus().unwrap().iter().map(|cpu| cpu.0).collect();
    let cpu = |at: usize| cpus[at % cpus.len()];
    let round = format!("first {0} {0} {0}\nsecond {1} {0} {1}\n", cpu(0), cpu(1));
    assert_eq!(std::fs::read_to_string(&output).unwrap(), round.repeat(3));
    let mut regions: Vec<(&str, u64)> = seen.regions.iter().map(|one| (one.name.as_str(), one.entries)).collect();
    regions.sort_unstable();
    assert_eq!(regions, [("first", 3), ("second", 3)]);
}

/// A region whose work takes a fixed time of every thread, all of it shared among them.
const LINEAR: &str = r#"
#define _GNU_SOURCE
#include <omp.h>
#include <time.h>
static void pass(double milliseconds) {
	struct timespec left = { 0, milliseconds * 1e6 };
	nanosleep(&left, NULL);
}
__attribute__((noinline)) void shared(void) {
	#pragma omp parallel
	pass(100.0 / omp_get_num_threads());
}
__attribute__((noinline)) void alone(void) {
	#pragma omp parallel num_threads(2)
	pass(2);
}
int main(void) {
	for (int i = 0; i < 1000; i++)
		shared(), alone();
}
"#;

#[test]
fn a_region_in_turns_tells_what_each_choice_takes_and_then_ends_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let program = program(build(directory.path(), LINEAR), "/dev/null".as_ref());
    let choices = [1, 2, 4].map(|threads| seating(threads, &[0, 1])).to_vec();
    let turns = Some(InTurns { region: "shared._omp_fn.0".into(), choices, first: 0 });
    let by_region = Some(ByRegion { home: seating(4, &[0, 1]), regions: BTreeMap::new(), turns });
    let seen = launch(&program, &Places { threads: Some(4), by_region, ..Places::default() });
    assert_eq!(seen.end, End::Measured);
    let shared = seen.regions.iter().find(|region| region.name.starts_with("shared")).unwrap();
    // The third choice has its last turn in the last but one place of the fifth round, which it is before the first has.
    assert!((43..=45).contains(&shared.entries), "{seen:?}");
    assert_eq!(shared.samples.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 10]);
    // A busy machine wakes threads late, hardly ever in all ten turns.
    let least: Vec<f64> = shared.samples.iter().map(|all| all.iter().copied().fold(f64::INFINITY, f64::min)).collect();
    for (at, ratio, off) in [(1, 2.0, 0.1), (2, 4.0, 0.2)] {
        let found = least[0] / least[at];
        assert!((found / ratio - 1.0).abs() < off, "choice {at} is {found} times as fast, not {ratio}: {least:?}");
    }
}

/// With two threads in `half` two of libgomp's four end, and are born anew for `all`, where each one's first work takes longer.
#[test]
fn what_a_choice_costs_other_regions_is_part_of_what_it_takes() {
    let source = r#"
#include <omp.h>
#include <unistd.h>
static __thread int is_warm;
__attribute__((noinline)) void half(void) {
	#pragma omp parallel
	usleep(2000);
}
__attribute__((noinline)) void all(void) {
	#pragma omp parallel num_threads(4)
	{
		usleep(is_warm ? 2000 : 30000);
		is_warm = 1;
	}
}
int main(void) {
	for (int i = 0; i < 1000; i++)
		half(), all();
}
"#;
    let directory = tempfile::tempdir().unwrap();
    let program = program(build(directory.path(), source), "/dev/null".as_ref());
    let choices = [4, 2].map(|threads| seating(threads, &[0, 1])).to_vec();
    let turns = Some(InTurns { region: "half._omp_fn.0".into(), choices, first: 0 });
    let by_region = Some(ByRegion { home: seating(4, &[0, 1]), regions: BTreeMap::new(), turns });
    let seen = launch(&program, &Places { threads: Some(4), by_region, ..Places::default() });
    let half = seen.regions.iter().find(|region| region.name.starts_with("half")).unwrap();
    let least: Vec<f64> = half.samples.iter().map(|all| all.iter().copied().fold(f64::INFINITY, f64::min)).collect();
    assert!(least[0] < 0.02 && least[1] > 0.03, "{least:?}");
}

#[test]
fn a_run_ends_after_as_many_entries_of_regions_as_are_asked_for_however_short_these_are() {
    let directory = tempfile::tempdir().unwrap();
    let short = LINEAR.replace("pass(100.0 / omp_get_num_threads())", "pass(0)").replace("pass(2)", "pass(0)");
    let places = Places { threads: Some(2), ..Places::default() };
    for (compiler, source, entries) in [("gcc", LINEAR, 12), ("clang-19", LINEAR, 12), ("gcc", &short, 1400)] {
        let program = program(build_by(compiler, directory.path(), source), "/dev/null".as_ref());
        let limit = Limit { entries: Some(entries), ..Limit::default() };
        let seen = run(&program, &places, limit, &Stop::default(), |_| ()).unwrap();
        let found: Vec<u64> = seen.regions.iter().map(|region| region.entries).collect();
        assert_eq!((seen.end, found), (End::Measured, vec![entries / 2; 2]), "{compiler}, {entries}");
        let in_regions: f64 = seen.regions.iter().map(|region| region.seconds).sum();
        assert!(seen.seconds >= in_regions, "{} s, of these {in_regions} s in regions", seen.seconds);
        let limit = Limit { entries: Some(2001), ..Limit::default() };
        let whole = (source != LINEAR).then(|| run(&program, &places, limit, &Stop::default(), |_| ()).unwrap());
        assert!(whole.is_none_or(|whole| whole.end == End::Code(0)), "it has 2000");
    }
}

#[test]
fn a_program_may_be_killed_while_it_stands_at_a_breakpoint() {
    let directory = tempfile::tempdir().unwrap();
    let source = r#"
#include <pthread.h>
#include <unistd.h>
static void *wait(void *none) { pause(); return none; }
int main(void) {
	pthread_t other;
	pthread_create(&other, NULL, wait, NULL);
	for (;;) {
		#pragma omp parallel num_threads(1)
		__asm__ volatile("" ::: "memory");
	}
}
"#;
    let program = program(build(directory.path(), source), "/dev/null".as_ref());
    for run_ms in 30..60 {
        // As many entries as it never makes: its regions are never let alone.
        let limit = Limit { time: Some(Duration::from_millis(run_ms)), entries: Some(u64::MAX) };
        let seen = run(&program, &Places::default(), limit, &Stop::default(), |_| ()).unwrap();
        assert_eq!(seen.end, End::TooLong);
    }
}

/// Run by the test below in a process of its own, which that one kills.
#[test]
fn traces_until_it_is_killed() {
    let Some(place) = std::env::var_os("TANDEM_TEST_KILLED") else { return };
    let source = r#"
#include <stdio.h>
#include <unistd.h>
int main(int count, char **arguments) {
	#pragma omp parallel
	usleep(1000);
	FILE *file = fopen("pid", "w");
	fprintf(file, "%d", getpid());
	fclose(file);
	rename("pid", "ready");
	for (;;)
		pause();
}
"#;
    std::env::set_current_dir(&place).unwrap();
    let command = build(place.as_ref(), source);
    let by_region = Some(ByRegion { home: seating(1, &[0]), ..ByRegion::default() });
    launch(&Program { command, streams: Streams::Ours, functions: vec![] }, &Places { by_region, ..Places::default() });
}

#[test]
fn a_program_with_breakpoints_is_killed_with_whoever_deals_with_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut tracer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "launch::tests_by_region::traces_until_it_is_killed"])
        .env("TANDEM_TEST_KILLED", directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = |is: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(60);
        while !is() {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let ready = directory.path().join("ready");
    until(&|| ready.exists());
    let process: i32 = std::fs::read_to_string(&ready).unwrap().parse().unwrap();
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    until(&|| state().is_empty() || state().contains(") Z "));
}

/// A thread besides the main one enters regions, or `fib` calls itself, some ten thousand times.
const BUSY: &str = r#"
#include <pthread.h>
#include <stddef.h>
static volatile int sum;
__attribute__((noinline)) int fib(int number) { return number < 2 ? 1 : fib(number - 1) + fib(number - 2); }
static void *enter(void *unused)
{
	for (int i = 0; i < 20000; i++)
		#pragma omp parallel num_threads(1)
		sum++;
	return unused;
}
int main(int count, char **words)
{
	pthread_t thread;
	if (count > 1)
		return fib(18) != 4181;
	return pthread_create(&thread, NULL, enter, NULL) || pthread_join(thread, NULL);
}
"#;

#[test]
fn stops_that_take_too_much_of_the_time_end_whichever_thread_makes_them() {
    let directory = tempfile::tempdir().unwrap();
    let command = build(directory.path(), BUSY);
    let by_thread = program(command.clone(), "/dev/null".as_ref());
    let within = program(command.into_iter().chain(["fib".into()]).collect(), "/dev/null".as_ref());
    let within = Program { functions: vec!["fib".into()], ..within };
    for program in [by_thread, within] {
        let seen = launch(&program, &Places::default());
        assert_eq!((&seen.end, seen.stops_too_often, &seen.regions[..]), (&End::Code(0), true, &[][..]), "{program:?}");
    }
}

/// A process and its copy, both in the region for a fifth of a second.
const TWO_PROCESSES: &str = r#"
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
	int child = fork();
	#pragma omp parallel num_threads(1)
	usleep(200000);
	return child && waitpid(child, NULL, 0) != child;
}
"#;

#[test]
fn time_in_a_region_of_several_processes_at_once_is_no_more_than_the_programs() {
    let directory = tempfile::tempdir().unwrap();
    let seen = launch(&program(build(directory.path(), TWO_PROCESSES), "/dev/null".as_ref()), &Places::default());
    let [region] = &seen.regions[..] else { panic!("{seen:?}") };
    assert_eq!((&seen.end, region.entries), (&End::Code(0), 2), "{seen:?}");
    assert!((0.2..=seen.seconds).contains(&region.seconds), "{seen:?}");
}
