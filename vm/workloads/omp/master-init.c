/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The main thread initialises what each thread later has a part of its own of: all pages are on its
 * node, and most threads are far from theirs. Elements are padded to a line: what is spent is
 * memory, not arithmetic.
 *
 * usage: tandem-omp-master-init [PASSES]
 */
#include "lab.h"

#define ELEMENTS (3 << 16)

static struct {
	double value, rest[7];
} *from, *to;

static void scale(void)
{
#pragma omp parallel for schedule(static)
	for (int i = 0; i < ELEMENTS; i++)
		to[i].value = 3 * from[i].value;
}

static void add(void)
{
#pragma omp parallel for schedule(static)
	for (int i = 0; i < ELEMENTS; i++)
		to[i].value += from[i].value;
}

static void halve(void)
{
#pragma omp parallel for schedule(static)
	for (int i = 0; i < ELEMENTS; i++)
		from[i].value = 0.5 * to[i].value;
}

static int is_right(double factor)
{
	int wrong = 0;

#pragma omp parallel for schedule(static) reduction(+ : wrong)
	for (int i = 0; i < ELEMENTS; i++)
		wrong += from[i].value != factor * (i % 1000);
	return !wrong;
}

int main(int argc, char **argv)
{
	long passes = repetitions(argc, argv, 16);
	double begin = now_s(), factor = 1;

	from = array(sizeof(*from) * ELEMENTS);
	to = array(sizeof(*to) * ELEMENTS);
	for (int i = 0; i < ELEMENTS; i++) {
		from[i].value = i % 1000;
		to[i].value = 0;
	}
	for (long pass = 0; pass < passes; pass++) {
		scale();
		add();
		halve();
		factor *= 2;
	}
	return report("master-init", begin, is_right(factor));
}
