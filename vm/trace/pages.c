/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Accesses by page and thread, and the tables of lines behind addresses.
 *
 * Chunks are shared and found through one flat table that only fills where addresses are used.
 * Each thread has its own counts, found in a hash table by chunk, so that counting needs no lock.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "trace.h"

#define CHUNKS (1ull << (ADDRESS_BITS - CHUNK_SHIFT))

static _Atomic(struct chunk *) *chunks;

void *take(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		refuse("there is no memory for its tables, which need half of what the program "
		       "uses");
	return memory;
}

/* A forked child begins anew; the parent's chunks are its own copies, which it leaves alone. */
void pages_start(void)
{
	if (chunks)
		munmap(chunks, CHUNKS * sizeof(*chunks));
	chunks = take(CHUNKS * sizeof(*chunks));
}

static struct chunk *chunk_of(uint64_t number)
{
	struct chunk *found = atomic_load(&chunks[number]), *made;

	if (found)
		return found;
	made = take(sizeof(*made));
	if (atomic_compare_exchange_strong(&chunks[number], &found, made))
		return made;
	munmap(made, sizeof(*made));
	return found;
}

static struct use **slot_of(struct thread *thread, uint64_t number)
{
	size_t at = number * 0x9e3779b97f4a7c15ull >> 20;

	for (;; at++) {
		struct use **slot = &thread->uses[at & (thread->uses_size - 1)];

		if (!*slot || (*slot)->number == number)
			return slot;
	}
}

static void grow(struct thread *thread)
{
	struct use **before = thread->uses;
	size_t size = thread->uses_size;

	thread->uses_size = size ? 2 * size : 64;
	thread->uses = calloc(thread->uses_size, sizeof(*thread->uses));
	if (!thread->uses)
		refuse("there is no memory for a thread's table");
	for (size_t at = 0; at < size; at++)
		if (before[at])
			*slot_of(thread, before[at]->number) = before[at];
	free(before);
}

static struct use *look_up(struct thread *thread, uint64_t number)
{
	struct use **slot;

	if (2 * thread->uses_count >= thread->uses_size)
		grow(thread);
	slot = slot_of(thread, number);
	if (!*slot) {
		*slot = calloc(1, sizeof(**slot));
		if (!*slot)
			refuse("there is no memory for a thread's counts");
		(*slot)->number = number;
		(*slot)->chunk = chunk_of(number);
		thread->uses_count++;
	}
	return *slot;
}

void page_touched(struct thread *thread, uint64_t address, bool counted)
{
	uint64_t number = address >> CHUNK_SHIFT;
	unsigned page = address >> PAGE_SHIFT & (CHUNK_PAGES - 1);
	struct use **cached = &thread->cached[number % CACHED_USES];
	struct use *use = *cached;
	uint8_t nobody = 0;

	/* The vsyscall page is not a program's memory. */
	if (number >= CHUNKS)
		return;
	if (!use || use->number != number)
		use = *cached = look_up(thread, number);
	if (counted && !use->accesses[page]++) {
		if (!use->used) {
			use->used = true;
			use->next_used = thread->used;
			thread->used = use;
		}
		atomic_compare_exchange_strong(&use->chunk->first[page], &nobody,
					       thread->number + 1);
	}
	line_touched(thread, &use->chunk->lines[address >> LINE_SHIFT & (CHUNK_LINES - 1)]);
}

/* For a forked child: its parent's chunks mean nothing to it. */
void pages_forget(struct thread *thread)
{
	for (size_t at = 0; at < thread->uses_size; at++)
		free(thread->uses[at]);
	free(thread->uses);
	thread->uses = NULL;
	thread->uses_size = thread->uses_count = 0;
	thread->used = NULL;
	memset(thread->cached, 0, sizeof(thread->cached));
}
