// SPDX-License-Identifier: GPL-2.0-only
/*
 * scx_tandem: a scheduler for NUMA machines.
 *
 * Every node has queues ordered by virtual time (queue.bpf.h), and takes from
 * others when its own are empty (steal.bpf.h, timer.bpf.h). A task belongs to a
 * home node: the one that the agent assigned, else one that it keeps (home.bpf.h)
 * from its start on (start.bpf.h), and gets an idle CPU there, or elsewhere if that
 * pays (place.bpf.h). CPUs may come and go (online.bpf.h). The agent reads what
 * tasks did (account.bpf.h, iterate.bpf.h) and sends assignments (assign.bpf.h); it
 * is never needed for scheduling to go on.
 */
#include "tandem.bpf.h"
#include "cgroup.bpf.h"
#include "bandwidth.bpf.h"
#include "account.bpf.h"
#include "online.bpf.h"
#include "memory.bpf.h"
#include "place.bpf.h"
#include "visit.bpf.h"
#include "start.bpf.h"
#include "queue.bpf.h"
#include "steal.bpf.h"
#include "timer.bpf.h"
#include "assign.bpf.h"
#include "iterate.bpf.h"
#include "dump.bpf.h"

char _license[] SEC("license") = "GPL";

UEI_DEFINE(uei);

s32 BPF_STRUCT_OPS(tandem_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task_struct *waker = sync_waker(wake_flags);
	struct task_ctx *tctx = task_ctx_of(p);
	u32 home, queue;
	s32 cpu;

	if (!tctx) {
		count(TANDEM_STAT_NO_CONTEXT);
		return prev_cpu;
	}
	home = home_of(p, tctx, prev_cpu);
	if (!is_node(home))
		return prev_cpu;
	if (wake_flags & SCX_WAKE_FORK)
		home = first_home(p, tctx, home);
	else if (waker)
		home = home_with_partner(tctx, home, waker);
	queue = queue_at_home(p, tctx, home);
	if (!is_queue(queue))
		return prev_cpu;
	cpu = pick_idle_home(p, home, queue, prev_cpu);
	if (cpu < 0 && waker)
		cpu = waker_cpu(p, home, waker);
	if (cpu < 0) {
		/* Taken from it where it runs: see tandem_enqueue. Not by one that is new. */
		if (!(wake_flags & SCX_WAKE_FORK))
			cpu = find_visitor(p, tctx, home, queue, prev_cpu);
		if (cpu >= 0)
			return cpu;
		cpu = pick_idle_remote(p, tctx, home);
	}
	if (cpu < 0)
		return prev_cpu;
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, 0);
	return cpu;
}

/*
 * Whether @p was woken while it was still leaving its CPU: the wake-up is passed on to that one
 * (SCX_OPS_ALLOW_QUEUED_WAKEUP), and nobody asks tandem_select_cpu().
 */
static bool is_woken_while_leaving(u64 enq_flags)
{
	return (enq_flags & SCX_ENQ_WAKEUP) && !(enq_flags & SCX_ENQ_CPU_SELECTED);
}

static bool is_per_cpu_kthread(const struct task_struct *p)
{
	return (p->flags & PF_KTHREAD) && is_pinned(p);
}

void BPF_STRUCT_OPS(tandem_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task_ctx *tctx = task_ctx_of(p);
	s32 cpu = scx_bpf_task_cpu(p);
	u32 home, queue;

	if (!tctx) {
		count(TANDEM_STAT_NO_CONTEXT);
		queue_unknown(p, cpu, enq_flags);
		return;
	}
	/*
	 * The kernel itself waits for these: they run at once, but take turns if they run for long.
	 * Two of them that stay on the CPU itself would keep everybody else from it.
	 */
	if (is_per_cpu_kthread(p)) {
		if (enq_flags & SCX_ENQ_WAKEUP) {
			count(TANDEM_STAT_KTHREAD);
			scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags | SCX_ENQ_PREEMPT);
			return;
		}
		/* It never waited for a turn before. */
		run_alone(p, tctx, cpu_dsq(cpu));
	}
	if (throttle(p, tctx, enq_flags))
		return;
	if (is_pinned(p)) {
		claim(tctx, queue_of_cpu(cpu));
		queue_on_cpu(p, tctx, cpu, enq_flags);
		return;
	}
	home = home_of(p, tctx, cpu);
	queue = queue_at_home(p, tctx, home);
	claim(tctx, queue);
	if (!is_queue(queue)) {
		scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, slice_ns, enq_flags);
		return;
	}
	/* Nothing else to run here and at home: go on. */
	if ((enq_flags & SCX_ENQ_LAST) && node_of_cpu(cpu) == home) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags);
		return;
	}
	if (is_woken_while_leaving(enq_flags)) {
		s32 idle = pick_idle_home(p, home, queue, cpu);

		if (idle >= 0) {
			scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | idle, slice_ns, enq_flags);
			return;
		}
	}
	if ((enq_flags & SCX_ENQ_WAKEUP) && takes_from_visitor(p, tctx, home, cpu)) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags | SCX_ENQ_PREEMPT);
		return;
	}
	queue_shared(p, tctx, queue, enq_flags);
}

