/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Measures what a line costs from each node's memory to each node's CPUs, by walks in which each
 * load's address is what the load before it returned. The lab compares the result with the machine
 * file.
 *
 * usage: tandem-calibrate LINES NODE...     LINES: a power of two, several times the last-level
 * cache Prints a JSON list of {"from": node of the CPU, "to": node of the memory, "ns": per line}.
 */
#include <stdio.h>
#include <stdlib.h>

#include "place.h"

#define PASSES 2
/* Steps that are timed together. */
#define PART 4096
#define MAX_PARTS 4096

struct line {
	struct line *next;
	char rest[LINE_B - sizeof(void *)];
};

/* Links all lines to one ring in an order without pattern (a linear congruential generator of full
 * period). */
static void link_lines(struct line *lines, size_t count)
{
	size_t at = 0;

	for (size_t i = 0; i < count; i++) {
		size_t next = (at * 1664525 + 1013904223) % count;

		lines[at].next = &lines[next];
		at = next;
	}
}

static int ascending(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return (left > right) - (left < right);
}

/*
 * Time of one step in ns: the median over parts of the walk, so that what the kernel does in some
 * of them, timer ticks and balancing, is left out.
 */
static double walk_ns(struct line *at, size_t steps)
{
	static double parts[MAX_PARTS];
	size_t count = steps / PART < MAX_PARTS ? steps / PART : MAX_PARTS;

	MARK(1);
	for (size_t part = 0; part < count; part++) {
		double begun = now_ns();

#pragma GCC unroll 16
		for (size_t i = 0; i < PART; i++)
			at = at->next;
		__asm__ volatile("" : : "r"(at));
		parts[part] = (now_ns() - begun) / PART;
	}
	MARK(2);
	qsort(parts, count, sizeof(*parts), ascending);
	return parts[count / 2];
}

int main(int argc, char **argv)
{
	const char *separator = "[";
	size_t count;

	if (argc < 3 || (count = whole_number(argv[1])) < PART || count & (count - 1)) {
		fprintf(stderr,
			"usage: tandem-calibrate LINES NODE...     LINES: a power of two\n");
		return 2;
	}
	for (int from = 2; from < argc; from++) {
		int cpu = first_cpu_of(whole_number(argv[from]));

		if (cpu < 0)
			continue;
		run_on(cpu);
		for (int to = 2; to < argc; to++) {
			struct line *lines = memory_on(whole_number(argv[to]), count * LINE_B);

			link_lines(lines, count);
			printf("%s{\"from\":%s,\"to\":%s,\"ns\":%.4f}", separator, argv[from],
			       argv[to], walk_ns(lines, count * PASSES));
			separator = ",";
			free_memory(lines, count * LINE_B);
		}
	}
	puts("]");
	return fflush(stdout) ? 1 : 0;
}
