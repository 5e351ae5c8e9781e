/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Tags of the caches: which lines are where. No data: that is QEMU's.
 *
 * L1 is what every access meets first, so it is the cheapest that answers right most of the time:
 * direct-mapped, and found by the guest's virtual address, so that a hit needs no translation. It
 * is emptied when addresses may change their meaning. Beside each tag stands the line, by which
 * another vCPU's store finds the entry: address and line agree in the bits within a page, which
 * leaves a few candidates. L2 and L3 are set-associative by line and replace in the order of
 * arrival. No level includes another.
 */
#include <stdlib.h>
#include <string.h>

#include "timing.h"

#define L2_WAYS 8
#define L3_WAYS 16
#define EMPTY UINT32_MAX
#define NO_TAG UINT64_MAX
/* Lines of a page: these bits of a line are the same in virtual and physical addresses. */
#define PAGE_LINES 64

struct set_cache {
	uint32_t sets, ways;
	uint32_t *tags;
	/* Per set: the way that is replaced next. */
	uint8_t *next;
};

struct l1 {
	uint64_t *tags;
	uint64_t *lines;
};

static struct l1 l1s[MAX_VCPUS];
static struct set_cache l2s[MAX_VCPUS], l3s[MAX_VCPUS];
static uint64_t l1_mask;

static void *must(void *memory)
{
	if (!memory)
		refuse("the host has no memory left");
	return memory;
}

static struct set_cache new_set_cache(uint64_t lines, uint32_t ways)
{
	struct set_cache cache = {.ways = ways, .sets = lines / ways ? lines / ways : 1};
	size_t bytes = (size_t)cache.sets * ways * sizeof(*cache.tags);

	cache.tags = must(aligned_alloc(64, (bytes + 63) & ~(size_t)63));
	memset(cache.tags, 0xff, bytes);
	cache.next = must(calloc(cache.sets, 1));
	return cache;
}

void caches_init(void)
{
	uint64_t l1_lines = PAGE_LINES;

	/* A power of two, so that the index is a mask. */
	while (l1_lines * 2 <= settings.l1_lines)
		l1_lines *= 2;
	l1_mask = l1_lines - 1;
	for (unsigned i = 0; i < settings.vcpus; i++) {
		if (settings.node_of[i] < 0)
			continue;
		l1s[i].tags = must(malloc(l1_lines * sizeof(uint64_t)));
		l1s[i].lines = must(malloc(l1_lines * sizeof(uint64_t)));
		memset(l1s[i].lines, 0xff, l1_lines * sizeof(uint64_t));
		caches_forget_addresses(i);
		l2s[i] = new_set_cache(settings.l2_lines, L2_WAYS);
	}
	for (unsigned i = 0; i < settings.llcs; i++)
		l3s[i] = new_set_cache(settings.l3_lines, L3_WAYS);
}

uint64_t *caches_l1_tag(unsigned vcpu, uint64_t address)
{
	return &l1s[vcpu].tags[address >> LINE_SHIFT & l1_mask];
}

void caches_l1_fill(unsigned vcpu, uint64_t address, uint64_t line, bool writable)
{
	uint64_t index = address >> LINE_SHIFT & l1_mask;

	l1s[vcpu].tags[index] = address >> LINE_SHIFT << 1 | writable;
	l1s[vcpu].lines[index] = line;
}

void caches_forget_addresses(unsigned vcpu)
{
	memset(l1s[vcpu].tags, 0xff, (l1_mask + 1) * sizeof(uint64_t));
	vcpus[vcpu].last = NO_TAG;
}

/* Where in L1 `line` is, under whatever address; NULL when it is not there. */
static uint64_t *l1_find(unsigned vcpu, uint64_t line)
{
	for (uint64_t index = line % PAGE_LINES; index <= l1_mask; index += PAGE_LINES)
		if (l1s[vcpu].lines[index] == line && l1s[vcpu].tags[index] != NO_TAG)
			return &l1s[vcpu].tags[index];
	return NULL;
}

static uint32_t *find(const struct set_cache *cache, uint64_t line)
{
	uint32_t *set = &cache->tags[(uint32_t)line % cache->sets * cache->ways];

	for (unsigned way = 0; way < cache->ways; way++)
		if (set[way] == line)
			return &set[way];
	return NULL;
}

/* The host's caches hold less than the tags: what a miss of `vcpu` will look at is asked for at
 * once. */
void caches_prefetch(unsigned vcpu, uint64_t line)
{
	const struct set_cache *l3 = &l3s[settings.llc_of[vcpu]];
	uint32_t set = (uint32_t)line % l3->sets;

	__builtin_prefetch(&l3->tags[set * l3->ways], 1);
	__builtin_prefetch(&l3->next[set], 1);
}

static uint64_t fill(struct set_cache *cache, uint64_t line)
{
	uint32_t index = (uint32_t)line % cache->sets;
	uint32_t *way = &cache->tags[index * cache->ways + cache->next[index]];
	uint64_t gone = *way == EMPTY ? NO_LINE : *way;

	cache->next[index] = (cache->next[index] + 1) % cache->ways;
	*way = line;
	return gone;
}

bool caches_l2_has(unsigned vcpu, uint64_t line)
{
	return find(&l2s[vcpu], line);
}

void caches_l2_fill(unsigned vcpu, uint64_t line)
{
	fill(&l2s[vcpu], line);
}

bool caches_private_has(unsigned vcpu, uint64_t line)
{
	return find(&l2s[vcpu], line) || l1_find(vcpu, line);
}

void caches_private_drop(unsigned vcpu, uint64_t line)
{
	uint32_t *way = find(&l2s[vcpu], line);
	uint64_t *tag;

	if (way)
		*way = EMPTY;
	/* One line may be there under several addresses. */
	while ((tag = l1_find(vcpu, line)))
		*tag = NO_TAG;
	vcpus[vcpu].last = NO_TAG;
}

void caches_private_share(unsigned vcpu, uint64_t line)
{
	for (uint64_t index = line % PAGE_LINES; index <= l1_mask; index += PAGE_LINES)
		if (l1s[vcpu].lines[index] == line && l1s[vcpu].tags[index] != NO_TAG)
			l1s[vcpu].tags[index] &= ~1ull;
	vcpus[vcpu].last = NO_TAG;
}

bool caches_l3_has(unsigned llc, uint64_t line)
{
	return find(&l3s[llc], line);
}

uint64_t caches_l3_fill(unsigned llc, uint64_t line)
{
	return find(&l3s[llc], line) ? NO_LINE : fill(&l3s[llc], line);
}

bool caches_l3_drop(unsigned llc, uint64_t line)
{
	uint32_t *way = find(&l3s[llc], line);

	if (way)
		*way = EMPTY;
	return way;
}