/* The context of a task whose slice is over, if it could go on. */
static struct task_ctx *ctx_if_it_may_go_on(struct task_struct *p)
{
	struct task_ctx *tctx = p->scx.flags & SCX_TASK_QUEUED ? task_ctx_of(p) : NULL;

	return tctx && !must_wait(p, tctx) ? tctx : NULL;
}

void BPF_STRUCT_OPS(tandem_dispatch, s32 cpu, struct task_struct *prev)
{
	u32 node = node_of_cpu(cpu), queue = queue_of_cpu(cpu);
	struct task_ctx *tctx = prev ? ctx_if_it_may_go_on(prev) : NULL;
	/* Away from a home with room it must not stay: the kernel enqueues it (SCX_ENQ_LAST). */
	u32 home = tctx ? home_of(prev, tctx, cpu) : TANDEM_NO_NODE;
	bool at_home = home == node, yields = false;
	u32 home_queue = queue;

	if (!is_node(node) || !is_queue(queue))
		return;
	if (tctx) {
		if (!at_home)
			home_queue = queue_at_home(prev, tctx, home);
		claim(tctx, home_queue);
		/* If it stays it may be at home now, or away. */
		note_visit(tctx, cpu);
		yields = tctx->yields;
		tctx->yields = false;
		tctx->made_to_wait = false;
	}
	/* Soon done where nobody waits: tasks that yield come here all the time. */
	if (!at_home || somebody_waits(cpu, queue)) {
		if (at_home && !yields && goes_first(prev, tctx, cpu, queue)) {
			scx_bpf_task_set_slice(prev, slice_ns);
			return;
		}
		if (take_own(cpu, queue, at_home && !is_pinned(prev)))
			return;
	}
	if (take_nearby(node, queue))
		return;
	/* Whoever is away from home makes room for one that waited longer. */
	if (at_home ? help_others(cpu, node) : steal(cpu, node, 0))
		return;
	if (at_home || (is_node(home) && is_overfull(home))) {
		/* Whoever is away though it was assigned comes back and competes there. */
		if (at_home || (is_queue(home_queue) && assigned_node(tctx) != TANDEM_NO_NODE))
			run_alone(prev, tctx, dsq_of(prev, cpu, home_queue));
		scx_bpf_task_set_slice(prev, slice_ns);
	} else if (!prev) {
		look_on(cpu);
	}
}

/*
 * Whoever waits goes next, however little virtual time @from has. To yield to one task alone, as
 * virtual machines do, is not offered.
 */
bool BPF_STRUCT_OPS(tandem_yield, struct task_struct *from, struct task_struct *to)
{
	struct task_ctx *tctx;

	if (to)
		return false;
	tctx = task_ctx_of(from);
	if (tctx)
		tctx->yields = true;
	scx_bpf_task_set_slice(from, 0);
	return false;
}

void BPF_STRUCT_OPS(tandem_update_idle, s32 cpu, bool idle)
{
	u32 node = node_of_cpu(cpu);

	if (idle && is_node(node))
		look_again_if_one_arrives(cpu, node);
}

void BPF_STRUCT_OPS(tandem_runnable, struct task_struct *p, u64 enq_flags)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (!tctx)
		return;
	/* Here, where the CPU on which it will run comes by mostly, not where it was woken. */
	note_waiting(tctx, bpf_ktime_get_ns());
	claim(tctx, queue_at_home(p, tctx, home_of(p, tctx, scx_bpf_task_cpu(p))));
	count_in_group(p, tctx, true);
}

