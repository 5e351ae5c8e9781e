// SPDX-License-Identifier: GPL-2.0-only

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use tandem_ab::stop::Stop;

use super::*;
use crate::launch::{End, Limit, Program, Seen, Streams, run};
use crate::places::Places;

/// Tells for memory of every kind whether it has a policy (`bound`) or not (`free`), then the same of a copy of the process
/// and of what that allocates, then of memory that has grown and shrunk.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define BYTES (1 << 20)
static char zeros[3 * BYTES], filled[2 * BYTES] = { 1 }, little[16384];
static const char constant[2 * BYTES] = { 1 };
static void tell(const char *name, void *begin, size_t bytes)
{
	/* The pages that are whole. */
	char *first = (char *)(((size_t)begin + 4095) & ~4095ul), *end = (char *)begin + bytes;
	size_t pages = 0, bound = 0;
	for (char *page = first; page + 4096 <= end; page += 4096) {
		int mode = -1;
		unsigned long nodes = 0;
		if (syscall(SYS_get_mempolicy, &mode, &nodes, 64, page, 2 /* MPOL_F_ADDR */))
			exit(3);
		bound += mode == 1 /* MPOL_PREFERRED */ && nodes == 1;
		pages++;
	}
	printf("%s %s\n", name, bound == pages ? "bound" : bound ? "mixed" : "free");
	fflush(stdout);
}
static char *map(size_t bytes, int protection, int more)
{
	char *memory = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | more, -1, 0);
	if (memory == MAP_FAILED)
		exit(4);
	return memory;
}
int main(void)
{
	int both = PROT_READ | PROT_WRITE;
	char *mapped = map(BYTES, both, 0), *heap = sbrk(BYTES), *grown, *moved;
	tell("zeros", zeros, sizeof zeros);
	tell("filled", filled, sizeof filled);
	tell("constant", (void *)constant, sizeof constant);
	tell("little", little, sizeof little);
	tell("mapped", mapped, BYTES);
	tell("heap", heap, BYTES);
	tell("malloc", malloc(2 * BYTES), 2 * BYTES);
	tell("small", map(65536, both, 0), 65536);
	tell("stack", map(BYTES, both, MAP_STACK), BYTES);
	tell("reserved", map(BYTES, PROT_NONE, 0), BYTES);
	if (!fork()) {
		tell("copy", mapped, BYTES);
		tell("of-copy", map(BYTES, both, 0), BYTES);
		_exit(0);
	}
	wait(NULL);
	memset(mapped, 7, BYTES);
	grown = mremap(mapped, BYTES, 4 * BYTES, MREMAP_MAYMOVE);
	tell("grown", grown, 4 * BYTES);
	moved = mremap(grown, 4 * BYTES, 2 * BYTES, 0);
	if (moved != grown || moved[BYTES - 1] != 7)
		exit(5);
	tell("shrunk", moved, 2 * BYTES);
	if (mremap(moved, 2 * BYTES, 3 * BYTES, 1024) != MAP_FAILED)
		exit(6);
	tell("refused", moved, 2 * BYTES);
	if (munmap(moved, 2 * BYTES))
		exit(7);
	return 0;
}
"#;

const EXPECTED: &str = "zeros bound\nfilled bound\nconstant free\nlittle free\nmapped bound\nheap bound\nmalloc bound\nsmall free\nstack free\n\
    reserved free\ncopy bound\nof-copy bound\ngrown bound\nshrunk bound\nrefused bound\n";

fn build(directory: &Path, options: &[&str]) -> OsString {
    let (file, program) = (directory.join("program.c"), directory.join("program"));
    std::fs::write(&file, PROGRAM).unwrap();
    assert!(Command::new("gcc").args(options).arg("-o").arg(&program).arg(&file).status().unwrap().success());
    program.into_os_string()
}

fn bound(command: Vec<OsString>, chunks: &[u32], output: &Path) -> Result<Seen> {
    let streams = Streams::Files { input: None, output: output.to_owned() };
    let places = Places { chunks: chunks.to_vec(), ..Places::default() };
    run(&Program { command, streams, functions: Vec::new() }, &places, Limit::default(), &Stop::default(), |_| ())
}

#[test]
fn memory_of_every_kind_is_bound_before_it_is_used_wherever_it_is() {
    for options in [&["-O1"][..], &["-O1", "-static"], &["-O1", "-s"]] {
        let directory = tempfile::tempdir().unwrap();
        let program = build(directory.path(), options);
        let output = directory.path().join("output");
        // Without symbols all that is static is one array.
        let expected =
            if options.contains(&"-s") { EXPECTED.replace("little free", "little bound") } else { EXPECTED.into() };
        for _ in 0..3 {
            let seen = bound(vec![program.clone()], &[0, 0], &output).unwrap();
            assert_eq!((seen.end, std::fs::read_to_string(&output).unwrap()), (End::Code(0), expected.clone()));
        }
        let streams = Streams::Files { input: None, output: output.clone() };
        run(
            &Program { command: vec![program], streams, functions: Vec::new() },
            &Places::default(),
            Limit::default(),
            &Stop::default(),
            |_| (),
        )
        .unwrap();
        assert!(!std::fs::read_to_string(&output).unwrap().contains("bound"), "only when it is asked for");
    }
}

