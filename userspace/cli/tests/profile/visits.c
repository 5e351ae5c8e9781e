/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Four threads, one after the other, that visit lines of blocks once: so the meetings are known.
 * usage: visits pairs|ring|all|none LINES [fork|exec]
 *
 * Thread t (from 1) visits: pairs, block t / 2 with its partner; ring, blocks t and t + 1 of four;
 * all, block 0; none, its own. With fork a child process does it; with exec /bin/true comes after.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define MAX_LINES 4096

struct line {
	char bytes[64];
};

static struct line blocks[THREADS][MAX_LINES] __attribute__((aligned(4096)));
static const char *pattern;
static int lines;

static void visit(int block)
{
	for (int i = 0; i < lines; i++)
		*(volatile char *)blocks[block][i].bytes = 1;
}

static void *work(void *number)
{
	int t = (int)(long)number;

	if (!strcmp(pattern, "pairs")) {
		visit(t / 2);
	} else if (!strcmp(pattern, "ring")) {
		visit(t);
		visit((t + 1) % THREADS);
	} else {
		visit(!strcmp(pattern, "all") ? 0 : t);
	}
	return NULL;
}

static void run(void)
{
	for (long t = 0; t < THREADS; t++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, work, (void *)t) || pthread_join(thread, NULL))
			exit(1);
	}
}

int main(int count, char **arguments)
{
	const char *how = count > 3 ? arguments[3] : "";

	pattern = arguments[1];
	lines = atoi(arguments[2]);
	if (!strcmp(how, "fork")) {
		if (!fork()) {
			run();
			exit(0);
		}
		wait(NULL);
	} else {
		run();
	}
	puts("visited");
	fflush(stdout);
	if (!strcmp(how, "exec"))
		execl("/bin/true", "true", (char *)NULL);
	return 3;
}
