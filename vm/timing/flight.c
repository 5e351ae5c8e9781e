/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Misses in flight. Problem: a core has several misses outstanding, so that a scan gets many times
 * the bandwidth of a walk along pointers; without that, no memory is ever saturated.
 *
 * Mechanism: each vCPU has settings.outstanding places. A miss of the program takes one from its
 * issue until its data are there; the vCPU's time goes on at once. It is put forward only when all
 * places are taken, to the first that gets free, and when a load's address comes from a miss that
 * is still in flight (dataflow.h), to that one's end. So a walk costs the whole latency a line,
 * whatever else its loop does meanwhile, and a scan latency / places, until the memory is busy.
 * Stores and string instructions take places, but nothing waits for them.
 *
 * Misses of the kernel, transfers from another core and atomic instructions are waited for.
 */
#include "dataflow.h"
#include "timing.h"

struct miss {
	uint64_t ready;
	/* The load, while its block runs; then the registers that depend on it. */
	const struct load *load;
	uint16_t registers;
};

static struct {
	unsigned count;
	/* When the first of them is there. */
	uint64_t first;
	const struct block *block;
	struct miss misses[MAX_OUTSTANDING];
} flights[MAX_VCPUS];

static void forget(unsigned vcpu, uint64_t until)
{
	typeof(&flights[0]) flight = &flights[vcpu];

	/* Asked with each block, and there is mostly nothing to forget. */
	if (flight->first > until)
		return;
	flight->first = UINT64_MAX;
	for (unsigned i = 0; i < flight->count;) {
		uint64_t ready = flight->misses[i].ready;

		if (ready <= until) {
			flight->misses[i] = flight->misses[--flight->count];
			continue;
		}
		if (ready < flight->first)
			flight->first = ready;
		i++;
	}
	vcpus[vcpu].live->in_flight = flight->count;
}

/* Called when a block of the program begins while misses are in flight. */
void flight_block(unsigned vcpu, void *block)
{
	typeof(&flights[0]) flight = &flights[vcpu];

	forget(vcpu, clock_now(vcpu));
	for (unsigned i = 0; i < flight->count; i++) {
		struct miss *miss = &flight->misses[i];
		uint16_t registers = 0;

		for (uint16_t left = miss->registers; left && flight->block; left &= left - 1)
			registers |= flight->block->passes[__builtin_ctz(left)];
		if (miss->load)
			registers |= miss->load->block->load_passes[miss->load->index];
		miss->registers = registers;
		miss->load = NULL;
	}
	flight->block = block;
}

static bool needs(const struct load *load, const struct miss *miss)
{
	if (load->address.registers & miss->registers)
		return true;
	return miss->load && miss->load->block == load->block &&
	       load->address.loads & 1ull << miss->load->index;
}

/* Moves `vcpu` forward to `time`. */
static void wait_until(unsigned vcpu, uint64_t time)
{
	uint64_t now = clock_now(vcpu);

	if (time > now)
		clock_charge(vcpu, time - now);
	forget(vcpu, clock_now(vcpu));
}

void flight_start(unsigned vcpu, const struct load *load, uint64_t ticks)
{
	typeof(&flights[0]) flight = &flights[vcpu];
	uint64_t until = 0, ready;

	forget(vcpu, clock_now(vcpu));
	for (unsigned i = 0; load && i < flight->count; i++)
		if (needs(load, &flight->misses[i]) && flight->misses[i].ready > until)
			until = flight->misses[i].ready;
	wait_until(vcpu, until);
	if (flight->count >= settings.outstanding)
		wait_until(vcpu, flight->first);
	ready = clock_now(vcpu) + ticks;
	flight->misses[flight->count++] = (struct miss){.ready = ready, .load = load};
	if (ready < flight->first)
		flight->first = ready;
	vcpus[vcpu].live->in_flight = flight->count;
}

void flight_land(unsigned vcpu)
{
	uint64_t last = 0;

	for (unsigned i = 0; i < flights[vcpu].count; i++)
		if (flights[vcpu].misses[i].ready > last)
			last = flights[vcpu].misses[i].ready;
	wait_until(vcpu, last);
}
