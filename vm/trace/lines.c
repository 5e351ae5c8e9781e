/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who touched a line before: a touch by a thread is one meeting with each other thread that touched
 * the line since the thread's own last touch, within the same slice. So two threads that take turns
 * meet once a turn, threads that all visit a line in turn meet each other alike, and one that
 * touched it long ago does not gain.
 */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "trace.h"

#define COUNT_SHIFT 32
#define LATEST_SHIFT 40
#define LOCKED (1ull << 48)

static uint32_t slice_of(uint64_t head)
{
	return head;
}

static unsigned count_of(uint64_t head)
{
	return head >> COUNT_SHIFT & 0xff;
}

static unsigned latest_of(uint64_t head)
{
	return head >> LATEST_SHIFT & 0xff;
}

static uint64_t lock(struct line *line)
{
	for (;;) {
		uint64_t head = atomic_load_explicit(&line->head, memory_order_relaxed);

		if (!(head & LOCKED) &&
		    atomic_compare_exchange_weak(&line->head, &head, head | LOCKED))
			return head;
		/* Its holder may not be running. */
		sched_yield();
	}
}

/* Puts `latest` before the earlier threads; it takes the place `from`, where the toucher was or
 * nobody. */
static void move_up(struct line *line, unsigned from, unsigned latest)
{
	memmove(line->earlier + 1, line->earlier, from);
	line->earlier[0] = latest;
}

void line_touched(struct thread *thread, struct line *line)
{
	uint64_t head = atomic_load_explicit(&line->head, memory_order_relaxed);
	uint32_t slice = thread->slice;
	unsigned self = thread->number, count, latest, at;

	if (slice_of(head) == slice && latest_of(head) == self && count_of(head))
		return;
	head = lock(line);
	count = count_of(head);
	latest = latest_of(head);
	/* Threads see the next slice a window apart: who is late still belongs to it. */
	if (slice_of(head) > slice)
		slice = slice_of(head);
	else if (slice_of(head) < slice)
		count = 0;
	if (!count) {
		count = 1;
	} else if (latest != self) {
		thread->met[latest]++;
		for (at = 0; at + 1 < count && line->earlier[at] != self; at++)
			thread->met[line->earlier[at]]++;
		if (at + 1 == count && count < LAST_ACCESSORS)
			count++;
		else if (at + 1 == count)
			at--;
		move_up(line, at, latest);
	}
	atomic_store(&line->head,
		     slice | (uint64_t)count << COUNT_SHIFT | (uint64_t)self << LATEST_SHIFT);
}
