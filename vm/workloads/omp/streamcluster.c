/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Clustering of a stream of points, with the sharing pattern of Rodinia's Streamcluster: the main
 * thread makes all points before the first region; then, for one candidate after the other, all
 * threads together note for each point what it would save to belong to a cluster there, and add up
 * what it would cost to close each of the clusters that there are. Points are dealt with block by
 * block, as a stream brings them: threads meet after each, and the first adds up what all have
 * found. So all memory is read and written wherever it is, and meeting costs more the more threads
 * there are and the farther they are apart.
 *
 * usage: tandem-omp-streamcluster [CANDIDATES]
 */
#include "lab.h"

/* Points after which threads meet: so many that the bandwidth of one node matters as much as
 * meeting does, and so few that eight threads on four small nodes lose by that what they gain. */
#define BLOCK 512
#define POINTS (640 * BLOCK)
#define RANGE 1024
#define MOST_THREADS 256
#define MOST_CLUSTERS 23
/* What a cluster costs. */
#define OPENING (1L << 32)

/* A line: what is spent is memory, not arithmetic. */
struct point {
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

static struct point *points;
static int is_open[MOST_CLUSTERS], clusters;

static int distance(const struct point *one, int at)
{
	return (one->at - at) * (one->at - at);
}

static void make(void)
{
	for (long i = 0; i < POINTS; i++)
		points[i].at = mix(i) % RANGE;
}

/* All points belong to the first cluster. */
static void begin_with(int at)
{
	is_open[clusters++] = 1;
#pragma omp parallel
	for (struct point *block = points; block < points + POINTS; block += BLOCK) {
#pragma omp for schedule(static)
		for (long i = 0; i < BLOCK; i++)
			block[i].away = distance(block + i, at);
	}
}

/* A thread's own points of a block. */
static void look_at(struct point *block, int at, struct part *found)
{
	*found = (struct part){};
#pragma omp for schedule(static) nowait
	for (long i = 0; i < BLOCK; i++) {
		int less = block[i].away - distance(block + i, at);

		block[i].saving = less;
		if (less > 0)
			found->saved += less;
		else
			found->closing[block[i].cluster] -= less;
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
static struct part gain(int at)
{
	struct part all = {};

#pragma omp parallel
	{
		int thread = omp_get_thread_num(), threads = omp_get_num_threads(), turn = 0;

		for (struct point *block = points; block < points + POINTS; block += BLOCK) {
			look_at(block, at, &parts[turn][thread]);
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
	for (struct point *block = points; block < points + POINTS; block += BLOCK) {
#pragma omp for schedule(static)
		for (long i = 0; i < BLOCK; i++) {
			if (block[i].saving <= 0 && !closed[block[i].cluster])
				continue;
			block[i].away -= block[i].saving;
			block[i].cluster = clusters;
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
	for (struct point *block = points; block < points + POINTS; block += BLOCK) {
#pragma omp for schedule(static)
		for (long i = 0; i < BLOCK; i++)
			sum += block[i].away;
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
	points = array(sizeof(*points) * POINTS);
	make();
	begin_with(points[0].at);
	before = cost();
	for (long i = 1; i <= candidates && clusters < MOST_CLUSTERS; i++) {
		struct part all = gain(points[i].at);
		int closed[MOST_CLUSTERS];
		long saved = decide(&all, closed);

		if (saved <= 0)
			continue;
		open_it(closed);
		if (cost() != before - saved)
			give_up("self-check failed: a cluster saved something else than it should");
		before -= saved;
	}
	return report("streamcluster", begin, before > 0);
}
