/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The sample ring: what the timing plugin shows a program in the guest, in place of a hardware
 * performance monitor.
 *
 * In the guest it is BAR 2 of the PCI device 1af4:1110 (ivshmem): open and map the sysfs file
 * resource2, after 1 was written to `enable`. All numbers are little-endian. Only the plugin
 * writes.
 *
 *   offset 0              struct ring_header
 *   header.counters_at    header.cpus x struct ring_counters, by the guest's CPU number
 *   header.samples_at     header.samples x struct ring_sample, a ring
 *
 * Samples: of the accesses that miss L2, about one in header.period per CPU, at random. Sample
 * number n (from 0) is in slot n % header.samples; header.head is the number of samples written so
 * far. A reader copies a slot, and takes the copy when its `sequence` was n + 1 before and after; a
 * larger one means that the reader was too slow.
 *
 * Counters are cumulative since boot, and follow within a window (10 us). What is counted:
 * docs/timing.md.
 */
#ifndef TANDEM_RING_H
#define TANDEM_RING_H

#include <stdint.h>

#define RING_MAGIC 0x474e52534d444e54ull /* "TNDMSRNG" in memory */
#define RING_VERSION 1
#define RING_BYTES (4u << 20)

struct ring_header {
	uint64_t magic;
	uint32_t version;
	uint32_t cpus;
	uint32_t counters_at;
	uint32_t counters_bytes;
	uint32_t samples_at;
	uint32_t sample_bytes;
	uint32_t samples;
	uint32_t period;
	uint64_t head;
};

struct ring_counters {
	uint64_t instructions;
	/* Nanoseconds in which the CPU was not halted: its clock runs at 1 GHz. */
	uint64_t cycles;
	uint64_t l2_misses;
	uint64_t l3_hits;
	uint64_t l3_misses;
	/* Lines from other nodes' memory. */
	uint64_t remote_dram;
	/* Modified lines from other nodes' caches. */
	uint64_t remote_hitm;
	uint64_t reserved;
};

/* Where a line came from. */
enum ring_source {
	RING_L3 = 1,
	/* Another core's modified line: below the same last-level cache, on the same node, from
	   another node. */
	RING_SAME_LLC,
	RING_SAME_NODE,
	RING_CROSS_NODE,
	RING_LOCAL_MEMORY,
	RING_REMOTE_MEMORY,
};

struct ring_sample {
	uint64_t sequence;
	/* Guest-virtual, to the byte. */
	uint64_t address;
	/* The CPU's TSC, which counts nanoseconds. */
	uint64_t time_ns;
	/* From load to use, waits included. */
	uint32_t latency_ns;
	uint16_t cpu;
	/* Kernel's id of the node whose memory the line belongs to. */
	uint16_t node;
	uint8_t source;
	uint8_t store;
	uint8_t reserved[6];
};

#endif
