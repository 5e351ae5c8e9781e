/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What all parts of the timing plugin share: the machine's costs, and the state of each vCPU.
 *
 * The plugin gives every vCPU virtual time: instructions cost a fixed time, memory accesses what
 * the machine file says. clock.c owns time, caches.c the caches, directory.c coherence, memory.c
 * what main memory costs, walks.c page walks, counters.c and truth.c what is told about a run,
 * qemu_hooks.c everything that needs QEMU's inside. plugin.c puts them together.
 *
 * QEMU runs all vCPUs in one thread (`-accel tcg,thread=single`), so nothing here needs a lock but
 * the clock's hand-over to the thread that jumps over idle time.
 *
 * Terms. Tick: 1/16 ns. vCPU: QEMU's index, which counts empty slots of uneven nodes; CPU: the
 * guest's number. Node: position in the machine file, not the kernel's id. Line: number of a
 * 64-byte line of memory, all nodes' together.
 */
#ifndef TANDEM_TIMING_H
#define TANDEM_TIMING_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

#define TICKS_PER_NS 16
#define LINE_SHIFT 6
#define LINE_BYTES (1u << LINE_SHIFT)
/* The lab refuses larger machines in words (vm/lab/timing.py); the directory's masks have this many
 * bits. */
#define MAX_VCPUS 32
#define MAX_NODES 8
/* The machine file's check has the same (userspace/machine). */
#define MAX_OUTSTANDING 64

/* How far a transfer between two cores goes. */
enum distance { SAME_LLC, SAME_NODE, CROSS_NODE, DISTANCES };

/* Costs and sizes in force, read from the flat form of the machine file. Times in ticks. */
struct settings {
	unsigned vcpus, nodes, llcs;
	/* Per vCPU; -1 for an empty slot. */
	int node_of[MAX_VCPUS], llc_of[MAX_VCPUS], cpu_of[MAX_VCPUS];
	/* The kernel's id of each node. */
	unsigned node_id[MAX_NODES];
	/* Memory of a node in bytes; nodes follow each other in physical memory, with a hole below
	 * 4 GiB. */
	uint64_t memory_b[MAX_NODES], low_memory_b;
	uint64_t window, instruction, kernel_instruction, pause, l2, l3;
	/* Virtual time at which the guest starts. */
	uint64_t boot_offset_ns;
	/* Row = node of the vCPU. Load-to-use latency of an idle machine. */
	uint64_t latency[MAX_NODES][MAX_NODES];
	uint64_t coherence[DISTANCES];
	/* Ticks for which a line occupies a memory controller, and a link; 0: without limit. */
	double controller_service, link_service[MAX_NODES][MAX_NODES];
	/* Misses that a vCPU has in flight at most. */
	unsigned outstanding;
	uint64_t l1_lines, l2_lines, l3_lines;
	/* Pages in a vCPU's TLB, and what one that is not there costs; 0: nothing. */
	uint64_t tlb_pages, walk;
	char *truth_path, *ring_path;
	/* Of how many misses one is sampled. */
	unsigned sample_period;
};
extern struct settings settings;

/* What inline operations of translated code add to; QEMU moves it when vCPUs are added. */
struct live {
	/* Time since the window's start, in ticks. */
	uint64_t slice;
	uint64_t instructions;
	/* Misses in flight, some of which may have ended meanwhile. */
	uint64_t in_flight;
};

/* Since boot. A miss counts where the line was found at last. */
struct counters {
	uint64_t l2_hits, l2_misses, l3_hits, l3_misses, remote_dram, remote_hitm;
	/* Lines from each node's memory. */
	uint64_t dram[MAX_NODES];
	uint64_t transfers[DISTANCES];
};

struct vcpu {
	struct live *live;
	/* Guest-virtual line of the last access, with bit 0 set when stores need no further check;
	 * 0 = none. */
	uint64_t last;
	/* Guest-virtual lines that a string instruction read and wrote last. */
	uint64_t string_line[2];
	/* Part of the slice that only makes the turn end before the window does; see
	 * clock_let_others_catch_up(). */
	uint64_t early;
	/* Windows for which it counts as one that passes lines on. */
	unsigned shares;
	bool idle;
	/* Time at which it halted, in ticks since boot. */
	uint64_t halted_at;
	/* Time at which another vCPU sent it an interrupt since; 0 when none did. */
	uint64_t called_at;
	/* Busy ticks of finished busy periods, and the slice at which this one began (moves with
	 * the window). */
	uint64_t busy_done;
	int64_t busy_since;
	struct counters counters;
};
extern struct vcpu vcpus[MAX_VCPUS];

