/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Free memory of nodes, which counts when a new process is given its first home;
 * and how much memory a task has, which counts when it may be taken away from home.
 *
 * Read by the timer from the kernel's own account of its zones, so that it is
 * known without an agent. Where the kernel does not show that account all memory
 * counts as free: then it makes no difference between nodes.
 */
#ifndef __TANDEM_MEMORY_BPF_H
#define __TANDEM_MEMORY_BPF_H

#include "tandem.bpf.h"

/* Address of the kernel's table of nodes, pointers to struct pglist_data by its ids; 0: unknown. */
static u64 node_table;

enum {
	/* More than any kernel has. */
	MAX_ZONES = 8,
};

/* Share of each node's memory that is used, in thousandths. */
static u32 used_memory[TANDEM_MAX_NODES];

/*
 * Run once, before the scheduler is attached. Declared as a symbol (__ksym), the table would be
 * looked for in the text of /proc/kallsyms, which took a third of all the time that loading takes.
 */
SEC("syscall")
int tandem_find_node_table(void *ctx)
{
	static const char name[] = "node_data";

	return bpf_kallsyms_lookup_name(name, sizeof(name), 0, &node_table);
}

/* Share of @node's memory that is free, in thousandths. */
static __always_inline u32 free_memory_of(u32 node)
{
	return 1000 - used_memory[node_at(node)];
}

/* Free pages of the zone at @zone. */
static u64 free_pages_of(const void *zone)
{
	u64 offset = bpf_core_field_offset(struct zone, vm_stat);
	long pages = 0;

	offset += bpf_core_enum_value(enum zone_stat_item, NR_FREE_PAGES) * sizeof(pages);
	if (bpf_probe_read_kernel(&pages, sizeof(pages), zone + offset) || pages < 0)
		return 0;
	return pages;
}

/* Brings up to date what is known of @node. */
__noinline int look_at_memory(u32 node)
{
	struct pglist_data *data = NULL;
	u64 present, free = 0;
	const void *zones;
	u32 zone;

	if (!node_table)
		return 0;
	if (bpf_probe_read_kernel(&data, sizeof(data),
				  (void *)node_table + kernel_node_id(node) * sizeof(data)) ||
	    !data)
		return 0;
	zones = (const void *)data + bpf_core_field_offset(struct pglist_data, node_zones);
	present = BPF_CORE_READ(data, node_present_pages);
	bpf_for (zone, 0, MAX_ZONES) {
		if (zone >= BPF_CORE_READ(data, nr_zones))
			break;
		free += free_pages_of(zones + zone * bpf_core_type_size(struct zone));
	}
	/* Where there is none, none is free. */
	if (!present)
		used_memory[node_at(node)] = 1000;
	else if (free < present)
		used_memory[node_at(node)] = (present - free) * 1000 / present;
	return 0;
}

/*
 * Resident pages of the process of @p, wherever they are: whoever assigned it a
 * home did so because most of them are there. The kernel keeps this up to date to
 * a few dozen pages for each CPU.
 */
static u64 resident_pages(const struct task_struct *p)
{
	struct mm_struct *mm = BPF_CORE_READ(p, mm);
	s64 pages;

	if (!mm)
		return 0;
	pages = BPF_CORE_READ(mm, rss_stat[MM_FILEPAGES].count) +
		BPF_CORE_READ(mm, rss_stat[MM_ANONPAGES].count) +
		BPF_CORE_READ(mm, rss_stat[MM_SHMEMPAGES].count);
	return pages > 0 ? pages : 0;
}

#endif /* __TANDEM_MEMORY_BPF_H */
