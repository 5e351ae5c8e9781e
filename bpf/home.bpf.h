/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where a task is at home.
 *
 * That is the assigned node while the lease runs, else one that the task keeps:
 * where it started, or was bound when it was new, until it is sent to another one,
 * follows the task that it works with, or ran elsewhere for as long as it had run
 * there (up to a limit). If
 * home had no CPU for it for a moment it comes back: otherwise two tasks that made
 * way for something short would have changed places for good, away from their
 * memory. If no CPU of home may run the task, the nearest node that has one is
 * home.
 *
 * Tasks that hand something to each other and then sleep (pipes, sockets: the
 * kernel says so at the wake-up) are partners: each remembers who wakes it mostly,
 * by majority vote (Boyer, Moore 1981). The agent reads it too (iterate.bpf.h).
 */
#ifndef __TANDEM_HOME_BPF_H
#define __TANDEM_HOME_BPF_H

#include "online.bpf.h"

/*
 * Works out which nodes a task may use. By what it was given: while it must not
 * migrate for a moment, cpus_ptr has one CPU only.
 */
static void note_affinity(const struct task_struct *p, struct task_ctx *tctx)
{
	tctx->allowed_seq = machine_seq;
	tctx->allowed_nodes = nodes_of(&p->cpus_mask);
}

/* The same, only if CPUs came or went since. */
static void look_at_affinity(const struct task_struct *p, struct task_ctx *tctx)
{
	if (tctx->allowed_seq != machine_seq)
		note_affinity(p, tctx);
}

static __always_inline bool in_nodes(u32 nodes, u32 node)
{
	return is_node(node) && (nodes & (1U << node));
}

static __always_inline bool node_allowed(const struct task_ctx *tctx, u32 node)
{
	return in_nodes(tctx->allowed_nodes, node);
}

/* The node assigned to a task; TANDEM_NO_NODE, and the lease is given up, if it is over. */
__noinline u32 leased_node(struct task_ctx *tctx __arg_nonnull)
{
	u32 node = tctx->assigned;

	if (bpf_ktime_get_ns() < tctx->expires_ns)
		return node;
	node = __sync_lock_test_and_set(&tctx->assigned, TANDEM_NO_NODE);
	/*
	 * The agent's program may have renewed the lease just now. It writes when that ends before
	 * it writes the node: what was taken away with a lease that runs is put back, unless it did
	 * so.
	 */
	if (node != TANDEM_NO_NODE && bpf_ktime_get_ns() < tctx->expires_ns) {
		__sync_val_compare_and_swap(&tctx->assigned, TANDEM_NO_NODE, node);
		return node;
	}
	count(TANDEM_STAT_LEASE_EXPIRED);
	return TANDEM_NO_NODE;
}

/* The node assigned to a task, TANDEM_NO_NODE if there is none or the lease is over. */
static u32 assigned_node(struct task_ctx *tctx)
{
	return tctx->assigned == TANDEM_NO_NODE ? TANDEM_NO_NODE : leased_node(tctx);
}

static u32 nearest_allowed(const struct task_ctx *tctx, u32 node)
{
	u32 rank;

	bpf_for (rank, 0, nr_near_nodes(node)) {
		u32 near = near_node(node, rank);

		if (node_allowed(tctx, near))
			return near;
	}
	return TANDEM_NO_NODE;
}

/*
 * The home of a task, @cpu being where it is or was. The kernel keeps those that
 * must not migrate for the moment on their CPU itself.
 */
static u32 home_of(const struct task_struct *p, struct task_ctx *tctx, s32 cpu)
{
	u32 home, other;

	look_at_affinity(p, tctx);
	home = assigned_node(tctx);
	if (home == TANDEM_NO_NODE)
		home = tctx->home;
	if (node_allowed(tctx, home))
		return home;
	count(TANDEM_STAT_HOME_FORBIDDEN);
	other = nearest_allowed(tctx, is_node(home) ? home : 0);
	return other == TANDEM_NO_NODE ? node_of_cpu(cpu) : other;
}

/* Lets a task that has no assignment belong to @node, so firmly. */
static void make_home(struct task_ctx *tctx, u32 node, u64 bond_ns)
{
	tctx->home = node;
	tctx->bond_ns = bond_ns;
}

/*
 * Notes that a task ran on @node for @ran_ns. One that may not run everywhere, but at home, belongs
 * where it is: sent home because there is room, it might wait for those CPUs there that it may use.
 */
static void settle(const struct task_struct *p, struct task_ctx *tctx, u32 node, u64 ran_ns)
{
	bool at_home = node == tctx->home;
	bool is_confined = p->nr_cpus_allowed < nr_online && node_allowed(tctx, tctx->home);

	tctx->bond_ns = at_home || !is_confined ? rules_bond(tctx->bond_ns, ran_ns, at_home) : 0;
	if (!tctx->bond_ns)
		make_home(tctx, node, 0);
}

/*
 * Notes that a task was given other CPUs. Programs bind threads before these begin to work, and may
 * release them later: where they were bound their memory is.
 */
static void note_binding(const struct task_struct *p, struct task_ctx *tctx)
{
	u32 home = tctx->home, node;

	note_affinity(p, tctx);
	if (!is_node(home) || node_allowed(tctx, home) || !rules_is_new(p->se.sum_exec_runtime))
		return;
	node = nearest_allowed(tctx, home);
	if (is_node(node))
		make_home(tctx, node, RULES_FIRM_BOND_NS);
}

/* Notes that @waker woke a task and is about to sleep. */
static void note_waker(struct task_ctx *tctx, u32 waker)
{
	bool same = tctx->partner == waker;

	if (!same && !tctx->partner_votes) {
		tctx->partner = waker;
		tctx->partner_wakes = 0;
		same = true;
	}
	tctx->partner_votes = rules_votes(tctx->partner_votes, same);
	tctx->partner_wakes += same;
}

#endif /* __TANDEM_HOME_BPF_H */