/* Lines that went to or from each node's memory, write-backs included. */
extern uint64_t memory_traffic[MAX_NODES];

/* settings.c: reads `path`, exits with a sentence when it cannot be used. */
void settings_read(const char *path);

/* clock.c */
void clock_start(void);
void clock_vcpu_added(unsigned vcpu);
void clock_window_full(unsigned vcpu, void *unused);
void clock_halt(unsigned vcpu, void *unused);
uint64_t clock_now(unsigned vcpu);
uint64_t clock_busy(unsigned vcpu);

/* `vcpu` took a line from another one: from now on its turn ends when it is ahead of another. */
void clock_let_others_catch_up(unsigned vcpu);
/* `vcpu` wrote to a device, which may have been its interrupt controller. */
void clock_device_written(unsigned vcpu);
void clock_charge(unsigned vcpu, uint64_t ticks);

/*
 * caches.c: tags of L1 and L2 of each vCPU, and of each last-level cache. `tag` is the
 * guest-virtual line times two, plus one when a store needs no further check.
 */
void caches_init(void);
uint64_t *caches_l1_tag(unsigned vcpu, uint64_t address);
void caches_l1_fill(unsigned vcpu, uint64_t address, uint64_t line, bool writable);
/* The guest's addresses of `vcpu` may mean something else from now on. */
void caches_forget_addresses(unsigned vcpu);
bool caches_l2_has(unsigned vcpu, uint64_t line);
void caches_l2_fill(unsigned vcpu, uint64_t line);
bool caches_private_has(unsigned vcpu, uint64_t line);
void caches_private_drop(unsigned vcpu, uint64_t line);
/* Stores of `vcpu` to `line` need a check again. */
void caches_private_share(unsigned vcpu, uint64_t line);
void caches_prefetch(unsigned vcpu, uint64_t line);
bool caches_l3_has(unsigned llc, uint64_t line);
/* Returns the line that had to go, or NO_LINE. */
uint64_t caches_l3_fill(unsigned llc, uint64_t line);
bool caches_l3_drop(unsigned llc, uint64_t line);
#define NO_LINE UINT64_MAX

/* directory.c: what it costs `vcpu` to have `line`, at the guest's `address`, in its first-level
 * cache. */
enum source { FROM_OWN_CACHE, FROM_L3, FROM_CORE, FROM_MEMORY };

struct cost {
	uint64_t ticks;
	/* FROM_CORE: another core had to give the line away, and how far away it is. */
	enum source source;
	enum distance distance;
};
void directory_init(void);
struct cost directory_access(unsigned vcpu, uint64_t address, uint64_t line, bool store);

/* walks.c: the cost in ticks of the translation of the guest's `address`. */
void walks_init(void);
void walks_forget_addresses(unsigned vcpu);
uint64_t walks_access(unsigned vcpu, uint64_t address, uint64_t physical);

/* memory.c: lines are counted through all nodes' memory, without the hole. */
uint64_t memory_lines(void);
/* The line of a physical address; NO_LINE for what is no memory. */
uint64_t memory_line(uint64_t physical);
unsigned memory_home(uint64_t line);
/* A line that `vcpu` gets from main memory; its cost in ticks. */
uint64_t memory_fill(unsigned vcpu, uint64_t line);
/* A modified line goes back to main memory from a cache of `node`. */
void memory_write_back(unsigned node, uint64_t line);
/* A window ended at `now`. */
void memory_window(uint64_t now);
void memory_init(void);

/* ring.c: an access that missed L2 in `vcpu`. */
void ring_open(void);
void ring_counters_show(void);
void ring_miss(unsigned vcpu, uint64_t address, uint64_t line, const struct cost *cost, bool store);

struct load;
/* flight.c: the program's miss, of `ticks`, begins; `load` is NULL for a store. */
void flight_start(unsigned vcpu, const struct load *load, uint64_t ticks);
/* All misses of `vcpu` are waited for. */
void flight_land(unsigned vcpu);
void flight_block(unsigned vcpu, void *block);

/* truth.c */
void truth_open(void);
void truth_record(uint64_t now, int mark);
void truth_tick(uint64_t now);
void truth_close(void);

/* Ends QEMU with one sentence. */
_Noreturn void refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
