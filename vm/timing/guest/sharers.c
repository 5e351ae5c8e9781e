/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Two threads on given CPUs share one line: what does it cost to pass it on?
 *
 *   add      both add to one counter as often as they can
 *   turns    each waits, with PAUSE, until it is its turn, and gives the turn to the other
 *   read     one writes once; the other reads again and again: only the first read may cost
 *
 * usage: tandem-sharers add|turns|read CPU CPU ROUNDS
 * Prints a JSON object with the time per round in ns, the median of that of PARTS
 * parts: whatever else the guest does now and then does not count.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "place.h"

static struct {
	_Alignas(LINE_B) _Atomic long value;
	_Alignas(LINE_B) char rest;
} line;

static struct {
	_Alignas(LINE_B) _Atomic int count;
	_Alignas(LINE_B) char rest;
} ready;
static void (*body)(long turn, long from, long to);

static void add(long turn, long from, long to)
{
	for (long i = from; i < to; i++)
		atomic_fetch_add(&line.value, 1);
}

static void take_turns(long turn, long from, long to)
{
	for (long i = from; i < to; i++) {
		while ((atomic_load(&line.value) & 1) != turn)
			__builtin_ia32_pause();
		atomic_store_explicit(&line.value, 2 * i + turn + 1, memory_order_release);
	}
}

static void read_only(long turn, long from, long to)
{
	long sum = 0;

	if (turn) {
		atomic_store(&line.value, 1);
		return;
	}
	while (!atomic_load(&line.value))
		__builtin_ia32_pause();
	for (long i = from; i < to; i++)
		sum += atomic_load_explicit(&line.value, memory_order_relaxed);
	if (sum != to - from)
		fail("the line changed");
}

enum { PARTS = 21 };

struct thread {
	long turn, rounds;
	int cpu;
	double ns;
};

static int compare(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;

	return (a > b) - (a < b);
}

/* Runs the body in parts; the median time of a round. */
static double time_of_round(const struct thread *self)
{
	double ns[PARTS];

	for (long part = 0; part < PARTS; part++) {
		long from = self->rounds * part / PARTS, to = self->rounds * (part + 1) / PARTS;
		double begun = now_ns();

		body(self->turn, from, to);
		ns[part] = (now_ns() - begun) / (to - from);
	}
	qsort(ns, PARTS, sizeof(*ns), compare);
	return ns[PARTS / 2];
}

static void *run(void *argument)
{
	struct thread *self = argument;

	run_on(self->cpu);
	/* Its page fault belongs to nobody's rounds. */
	now_ns();
	/* A barrier that sleeps would let the first thread be done before the second one is awake.
	 */
	for (atomic_fetch_add(&ready.count, 1); atomic_load(&ready.count) < 2;)
		__builtin_ia32_pause();
	if (!self->turn)
		MARK(1);
	self->ns = time_of_round(self);
	if (!self->turn)
		MARK(2);
	return NULL;
}

int main(int argc, char **argv)
{
	struct thread threads[2];
	pthread_t other;
	long rounds;

	if (argc != 5) {
		fprintf(stderr, "usage: tandem-sharers add|turns|read CPU CPU ROUNDS\n");
		return 2;
	}
	body = !strcmp(argv[1], "add") ? add : !strcmp(argv[1], "turns") ? take_turns : read_only;
	rounds = whole_number(argv[4]);
	if (rounds < PARTS)
		fail("fewer rounds than parts");
	for (long i = 0; i < 2; i++)
		threads[i] = (struct thread){
			.turn = i, .rounds = rounds, .cpu = whole_number(argv[2 + i])};
	if (pthread_create(&other, NULL, run, &threads[1]))
		fail("pthread_create");
	run(&threads[0]);
	if (pthread_join(other, NULL))
		fail("pthread_join");
	if (body != read_only && line.value != 2 * rounds)
		fail("a round was lost");
	printf("{\"kind\":\"%s\",\"cpus\":[%s,%s],\"ns\":%.3f}\n", argv[1], argv[2], argv[3],
	       threads[0].ns);
	return fflush(stdout) ? 1 : 0;
}
