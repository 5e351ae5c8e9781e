/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Time of the traced program: instructions of the thread that is farthest ahead.
 *
 * Every thread counts its own instructions. One that comes back from the kernel may have waited for
 * another one, so its time becomes that of the farthest. Time in which all wait does not pass.
 * Forked processes have the same clock: it lies in memory that they share.
 *
 * The host does not run all threads alike. So one that is ahead of another waits for it, unless
 * that one is in the kernel. It waits for a moment only, then for another after the next window:
 * QEMU may want all threads out of translated code, and a waiting thread is in it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "trace.h"

/* Instructions after which a thread looks at the others' time. */
#define WINDOW 10000

/* Windows that a thread may be ahead of another. */
#define LEAD 3

/* The longest wait. */
#define MOMENT_NS 2000000

static _Atomic uint64_t *now;
static uint64_t slice_instructions, window;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static _Atomic unsigned waiting;

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

/* Nobody waits in a forked child. */
void clock_restart(void)
{
	pthread_mutex_init(&mutex, NULL);
	pthread_cond_init(&moved, NULL);
	atomic_store(&waiting, 0);
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
	atomic_store(&thread->shown_time, thread->time);
	if (atomic_load(&waiting)) {
		pthread_mutex_lock(&mutex);
		pthread_cond_broadcast(&moved);
		pthread_mutex_unlock(&mutex);
	}
}

/* Whether another thread that runs is far behind `thread`. */
static bool is_ahead(const struct thread *thread)
{
	uint64_t least = thread->time > LEAD * window ? thread->time - LEAD * window : 0;

	for (const struct thread *other = threads_first(); other; other = other->next)
		if (!atomic_load(&other->in_kernel) && atomic_load(&other->shown_time) < least)
			return true;
	return false;
}

static void wait_for_others(const struct thread *thread)
{
	struct timespec until;

	if (!is_ahead(thread))
		return;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += MOMENT_NS;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	pthread_mutex_lock(&mutex);
	atomic_fetch_add(&waiting, 1);
	while (is_ahead(thread) && pthread_cond_timedwait(&moved, &mutex, &until) != ETIMEDOUT)
		;
	atomic_fetch_sub(&waiting, 1);
	pthread_mutex_unlock(&mutex);
}

void clock_ran(struct thread *thread, uint64_t instructions)
{
	thread->time += instructions;
	thread->instructions += instructions;
	if (thread->time < thread->window_end)
		return;
	look(thread);
	wait_for_others(thread);
}

void clock_left(struct thread *thread)
{
	atomic_store(&thread->in_kernel, true);
	/* Who waits for it need not any more. */
	look(thread);
}

void clock_resumed(struct thread *thread)
{
	uint64_t seen = clock_now();

	if (thread->time < seen)
		thread->time = seen;
	look(thread);
	atomic_store(&thread->in_kernel, false);
}
