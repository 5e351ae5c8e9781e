/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One array that the main thread initialises, and all threads read in pieces that whoever is free
 * takes: nobody has a part of his own, and all of it on one node is as fast as that node's memory.
 *
 * usage: tandem-omp-bandwidth [PASSES]
 */
#include "lab.h"

#define LINES (3 << 17)
#define PIECE 4096

struct line {
	uint64_t value, rest[7];
};

static struct line *all;

static uint64_t sum(void)
{
	uint64_t sum = 0;

#pragma omp parallel for schedule(dynamic, PIECE) reduction(+ : sum)
	for (int i = 0; i < LINES; i++)
		sum += all[i].value;
	return sum;
}

static uint64_t greatest(void)
{
	uint64_t most = 0;

#pragma omp parallel for schedule(dynamic, PIECE) reduction(max : most)
	for (int i = 0; i < LINES; i++)
		most = all[i].value > most ? all[i].value : most;
	return most;
}

static long odd(void)
{
	long odd = 0;

#pragma omp parallel for schedule(dynamic, PIECE) reduction(+ : odd)
	for (int i = 0; i < LINES; i++)
		odd += all[i].value & 1;
	return odd;
}

int main(int argc, char **argv)
{
	long passes = repetitions(argc, argv, 14);
	double begin = now_s();
	int wrong = 0;

	all = array(sizeof(*all) * LINES);
	for (int i = 0; i < LINES; i++)
		all[i].value = i + 1;
	for (long pass = 0; pass < passes; pass++) {
		wrong += sum() != (uint64_t)LINES * (LINES + 1) / 2;
		wrong += greatest() != LINES;
		wrong += odd() != LINES / 2;
	}
	return report("bandwidth", begin, !wrong);
}
