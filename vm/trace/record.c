/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The trace file of a process: PID.trace in the folder of the run, 64-bit words in the machine's
 * order. It is opened for every record, because programs close files that they did not open.
 *
 * head       magic, pid, parent's pid, instructions a slice
 * record     slice (from 1), thread, instructions, m, p; m meetings; p pages
 * meeting    other thread << 56 | how often
 * page       number of the page << 29 | 1 << 28 if this thread touched it first | accesses
 * exec       0, 1
 * end        0, 2, threads created, time in instructions
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trace.h"

#define MAGIC 0x3145434152544454ull /* TDTRACE1 */
#define RECORD_WORDS 5
#define PAGE_FIELD 29
#define FIRST (1u << 28)

static char folder[PATH_MAX];

void refuse(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("trace plugin: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	_exit(1);
}

/* Appends whole records: one write, which other threads' cannot divide. */
static void append_to(int flags, const uint64_t *words, size_t count)
{
	char path[PATH_MAX + 32];
	size_t bytes = count * sizeof(*words);
	int file;

	snprintf(path, sizeof(path), "%s/%d.trace", folder, getpid());
	file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | flags, 0600);
	if (file < 0 || write(file, words, bytes) != (ssize_t)bytes)
		refuse("%s cannot be written: %s", path, strerror(errno));
	close(file);
}

static void append(const uint64_t *words, size_t count)
{
	append_to(0, words, count);
}

void record_process(void)
{
	uint64_t head[] = {MAGIC, getpid(), getppid(), clock_slice_instructions()};

	append_to(O_CREAT | O_TRUNC, head, 4);
}

static size_t count_pages(const struct thread *thread)
{
	size_t count = 0;

	for (const struct use *use = thread->used; use; use = use->next_used)
		for (unsigned page = 0; page < CHUNK_PAGES; page++)
			count += use->accesses[page] > 0;
	return count;
}

static uint64_t *put_pages(struct thread *thread, uint64_t *to)
{
	for (struct use *use = thread->used; use; use = use->next_used) {
		for (unsigned page = 0; page < CHUNK_PAGES; page++) {
			uint64_t number = use->number << (CHUNK_SHIFT - PAGE_SHIFT) | page;
			uint32_t accesses = use->accesses[page];

			if (!accesses)
				continue;
			*to++ = number << PAGE_FIELD | (accesses < FIRST ? accesses : FIRST - 1) |
				(use->chunk->first[page] == thread->number + 1 ? FIRST : 0);
			use->accesses[page] = 0;
		}
		use->used = false;
	}
	thread->used = NULL;
	return to;
}

void record_thread(struct thread *thread)
{
	size_t pages = count_pages(thread), met = 0;
	uint64_t *words, *to;

	for (unsigned other = 0; other < MAX_THREADS; other++)
		met += thread->met[other] > 0;
	if (!pages && !met && !thread->instructions)
		return;
	words = malloc((RECORD_WORDS + met + pages) * sizeof(*words));
	if (!words)
		refuse("there is no memory for a record");
	to = words;
	*to++ = thread->slice;
	*to++ = thread->number;
	*to++ = thread->instructions;
	*to++ = met;
	*to++ = pages;
	for (uint64_t other = 0; other < MAX_THREADS; other++)
		if (thread->met[other])
			*to++ = other << 56 | thread->met[other];
	to = put_pages(thread, to);
	append(words, to - words);
	free(words);
	memset(thread->met, 0, sizeof(thread->met));
	thread->instructions = 0;
}

void record_exec(void)
{
	uint64_t words[] = {0, 1};

	append(words, 2);
}

void record_end(void)
{
	uint64_t words[] = {0, 2, threads_count(), clock_now()};

	for (struct thread *thread = threads_first(); thread; thread = thread->next)
		record_thread(thread);
	append(words, 4);
}

void record_start(const char *path)
{
	if (path[0] != '/' || strlen(path) >= sizeof(folder))
		refuse("the folder %s must have an absolute path", path);
	strcpy(folder, path);
	record_process();
}
