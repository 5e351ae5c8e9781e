/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Clustering of a stream of points, with the sharing pattern of Rodinia's Streamcluster: the main
 * thread makes all points before the first region; then, for one candidate after the other, all
 * threads together note for each point what it would save to belong to a cluster there, and add up
 * what it would cost to close each of the clusters that there are. Points are dealt with block by
 * block, as a stream brings them, and in turns: threads meet after each block, and the first adds
 * up what all have found. So no page belongs to anybody, all memory is read and written wherever it
 * is, and meeting costs more the more threads there are and the farther they are apart.
 *
 * usage: tandem-omp-streamcluster [CANDIDATES]
 */
#include "lab.h"

/* Points after which threads meet: so many that the bandwidth of one node matters as much as
 * meeting does, and so few that eight threads on four small nodes lose by that what they gain. */
#define BLOCK 128
#define POINTS (630 * BLOCK)
/* An odd number of pages: interleaved, those that a block needs are on different nodes. */
#define ROW (POINTS + 64)
#define DIMENSIONS 4
#define RANGE 1024
#define MOST_THREADS 256
#define MOST_CLUSTERS 23
/* What a cluster costs. */
#define OPENING (1L << 31)

/*
 * Where a point is along one dimension, the square of how far its cluster's centre is away, and
 * what it would save. A line: what is spent is memory, not arithmetic.
 */
struct coordinate {
	/* The cluster in the first dimension only. */
	int at, away, saving, cluster, rest[12];
};

/*
 * What a thread has found: lines of its own, in two turns, as one is read while the other is
 * written.
 */
struct part {
	/* By the points that would move, and for each cluster what the others of it would lose. */
	long saved, closing[MOST_CLUSTERS];
};

static struct part parts[2][MOST_THREADS] __attribute__((aligned(64)));

static struct coordinate (*points)[ROW];
/* Where the candidate is: a line that nobody writes while others read it. */
static int centre[DIMENSIONS] __attribute__((aligned(64)));
static int is_open[MOST_CLUSTERS], clusters;

static int square(int side)
{
	return side * side;
}

static void make(void)
{
	for (int d = 0; d < DIMENSIONS; d++)
		for (long i = 0; i < POINTS; i++)
			points[d][i].at = mix(i * DIMENSIONS + d) % RANGE;
}

static void look_from(long point)
{
	for (int d = 0; d < DIMENSIONS; d++)
		centre[d] = points[d][point].at;
}

/* All points belong to the first cluster. */
static void join_the_first(void)
{
	is_open[clusters++] = 1;
#pragma omp parallel
	for (long block = 0; block < POINTS; block += BLOCK) {
#pragma omp for schedule(static, 1)
		for (long i = block; i < block + BLOCK; i++)
			for (int d = 0; d < DIMENSIONS; d++)
				points[d][i].away = square(points[d][i].at - centre[d]);
	}
}

/*
 * A thread's own points of a block. What goes by a point's cluster comes behind them: there a load
 * waits for another one, and what memory is asked for after it would wait as well.
 */
static void look_at(long block, struct part *found)
{
	int savings[BLOCK], cluster[BLOCK], seen = 0;

#pragma omp for schedule(static, 1) nowait
	for (long i = block; i < block + BLOCK; i++) {
		int saving = 0;

		for (int d = 0; d < DIMENSIONS; d++) {
			struct coordinate *one = &points[d][i];

			one->saving = one->away - square(one->at - centre[d]);
			saving += one->saving;
		}
		savings[seen] = saving;
		cluster[seen++] = points[0][i].cluster;
	}
	*found = (struct part){};
	for (int i = 0; i < seen; i++) {
		if (savings[i] > 0)
			found->saved += savings[i];
		else
			found->closing[cluster[i]] -= savings[i];
	}
}

static void add_up(struct part *all, const struct part *found, int threads)
{
	for (int thread = 0; thread < threads; thread++) {
		all->saved += found[thread].saved;
		for (int i = 0; i < MOST_CLUSTERS; i++)
			all->closing[i] += found[thread].closing[i];
	}
}

/* What a cluster would save its points, and closing each of the others would lose. */
static struct part gain(void)
{
	struct part all = {};

#pragma omp parallel
	{
		int thread = omp_get_thread_num(), threads = omp_get_num_threads(), turn = 0;

		for (long block = 0; block < POINTS; block += BLOCK) {
			look_at(block, &parts[turn][thread]);
#pragma omp barrier
#pragma omp master
			add_up(&all, parts[turn], threads);
			turn = !turn;
		}
	}
	return all;
}

/* Closes what is cheaper closed than open, and returns what is saved by that and the new one. */
static long decide(const struct part *all, int *closed)
{
	long saved = all->saved - OPENING;

	for (int i = 0; i < clusters; i++) {
		closed[i] = is_open[i] && all->closing[i] < OPENING;
		saved += closed[i] ? OPENING - all->closing[i] : 0;
	}
	return saved;
}

/* Opens the cluster that was looked at: who saves by that moves there, and whose own is closed. */
static void open_it(const int *closed)
{
#pragma omp parallel
	for (long block = 0; block < POINTS; block += BLOCK) {
#pragma omp for schedule(static, 1)
		for (long i = block; i < block + BLOCK; i++) {
			int saving = 0;

			for (int d = 0; d < DIMENSIONS; d++)
				saving += points[d][i].saving;
			if (saving <= 0 && !closed[points[0][i].cluster])
				continue;
			for (int d = 0; d < DIMENSIONS; d++)
				points[d][i].away -= points[d][i].saving;
			points[0][i].cluster = clusters;
		}
	}
	for (int i = 0; i < clusters; i++)
		is_open[i] &= !closed[i];
	is_open[clusters++] = 1;
}

static long cost(void)
{
	long sum = 0;

#pragma omp parallel reduction(+ : sum)
	for (long block = 0; block < POINTS; block += BLOCK) {
#pragma omp for schedule(static, 1)
		for (long i = block; i < block + BLOCK; i++)
			for (int d = 0; d < DIMENSIONS; d++)
				sum += points[d][i].away;
	}
	for (int i = 0; i < clusters; i++)
		sum += is_open[i] ? OPENING : 0;
	return sum;
}

int main(int argc, char **argv)
{
	long candidates = repetitions(argc, argv, 48), before;
	double begin = now_s();

	if (omp_get_max_threads() > MOST_THREADS)
		give_up("more threads than this program has room for: set OMP_NUM_THREADS");
	points = array(sizeof(*points) * DIMENSIONS);
	make();
	look_from(0);
	join_the_first();
	before = cost();
	for (long i = 1; i <= candidates && clusters < MOST_CLUSTERS; i++) {
		int closed[MOST_CLUSTERS];
		struct part all;
		long saved;

		look_from(i);
		all = gain();
		saved = decide(&all, closed);
		if (saved <= 0)
			continue;
		open_it(closed);
		if (cost() != before - saved)
			give_up("self-check failed: a cluster saved something else than it should");
		before -= saved;
	}
	return report("streamcluster", begin, before > 0);
}
