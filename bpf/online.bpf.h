/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which CPUs are online: by node and by queue, as masks and as numbers.
 *
 * Kept by the scheduler itself, so that CPUs may come and go while no agent
 * runs. The kernel brings CPUs online and offline one at a time, so there is
 * one writer. Readers may see a CPU a moment too long or too short: a task that
 * waits on a queue whose last CPU just left is taken by other nodes
 * (timer.bpf.h), a CPU that is not counted yet serves its queue already.
 */
#ifndef __TANDEM_ONLINE_BPF_H
#define __TANDEM_ONLINE_BPF_H

#include "tandem.bpf.h"

struct cpu_mask {
	struct bpf_cpumask __kptr *cpus;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TANDEM_MAX_NODES);
	__type(key, u32);
	__type(value, struct cpu_mask);
} node_masks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TANDEM_MAX_QUEUES);
	__type(key, u32);
	__type(value, struct cpu_mask);
} queue_masks SEC(".maps");

/* Each CPU's room for a mask; the programs that use it are not interrupted. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_mask);
} own_masks SEC(".maps");

static u32 node_online[TANDEM_MAX_NODES];
static u32 queue_online[TANDEM_MAX_QUEUES];
static bool cpu_is_online[TANDEM_MAX_CPUS];
static u32 nr_online;
/* Changes with what is online. What a task may use is worked out again when it differs. */
static u32 machine_seq = 1;

static __always_inline u32 nr_cpus_of(u32 node)
{
	return is_node(node) ? node_online[node_at(node)] : 0;
}

static __always_inline u32 nr_cpus_of_queue(u32 queue)
{
	return is_queue(queue) ? queue_online[queue_at(queue)] : 0;
}

/*
 * Kicks @cpu, but not from a CPU that is about to leave: the kernel delivers
 * kicks by an interrupt of the CPU that asks, and one that is asked for too late
 * is never delivered, nor is any later one of that CPU, and the scheduler cannot
 * be unloaded any more (seen on 7.3.4). The timer makes up for what is left out.
 */
static void kick(s32 cpu, u64 flags)
{
	if (cpu_is_online[cpu_at(bpf_get_smp_processor_id())])
		scx_bpf_kick_cpu(cpu, flags);
}

/* A mask without CPUs in @place, an element of one of the maps. */
static s32 make_mask(struct cpu_mask *place)
{
	struct bpf_cpumask *mask;

	if (!place)
		return -ENOENT;
	mask = bpf_cpumask_create();
	if (!mask)
		return -ENOMEM;
	mask = bpf_kptr_xchg(&place->cpus, mask);
	if (mask)
		bpf_cpumask_release(mask);
	return 0;
}

static void mark(struct cpu_mask *place, s32 cpu, bool online)
{
	struct bpf_cpumask *mask;

	if (!place)
		return;
	bpf_rcu_read_lock();
	mask = place->cpus;
	if (mask) {
		if (online)
			bpf_cpumask_set_cpu(cpu, mask);
		else
			bpf_cpumask_clear_cpu(cpu, mask);
	}
	bpf_rcu_read_unlock();
}

/* Notes that @cpu came or went. */
static void note_cpu(s32 cpu, bool online)
{
	u32 node = node_of_cpu(cpu), queue = queue_of_cpu(cpu);
	u32 at = cpu_at(cpu);

	if (!is_node(node) || !is_queue(queue) || cpu_is_online[at] == online)
		return;
	cpu_is_online[at] = online;
	mark(bpf_map_lookup_elem(&node_masks, &node), cpu, online);
	mark(bpf_map_lookup_elem(&queue_masks, &queue), cpu, online);
	if (online) {
		nr_online++;
		node_online[node_at(node)]++;
		queue_online[queue_at(queue)]++;
	} else {
		nr_online--;
		node_online[node_at(node)]--;
		queue_online[queue_at(queue)]--;
	}
	__sync_fetch_and_add(&machine_seq, 1);
}

static s32 make_masks(void)
{
	const struct cpumask *online;
	u32 at, zero = 0;
	s32 err;

	bpf_for (at, 0, nr_nodes) {
		err = make_mask(bpf_map_lookup_elem(&node_masks, &at));
		if (err)
			return err;
	}
	bpf_for (at, 0, nr_queues) {
		err = make_mask(bpf_map_lookup_elem(&queue_masks, &at));
		if (err)
			return err;
	}
	bpf_for (at, 0, scx_bpf_nr_cpu_ids()) {
		err = make_mask(bpf_map_lookup_percpu_elem(&own_masks, &zero, at));
		if (err)
			return err;
	}
	online = scx_bpf_get_online_cpumask();
	bpf_for (at, 0, nr_cpus) {
		if (bpf_cpumask_test_cpu(at, online))
			note_cpu(at, true);
	}
	scx_bpf_put_cpumask(online);
	return 0;
}

/*
 * Bit per node with a CPU in @cpus that is online. For programs that do not
 * sleep: they are readers of RCU all along, which keeps both masks.
 */
static u32 nodes_of(const struct cpumask *cpus)
{
	u32 node, nodes = 0;

	bpf_for (node, 0, nr_nodes) {
		struct cpu_mask *of_node;
		struct bpf_cpumask *mask;

		of_node = bpf_map_lookup_elem(&node_masks, &node);
		if (!of_node)
			continue;
		mask = of_node->cpus;
		if (mask && bpf_cpumask_intersects(cast_mask(mask), cpus))
			nodes |= 1U << node;
	}
	return nodes;
}

/* Whether a CPU that serves @queue is online and in @cpus. */
static bool queue_allowed(u32 queue, const struct cpumask *cpus)
{
	struct cpu_mask *of_queue = bpf_map_lookup_elem(&queue_masks, &queue);
	struct bpf_cpumask *mask = of_queue ? of_queue->cpus : NULL;

	return mask && bpf_cpumask_intersects(cast_mask(mask), cpus);
}

#endif /* __TANDEM_ONLINE_BPF_H */
