/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Coherence. Problem: a line that one core wrote must not be read elsewhere for the price of a hit,
 * and a store must not be free while others hold the line.
 *
 * Mechanism: a directory with one entry per line of memory, exact because vCPUs run one at a time.
 * An entry knows who may hold the line since it was written last, who wrote it, whether that core
 * still has it for itself (modified), and whether main memory is stale (dirty). Tags are looked up
 * before anything is charged, so that lines which left the caches silently cost nothing.
 *
 * - A load of a line that another core has modified: a transfer from there, by distance; both hold
 *   the line afterwards.
 * - A load of a line that another last-level cache has dirty: a transfer from there.
 * - A store to a line that others hold: one transfer of the farthest distance; they lose it.
 * - Anything else: L2, L3 or main memory.
 *
 * A line travels one way at a time: a transfer begins when the one before it has ended.
 */
#include <string.h>
#include <sys/mman.h>

#include "timing.h"

#define MODIFIED 1
#define DIRTY 2

struct entry {
	uint32_t holders;
	uint8_t writer;
	uint8_t flags;
};

static struct entry *entries;

/* Transfers that ended last, by line; a collision forgets the older one. */
#define RECENT 4096
static struct {
	uint64_t line, until;
} recent[RECENT];

void directory_init(void)
{
	size_t bytes = memory_lines() * sizeof(*entries);

	/* Only what is touched takes the host's memory. */
	entries = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (entries == MAP_FAILED)
		refuse("the host has no %zu MB for the coherence directory", bytes >> 20);
	/* Looked up at random: fewer translations for the host. Without, it is only slower. */
	madvise(entries, bytes, MADV_HUGEPAGE);
}

static enum distance between(unsigned a, unsigned b)
{
	if (settings.llc_of[a] == settings.llc_of[b])
		return SAME_LLC;
	return settings.node_of[a] == settings.node_of[b] ? SAME_NODE : CROSS_NODE;
}

/* Counts a transfer for `vcpu` and returns its cost, with the wait for the line's previous
 * transfer. */
static struct cost transfer(unsigned vcpu, uint64_t line, enum distance distance)
{
	struct counters *counters = &vcpus[vcpu].counters;
	uint64_t now = clock_now(vcpu), takes = settings.coherence[distance], begins = now;
	typeof(&recent[0]) last = &recent[line % RECENT];

	counters->transfers[distance]++;
	/*
	 * With one transfer of each other vCPU ahead, the wait is this long at most; what seems
	 * longer is a vCPU that ran ahead in its window.
	 */
	if (last->line == line && last->until > now && last->until - now <= takes * settings.vcpus)
		begins = last->until;
	last->line = line;
	last->until = begins + takes;
	return (struct cost){.ticks = last->until - now, .source = FROM_CORE, .distance = distance};
}

static void write_back(uint64_t line, struct entry *entry)
{
	entry->flags &= ~DIRTY;
	memory_write_back(settings.node_of[entry->writer], line);
}

static void fill_l3(unsigned llc, uint64_t line)
{
	uint64_t gone = caches_l3_fill(llc, line);
	struct entry *entry;

	if (gone == NO_LINE)
		return;
	entry = &entries[gone];
	if (!(entry->flags & DIRTY) || settings.llc_of[entry->writer] != (int)llc)
		return;
	if (!(entry->flags & MODIFIED) || !caches_private_has(entry->writer, gone)) {
		entry->flags &= ~MODIFIED;
		write_back(gone, entry);
	}
}

/* The writer's cache, or its LLC, gives the line to `vcpu`; memory gets it too unless it stays
 * below one LLC. */
static struct cost take_from_writer(unsigned vcpu, uint64_t line, struct entry *entry)
{
	enum distance distance = between(entry->writer, vcpu);

	caches_private_share(entry->writer, line);
	entry->flags &= ~MODIFIED;
	if (distance != SAME_LLC)
		write_back(line, entry);
	if (distance == CROSS_NODE) {
		vcpus[vcpu].counters.remote_hitm++;
		vcpus[vcpu].counters.l3_misses++;
	}
	return transfer(vcpu, line, distance);
}

/* Brings a line to a vCPU whose own caches lack it. */
static struct cost fetch(unsigned vcpu, uint64_t line, struct entry *entry)
{
	struct counters *counters = &vcpus[vcpu].counters;
	unsigned llc = settings.llc_of[vcpu];
	bool elsewhere = entry->writer != vcpu;
	struct cost cost = {.source = FROM_OWN_CACHE};

	counters->l2_misses++;
	if (entry->flags & MODIFIED && elsewhere && caches_private_has(entry->writer, line)) {
		cost = take_from_writer(vcpu, line, entry);
	} else if (caches_l3_has(llc, line)) {
		counters->l3_hits++;
		cost.ticks = settings.l3;
		cost.source = FROM_L3;
	} else if (entry->flags & DIRTY && elsewhere &&
		   caches_l3_has(settings.llc_of[entry->writer], line)) {
		cost = take_from_writer(vcpu, line, entry);
	} else {
		/* It left the caches without a word. */
		if (entry->flags & DIRTY)
			write_back(line, entry);
		entry->flags = 0;
		counters->l3_misses++;
		cost.ticks = memory_fill(vcpu, line);
		cost.source = FROM_MEMORY;
	}
	caches_l2_fill(vcpu, line);
	fill_l3(llc, line);
	return cost;
}

/* Takes the line from all others before a store; whether any had it, and how far away the farthest.
 */
static bool drop_others(unsigned vcpu, uint64_t line, struct entry *entry, enum distance *farthest)
{
	bool any = false;

	*farthest = SAME_LLC;
	for (uint32_t others = entry->holders & ~(1u << vcpu); others; others &= others - 1) {
		unsigned other = __builtin_ctz(others);
		enum distance distance = between(other, vcpu);
		bool held = caches_private_has(other, line);

		if (held)
			caches_private_drop(other, line);
		if (distance != SAME_LLC)
			held |= caches_l3_drop(settings.llc_of[other], line);
		if (held) {
			any = true;
			*farthest = distance > *farthest ? distance : *farthest;
		}
	}
	return any;
}

struct cost directory_access(unsigned vcpu, uint64_t address, uint64_t line, bool store)
{
	struct entry *entry = &entries[line];
	uint64_t tag = *caches_l1_tag(vcpu, address);
	enum distance farthest;
	struct cost cost = {.source = FROM_OWN_CACHE};

	__builtin_prefetch(entry, 1);
	caches_prefetch(vcpu, line);
	if (tag >> 1 == address >> LINE_SHIFT)
		; /* a store to a line that is here for loads */
	else if (caches_l2_has(vcpu, line)) {
		vcpus[vcpu].counters.l2_hits++;
		cost.ticks = settings.l2;
	} else {
		cost = fetch(vcpu, line, entry);
	}
	if (store) {
		if (entry->holders & ~(1u << vcpu) && drop_others(vcpu, line, entry, &farthest) &&
		    cost.source != FROM_CORE) {
			struct cost dropped = transfer(vcpu, line, farthest);

			/* The line comes while the others are told. */
			if (dropped.ticks < cost.ticks)
				dropped.ticks = cost.ticks;
			cost = dropped;
		}
		entry->holders = 0;
		entry->writer = vcpu;
		entry->flags = MODIFIED | DIRTY;
	}
	entry->holders |= 1u << vcpu;
	caches_l1_fill(vcpu, address, line, store);
	vcpus[vcpu].last = *caches_l1_tag(vcpu, address);
	return cost;
}
