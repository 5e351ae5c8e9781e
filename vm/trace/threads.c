/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The program's threads. A number is given when a thread is created, so that it does not depend on
 * who runs first. Threads that ended keep theirs.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "trace.h"

/* CPUs of QEMU at a time; a program has one for each of its threads. */
#define MAX_VCPUS (1u << 16)

static __thread struct thread *self __attribute__((tls_model("initial-exec")));
static _Atomic(struct thread *) all;
static _Atomic unsigned created;
/* By QEMU's CPU, plus 1; 0 for one whose creation was not told. */
static _Atomic unsigned number_of[MAX_VCPUS];

struct thread *thread_self(void)
{
	return self;
}

unsigned threads_count(void)
{
	return atomic_load(&created);
}

void thread_created(unsigned vcpu)
{
	if (vcpu >= MAX_VCPUS)
		refuse("the program has more than %u threads at a time", MAX_VCPUS);
	atomic_store(&number_of[vcpu], atomic_fetch_add(&created, 1) + 1);
}

struct thread *thread_begins(unsigned vcpu)
{
	struct thread *thread = take(sizeof(*thread));
	unsigned number;

	if (!atomic_load(&number_of[vcpu]))
		thread_created(vcpu);
	number = atomic_load(&number_of[vcpu]) - 1;
	thread->number = number < MAX_THREADS ? number : MAX_THREADS - 1;
	thread->slice = 1;
	/* Nobody waits for it before it has a time. */
	atomic_store(&thread->in_kernel, true);
	thread->next = atomic_load(&all);
	while (!atomic_compare_exchange_weak(&all, &thread->next, thread))
		;
	self = thread;
	clock_resumed(thread);
	return thread;
}

struct thread *threads_first(void)
{
	return atomic_load(&all);
}

/* A forked process has the thread that forked, and nothing that its parent did. */
static void in_child(void)
{
	memset(number_of, 0, sizeof(number_of));
	atomic_store(&created, 0);
	atomic_store(&all, NULL);
	clock_restart();
	pages_start();
	record_process();
	if (!self)
		return;
	pages_forget(self);
	memset(self->met, 0, sizeof(self->met));
	self->instructions = 0;
	self->number = 0;
	self->next = NULL;
	atomic_store(&created, 1);
	atomic_store(&all, self);
}

void threads_start(void)
{
	if (pthread_atfork(NULL, NULL, in_child))
		refuse("forks cannot be followed");
}
