/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Clustering of a stream of points, with the sharing pattern of Rodinia's Streamcluster: the main
 * thread makes all points before the first region; then, for one candidate after the other, all
 * threads together note for each point what a cluster there would save, block by block, and meet
 * after each. So memory is read and written wherever it is, and threads wait for each other often.
 *
 * usage: tandem-omp-streamcluster [CANDIDATES]
 */
#include "lab.h"

#define POINTS (3 << 17)
/* Points after which threads meet: so few that on four small nodes eight threads are no faster than
 * four. */
#define BLOCK 96
#define RANGE 1024
#define MOST_THREADS 256
/* What a cluster costs. */
#define OPENING (1L << 34)

struct point {
	int at, away, saving, rest[13];
};

/* What a thread has found: a line of its own, in two turns, as one is read while the other is
 * written. */
static struct part {
	long saved, rest[7];
} parts[2][MOST_THREADS] __attribute__((aligned(64)));

static struct point *points;

static int distance(const struct point *one, int at)
{
	return (one->at - at) * (one->at - at);
}

static void make(void)
{
	for (long i = 0; i < POINTS; i++)
		points[i] = (struct point){.at = mix(i) % RANGE};
}

/* All points belong to the first cluster. */
static void begin_with(int at)
{
#pragma omp parallel
	for (struct point *block = points; block < points + POINTS; block += BLOCK) {
#pragma omp for schedule(static)
		for (long i = 0; i < BLOCK; i++)
			block[i].away = distance(block + i, at);
	}
}

/*
 * What a cluster would save, for each point, and in all: each thread adds up its own points of a
 * block, and after each block everybody adds up what all have found, so that all know it and could
 * stop.
 */
static long gain(int at)
{
	long all = -OPENING;

#pragma omp parallel
	{
		int thread = omp_get_thread_num(), threads = omp_get_num_threads(), turn = 0;
		long known = -OPENING;

		for (struct point *block = points; block < points + POINTS; block += BLOCK) {
			long saved = 0;

#pragma omp for schedule(static) nowait
			for (long i = 0; i < BLOCK; i++) {
				int less = block[i].away - distance(block + i, at);

				block[i].saving = less > 0 ? less : 0;
				saved += block[i].saving;
			}
			parts[turn][thread].saved = saved;
#pragma omp barrier
			for (int other = 0; other < threads; other++)
				known += parts[turn][other].saved;
			turn = !turn;
		}
#pragma omp master
		all = known;
	}
	return all;
}

/* Opens the cluster that was looked at. */
static void open_it(void)
{
#pragma omp parallel
	for (struct point *block = points; block < points + POINTS; block += BLOCK) {
#pragma omp for schedule(static)
		for (long i = 0; i < BLOCK; i++)
			block[i].away -= block[i].saving;
	}
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
	return sum;
}

int main(int argc, char **argv)
{
	long candidates = repetitions(argc, argv, 40), before;
	double begin = now_s();

	if (omp_get_max_threads() > MOST_THREADS)
		give_up("more threads than this program has room for: set OMP_NUM_THREADS");
	points = array(sizeof(*points) * POINTS);
	make();
	begin_with(points[0].at);
	before = cost();
	for (long i = 1; i <= candidates; i++) {
		long saved = gain(points[i].at);

		if (saved <= 0)
			continue;
		open_it();
		if (cost() != before - saved - OPENING)
			give_up("self-check failed: a cluster saved something else than it should");
		before -= saved + OPENING;
	}
	return report("streamcluster", begin, before > 0);
}
