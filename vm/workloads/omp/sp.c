/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Line solves along the three dimensions of a grid cut into slabs, with the sharing pattern of the
 * NAS code SP: along x and y a thread stays in its slab, along z everything is crossed. The first
 * values are an eigenvector of every solve, so that each multiplies all cells by the same known
 * factor.
 *
 * usage: tandem-omp-sp [STEPS]
 */
#include <math.h>

#include "lab.h"

#define EDGE 144
#define PLANE (EDGE * EDGE)

static double *grid, inverse[EDGE], sines[EDGE];

static void fill(void)
{
#pragma omp parallel for schedule(static)
	for (int z = 0; z < EDGE; z++)
		for (int y = 0; y < EDGE; y++)
			for (int x = 0; x < EDGE; x++)
				grid[z * PLANE + y * EDGE + x] = sines[z] * sines[y] * sines[x];
}

/* Solves `count` neighbouring lines of a system (1, 4, 1), whose cells are `stride` apart. */
static void lines(double *cells, long stride, int count)
{
	for (int i = 0; i < count; i++)
		cells[i] *= inverse[0];
	for (int at = 1; at < EDGE; at++)
		for (int i = 0; i < count; i++) {
			double before = cells[(at - 1) * stride + i];

			cells[at * stride + i] = (cells[at * stride + i] - before) * inverse[at];
		}
	for (int at = EDGE - 1; at-- > 0;)
		for (int i = 0; i < count; i++)
			cells[at * stride + i] -= inverse[at] * cells[(at + 1) * stride + i];
}

static void along_x(void)
{
#pragma omp parallel for schedule(static)
	for (int z = 0; z < EDGE; z++)
		for (int y = 0; y < EDGE; y++)
			lines(grid + z * PLANE + y * EDGE, 1, 1);
}

static void along_y(void)
{
#pragma omp parallel for schedule(static)
	for (int z = 0; z < EDGE; z++)
		lines(grid + z * PLANE, EDGE, EDGE);
}

static void along_z(void)
{
#pragma omp parallel for schedule(static)
	for (int y = 0; y < EDGE; y++)
		lines(grid + y * EDGE, PLANE, EDGE);
}

static int is_right(long steps)
{
	/* Each solve divides by this. */
	double value = 4 - 2 * cos(M_PI / (EDGE + 1)), expected = pow(value, -3 * steps);
	int wrong = 0;

#pragma omp parallel for schedule(static) reduction(+ : wrong)
	for (int z = 0; z < EDGE; z++)
		for (int y = 0; y < EDGE; y++)
			for (int x = 0; x < EDGE; x++) {
				double first = sines[z] * sines[y] * sines[x] * expected;
				double off = grid[z * PLANE + y * EDGE + x] - first;

				wrong += !(fabs(off) <= 1e-6 * fabs(first) + 1e-300);
			}
	return !wrong;
}

int main(int argc, char **argv)
{
	long steps = repetitions(argc, argv, 3);
	double begin = now_s();

	inverse[0] = 0.25;
	for (int at = 1; at < EDGE; at++)
		inverse[at] = 1 / (4 - inverse[at - 1]);
	for (int at = 0; at < EDGE; at++)
		sines[at] = (at % 2 ? -1 : 1) * sin(M_PI * (at + 1) / (EDGE + 1));
	grid = array(sizeof(*grid) * EDGE * PLANE);
	fill();
	for (long step = 0; step < steps; step++) {
		along_x();
		along_y();
		along_z();
	}
	return report("sp", begin, is_right(steps));
}
