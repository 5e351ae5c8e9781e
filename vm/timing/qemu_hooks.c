/* SPDX-License-Identifier: GPL-2.0-only */
/* See qemu_hooks.h. Layouts below were read in the source of QEMU 10.0.2. */
#include <stddef.h>

#include "qemu_hooks.h"
#include "timing.h"

void *cpus_get_accel(void);
void tcg_cflags_set(CPUState *cpu, uint32_t flags);
_Noreturn void cpu_loop_exit_noexc(CPUState *cpu);
_Noreturn void cpu_loop_exit_restore(CPUState *cpu, uintptr_t code);

/* include/exec/translation-block.h */
#define CF_PARALLEL 0x8000u

/*
 * struct AccelOpsClass as an array of pointers: the parent class (12), then function pointers.
 * handle_interrupt is the only one that TCG sets among its neighbours, and the three clock
 * functions follow it.
 */
enum { HANDLE_INTERRUPT = 23, GET_VIRTUAL_CLOCK, SET_VIRTUAL_CLOCK, GET_ELAPSED_TICKS };

void hook_clocks(const struct guest_clocks *clocks)
{
	void **ops = cpus_get_accel();

	if (!ops)
		refuse("QEMU has no accelerator yet: the plugin came too early");
	if (!ops[HANDLE_INTERRUPT] || ops[HANDLE_INTERRUPT - 1] || ops[GET_VIRTUAL_CLOCK] ||
	    ops[SET_VIRTUAL_CLOCK] || ops[GET_ELAPSED_TICKS])
		refuse("this QEMU keeps its clock functions elsewhere than QEMU 10.0 does: install "
		       "the QEMU of bookworm-backports (vm/setup/packages.sh)");
	ops[GET_VIRTUAL_CLOCK] = (void *)clocks->get_virtual_clock;
	ops[SET_VIRTUAL_CLOCK] = (void *)clocks->set_virtual_clock;
	ops[GET_ELAPSED_TICKS] = (void *)clocks->get_elapsed_ticks;
}

void hook_vcpu(CPUState *cpu)
{
	/*
	 * Without it, translated code that is shared by all vCPUs counts for the one that
	 * translated it: QEMU takes the index as a constant when vCPUs take turns in one thread.
	 */
	tcg_cflags_set(cpu, CF_PARALLEL);
}

void hook_leave(uintptr_t code)
{
	cpu_exit(current_cpu);
	cpu_loop_exit_restore(current_cpu, code);
}

/* include/tcg/helper-info.h: the function comes first. */
struct helper_info {
	void (*function)(void *env);
};
extern struct helper_info helper_info_pause;
_Noreturn void helper_pause(void *env);

static bool (*pause_stays)(void);

static void short_pause(void *env)
{
	if (pause_stays())
		cpu_loop_exit_noexc(current_cpu);
	helper_pause(env);
}

void hook_pause(bool (*stay)(void))
{
	if ((void *)helper_info_pause.function != (void *)helper_pause)
		refuse("this QEMU describes its helper functions otherwise than QEMU 10.0 does: "
		       "install the QEMU of bookworm-backports (vm/setup/packages.sh)");
	pause_stays = stay;
	helper_info_pause.function = short_pause;
}
