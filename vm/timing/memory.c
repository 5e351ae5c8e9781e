/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Main memory: which node a physical address belongs to, and what a line from there costs.
 *
 * Cost = the machine file's latency, plus the wait at the node's memory controller, plus the wait
 * on the link between the two nodes. Controllers and links (a pair of nodes, one direction) serve
 * one line in a given time. Since vCPUs run one after the other in a window, there is no queue to
 * look at; the wait is set from one window to the next instead, from the share u of the window in
 * which the server was busy:
 * - Below saturation, service x u / (2 (1 - u)), the mean wait for a server with constant service
 *   time (M/D/1).
 * - Beyond it, as much more as brings the requests down to what the server can do: requests come
 *   back after their response time R, so u falls as R grows, and R moves half the way to R x u in
 *   each window. All vCPUs see the same wait, so nobody is starved by the order of turns.
 */
#include "timing.h"

#define FOUR_GIB (1ull << 32)
/* The formula's wait is that of this share at most; saturation is the second rule's. */
#define MAX_BUSY 0.9

struct server {
	/* Ticks for one line; 0: no limit. */
	double service;
	/* In this window. */
	uint64_t lines;
	/* Sum of the latencies without wait, in ticks. */
	uint64_t latency;
	/* In ticks. */
	double queue, wait;
};

uint64_t memory_traffic[MAX_NODES];

static struct server controllers[MAX_NODES], links[MAX_NODES][MAX_NODES];
static uint64_t window_began;

void memory_init(void)
{
	for (unsigned from = 0; from < settings.nodes; from++) {
		controllers[from].service = settings.controller_service;
		for (unsigned to = 0; to < settings.nodes; to++)
			links[from][to].service = settings.link_service[from][to];
	}
}

uint64_t memory_lines(void)
{
	uint64_t bytes = 0;

	for (unsigned node = 0; node < settings.nodes; node++)
		bytes += settings.memory_b[node];
	return bytes >> LINE_SHIFT;
}

uint64_t memory_line(uint64_t physical)
{
	if (physical >= settings.low_memory_b) {
		if (physical < FOUR_GIB)
			return NO_LINE;
		physical -= FOUR_GIB - settings.low_memory_b;
	}
	physical >>= LINE_SHIFT;
	return physical < memory_lines() ? physical : NO_LINE;
}

unsigned memory_home(uint64_t line)
{
	unsigned node = 0;

	for (uint64_t b = line << LINE_SHIFT; b >= settings.memory_b[node]; node++)
		b -= settings.memory_b[node];
	return node;
}

static uint64_t serve(struct server *server, uint64_t latency)
{
	server->lines++;
	server->latency += latency;
	return server->queue + server->wait;
}

uint64_t memory_fill(unsigned vcpu, uint64_t line)
{
	unsigned node = settings.node_of[vcpu], home = memory_home(line);
	struct counters *counters = &vcpus[vcpu].counters;
	uint64_t latency = settings.latency[node][home];

	counters->dram[home]++;
	counters->remote_dram += home != node;
	memory_traffic[home]++;
	return latency + serve(&controllers[home], latency) + serve(&links[node][home], latency);
}

void memory_write_back(unsigned node, uint64_t line)
{
	unsigned home = memory_home(line);

	memory_traffic[home]++;
	controllers[home].lines++;
	if (node != home)
		links[node][home].lines++;
}

static void end_window(struct server *server, uint64_t ticks)
{
	double busy = server->lines * server->service / ticks,
	       below = busy < MAX_BUSY ? busy : MAX_BUSY;
	double mean = server->lines ? (double)server->latency / server->lines : server->service;

	server->queue += (mean + server->queue) * (busy - 1) / 2;
	if (server->queue < 0)
		server->queue = 0;
	server->wait += (server->service * below / (2 * (1 - below)) - server->wait) / 2;
	server->lines = 0;
	server->latency = 0;
}

void memory_window(uint64_t now)
{
	uint64_t ticks = now - window_began;

	if (!ticks)
		return;
	window_began = now;
	for (unsigned from = 0; from < settings.nodes; from++) {
		end_window(&controllers[from], ticks);
		for (unsigned to = 0; to < settings.nodes; to++)
			end_window(&links[from][to], ticks);
	}
}
