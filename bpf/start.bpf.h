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
 */
#ifndef __TANDEM_START_BPF_H
#define __TANDEM_START_BPF_H

#include "place.bpf.h"

/* Where a new process starts: the node with the most room and memory, @home before others alike. */
__noinline u32 node_for_process(u32 allowed, u32 home)
{
	u32 best = home, rank;

	bpf_for (rank, 0, nr_near_nodes(home)) {
		u32 node = near_node(home, rank);

		if (in_nodes(allowed, node) &&
		    rules_is_better_start(room_on(node), free_memory_of(node), room_on(best),
					  free_memory_of(best)))
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
			     : node_for_process(tctx->allowed_nodes, home);

	/* What it works on is likely where its parent works, so that is where it comes back to. */
	make_home(tctx, node, is_thread && node == home ? RULES_FIRM_BOND_NS : 0);
	/* Where it starts is no change. */
	tctx->last_node = node;
	return node;
}

#endif /* __TANDEM_START_BPF_H */
