/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The ground truth of a run: one JSON object a line, at every tenth of a virtual second and at
 * every mark of the guest. Counters are cumulative since boot; readers subtract two records. The
 * lab makes truth.json of the lines (vm/lab/timing.py), so that a run which ends badly keeps what
 * was measured until then.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "timing.h"

#define TICKS_PER_RECORD (100000000ull * TICKS_PER_NS)

static FILE *file;
static uint64_t next_record = TICKS_PER_RECORD;

void truth_open(void)
{
	file = fopen(settings.truth_path, "w");
	if (!file)
		refuse("%s cannot be written: %s", settings.truth_path, strerror(errno));
}

void truth_close(void)
{
	if (fclose(file))
		refuse("%s cannot be written: %s", settings.truth_path, strerror(errno));
}

static void accesses(void)
{
	fputs(",\"accesses\":[", file);
	for (unsigned from = 0; from < settings.nodes; from++) {
		uint64_t row[MAX_NODES] = {0};

		for (unsigned i = 0; i < settings.vcpus; i++)
			for (unsigned to = 0;
			     settings.node_of[i] == (int)from && to < settings.nodes; to++)
				row[to] += vcpus[i].counters.dram[to];
		for (unsigned to = 0; to < settings.nodes; to++)
			fprintf(file, "%s%lu", to ? "," : from ? ",[" : "[", row[to]);
		fputc(']', file);
	}
	fputc(']', file);
}

static void transfers(void)
{
	static const char *const names[DISTANCES] = {"same_llc", "same_node", "cross_node"};

	for (unsigned d = 0; d < DISTANCES; d++) {
		uint64_t sum = 0;

		for (unsigned i = 0; i < settings.vcpus; i++)
			sum += vcpus[i].counters.transfers[d];
		fprintf(file, "%s\"%s\":%lu", d ? "," : ",\"coherence\":{", names[d], sum);
	}
	fputc('}', file);
}

static uint64_t instructions(unsigned vcpu)
{
	return vcpus[vcpu].live->instructions;
}

static uint64_t busy_ns(unsigned vcpu)
{
	return clock_busy(vcpu) / TICKS_PER_NS;
}

#define COUNTER(name)                                                                              \
	static uint64_t name(unsigned vcpu)                                                        \
	{                                                                                          \
		return vcpus[vcpu].counters.name;                                                  \
	}
COUNTER(l2_misses)
COUNTER(l3_hits)
COUNTER(l3_misses)
COUNTER(remote_dram)
COUNTER(remote_hitm)

/* A list with one number per CPU of the guest. */
static void per_cpu(const char *name, uint64_t (*value)(unsigned vcpu))
{
	fprintf(file, ",\"%s\":[", name);
	for (unsigned i = 0; i < settings.vcpus; i++)
		if (settings.cpu_of[i] >= 0)
			fprintf(file, "%s%lu", settings.cpu_of[i] ? "," : "",
				vcpus[i].live ? value(i) : 0);
	fputc(']', file);
}

void truth_record(uint64_t now, int mark)
{
	fprintf(file, "{\"at_ns\":%lu,\"mark\":", now / TICKS_PER_NS);
	if (mark < 0)
		fputs("null", file);
	else
		fprintf(file, "%d", mark);
	accesses();
	transfers();
	fputs(",\"dram_bytes\":[", file);
	for (unsigned node = 0; node < settings.nodes; node++)
		fprintf(file, "%s%lu", node ? "," : "", memory_traffic[node] * LINE_BYTES);
	fputc(']', file);
	per_cpu("instructions", instructions);
	per_cpu("busy_ns", busy_ns);
	per_cpu("l2_misses", l2_misses);
	per_cpu("l3_hits", l3_hits);
	per_cpu("l3_misses", l3_misses);
	per_cpu("remote_dram", remote_dram);
	per_cpu("remote_hitm", remote_hitm);
	fputs("}\n", file);
	fflush(file);
}

void truth_tick(uint64_t now)
{
	if (now < next_record)
		return;
	truth_record(now, -1);
	next_record = now - now % TICKS_PER_RECORD + TICKS_PER_RECORD;
}
