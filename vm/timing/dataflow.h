/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which loads need the result of which others, found out when code is translated.
 *
 * A core goes on behind a miss until it needs the data. The address of a load is such a need, and
 * it is the one that decides how many misses overlap: the steps of a walk along pointers cannot,
 * the lines of a scan can. For each block of the program's code (not the kernel's) this says
 * through which registers an address comes from earlier loads of the same block, or from registers
 * that were set before it. What passes through memory or flags is not followed.
 */
#ifndef TANDEM_DATAFLOW_H
#define TANDEM_DATAFLOW_H

#include <stdint.h>

#define REGISTERS 16
/* Loads of a block that are told apart; the rest count as the last of these. */
#define MAX_LOADS 64

/* What a value comes from: bits for registers as the block finds them, and for loads of the block.
 */
struct origin {
	uint64_t loads;
	uint16_t registers;
};

struct block {
	unsigned loads;
	/* Per register at the block's start, and per load: the registers that depend on it at the
	 * block's end. */
	uint16_t passes[REGISTERS];
	uint16_t load_passes[MAX_LOADS];
	/* While the block is read: where each register's value comes from. */
	struct origin now[REGISTERS];
};

/* An instruction that loads. */
struct load {
	struct block *block;
	unsigned index;
	struct origin address;
};

/* An empty block. */
struct block *dataflow_block(void);
/* Takes the next instruction, in AT&T syntax; returns the load that it is, or NULL. */
struct load *dataflow_read(struct block *block, const char *text);
/* Every instruction has been taken. */
void dataflow_end(struct block *block);

#endif
