/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reads the sample ring from inside a guest while it walks over one node's memory on a CPU, and
 * says what it saw.
 *
 * usage: tandem-ring CPU NODE LINES
 * Prints a JSON object: samples of the walk by source, those whose node or CPU is another one, the
 * smallest and the largest latency, and what the CPU's counters rose by.
 */
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../ring.h"
#include "place.h"

static int has_id(const char *folder, const char *file, const char *id)
{
	char path[512], text[16] = "";
	FILE *opened;

	snprintf(path, sizeof(path), "%s/%s", folder, file);
	opened = fopen(path, "r");
	if (!opened)
		return 0;
	if (!fgets(text, sizeof(text), opened))
		text[0] = 0;
	fclose(opened);
	return !strncmp(text, id, strlen(id));
}

static const volatile struct ring_header *map_ring(void)
{
	glob_t found;
	void *ring = MAP_FAILED;

	if (glob("/sys/bus/pci/devices/*", 0, NULL, &found))
		fail("no PCI device");
	for (size_t i = 0; i < found.gl_pathc; i++) {
		char path[512];
		int file;

		if (!has_id(found.gl_pathv[i], "vendor", "0x1af4") ||
		    !has_id(found.gl_pathv[i], "device", "0x1110"))
			continue;
		snprintf(path, sizeof(path), "%s/enable", found.gl_pathv[i]);
		file = open(path, O_WRONLY);
		if (file < 0 || write(file, "1", 1) != 1)
			fail(path);
		close(file);
		snprintf(path, sizeof(path), "%s/resource2", found.gl_pathv[i]);
		file = open(path, O_RDWR);
		if (file < 0)
			fail(path);
		ring = mmap(NULL, RING_BYTES, PROT_READ, MAP_SHARED, file, 0);
		close(file);
	}
	if (ring == MAP_FAILED)
		fail("the ring cannot be mapped");
	return ring;
}

struct seen {
	unsigned sources[RING_REMOTE_MEMORY + 1], strangers, lost;
	uint32_t least_ns, most_ns;
};

/* Takes the samples from number `first` on whose address is one of the walk's lines. */
static struct seen take(const volatile struct ring_header *ring, uint64_t first, const char *memory,
			size_t bytes, unsigned cpu, unsigned node)
{
	const struct ring_sample *slots = (const void *)((const char *)ring + ring->samples_at);
	struct seen seen = {.least_ns = UINT32_MAX};

	for (uint64_t number = first; number < ring->head; number++) {
		struct ring_sample sample = slots[number % ring->samples];

		if (sample.sequence != number + 1) {
			seen.lost++;
			continue;
		}
		if (sample.address - (uint64_t)memory >= bytes)
			continue;
		seen.sources[sample.source]++;
		seen.strangers += sample.cpu != cpu || sample.node != node || sample.store;
		if (sample.latency_ns < seen.least_ns)
			seen.least_ns = sample.latency_ns;
		if (sample.latency_ns > seen.most_ns)
			seen.most_ns = sample.latency_ns;
	}
	return seen;
}

int main(int argc, char **argv)
{
	const volatile struct ring_header *ring = map_ring();
	const volatile struct ring_counters *counters;
	struct ring_counters before;
	size_t lines;
	struct seen seen;
	uint64_t first;
	int cpu, node;
	char *memory;

	if (argc != 4) {
		fprintf(stderr, "usage: tandem-ring CPU NODE LINES\n");
		return 2;
	}
	if (ring->magic != RING_MAGIC || ring->version != RING_VERSION) {
		fprintf(stderr, "the ring has another layout\n");
		return 1;
	}
	cpu = whole_number(argv[1]);
	node = whole_number(argv[2]);
	lines = whole_number(argv[3]);
	run_on(cpu);
	memory = memory_on(node, lines * LINE_B);
	counters = (const volatile void *)((const volatile char *)ring + ring->counters_at);
	before = counters[cpu];
	first = ring->head;
	for (size_t i = 0; i < lines; i++)
		(void)((volatile char *)memory)[i * LINE_B];
	seen = take(ring, first, memory, lines * LINE_B, cpu, node);
	printf("{\"cpus\":%u,\"period\":%u,\"local\":%u,\"remote\":%u,\"strangers\":%u,\"lost\":%u,"
	       "\"least_ns\":%u,"
	       "\"most_ns\":%u,\"instructions\":%lu,\"cycles\":%lu,\"l2_misses\":%lu,\"l3_misses\":"
	       "%lu,"
	       "\"remote_dram\":%lu}\n",
	       ring->cpus, ring->period, seen.sources[RING_LOCAL_MEMORY],
	       seen.sources[RING_REMOTE_MEMORY], seen.strangers, seen.lost, seen.least_ns,
	       seen.most_ns, counters[cpu].instructions - before.instructions,
	       counters[cpu].cycles - before.cycles, counters[cpu].l2_misses - before.l2_misses,
	       counters[cpu].l3_misses - before.l3_misses,
	       counters[cpu].remote_dram - before.remote_dram);
	return fflush(stdout) ? 1 : 0;
}