void BPF_STRUCT_OPS(tandem_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (!tctx)
		return;
	claim(tctx, TANDEM_NO_QUEUE);
	count_in_group(p, tctx, false);
	tctx->ran = false;
	if (deq_flags & SCX_DEQ_SLEEP)
		tctx->queued_since_ns = 0;
	/*
	 * Some kernels free a task, and tell of its end, only when all CPUs have forgotten it. A
	 * main thread that ends before the others of its process does ends its start too early.
	 */
	if (p->flags & PF_EXITING)
		note_end(tctx->home, p->pid);
}

void BPF_STRUCT_OPS(tandem_running, struct task_struct *p)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (!tctx)
		return;
	run_at_once(p, tctx);
	start_running(p, tctx);
	note_visit(tctx, scx_bpf_task_cpu(p));
}

void BPF_STRUCT_OPS(tandem_tick, struct task_struct *p)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (!tctx)
		return;
	account_run(p, tctx);
	tctx->made_to_wait = is_made_to_wait(p, tctx);
	if (tctx->made_to_wait)
		scx_bpf_task_set_slice(p, 0);
}

void BPF_STRUCT_OPS(tandem_stopping, struct task_struct *p, bool runnable)
{
	struct task_ctx *tctx = task_ctx_of(p);

	end_visit(scx_bpf_task_cpu(p));
	if (tctx)
		stop_running(p, tctx);
	/*
	 * Something of a higher class takes the CPU, a real-time thread mostly.
	 * With time left @p would stay here for as long as that runs; without, it
	 * is enqueued and goes where there is room.
	 */
	if (runnable && p->scx.slice)
		scx_bpf_task_set_slice(p, 0);
}

void BPF_STRUCT_OPS(tandem_set_cpumask, struct task_struct *p, const struct cpumask *cpumask)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (tctx)
		note_binding(p, tctx);
}

void BPF_STRUCT_OPS(tandem_cpu_online, s32 cpu)
{
	/* Of a node that was not there when the tables were made. */
	if (!is_node(node_of_cpu(cpu))) {
		scx_bpf_exit(SCX_ECODE_ACT_RESTART | SCX_ECODE_RSN_HOTPLUG,
			     "CPU %d is new to this machine", cpu);
		return;
	}
	note_cpu(cpu, true);
}

void BPF_STRUCT_OPS(tandem_cpu_offline, s32 cpu)
{
	u32 queue = queue_of_cpu(cpu);

	note_cpu(cpu, false);
	empty_queues_of(cpu);
	if (is_queue(queue))
		rehome(queue);
}

/*
 * A thread of a higher class takes the CPU. What was sent to that CPU and did not
 * run yet would wait for as long as that thread runs: enqueued again it goes
 * where there is room. What ran was enqueued before: see tandem_stopping.
 */
void BPF_STRUCT_OPS(tandem_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	scx_bpf_reenqueue_local();
}

s32 BPF_STRUCT_OPS_SLEEPABLE(tandem_init_task, struct task_struct *p,
			     struct scx_init_task_args *args)
{
	u32 node = node_of_cpu(scx_bpf_task_cpu(p));
	struct task_ctx *tctx, *parent = NULL;

	tctx = bpf_task_storage_get(&task_contexts, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	/* Without memory for its context it is scheduled all the same, as one that nothing is known
	 * of. */
	if (!tctx) {
		count(TANDEM_STAT_NO_CONTEXT);
		return 0;
	}
	/* A new thread's memory is where its parent's is. */
	if (args->fork)
		parent = bpf_task_storage_get(&task_contexts, bpf_get_current_task_btf(), 0, 0);
	if (parent)
		node = parent->assigned != TANDEM_NO_NODE ? parent->assigned : parent->home;
	tctx->group = first_group(args);
	tctx->weight = RULES_BASE_WEIGHT;
	tctx->assigned = TANDEM_NO_NODE;
	tctx->claimed = NO_CLAIM;
	tctx->home = is_node(node) ? node : 0;
	tctx->last_node = tctx->home;
	tctx->last_queue = queue_of_node(tctx->home, 0);
	tctx->vtime_dsq = shared_dsq(tctx->last_queue);
	count(TANDEM_STAT_TASK_MADE);
	return 0;
}

void BPF_STRUCT_OPS(tandem_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (!tctx)
		return;
	/* The timer may have moved it just when it ended. */
	claim(tctx, TANDEM_NO_QUEUE);
	count(TANDEM_STAT_TASK_GONE);
	note_end(tctx->home, p->pid);
}

void BPF_STRUCT_OPS(tandem_enable, struct task_struct *p)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (!tctx)
		return;
	note_affinity(p, tctx);
	/* It may have left for another class while it waited. */
	tctx->queued_since_ns = 0;
	scx_bpf_task_set_dsq_vtime(p, vtime_of(tctx->vtime_dsq));
}

