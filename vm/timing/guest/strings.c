/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What string instructions cost in caches: rep movsq and rep stosq over a page that is in the
 * first-level cache.
 *
 * usage: tandem-strings TIMES     Prints a JSON object with the ns of one page, {"movsq", "stosq"}.
 */
#include <stdio.h>

#include "place.h"

#define PAGE_B 4096
#define WORDS (PAGE_B / 8)

static char from[PAGE_B] __attribute__((aligned(PAGE_B)));
/* In other places of a direct-mapped cache than `from`. */
static char to[PAGE_B] __attribute__((aligned(PAGE_B)));

static void copy(void)
{
	void *source = from, *target = to;
	long words = WORDS;

	__asm__ volatile("rep movsq" : "+S"(source), "+D"(target), "+c"(words) : : "memory");
}

static void set(void)
{
	void *target = to;
	long words = WORDS;

	__asm__ volatile("rep stosq" : "+D"(target), "+c"(words) : "a"(0ul) : "memory");
}

static double page_ns(void (*work)(void), long times)
{
	double begun;

	work();
	begun = now_ns();
	for (long i = 0; i < times; i++)
		work();
	return (now_ns() - begun) / times;
}

int main(int argc, char **argv)
{
	long times;

	if (argc != 2 || (times = whole_number(argv[1])) < 1) {
		fprintf(stderr, "usage: tandem-strings TIMES\n");
		return 2;
	}
	run_on(0);
	printf("{\"movsq\":%.1f,\"stosq\":%.1f}\n", page_ns(copy, times), page_ns(set, times));
	return fflush(stdout) ? 1 : 0;
}
