/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Control groups: cpu.weight, with the hierarchy flattened.
 *
 * A queue orders tasks, not groups, so each task runs with the weight that the
 * hierarchy leaves it: its group's weight by its part in what the group's
 * runnable tasks and subgroups weigh together, on every level up to the root.
 * Tasks of the root group compete with the groups below it by their own weight,
 * as they do in the kernel's own scheduler.
 *
 * What is runnable in a group is counted when tasks wake up and sleep, so a
 * group without runnable tasks takes nothing from its siblings. The counters
 * are shared by all CPUs and are changed without a lock; a task of the root
 * group touches none.
 */
#ifndef __TANDEM_CGROUP_BPF_H
#define __TANDEM_CGROUP_BPF_H

#include "tandem.bpf.h"

enum {
	/* Groups that have weights of their own; what comes later belongs to its parent. */
	MAX_GROUPS = 4096,
	MAX_GROUP_DEPTH = 16,
	/* Attempts to bring a group's part up to date while others change it. */
	PART_TRIES = 8,
};
#define group_at(group) bounded(group, MAX_GROUPS)

/* A group. The root is group 0, whose fields are not used. */
struct group {
	/* What its runnable tasks and its subgroups with runnable tasks weigh. */
	s64 active;
	/* cpu.weight; 0 while the group does not exist. */
	u32 weight;
	/* What it counts for in its parent's sum: its weight, or 0 without runnable tasks. */
	u32 part;
	u32 parent;
} OWN_CACHE_LINE;
static struct group groups[MAX_GROUPS];

/* Groups that do not exist any more, and how many were ever used. Written under the kernel's
 * cgroup_mutex. */
static u32 free_groups[MAX_GROUPS];
static u32 nr_free_groups;
static u32 nr_used_groups = 1;

/* The number of each cgroup. */
struct {
	__uint(type, BPF_MAP_TYPE_CGRP_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u32);
} group_numbers SEC(".maps");

/*
 * Where the kernel guards such storage by a counter of the CPU (6.18 does) it may
 * not serve who preempts one that is there: none of ours is preempted there.
 */
static u32 *group_number(struct cgroup *cgrp, u64 flags)
{
	u32 *number;

	bpf_preempt_disable();
	number = bpf_cgrp_storage_get(&group_numbers, cgrp, 0, flags);
	bpf_preempt_enable();
	return number;
}

static u32 group_of(struct cgroup *cgrp)
{
	u32 *number = group_number(cgrp, 0);

	return number ? *number : 0;
}

/* The number of the group to which a new task belongs. */
static u32 first_group(const struct scx_init_task_args *args)
{
	struct cgroup *cgrp;
	u32 number;

	if (!bpf_core_field_exists(args->cgroup))
		return 0;
	/* What hangs at the arguments is no pointer that the verifier trusts. */
	cgrp = bpf_cgroup_from_id(args->cgroup->kn->id);
	if (!cgrp)
		return 0;
	number = group_of(cgrp);
	bpf_cgroup_release(cgrp);
	return number;
}

/* The number of the group above @cgrp. */
static u32 parent_group(struct cgroup *cgrp)
{
	struct cgroup *parent;
	u32 number;

	parent = cgrp->level > 0 ? bpf_cgroup_ancestor(cgrp, cgrp->level - 1) : NULL;
	if (!parent)
		return 0;
	number = group_of(parent);
	bpf_cgroup_release(parent);
	return number;
}

/* Brings up to date what @group counts for in its parent's sum; what that changes it by. */
static s64 update_part(struct group *group)
{
	s64 change = 0;
	u32 try;

	bpf_for (try, 0, PART_TRIES) {
		u32 part = group->active ? group->weight : 0;
		u32 before = __sync_lock_test_and_set(&group->part, part);

		change += (s64)part - before;
		if (part == (group->active ? group->weight : 0))
			break;
	}
	return change;
}

/* Adds @weight to what is runnable in the group @at, and what that changes to the groups above. */
static void add_active(u32 at, s64 weight)
{
	u32 level;

	bpf_for (level, 0, MAX_GROUP_DEPTH) {
		struct group *group = &groups[group_at(at)];
		s64 before;

		if (!at || !weight)
			return;
		before = __sync_fetch_and_add(&group->active, weight);
		if (before && before + weight)
			return;
		weight = update_part(group);
		at = group->parent;
	}
}

/* Lets the weight of the group @at be @weight. */
static void set_group_weight(u32 at, u32 weight)
{
	struct group *group = &groups[group_at(at)];

	if (!at)
		return;
	group->weight = weight;
	add_active(group->parent, update_part(group));
}

/* The number of @cgrp; 0 when it has none of its own. */
static u32 own_group(struct cgroup *cgrp)
{
	u32 at = group_of(cgrp);

	return at == parent_group(cgrp) ? 0 : at;
}

static s32 add_group(struct cgroup *cgrp, u32 weight)
{
	u32 parent = parent_group(cgrp), at, *number;

	number = group_number(cgrp, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!number)
		return -ENOMEM;
	if (!cgrp->level) {
		*number = 0;
		return 0;
	}
	if (nr_free_groups)
		at = free_groups[group_at(--nr_free_groups)];
	else if (nr_used_groups < MAX_GROUPS)
		at = nr_used_groups++;
	else
		at = 0;
	if (!at) {
		*number = parent;
		count(TANDEM_STAT_GROUP_NO_ROOM);
		return 0;
	}
	groups[group_at(at)].parent = parent;
	set_group_weight(at, weight);
	*number = at;
	count(TANDEM_STAT_GROUP_MADE);
	return 0;
}

/* Whoever is about to exit may still run there: what it adds and takes away later adds up to
 * nothing. */
static void remove_group(struct cgroup *cgrp)
{
	u32 at = own_group(cgrp);

	if (!at)
		return;
	set_group_weight(at, 0);
	free_groups[group_at(nr_free_groups++)] = at;
	count(TANDEM_STAT_GROUP_REMOVED);
}

/* Counts @p among what is runnable in its group, or no longer. */
static void count_in_group(const struct task_struct *p, struct task_ctx *tctx, bool runnable)
{
	if (tctx->group_weight) {
		add_active(tctx->counted_in, -(s64)tctx->group_weight);
		tctx->group_weight = 0;
	}
	if (cgroup_weights && runnable && tctx->group) {
		tctx->counted_in = tctx->group;
		tctx->group_weight = p->scx.weight;
		add_active(tctx->group, tctx->group_weight);
	}
}

/* The weight that the hierarchy leaves @p, see rules_weight(). */
static u32 weight_of(const struct task_struct *p, const struct task_ctx *tctx)
{
	u64 weight = rules_weight(p->scx.weight);
	u32 at = cgroup_weights ? tctx->group : 0, level;

	bpf_for (level, 0, MAX_GROUP_DEPTH) {
		struct group *group = &groups[group_at(at)];

		if (!at)
			break;
		weight = rules_weight_in_group(weight, group->weight, group->active);
		at = group->parent;
	}
	return weight;
}

#endif /* __TANDEM_CGROUP_BPF_H */
