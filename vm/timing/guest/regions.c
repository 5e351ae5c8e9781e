/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How long an OpenMP program takes whose parallel regions are short, so that threads often wait for
 * each other, and how long its threads wait for a CPU once the scheduler had time to spread them;
 * how they wait for each other says OMP_WAIT_POLICY: active, by PAUSE, or passive, asleep.
 *
 * usage: tandem-regions REGIONS STEPS [gathered]     each thread adds STEPS times in each region
 * gathered: all threads are made on one CPU and stay there until all of them exist; only then may
 * they use all CPUs that the program may use.
 *
 * Prints a JSON object: threads; ms of all regions; waited_ms of each thread, in the kernel's
 * account, from SETTLE_NS after the begin to the end of the last region. The begin is before the
 * threads are made, or gathered, when they may leave.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "place.h"

#define SETTLE_NS 10e6

static void region(long steps)
{
#pragma omp parallel
	{
		long sum = 0;

		for (long i = 0; i < steps; i++)
			__asm__ volatile("add %1, %0" : "+r"(sum) : "r"(i));
	}
}

/* How long this thread was runnable and did not run, in ns since it was made. */
static double waited_ns(void)
{
	FILE *file = fopen("/proc/thread-self/schedstat", "r");
	double waited;

	if (!file || fscanf(file, "%*s %lf", &waited) != 1)
		fail("/proc/thread-self/schedstat");
	fclose(file);
	return waited;
}

/* Lets all threads of this program use these CPUs. */
static void spread(const cpu_set_t *cpus)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;

	if (!tasks)
		fail("/proc/self/task");
	while ((task = readdir(tasks)))
		if (*task->d_name != '.' &&
		    sched_setaffinity(whole_number(task->d_name), sizeof(*cpus), cpus))
			fail("sched_setaffinity");
	closedir(tasks);
}

static int first_of(const cpu_set_t *cpus)
{
	int cpu = 0;

	while (!CPU_ISSET(cpu, cpus))
		cpu++;
	return cpu;
}

/* Makes threads, lets them spin until they should have a CPU each; what each waited later. */
static void settle(double waited[], int gathered)
{
	_Atomic double begun;
	cpu_set_t cpus;

	if (sched_getaffinity(0, sizeof(cpus), &cpus))
		fail("sched_getaffinity");
	if (gathered)
		run_on(first_of(&cpus));
	begun = gathered ? 0 : now_ns();
#pragma omp parallel
	{
		double at;

#pragma omp master
		if (gathered) {
			begun = now_ns();
			spread(&cpus);
		}
		while (!begun || (at = now_ns()) < begun + SETTLE_NS)
			;
		/* Who gets to look late had no CPU at that moment. */
		waited[omp_get_thread_num()] = at - (begun + SETTLE_NS) - waited_ns();
	}
}

int main(int argc, char **argv)
{
	long regions, steps;
	int gathered = argc == 4 && !strcmp(argv[3], "gathered"), threads = omp_get_max_threads();
	double begun, ended, *waited = calloc(threads, sizeof(*waited));

	if (argc != 3 + gathered || (regions = whole_number(argv[1])) < 1 ||
	    (steps = whole_number(argv[2])) < 1) {
		fprintf(stderr, "usage: tandem-regions REGIONS STEPS [gathered]\n");
		return 2;
	}
	if (!waited)
		fail("calloc");
	settle(waited, gathered);
	begun = now_ns();
	for (long i = 0; i < regions; i++)
		region(steps);
	ended = now_ns();
#pragma omp parallel
	waited[omp_get_thread_num()] += waited_ns();
	printf("{\"threads\":%d,\"ms\":%.3f,\"waited_ms\":[", threads, (ended - begun) / 1e6);
	for (int i = 0; i < threads; i++)
		printf("%s%.3f", i ? "," : "", waited[i] / 1e6);
	puts("]}");
	return fflush(stdout) ? 1 : 0;
}
