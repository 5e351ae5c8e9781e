/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The main thread initialises what each thread later has a part of its own of: all pages are on its
 * node, and most threads are far from theirs.
 *
 * usage: tandem-omp-master-init [PASSES]
 */
#include "lab.h"

#define WORDS (1 << 21)

static double *from, *to;

static void scale(void)
{
#pragma omp parallel for schedule(static)
	for (int i = 0; i < WORDS; i++)
		to[i] = 3 * from[i];
}

static void add(void)
{
#pragma omp parallel for schedule(static)
	for (int i = 0; i < WORDS; i++)
		to[i] += from[i];
}

static void halve(void)
{
#pragma omp parallel for schedule(static)
	for (int i = 0; i < WORDS; i++)
		from[i] = 0.5 * to[i];
}

static int is_right(double factor)
{
	int wrong = 0;

#pragma omp parallel for schedule(static) reduction(+ : wrong)
	for (int i = 0; i < WORDS; i++)
		wrong += from[i] != factor * (i % 1000);
	return !wrong;
}

int main(int argc, char **argv)
{
	long passes = repetitions(argc, argv, 6);
	double begin = now_s(), factor = 1;

	from = array(sizeof(*from) * WORDS);
	to = array(sizeof(*to) * WORDS);
	for (int i = 0; i < WORDS; i++) {
		from[i] = i % 1000;
		to[i] = 0;
	}
	for (long pass = 0; pass < passes; pass++) {
		scale();
		add();
		halve();
		factor *= 2;
	}
	return report("master-init", begin, is_right(factor));
}
