/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where new tasks start: a thread where its parent is at home as long as there is
 * room, a process on the node with the most room and memory (memory.bpf.h).
 *
 * While a process makes its threads more claims its node than will in a moment:
 * the thread that makes them, and the agent that looks at them. Those for which
 * there is no room because of that belong there all the same; they run elsewhere
 * at first, and come home when those sleep. Else two processes that start together
 * would have their last threads on each other's nodes for good.
 *
 * And a process that just started may sleep in the moment in which the next one
 * does, and has not made its threads. So it counts for more than it claims for a
 * while, as what starts it and the agent do on their nodes: else two processes
 * that start together would do so on the same node.
 */
#ifndef __TANDEM_START_BPF_H
#define __TANDEM_START_BPF_H

#include "place.bpf.h"

/* The process that started last on each node. Of two that do so at once either one is kept. */
static struct {
	u32 pid;
	u64 at_ns;
} OWN_CACHE_LINE started_on[TANDEM_MAX_NODES];

static void note_start(u32 node, u32 pid)
{
	started_on[node_at(node)].at_ns = bpf_ktime_get_ns();
	started_on[node_at(node)].pid = pid;
}

/* One that has ended needs nothing. What found another home meanwhile counts a little longer. */
static void note_end(u32 node, u32 pid)
{
	if (started_on[node_at(node)].pid == pid)
		started_on[node_at(node)].at_ns = 0;
}

/*
 * Room on @node for a process that @starter starts, which may just have started itself: being at
 * work, it has its claim.
 */
__noinline int room_to_start_on(u32 node, u32 starter)
{
	s32 room = room_on(node);

	if (started_on[node_at(node)].pid != starter &&
	    bpf_ktime_get_ns() - started_on[node_at(node)].at_ns < RULES_STARTED_NS)
		return rules_room_after_start(room, nr_cpus_of(node));
	return room;
}

/*
 * Where a process starts that @starter starts: the node with the most room and memory, @home before
 * others alike.
 */
__noinline u32 node_for_process(u32 allowed, u32 home, u32 starter)
{
	u32 best = home, rank;

	bpf_for (rank, 0, nr_near_nodes(home)) {
		u32 node = near_node(home, rank);

		if (in_nodes(allowed, node) &&
		    rules_is_better_start(room_to_start_on(node, starter), free_memory_of(node),
					  room_to_start_on(best, starter), free_memory_of(best)))
			best = node;
	}
	return best;
}

/*
 * Where a new thread starts: at @home unless too many claim it, else on the nearest node of those
 * in @allowed with a CPU that nobody claims.
 */
__noinline u32 node_for_thread(u32 allowed, u32 home)
{
	u32 rank;

	if (rules_starts_at_home(nr_claims_of(home), nr_cpus_of(home)))
		return home;
	bpf_for (rank, 0, nr_near_nodes(home)) {
		u32 node = near_node(home, rank);

		if (in_nodes(allowed, node) && room_on(node) > 0)
			return node;
	}
	return home;
}

/* Where a task starts that was just made, @home being its parent's. */
static u32 first_home(const struct task_struct *p, struct task_ctx *tctx, u32 home)
{
	bool is_thread = p->pid != p->tgid;
	u32 node = is_thread ? node_for_thread(tctx->allowed_nodes, home)
			     : node_for_process(tctx->allowed_nodes, home, p->real_parent->tgid);

	if (!is_thread)
		note_start(node, p->pid);
	/* What it works on is likely where its parent works, so that is where it comes back to. */
	make_home(tctx, node, is_thread && node == home ? RULES_FIRM_BOND_NS : 0);
	/* Where it starts is no change. */
	tctx->last_node = node;
	return node;
}

#endif /* __TANDEM_START_BPF_H */
