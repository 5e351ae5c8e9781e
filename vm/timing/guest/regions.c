/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How long an OpenMP program takes whose parallel regions are short, so that threads often wait for
 * each other; how they wait says OMP_WAIT_POLICY: active, by PAUSE, or passive, asleep.
 *
 * usage: tandem-regions REGIONS STEPS     each thread adds STEPS times in each region
 * Prints a JSON object with the threads and the ms of all regions.
 */
#include <omp.h>
#include <stdio.h>

#include "place.h"

static void region(long steps)
{
#pragma omp parallel
	{
		long sum = 0;

		for (long i = 0; i < steps; i++)
			__asm__ volatile("add %1, %0" : "+r"(sum) : "r"(i));
	}
}

int main(int argc, char **argv)
{
	long regions, steps;
	double begun;

	if (argc != 3 || (regions = whole_number(argv[1])) < 1 ||
	    (steps = whole_number(argv[2])) < 1) {
		fprintf(stderr, "usage: tandem-regions REGIONS STEPS\n");
		return 2;
	}
	/* The first one starts the threads. */
	region(steps);
	begun = now_ns();
	for (long i = 0; i < regions; i++)
		region(steps);
	printf("{\"threads\":%d,\"ms\":%.3f}\n", omp_get_max_threads(), (now_ns() - begun) / 1e6);
	return fflush(stdout) ? 1 : 0;
}
