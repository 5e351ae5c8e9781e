/* SPDX-License-Identifier: GPL-2.0-only */
/* What the OpenMP programs of the lab have in common. */
#ifndef LAB_H
#define LAB_H

#define _GNU_SOURCE
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* Seconds of a clock that never jumps. */
static inline double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

/* Ends the program in words. */
static inline void give_up(const char *why)
{
	fprintf(stderr, "%s\n", why);
	exit(1);
}

/* Memory of its own, that nobody has touched. */
static inline void *array(size_t bytes)
{
	void *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		give_up("there is not enough memory");
	return memory;
}

/* A number that looks drawn by chance, the same for the same argument. */
static inline uint64_t mix(uint64_t value)
{
	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
	value = (value ^ value >> 27) * 0x94d049bb133111eb;
	return value ^ value >> 31;
}

/* The number of repetitions: the only argument, or `usual` without one. */
static inline long repetitions(int argc, char **argv, long usual)
{
	char *rest = NULL;
	long given = argc == 2 ? strtol(argv[1], &rest, 10) : usual;

	if (argc > 2 || given < 1 || (rest && *rest)) {
		fprintf(stderr, "usage: %s [REPETITIONS]\n", argv[0]);
		exit(2);
	}
	return given;
}

/* Prints what was measured since `begin`, if the result is right. */
static inline int report(const char *name, double begin, int is_right)
{
	if (!is_right)
		give_up("self-check failed: the result is wrong");
	printf("{\"program\":\"%s\",\"threads\":%d,\"seconds\":%.6f,\"checked\":true}\n", name,
	       omp_get_max_threads(), now_s() - begin);
	return fflush(stdout) ? 1 : 0;
}

#endif
