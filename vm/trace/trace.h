/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What all parts of the trace plugin share.
 *
 * The plugin runs inside qemu-x86_64 (user mode) and sees every memory access of a program. It cuts
 * time into slices and tells, by slice, how often any two threads met on a 64-byte line, and how
 * often each thread used each page. clock.c owns time, threads.c who is running, lines.c the last
 * accessors, pages.c the counts by page, record.c the file. plugin.c puts them together. The
 * file is read by userspace/profile; docs/profile.md describes it.
 *
 * Terms. Line: 64 bytes, by virtual address. Page: 4096 bytes. Chunk: 2 MiB, the unit of our
 * tables. Slice: so many instructions of the thread that is farthest ahead, 10 million unless told
 * otherwise. Thread number: from 0, in the order of creation, by process.
 *
 * QEMU has a host thread for each of the program's. Counters belong to one thread; only the tables
 * of lines and of first touches are shared.
 */
#ifndef TANDEM_TRACE_H
#define TANDEM_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

#define LINE_SHIFT 6
#define PAGE_SHIFT 12
#define CHUNK_SHIFT 21
#define CHUNK_LINES (1u << (CHUNK_SHIFT - LINE_SHIFT))
#define CHUNK_PAGES (1u << (CHUNK_SHIFT - PAGE_SHIFT))
/* A program's half of the address space. */
#define ADDRESS_BITS 47

/* Threads with a number of their own; all further ones share the last number. */
#define MAX_THREADS 255

/* Other threads that a line remembers. */
#define LAST_ACCESSORS 25

/*
 * The threads that touched a line in its slice, the latest first. `head` holds the slice (bits 0 to
 * 31), how many threads there are (32 to 39), the latest (40 to 47) and a lock (48); `earlier` the
 * others. All zero: never touched.
 */
struct line {
	_Atomic uint64_t head;
	uint8_t earlier[LAST_ACCESSORS - 1];
};

struct chunk {
	struct line lines[CHUNK_LINES];
	/* Number of the first thread that touched a page, plus 1. */
	_Atomic uint8_t first[CHUNK_PAGES];
};

/* One thread's accesses to one chunk in the present slice. */
struct use {
	uint64_t number;
	struct chunk *chunk;
	uint32_t accesses[CHUNK_PAGES];
	bool used;
	struct use *next_used;
};

#define CACHED_USES 64

struct thread {
	unsigned number;
	uint32_t slice;
	/* Instructions, those that it waited for others included; see clock.c. */
	uint64_t time, window_end;
	/* What others see of it: its time at the last window, and whether it is in a system call.
	 */
	_Atomic uint64_t shown_time;
	_Atomic bool in_kernel;
	/* Instructions of its own in this slice. */
	uint64_t instructions;
	/* Meetings with each other thread in this slice. */
	uint64_t met[MAX_THREADS];
	/* By the low bits of the chunk's number, then all in a hash table. */
	struct use *cached[CACHED_USES];
	struct use **uses;
	size_t uses_size, uses_count;
	struct use *used;
	struct thread *next;
};

/* clock.c: instructions a slice; the time of the thread that is farthest ahead. */
void clock_start(uint64_t slice_instructions);
uint64_t clock_slice_instructions(void);
uint64_t clock_now(void);
/* In a forked child. */
void clock_restart(void);
/* `thread` ran a block of so many instructions. */
void clock_ran(struct thread *thread, uint64_t instructions);
/* `thread` enters the kernel. */
void clock_left(struct thread *thread);
/* `thread` comes back from the kernel, where it may have waited. */
void clock_resumed(struct thread *thread);

/* threads.c: the calling thread. */
struct thread *thread_self(void);
void threads_start(void);
/* The CPU `vcpu` of QEMU is a new thread. */
void thread_created(unsigned vcpu);
/* The calling thread is QEMU's CPU `vcpu`. */
struct thread *thread_begins(unsigned vcpu);
/* The latest thread, from which `next` leads to all. */
struct thread *threads_first(void);
unsigned threads_count(void);
/* Takes and returns memory that is zero. */
void *take(size_t bytes);

/* lines.c: `thread` touches `line`. */
void line_touched(struct thread *thread, struct line *line);

/* pages.c: `thread` touches the line at `address`, and counts one access to its page if `counted`.
 */
void page_touched(struct thread *thread, uint64_t address, bool counted);
void pages_forget(struct thread *thread);
void pages_start(void);

/* record.c */
void record_start(const char *folder);
/* Begins the file of this process. */
void record_process(void);
/* Writes what `thread` did in its slice, and forgets it. */
void record_thread(struct thread *thread);
/* The process is about to become another program, which is not traced. */
void record_exec(void);
void record_end(void);

/* Ends QEMU with one sentence. */
_Noreturn void refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