void BPF_STRUCT_OPS(tandem_dump, struct scx_dump_ctx *dump)
{
	dump_queues();
}

void BPF_STRUCT_OPS(tandem_dump_cpu, struct scx_dump_ctx *dump, s32 cpu, bool idle)
{
	if (!idle && is_node(node_of_cpu(cpu)))
		dump_own_queue(cpu);
}

void BPF_STRUCT_OPS(tandem_dump_task, struct scx_dump_ctx *dump, struct task_struct *p)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (tctx)
		dump_task_ctx(p, tctx);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(tandem_cgroup_init, struct cgroup *cgrp,
			     struct scx_cgroup_init_args *args)
{
	s32 err = add_group(cgrp, args->weight);

	if (!err && bpf_core_field_exists(args->bw_quota_us))
		set_bandwidth(own_group(cgrp), args->bw_period_us, args->bw_quota_us,
			      args->bw_burst_us);
	return err;
}

void BPF_STRUCT_OPS_SLEEPABLE(tandem_cgroup_exit, struct cgroup *cgrp)
{
	remove_group(cgrp);
}

void BPF_STRUCT_OPS(tandem_cgroup_move, struct task_struct *p, struct cgroup *from,
		    struct cgroup *to)
{
	struct task_ctx *tctx = task_ctx_of(p);

	if (!tctx)
		return;
	tctx->group = group_of(to);
	release_at_ns = 0;
}

void BPF_STRUCT_OPS(tandem_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	set_group_weight(own_group(cgrp), weight);
}

void BPF_STRUCT_OPS(tandem_cgroup_set_bandwidth, struct cgroup *cgrp, u64 period_us, u64 quota_us,
		    u64 burst_us)
{
	set_bandwidth(own_group(cgrp), period_us, quota_us, burst_us);
}

s32 BPF_STRUCT_OPS_SLEEPABLE(tandem_init)
{
	s32 err;

	err = make_masks();
	if (!err)
		err = make_queues();
	return err ? err : start_queue_timer();
}

void BPF_STRUCT_OPS(tandem_exit, struct scx_exit_info *info)
{
	UEI_RECORD(uei, info);
}

/* clang-format off */
SCX_OPS_DEFINE(tandem_ops,
	       .select_cpu	= (void *)tandem_select_cpu,
	       .enqueue		= (void *)tandem_enqueue,
	       .dispatch	= (void *)tandem_dispatch,
	       .yield		= (void *)tandem_yield,
	       .update_idle	= (void *)tandem_update_idle,
	       .runnable	= (void *)tandem_runnable,
	       .quiescent	= (void *)tandem_quiescent,
	       .running		= (void *)tandem_running,
	       .tick		= (void *)tandem_tick,
	       .stopping	= (void *)tandem_stopping,
	       .set_cpumask	= (void *)tandem_set_cpumask,
	       .cpu_online	= (void *)tandem_cpu_online,
	       .cpu_offline	= (void *)tandem_cpu_offline,
	       .cpu_release	= (void *)tandem_cpu_release,
	       .init_task	= (void *)tandem_init_task,
	       .exit_task	= (void *)tandem_exit_task,
	       .enable		= (void *)tandem_enable,
	       .dump		= (void *)tandem_dump,
	       .dump_cpu	= (void *)tandem_dump_cpu,
	       .dump_task	= (void *)tandem_dump_task,
	       .cgroup_init	= (void *)tandem_cgroup_init,
	       .cgroup_exit	= (void *)tandem_cgroup_exit,
	       .cgroup_move	= (void *)tandem_cgroup_move,
	       .cgroup_set_weight = (void *)tandem_cgroup_set_weight,
	       .cgroup_set_bandwidth = (void *)tandem_cgroup_set_bandwidth,
	       .init		= (void *)tandem_init,
	       .exit		= (void *)tandem_exit,
	       .timeout_ms	= 20000,
	       .name		= "tandem");
/* clang-format on */
