/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Conjugate gradients on a sparse matrix, with the sharing pattern of the NAS code CG: each thread
 * has rows of its own, and reads elements of a vector from all threads' parts. Regions: the matrix
 * is made by those who use it, solved, and the residual is looked at.
 *
 * usage: tandem-omp-cg [ITERATIONS]
 */
#include <math.h>

#include "lab.h"

#define ROWS 196608
#define DISTANCES 8
#define ELEMENTS (1 + 2 * DISTANCES)
#define DIAGONAL 20.0

static double *values, *solution, *residual, *direction, *product;
static int *columns;

static int column(int row, int element)
{
	int which = (element - 1) % DISTANCES, slice = ROWS / 2 / (DISTANCES + 1);
	int distance = (which + 1) * slice + mix(which) % slice;

	if (!element)
		return row;
	return (row + (element <= DISTANCES ? distance : ROWS - distance)) % ROWS;
}

/* The right side is that of a solution of ones: all rows have the same sum. */
static void make(void)
{
#pragma omp parallel for schedule(static)
	for (int row = 0; row < ROWS; row++) {
		for (int element = 0; element < ELEMENTS; element++) {
			columns[row * ELEMENTS + element] = column(row, element);
			values[row * ELEMENTS + element] = element ? -1 : DIAGONAL;
		}
		solution[row] = 0;
		residual[row] = direction[row] = (DIAGONAL - 2 * DISTANCES) * (1 + row % 2);
		product[row] = 0;
	}
}

static double times(const double *vector, int row)
{
	double sum = 0;

	for (int at = row * ELEMENTS; at < (row + 1) * ELEMENTS; at++)
		sum += values[at] * vector[columns[at]];
	return sum;
}

static void solve(long iterations)
{
	double squares = 0, before = 0, dot = 0;

#pragma omp parallel
	{
#pragma omp for schedule(static) reduction(+ : squares)
		for (int row = 0; row < ROWS; row++)
			squares += residual[row] * residual[row];
		for (long i = 0; i < iterations; i++) {
#pragma omp single
			before = squares, squares = dot = 0;
#pragma omp for schedule(static) reduction(+ : dot)
			for (int row = 0; row < ROWS; row++) {
				product[row] = times(direction, row);
				dot += direction[row] * product[row];
			}
#pragma omp for schedule(static) reduction(+ : squares)
			for (int row = 0; row < ROWS; row++) {
				solution[row] += before / dot * direction[row];
				residual[row] -= before / dot * product[row];
				squares += residual[row] * residual[row];
			}
#pragma omp for schedule(static)
			for (int row = 0; row < ROWS; row++)
				direction[row] = residual[row] + squares / before * direction[row];
		}
	}
}

/* Whether what is left of the right side is what the solution leaves of it. */
static int is_right(void)
{
	int wrong = 0;

#pragma omp parallel for schedule(static) reduction(+ : wrong)
	for (int row = 0; row < ROWS; row++) {
		double left = (DIAGONAL - 2 * DISTANCES) * (1 + row % 2) - times(solution, row);

		wrong += !(fabs(left - residual[row]) < 1e-9);
	}
	return !wrong;
}

int main(int argc, char **argv)
{
	long iterations = repetitions(argc, argv, 12);
	double begin = now_s();

	values = array(sizeof(*values) * ROWS * ELEMENTS);
	columns = array(sizeof(*columns) * ROWS * ELEMENTS);
	solution = array(sizeof(*solution) * ROWS);
	residual = array(sizeof(*residual) * ROWS);
	direction = array(sizeof(*direction) * ROWS);
	product = array(sizeof(*product) * ROWS);
	make();
	solve(iterations);
	return report("cg", begin, is_right());
}
