/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How many lines a node's memory gives per second when threads read them independently of each
 * other.
 *
 * usage: tandem-flood NODE LINES CPU...     each thread reads LINES lines of its own, twice
 * Prints a JSON object with all threads' MB/s.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "place.h"

#define PASSES 2
#define MAX_THREADS 64

struct thread {
	pthread_t id;
	int cpu;
	double begun_ns, ended_ns;
};

static struct thread threads[MAX_THREADS];
static int count, node;
static size_t lines;
static _Atomic int ready;

static void *run(void *argument)
{
	struct thread *self = argument;
	volatile char *memory;

	run_on(self->cpu);
	memory = memory_on(node, lines * LINE_B);
	for (atomic_fetch_add(&ready, 1); atomic_load(&ready) < count;)
		__builtin_ia32_pause();
	self->begun_ns = now_ns();
	for (int pass = 0; pass < PASSES; pass++)
		for (size_t i = 0; i < lines; i++)
			(void)memory[i * LINE_B];
	self->ended_ns = now_ns();
	return NULL;
}

int main(int argc, char **argv)
{
	double begun, ended;

	if (argc < 4 || argc - 3 > MAX_THREADS) {
		fprintf(stderr, "usage: tandem-flood NODE LINES CPU...\n");
		return 2;
	}
	node = whole_number(argv[1]);
	lines = whole_number(argv[2]);
	count = argc - 3;
	for (int i = 0; i < count; i++) {
		threads[i].cpu = whole_number(argv[3 + i]);
		if (pthread_create(&threads[i].id, NULL, run, &threads[i]))
			fail("pthread_create");
	}
	for (int i = 0; i < count; i++)
		if (pthread_join(threads[i].id, NULL))
			fail("pthread_join");
	begun = threads[0].begun_ns;
	ended = threads[0].ended_ns;
	for (int i = 1; i < count; i++) {
		begun = threads[i].begun_ns < begun ? threads[i].begun_ns : begun;
		ended = threads[i].ended_ns > ended ? threads[i].ended_ns : ended;
	}
	printf("{\"node\":%d,\"threads\":%d,\"mb_s\":%.1f}\n", node, count,
	       (double)count * lines * PASSES * LINE_B * 1000 / (ended - begun));
	return fflush(stdout) ? 1 : 0;
}
