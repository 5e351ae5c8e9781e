/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Page walks: what it costs when a page's translation is not in the vCPU's TLB. Optional: without
 * `paging.walk_ns` they are free.
 *
 * Each vCPU has one TLB, a second level as cores have it: set-associative, replaced in the order of
 * arrival, emptied when addresses may change their meaning. Only what misses L1 asks it. An entry
 * holds a base page or a huge page. QEMU does not tell which one maps an address: a page whose
 * virtual and physical address agree below 2 MiB counts as huge, which is wrong for one base page
 * of 512.
 */
#include <stdlib.h>
#include <string.h>

#include "timing.h"

#define WAYS 4
#define PAGE_SHIFT 12
#define HUGE_SHIFT 21
#define HUGE_MASK ((1ull << HUGE_SHIFT) - 1)

struct tlb {
	/* Sets of WAYS pages: the number of the virtual page times two, plus one for a huge one. */
	uint64_t *pages;
	/* Per set: the way that is replaced next. */
	uint8_t *next;
};

static struct tlb tlbs[MAX_VCPUS];
static uint64_t sets;

void walks_init(void)
{
	if (!settings.walk)
		return;
	sets = settings.tlb_pages > WAYS ? settings.tlb_pages / WAYS : 1;
	for (unsigned i = 0; i < settings.vcpus; i++) {
		if (settings.node_of[i] < 0)
			continue;
		tlbs[i].pages = malloc(sets * WAYS * sizeof(uint64_t));
		tlbs[i].next = calloc(sets, 1);
		if (!tlbs[i].pages || !tlbs[i].next)
			refuse("the host has no memory left");
		walks_forget_addresses(i);
	}
}

void walks_forget_addresses(unsigned vcpu)
{
	if (settings.walk)
		memset(tlbs[vcpu].pages, 0xff, sets * WAYS * sizeof(uint64_t));
}

uint64_t walks_access(unsigned vcpu, uint64_t address, uint64_t physical)
{
	bool huge = !((address ^ physical) & HUGE_MASK);
	uint64_t number = address >> (huge ? HUGE_SHIFT : PAGE_SHIFT);
	uint64_t page = number << 1 | huge;
	struct tlb *tlb = &tlbs[vcpu];
	uint64_t set, *ways;

	if (!settings.walk)
		return 0;
	set = number % sets;
	ways = &tlb->pages[set * WAYS];
	for (unsigned way = 0; way < WAYS; way++)
		if (ways[way] == page)
			return 0;
	ways[tlb->next[set]] = page;
	tlb->next[set] = (tlb->next[set] + 1) % WAYS;
	return settings.walk;
}
