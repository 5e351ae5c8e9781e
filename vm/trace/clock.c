/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Time of the traced program: instructions of the thread that is farthest ahead.
 *
 * Every thread counts its own instructions. One that comes back from the kernel may have waited for
 * another one, so its time becomes that of the farthest. Time in which all wait does not pass.
 * Threads that the host runs less lag behind; what they do counts for the slice in which the
 * farthest is, as on a machine with slower cores. They are kept close by giving up the host's CPU
 * after every window. Forked processes have the same clock: it lies in memory that they share.
 */
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "trace.h"

/* Instructions after which a thread looks at the others' time. */
#define WINDOW 10000

static _Atomic uint64_t *now;
static uint64_t slice_instructions, window;

void clock_start(uint64_t instructions)
{
	void *memory =
		mmap(NULL, sizeof(*now), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		refuse("there is no memory for the clock");
	now = memory;
	slice_instructions = instructions;
	window = instructions < 100 * WINDOW ? instructions / 100 + 1 : WINDOW;
}

uint64_t clock_slice_instructions(void)
{
	return slice_instructions;
}

uint64_t clock_now(void)
{
	return atomic_load(now);
}

/* `thread` goes on at its time, or in the present slice if that is later. */
static void look(struct thread *thread)
{
	uint64_t seen = atomic_load(now);
	uint32_t slice;

	while (seen < thread->time && !atomic_compare_exchange_weak(now, &seen, thread->time))
		;
	slice = clock_now() / slice_instructions + 1;
	if (slice != thread->slice) {
		record_thread(thread);
		thread->slice = slice;
	}
	thread->window_end = thread->time + window;
}

void clock_ran(struct thread *thread, uint64_t instructions)
{
	thread->time += instructions;
	thread->instructions += instructions;
	if (thread->time < thread->window_end)
		return;
	look(thread);
	sched_yield();
}

void clock_resumed(struct thread *thread)
{
	uint64_t seen = clock_now();

	if (thread->time < seen)
		thread->time = seen;
	look(thread);
}
