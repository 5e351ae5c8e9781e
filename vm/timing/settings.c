/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reads the settings: `key=value` lines, as the lab writes them from `tandem topo --emit lab`.
 * Times are in ns, lists separated by spaces. A key that is missing or no number ends QEMU with a
 * sentence: nothing is guessed here, the defaults are the machine file's (userspace/machine).
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "timing.h"

#define MAX_FILE (1 << 20)

struct settings settings;

static const char *settings_path;
static char *text;

void refuse(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("timing plugin: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	exit(1);
}

/* The value of `key`, up to the line's end; NULL without one. */
static const char *value_of(const char *key)
{
	size_t length = strlen(key);

	for (char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (!strncmp(line, key, length) && line[length] == '=')
			return line + length + 1;
	}
	return NULL;
}

/* Fills `count` numbers from the list that `key` has. */
static void numbers(const char *key, unsigned count, double *into)
{
	const char *at = value_of(key);
	char *end;

	if (!at)
		refuse("%s: the key %s is missing", settings_path, key);
	for (unsigned i = 0; i < count; i++, at = end) {
		into[i] = strtod(at, &end);
		if (end == at || *(at + strspn(at, " ")) == '\n')
			refuse("%s: %s has not the %u numbers that it must have", settings_path,
			       key, count);
	}
}

static double number(const char *key)
{
	double value;

	numbers(key, 1, &value);
	return value;
}

static uint64_t ticks(double ns)
{
	return ns * TICKS_PER_NS + 0.5;
}

static void read_places(void)
{
	double nodes[MAX_VCPUS], llcs[MAX_VCPUS];
	int cpu = 0;

	settings.vcpus = number("vcpus");
	settings.llcs = number("llcs");
	if (settings.vcpus > MAX_VCPUS || settings.nodes > MAX_NODES)
		refuse("%u vCPUs on %u nodes are too many: %u and %u are the most", settings.vcpus,
		       settings.nodes, MAX_VCPUS, MAX_NODES);
	numbers("vcpu_node", settings.vcpus, nodes);
	numbers("vcpu_llc", settings.vcpus, llcs);
	for (unsigned i = 0; i < settings.vcpus; i++) {
		settings.node_of[i] = nodes[i];
		settings.llc_of[i] = llcs[i];
		settings.cpu_of[i] = nodes[i] < 0 ? -1 : cpu++;
	}
}

static void read_memory(void)
{
	double row[MAX_NODES];

	for (unsigned node = 0; node < settings.nodes; node++) {
		char key[64];

		snprintf(key, sizeof(key), "node.%u.id", node);
		settings.node_id[node] = number(key);
		snprintf(key, sizeof(key), "node.%u.memory_mb", node);
		settings.memory_b[node] = (uint64_t)number(key) << 20;
		snprintf(key, sizeof(key), "node.%u.latency_ns", node);
		numbers(key, settings.nodes, row);
		for (unsigned to = 0; to < settings.nodes; to++)
			settings.latency[node][to] = ticks(row[to]);
		snprintf(key, sizeof(key), "node.%u.bandwidth_mb_s", node);
		if (!value_of(key))
			continue;
		numbers(key, settings.nodes, row);
		for (unsigned to = 0; to < settings.nodes; to++)
			settings.link_service[node][to] =
				to == node ? 0 : LINE_BYTES * 1000.0 / row[to] * TICKS_PER_NS;
	}
	settings.controller_service = number("memory.service_ns_per_line") * TICKS_PER_NS;
	settings.outstanding = number("memory.outstanding_misses");
	if (settings.outstanding < 1 || settings.outstanding > MAX_OUTSTANDING)
		refuse("%u misses in flight cannot be: 1 to %u can", settings.outstanding,
		       MAX_OUTSTANDING);
	settings.low_memory_b = (uint64_t)number("low_memory_mb") << 20;
}

static char *word(const char *key)
{
	const char *value = value_of(key);

	if (!value)
		refuse("%s: the key %s is missing", settings_path, key);
	return strndup(value, strcspn(value, "\n"));
}

static void load(const char *path)
{
	FILE *file = fopen(path, "r");
	size_t length;

	if (!file)
		refuse("%s cannot be read", path);
	text = calloc(1, MAX_FILE + 1);
	length = fread(text, 1, MAX_FILE, file);
	if (!length || length == MAX_FILE || text[length - 1] != '\n')
		refuse("%s is empty, too long or cut off", path);
	fclose(file);
}

void settings_read(const char *path)
{
	settings_path = path;
	load(path);
	settings.nodes = number("nodes");
	read_places();
	read_memory();
	settings.window = ticks(number("window_ns"));
	settings.instruction = ticks(number("core.instruction_ns"));
	settings.kernel_instruction = ticks(number("core.kernel_instruction_ns"));
	settings.pause = ticks(number("core.pause_ns"));
	settings.l2 = ticks(number("caches.l2_ns"));
	settings.l3 = ticks(number("caches.l3_ns"));
	settings.boot_offset_ns = number("boot_offset_ns");
	settings.coherence[SAME_LLC] = ticks(number("coherence.same_llc_ns"));
	settings.coherence[SAME_NODE] = ticks(number("coherence.same_node_ns"));
	settings.coherence[CROSS_NODE] = ticks(number("coherence.cross_node_ns"));
	settings.l1_lines = number("caches.l1_kb") * 1024 / LINE_BYTES;
	settings.l2_lines = number("caches.l2_kb") * 1024 / LINE_BYTES;
	settings.l3_lines = number("caches.l3_kb_per_llc") * 1024 / LINE_BYTES;
	settings.tlb_pages = number("paging.tlb_pages");
	settings.walk = ticks(number("paging.walk_ns"));
	settings.sample_period = number("sample_period");
	settings.ring_path = word("ring");
	settings.truth_path = word("truth");
	free(text);
}
