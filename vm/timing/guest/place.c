/* SPDX-License-Identifier: GPL-2.0-only */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "place.h"

#define MPOL_BIND 2

void fail(const char *what)
{
	perror(what);
	exit(1);
}

long whole_number(const char *text)
{
	char *end;
	long value = strtol(text, &end, 10);

	if (end == text || *end || value < 0) {
		fprintf(stderr, "%s is no whole number\n", text);
		exit(2);
	}
	return value;
}

void run_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		fail("sched_setaffinity");
}

void *memory_on(int node, size_t bytes)
{
	unsigned long mask = 1ul << node;
	void *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap");
	if (syscall(SYS_mbind, memory, bytes, MPOL_BIND, &mask, sizeof(mask) * 8, 0))
		fail("mbind");
	memset(memory, 0, bytes);
	return memory;
}

void free_memory(void *memory, size_t bytes)
{
	if (munmap(memory, bytes))
		fail("munmap");
}

int first_cpu_of(int node)
{
	char path[64];
	int cpu = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpulist", node);
	file = fopen(path, "r");
	if (!file)
		fail(path);
	if (fscanf(file, "%d", &cpu) != 1)
		cpu = -1;
	fclose(file);
	return cpu;
}

double now_ns(void)
{
	struct timespec now;

	if (clock_gettime(CLOCK_MONOTONIC, &now))
		fail("clock_gettime");
	return now.tv_sec * 1e9 + now.tv_nsec;
}
