/* SPDX-License-Identifier: GPL-2.0-only */
/* Where threads and memory of the timing lab's test programs are. */
#ifndef TANDEM_PLACE_H
#define TANDEM_PLACE_H

#include <stddef.h>
#include <stdint.h>

#define LINE_B 64

/* Ends the program with a sentence and the system's reason. */
_Noreturn void fail(const char *what);
/* The number that `text` is, or the end with a sentence. */
long whole_number(const char *text);
/* Puts this thread on one CPU. */
void run_on(int cpu);
/* Present memory of a node, zeroed. */
void *memory_on(int node, size_t bytes);
void free_memory(void *memory, size_t bytes);
/* First CPU of a node; -1 when it has none. */
int first_cpu_of(int node);
double now_ns(void);

/* Marks for the plugin (truth.json): plain long NOPs elsewhere. */
#define MARK(n) __asm__ volatile(".byte 0x0f,0x1f,0x84,0x00," #n ",0x4e,0x55,0x4d" ::: "memory")

#endif
