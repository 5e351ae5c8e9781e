// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which regions of a process are bound to nodes, or are of huge pages of a pool.
 *
 * numa_maps tells it too, but walks all page tables for it while nobody can map
 * or unmap memory of that process: a second where it has 128 GiB in small pages.
 * This looks at each region, whatever is in it.
 *
 * The process's memory map is locked while its regions are looked at, and a
 * region's policy lives as long as that. That of the main thread, which regions
 * without one have, may be replaced in this moment, so that it is read as it was
 * or as some other one; that of a shared-memory object is not read at all, only
 * whether there is one.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "intf.h"

char _license[] SEC("license") = "GPL";

/* Of linux/mm.h and linux/magic.h: types alone do not tell these. */
#define VM_HUGETLB 0x00400000
#define TMPFS_MAGIC 0x01021994

/* Of all modes these two name no nodes. */
static bool names_nodes(const struct mempolicy *policy)
{
	u16 mode;

	if (!policy)
		return false;
	mode = policy->mode;
	return mode != MPOL_DEFAULT && mode != MPOL_LOCAL;
}

/* Whether somebody gave a policy to a part of the shared memory that is mapped here: it applies to
 * all who map it. */
static bool is_bound_object(const struct vm_area_struct *vma)
{
	const struct shmem_inode_info *info;
	const struct inode *inode;
	const struct file *file = vma->vm_file;

	if (!file)
		return false;
	inode = file->f_inode;
	if (!inode || inode->i_sb->s_magic != TMPFS_MAGIC)
		return false;
	info = (void *)inode - bpf_core_field_offset(struct shmem_inode_info, vfs_inode);
	return BPF_CORE_READ(info, policy.root.rb_node);
}

SEC("iter/task_vma")
int tandem_regions(struct bpf_iter__task_vma *ctx)
{
	const struct vm_area_struct *vma = ctx->vma;
	const struct task_struct *main_thread = ctx->task;
	struct tandem_region region = {};

	if (!main_thread || !vma)
		return 0;
	region.start = vma->vm_start;
	region.bound =
		names_nodes(vma->vm_policy ?: main_thread->mempolicy) || is_bound_object(vma);
	region.hugetlb = !!(vma->vm_flags & VM_HUGETLB);
	if (region.bound || region.hugetlb)
		bpf_seq_write(ctx->meta->seq, &region, sizeof(region));
	return 0;
}
