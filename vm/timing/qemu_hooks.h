/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the plugin needs of QEMU beyond the plugin interface.
 *
 * The documented interface can only push QEMU's clock forward; here the guest's clocks must *be*
 * ours, per vCPU. QEMU's accelerators have three optional functions for that (get_virtual_clock,
 * set_virtual_clock, get_elapsed_ticks), which TCG leaves empty. They are set in the structure that
 * cpus_get_accel() returns, after a check of its layout. All symbols are exported by Debian's
 * binary, for its modules.
 */
#ifndef TANDEM_QEMU_HOOKS_H
#define TANDEM_QEMU_HOOKS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct CPUState CPUState;

/* Names of QEMU 10.0 that are used as they are. */
extern __thread CPUState *current_cpu;
CPUState *qemu_get_cpu(int index);
void cpu_exit(CPUState *cpu);
void tlb_flush(CPUState *cpu);
int64_t cpu_get_clock(void);
bool all_cpu_threads_idle(void);
bool cpu_thread_is_idle(CPUState *cpu);
void bql_lock_impl(const char *file, int line);
void bql_unlock(void);
int64_t qemu_clock_advance_virtual_time(int64_t to);
int64_t qemu_clock_deadline_ns_all(int clock, int attributes);

#define QEMU_CLOCK_VIRTUAL 1
#define QEMU_TIMER_ATTR_ALL (-1)

/* The guest's clocks, as functions for QEMU. */
struct guest_clocks {
	int64_t (*get_virtual_clock)(void);
	void (*set_virtual_clock)(int64_t ns);
	int64_t (*get_elapsed_ticks)(void);
};

/* Makes QEMU ask `clocks`; refuses in words when QEMU's structure is not the one we know. */
void hook_clocks(const struct guest_clocks *clocks);

/* To be called for each new vCPU, before it translates code. */
void hook_vcpu(CPUState *cpu);

/*
 * Ends the turn of the vCPU that runs before it executes the block which made the call that returns
 * to `code`. To be called in a callback for a block only: there the vCPU's state is whole.
 */
_Noreturn void hook_leave(uintptr_t code);

/* Makes PAUSE ask `stay` whether the vCPU goes on; as QEMU is, each PAUSE ends the vCPU's turn. */
void hook_pause(bool (*stay)(void));

#endif
