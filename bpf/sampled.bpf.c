// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which timer samples reach user space: those of managed processes.
 *
 * Attached to the sampling event of each CPU, this runs before a sample is
 * written. What it declines costs no copying of registers, takes no room in the
 * ring, and cannot push out the samples that somebody waits for.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "GPL";

/* Processes whose samples are kept, by number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, u32);
	__type(value, u32);
} sampled_processes SEC(".maps");

/* Samples of others. */
u64 declined;

SEC("perf_event")
int tandem_sampled(struct bpf_perf_event_data *ctx)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;

	if (bpf_map_lookup_elem(&sampled_processes, &tgid))
		return 1;
	__sync_fetch_and_add(&declined, 1);
	return 0;
}
