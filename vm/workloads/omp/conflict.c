/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Two regions that want one array placed differently: in one each thread has rows of its own, in
 * the other columns. With 8 threads a thread's columns are one page of every row.
 *
 * usage: tandem-omp-conflict [PASSES]
 */
#include "lab.h"

#define ROWS 768
#define COLUMNS 512

static struct {
	double value, rest[7];
} *all;

static double of_row[ROWS], of_column[COLUMNS];

static void fill(void)
{
#pragma omp parallel for schedule(static)
	for (int row = 0; row < ROWS; row++)
		for (int column = 0; column < COLUMNS; column++)
			all[row * COLUMNS + column].value = row + 2 * column;
}

static void by_rows(void)
{
#pragma omp parallel for schedule(static)
	for (int row = 0; row < ROWS; row++) {
		double sum = 0;

		for (int column = 0; column < COLUMNS; column++)
			sum += all[row * COLUMNS + column].value;
		of_row[row] = sum;
	}
}

static void by_columns(void)
{
#pragma omp parallel
	{
		int thread = omp_get_thread_num(), threads = omp_get_num_threads();
		int begin = COLUMNS * thread / threads, end = COLUMNS * (thread + 1) / threads;

		for (int column = begin; column < end; column++)
			of_column[column] = 0;
		for (int row = 0; row < ROWS; row++)
			for (int column = begin; column < end; column++)
				of_column[column] += all[row * COLUMNS + column].value;
	}
}

static int is_right(void)
{
	int wrong = 0;

	for (int row = 0; row < ROWS; row++)
		wrong += of_row[row] != (double)COLUMNS * row + (double)COLUMNS * (COLUMNS - 1);
	for (int column = 0; column < COLUMNS; column++)
		wrong += of_column[column] != (double)ROWS * (ROWS - 1) / 2 + 2.0 * ROWS * column;
	return !wrong;
}

int main(int argc, char **argv)
{
	long passes = repetitions(argc, argv, 16);
	double begin = now_s();

	all = array(sizeof(*all) * ROWS * COLUMNS);
	fill();
	for (long pass = 0; pass < passes; pass++) {
		by_rows();
		by_columns();
	}
	return report("conflict", begin, is_right());
}
