/* SPDX-License-Identifier: GPL-2.0-only */
/* Writes the sample ring, see ring.h. QEMU shows the guest the same file. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ring.h"
#include "timing.h"

#define COUNTERS_AT 4096
#define SAMPLES_AT 8192

static struct ring_header *header;
static struct ring_counters *counters;
static struct ring_sample *samples;
/* Misses until the next sample, per vCPU. */
static uint32_t left[MAX_VCPUS];
static uint64_t random_state;

/* Next of a 64-bit linear congruential generator; its upper bits are good enough to scatter
 * samples. */
static uint32_t random_below(uint32_t limit)
{
	random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
	return (random_state >> 33) % limit;
}

void ring_open(void)
{
	int file = open(settings.ring_path, O_RDWR);
	unsigned cpus = 0;

	if (file < 0 || ftruncate(file, RING_BYTES))
		refuse("%s cannot be opened: %s", settings.ring_path, strerror(errno));
	header = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (header == MAP_FAILED)
		refuse("%s cannot be mapped: %s", settings.ring_path, strerror(errno));
	close(file);
	counters = (void *)((char *)header + COUNTERS_AT);
	samples = (void *)((char *)header + SAMPLES_AT);
	random_state = settings.boot_offset_ns;
	for (unsigned i = 0; i < settings.vcpus; i++) {
		cpus += settings.cpu_of[i] >= 0;
		left[i] = 1 + random_below(2 * settings.sample_period);
	}
	*header = (struct ring_header){
		.magic = RING_MAGIC,
		.version = RING_VERSION,
		.cpus = cpus,
		.counters_at = COUNTERS_AT,
		.counters_bytes = sizeof(*counters),
		.samples_at = SAMPLES_AT,
		.sample_bytes = sizeof(*samples),
		.samples = (RING_BYTES - SAMPLES_AT) / sizeof(*samples),
		.period = settings.sample_period,
	};
}

void ring_counters_show(void)
{
	for (unsigned i = 0; i < settings.vcpus; i++) {
		const struct vcpu *v = &vcpus[i];

		if (settings.cpu_of[i] < 0 || !v->live)
			continue;
		counters[settings.cpu_of[i]] = (struct ring_counters){
			.instructions = v->live->instructions,
			.cycles = clock_busy(i) / TICKS_PER_NS,
			.l2_misses = v->counters.l2_misses,
			.l3_hits = v->counters.l3_hits,
			.l3_misses = v->counters.l3_misses,
			.remote_dram = v->counters.remote_dram,
			.remote_hitm = v->counters.remote_hitm,
		};
	}
}

static uint8_t source_of(unsigned vcpu, const struct cost *cost, unsigned home)
{
	switch (cost->source) {
	case FROM_L3:
		return RING_L3;
	case FROM_CORE:
		return RING_SAME_LLC + cost->distance;
	default:
		return (int)home == settings.node_of[vcpu] ? RING_LOCAL_MEMORY : RING_REMOTE_MEMORY;
	}
}

void ring_miss(unsigned vcpu, uint64_t address, uint64_t line, const struct cost *cost, bool store)
{
	uint64_t number;
	struct ring_sample *slot;
	unsigned home;

	if (--left[vcpu])
		return;
	number = header->head;
	slot = &samples[number % header->samples];
	home = memory_home(line);
	left[vcpu] = 1 + random_below(2 * settings.sample_period);
	__atomic_store_n(&slot->sequence, 0, __ATOMIC_RELEASE);
	slot->address = address;
	slot->time_ns = clock_now(vcpu) / TICKS_PER_NS;
	slot->latency_ns = cost->ticks / TICKS_PER_NS;
	slot->cpu = settings.cpu_of[vcpu];
	slot->node = settings.node_id[home];
	slot->source = source_of(vcpu, cost, home);
	slot->store = store;
	__atomic_store_n(&slot->sequence, number + 1, __ATOMIC_RELEASE);
	__atomic_store_n(&header->head, number + 1, __ATOMIC_RELEASE);
}
