/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Bucket sort of integers, with the sharing pattern of the NAS code IS: each thread counts its own
 * keys, everybody deals keys to everybody, and each thread sorts buckets of its own.
 *
 * usage: tandem-omp-is [SORTS]
 */
#include "lab.h"

#define KEYS (3 << 20)
#define BUCKETS 1024
#define KEY_BITS 20
#define SHIFT (KEY_BITS - 10)
#define MOST_THREADS 256

static unsigned *keys, *dealt, *sorted;
static int counts[MOST_THREADS][BUCKETS], begins[BUCKETS + 1];

static void make(void)
{
#pragma omp parallel for schedule(static)
	for (int i = 0; i < KEYS; i++) {
		keys[i] = mix(i) >> (64 - KEY_BITS);
		dealt[i] = sorted[i] = 0;
	}
}

static void count(void)
{
#pragma omp parallel
	{
		int *own = counts[omp_get_thread_num()];

		for (int bucket = 0; bucket < BUCKETS; bucket++)
			own[bucket] = 0;
#pragma omp for schedule(static)
		for (int i = 0; i < KEYS; i++)
			own[keys[i] >> SHIFT]++;
	}
}

/* Where each thread's part of each bucket begins. */
static void sum_up(int threads)
{
	int sum = 0;

	for (int bucket = 0; bucket < BUCKETS; bucket++) {
		begins[bucket] = sum;
		for (int thread = 0; thread < threads; thread++) {
			int here = counts[thread][bucket];

			counts[thread][bucket] = sum;
			sum += here;
		}
	}
	begins[BUCKETS] = sum;
}

static void deal(void)
{
#pragma omp parallel
	{
		int *next = counts[omp_get_thread_num()];

#pragma omp for schedule(static)
		for (int i = 0; i < KEYS; i++)
			dealt[next[keys[i] >> SHIFT]++] = keys[i];
	}
}

static void sort(void)
{
#pragma omp parallel
	{
		int places[1 << SHIFT];

#pragma omp for schedule(static)
		for (int bucket = 0; bucket < BUCKETS; bucket++) {
			int sum = begins[bucket];

			for (int key = 0; key < 1 << SHIFT; key++)
				places[key] = 0;
			for (int i = begins[bucket]; i < begins[bucket + 1]; i++)
				places[dealt[i] & ((1 << SHIFT) - 1)]++;
			for (int key = 0; key < 1 << SHIFT; key++) {
				int here = places[key];

				places[key] = sum;
				sum += here;
			}
			for (int i = begins[bucket]; i < begins[bucket + 1]; i++)
				sorted[places[dealt[i] & ((1 << SHIFT) - 1)]++] = dealt[i];
		}
	}
}

static int is_right(void)
{
	uint64_t before = 0, after = 0;
	int wrong = 0;

#pragma omp parallel for schedule(static) reduction(+ : before, after, wrong)
	for (int i = 0; i < KEYS; i++) {
		before += mix(keys[i]);
		after += mix(sorted[i]);
		wrong += i && sorted[i - 1] > sorted[i];
	}
	return !wrong && before == after;
}

int main(int argc, char **argv)
{
	long sorts = repetitions(argc, argv, 4);
	double begin = now_s();

	if (omp_get_max_threads() > MOST_THREADS)
		give_up("more threads than this program has counters for: set OMP_NUM_THREADS");
	keys = array(sizeof(*keys) * KEYS);
	dealt = array(sizeof(*dealt) * KEYS);
	sorted = array(sizeof(*sorted) * KEYS);
	make();
	for (long i = 0; i < sorts; i++) {
		count();
		sum_up(omp_get_max_threads());
		deal();
		sort();
	}
	return report("is", begin, is_right());
}
