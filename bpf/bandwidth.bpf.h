/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Control groups: cpu.max, which lets a group run for a quota in each period.
 *
 * What tasks run is taken from the quota of their group and of all groups above
 * it. Tasks of groups that have used up their quotas wait in a queue of their own,
 * in the order of their arrival, and the timer brings back those whose group may
 * go on. What was used in excess, since that is noticed at a tick only, is taken
 * from the periods that follow.
 */
#ifndef __TANDEM_BANDWIDTH_BPF_H
#define __TANDEM_BANDWIDTH_BPF_H

#include "cgroup.bpf.h"

/* The dispatch queue of those that have to wait for their group's next period. */
#define THROTTLED_DSQ ((u64)NR_DSQS)

/* Whoever has waited for this long goes on: the kernel ejects schedulers that let tasks wait. */
#define MAX_THROTTLED_NS (10ULL * 1000 * 1000 * 1000)

struct bandwidth {
	/* What the group may run in each period; 0 without a limit. */
	u64 quota_ns;
	u64 period_ns;
	/* What of it may be kept for later. */
	u64 burst_ns;
	/* What is left in this period, and when that ends. */
	s64 left_ns;
	u64 end_ns;
};
static struct bandwidth bandwidths[MAX_GROUPS];
/* Whether any group ever had a limit. */
static bool has_limits;
/* When the first of those that wait may go on, as far as is known. */
static u64 release_at_ns;

static void set_bandwidth(u32 at, u64 period_us, u64 quota_us, u64 burst_us)
{
	struct bandwidth *bandwidth = &bandwidths[group_at(at)];
	bool limited = at && quota_us && period_us && quota_us != ~0ULL;

	bandwidth->quota_ns = 0;
	if (!limited) {
		release_at_ns = 0;
		return;
	}
	bandwidth->period_ns = period_us * 1000;
	bandwidth->burst_ns = burst_us * 1000;
	bandwidth->left_ns = quota_us * 1000;
	bandwidth->end_ns = bpf_ktime_get_ns() + bandwidth->period_ns;
	barrier();
	bandwidth->quota_ns = quota_us * 1000;
	has_limits = true;
	release_at_ns = 0;
}

/* Until when the group of @bandwidth has to wait, if it used up its quota; else 0. */
static u64 used_up_until(struct bandwidth *bandwidth, u64 now)
{
	u64 quota = bandwidth->quota_ns, end = bandwidth->end_ns, period = bandwidth->period_ns;
	u64 periods;

	if (!quota || !period)
		return 0;
	if (now >= end) {
		periods = (now - end) / period + 1;
		/* Whoever ends the period refills. */
		if (__sync_bool_compare_and_swap(&bandwidth->end_ns, end, end + periods * period)) {
			s64 left = bandwidth->left_ns;

			__sync_fetch_and_add(
				&bandwidth->left_ns,
				rules_refilled(left, quota, bandwidth->burst_ns, periods) - left);
		}
	}
	return bandwidth->left_ns <= 0 ? bandwidth->end_ns : 0;
}

/*
 * Until when a task has to wait at least, because its group or one above it has used up its quota;
 * 0 if none has.
 */
static u64 throttled_until(const struct task_ctx *tctx)
{
	u32 at = tctx->group, level;
	u64 now, until = 0;

	/* Asked at every switch: the clock is read only where there are limits. */
	if (!has_limits)
		return 0;
	now = bpf_ktime_get_ns();
	bpf_for (level, 0, MAX_GROUP_DEPTH) {
		u64 end;

		if (!at)
			break;
		end = used_up_until(&bandwidths[group_at(at)], now);
		if (end > until)
			until = end;
		at = groups[group_at(at)].parent;
	}
	return until;
}

static bool is_throttled(const struct task_ctx *tctx)
{
	return throttled_until(tctx) != 0;
}

/* The registers of what was interrupted by what this CPU handles. */
extern struct pt_regs *const __irq_regs __ksym __weak;
/* In the code segment's register, of what is no part of the kernel. */
#define USER_CS 3

/*
 * Whether the tick on this CPU interrupted a program, not the kernel on its behalf, which may hold
 * locks that all others wait for. True where that is not known.
 */
static bool tick_interrupts_program(void)
{
#ifdef __TARGET_ARCH_x86
	void *regs;
	u16 cs;

	if (!bpf_ksym_exists(&__irq_regs))
		return true;
	regs = *(void **)bpf_this_cpu_ptr(&__irq_regs);
	return !bpf_probe_read_kernel(&cs, sizeof(cs),
				      regs + bpf_core_field_offset(struct pt_regs, cs)) &&
	       (cs & USER_CS);
#else
	return true;
#endif
}

/* Takes @ran_ns from what the group of a task has left, and the groups above it. */
static void use_bandwidth(const struct task_ctx *tctx, u64 ran_ns)
{
	u32 at = tctx->group, level;

	if (!has_limits)
		return;
	bpf_for (level, 0, MAX_GROUP_DEPTH) {
		struct bandwidth *bandwidth = &bandwidths[group_at(at)];

		if (!at)
			break;
		if (bandwidth->quota_ns)
			__sync_fetch_and_sub(&bandwidth->left_ns, ran_ns);
		at = groups[group_at(at)].parent;
	}
}

#endif /* __TANDEM_BANDWIDTH_BPF_H */