#[test]
fn signals_and_threads_go_on_while_memory_is_bound() {
    let directory = tempfile::tempdir().unwrap();
    let source = r#"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
static volatile long ticks;
static void tick(int signal) { ticks++; }
static void *allocate(void *none)
{
	for (int i = 0; i < 200 || ticks < 6; i++) {
		char *memory = malloc(1 << 20);
		memset(memory, i, 1 << 20);
		memory = realloc(memory, 2 << 20);
		if (memory[(1 << 20) - 1] != (char)i)
			exit(3);
		free(memory);
	}
	return NULL;
}
int main(void)
{
	struct itimerval every = { { 0, 1000 }, { 0, 1000 } };
	pthread_t threads[3];
	signal(SIGALRM, tick);
	setitimer(ITIMER_REAL, &every, NULL);
	for (int i = 0; i < 3; i++)
		pthread_create(threads + i, NULL, allocate, NULL);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
"#;
    let (file, program) = (directory.path().join("threads.c"), directory.path().join("threads"));
    std::fs::write(&file, source).unwrap();
    assert!(Command::new("gcc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(&file).status().unwrap().success());
    let seen = bound(vec![program.into_os_string()], &[0, 0], "/dev/null".as_ref()).unwrap();
    assert_eq!((seen.end, seen.threads), (End::Code(0), 4));
}

/// Timers and the C library go by them: a signal comes with who sent it and what with, whenever it comes.
#[test]
fn signals_keep_their_values_while_memory_is_bound() {
    let directory = tempfile::tempdir().unwrap();
    let source = r#"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static volatile long ticks, strange;
static void tick(int signal, siginfo_t *with, void *context)
{
	ticks++;
	strange += with->si_code != SI_TIMER || with->si_value.sival_int != 42;
}
int main(void)
{
	struct sigaction action = { .sa_sigaction = tick, .sa_flags = SA_SIGINFO | SA_RESTART };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1, .sigev_value.sival_int = 42 };
	struct itimerspec every = { { 0, 100000 }, { 0, 100000 } };
	timer_t timer;
	sigaction(SIGUSR1, &action, NULL);
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	timer_settime(timer, 0, &every, NULL);
	for (int i = 0; i < 500 || ticks < 100; i++)
		free(memset(malloc(1 << 20), i, 4096));
	return strange ? 4 : 0;
}
"#;
    let (file, program) = (directory.path().join("timer.c"), directory.path().join("timer"));
    std::fs::write(&file, source).unwrap();
    assert!(Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(&file).status().unwrap().success());
    let seen = bound(vec![program.into_os_string()], &[0, 0], "/dev/null".as_ref()).unwrap();
    assert_eq!(seen.end, End::Code(0));
}

/// As after its cpuset has changed. One that cannot be bound at all is told so at once.
#[test]
fn a_program_whose_later_memory_cannot_be_bound_works_on() {
    let directory = tempfile::tempdir().unwrap();
    let source = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
int main(int count, char **words)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { 4, code };
	if (count == 1)
		memset(malloc(1 << 20), 1, 1 << 20);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		return 3;
	for (int i = 0; i < 10; i++)
		memset(malloc(1 << 20), 1, 1 << 20);
	return 0;
}
"#;
    let (file, program) = (directory.path().join("filter.c"), directory.path().join("filter"));
    std::fs::write(&file, source).unwrap();
    assert!(Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(&file).status().unwrap().success());
    let program = program.into_os_string();
    assert_eq!(bound(vec![program.clone()], &[0, 0], "/dev/null".as_ref()).unwrap().end, End::Code(0));
    let error = bound(vec![program, "at once".into()], &[0, 0], "/dev/null".as_ref()).unwrap_err();
    assert!(format!("{error:#}").contains("cannot be bound to node 0"), "{error:#}");
}

#[test]
fn what_outlives_a_program_is_bound_to_its_own_end() {
    let directory = tempfile::tempdir().unwrap();
    let program = build(directory.path(), &["-O1"]);
    let output = directory.path().join("output");
    let script = format!("(sleep 0.2; exec {} > {}) & exit 3", program.display(), output.display());
    let command = ["sh", "-c", &script].map(OsString::from).to_vec();
    let places = Places { chunks: vec![0], ..Places::default() };
    let seen = run(
        &Program { command, streams: Streams::Ours, functions: Vec::new() },
        &places,
        Limit::default(),
        &Stop::default(),
        |_| (),
    )
    .unwrap();
    assert_eq!((seen.end, std::fs::read_to_string(&output).unwrap().as_str()), (End::Code(3), EXPECTED));
}

#[test]
fn a_node_that_is_not_there_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let program = build(directory.path(), &["-O1"]);
    let said = format!("{:#}", bound(vec![program], &[0, 900], "/dev/null".as_ref()).unwrap_err());
    assert!(said.starts_with("pages of the program cannot be bound to node 900: "), "{said}");
}
