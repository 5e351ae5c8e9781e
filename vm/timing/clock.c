/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Virtual time. Problem: the vCPUs take turns in one thread, yet must look as if they ran at the
 * same time, each as fast as its own instructions and misses allow.
 *
 * Mechanism: time goes in windows of settings.window ticks. Each vCPU counts its ticks since the
 * window's start (its slice), and gives its turn away when the window is over for it. When it is
 * over for all that are not halted, the window moves on by the smallest slice. Between two vCPUs
 * the order of events is thus right to a window.
 *
 * That is too coarse for vCPUs that wait for each other. A vCPU that took a line from another one
 * (directory.c) is kept level with the slowest from then on, so that lines pass as often as they
 * would; one that waits by PAUSE may be SLACK ahead, or level too when it shares.
 *
 * A vCPU that is halted starts at the time at which another one called it by an interrupt; the
 * window waits for it.
 *
 * The device clock (timers) follows the window's start. When all vCPUs are halted, a helper thread
 * moves time to the next timer at once: idle time costs the host nothing.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <qemu-plugin.h>

#include "qemu_hooks.h"
#include "timing.h"

/* More than any slice: a halted vCPU calls clock_window_full as soon as it runs again. */
#define HALTED_SLICE (1ull << 40)
/* Fruitless turns after which vCPUs that do not move count as halted (by other means than HLT, as
 * in INIT). */
#define STUCK_TURNS 400
/* Windows after a transfer in which a vCPU is kept level with the others, and how far others may
 * wait ahead, in ticks. */
#define SHARING_WINDOWS 2
#define SLACK (1000 * TICKS_PER_NS)
/*
 * Ticks after which QEMU's own table of translated addresses is emptied, in which it finds the
 * host's address of a page. It starts with 256 pages and grows only when it is emptied, which a
 * guest whose tasks stay on their CPUs hardly ever does; each access to a page that it lost costs
 * the host a walk through the guest's page tables.
 */
#define GROW_TLB_TICKS (10 * 1000 * 1000ull * TICKS_PER_NS)
/* How often the helper looks whether an interrupt in QEMU left all vCPUs halted without a word. */
#define HELPER_PERIOD_NS 2000000

struct vcpu vcpus[MAX_VCPUS];

static CPUState *cpu_states[MAX_VCPUS];
/* One bit for each vCPU that exists and is not halted. */
static volatile uint32_t awake;
static uint64_t window_base, tlb_grown_at;
static volatile int64_t device_ns;
static volatile bool running;
static const void *time_control;
static unsigned stuck_turns;
static uint64_t last_slices;

static pthread_mutex_t helper_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t helper_wanted = PTHREAD_COND_INITIALIZER;

/* Goes through the vCPUs that are not halted. */
#define FOR_AWAKE(i, left)                                                                         \
	for (uint32_t left = awake, i; left && (i = __builtin_ctz(left), true); left &= left - 1)

/* Ticks of a running vCPU since the window's start. */
static uint64_t slice_of(const struct vcpu *v)
{
	return v->live->slice - v->early;
}

static int64_t get_virtual_clock(void)
{
	return device_ns;
}

static void set_virtual_clock(int64_t ns)
{
	device_ns = ns;
}

/* The vCPU whose turn it is; settings.vcpus in a thread that runs none. */
static unsigned current_vcpu(void)
{
	static unsigned found;

	if (!current_cpu)
		return settings.vcpus;
	if (cpu_states[found] != current_cpu)
		for (found = 0; found < settings.vcpus - 1 && cpu_states[found] != current_cpu;)
			found++;
	return found;
}

/* The TSC, at 1 GHz: one cycle is one nanosecond of the vCPU that reads it. */
static int64_t get_elapsed_ticks(void)
{
	unsigned vcpu = current_vcpu();

	return vcpu < settings.vcpus ? (int64_t)(clock_now(vcpu) / TICKS_PER_NS) : device_ns;
}

uint64_t clock_now(unsigned vcpu)
{
	return window_base + (vcpus[vcpu].idle ? 0 : slice_of(&vcpus[vcpu]));
}

uint64_t clock_busy(unsigned vcpu)
{
	const struct vcpu *v = &vcpus[vcpu];

	return v->busy_done + (v->idle ? 0 : slice_of(v) - v->busy_since);
}

void clock_charge(unsigned vcpu, uint64_t ticks)
{
	vcpus[vcpu].live->slice += ticks;
}

/* The smallest slice of the other running vCPUs; the largest number when none runs. */
static uint64_t slowest_other(unsigned vcpu)
{
	uint64_t least = UINT64_MAX;

	FOR_AWAKE (i, left)
		if (i != vcpu && slice_of(&vcpus[i]) < least)
			least = slice_of(&vcpus[i]);
	return least;
}

/* Whether the others must catch up before `vcpu` goes on. */
static bool is_ahead(unsigned vcpu)
{
	uint64_t least = slowest_other(vcpu), slack = vcpus[vcpu].shares ? 0 : SLACK;

	return least < settings.window && slice_of(&vcpus[vcpu]) > least + slack;
}

/* Removes what made the turn end early. */
static void forget_early(struct vcpu *v)
{
	v->live->slice -= v->early;
	v->early = 0;
}

/*
 * Makes the turn of `vcpu` end when it is ahead of another; at once if it is already. Translated
 * code compares with the whole window only, so the slice is made to look longer.
 */
static void end_turn_when_ahead(unsigned vcpu)
{
	struct vcpu *v = &vcpus[vcpu];
	uint64_t least = slowest_other(vcpu);

	forget_early(v);
	if (least < v->live->slice)
		least = v->live->slice;
	if (least < settings.window) {
		v->early = settings.window - least;
		v->live->slice += v->early;
	}
}

void clock_let_others_catch_up(unsigned vcpu)
{
	if (!running)
		return;
	vcpus[vcpu].shares = SHARING_WINDOWS;
	end_turn_when_ahead(vcpu);
}

static void fall_idle(unsigned vcpu)
{
	struct vcpu *v = &vcpus[vcpu];

	forget_early(v);
	v->halted_at = window_base + v->live->slice;
	v->busy_done += v->live->slice - v->busy_since;
	v->idle = true;
	awake &= ~(1u << vcpu);
	v->live->slice = HALTED_SLICE;
}

/* Whether a halted vCPU has an interrupt to take. */
static bool is_called(unsigned vcpu)
{
	return cpu_states[vcpu] && vcpus[vcpu].idle && !cpu_thread_is_idle(cpu_states[vcpu]);
}

/*
 * QEMU leaves a vCPU that was called to the next turn, as all are in one thread. So that it starts
 * when it was called, the caller's time is kept.
 */
void clock_device_written(unsigned vcpu)
{
	if (!running)
		return;
	for (unsigned i = 0; i < settings.vcpus; i++)
		if (!vcpus[i].called_at && is_called(i))
			vcpus[i].called_at = clock_now(vcpu);
}

static bool any_called(void)
{
	for (unsigned i = 0; i < settings.vcpus; i++)
		if (is_called(i))
			return true;
	return false;
}

static void wake(unsigned vcpu)
{
	struct vcpu *v = &vcpus[vcpu];

	v->idle = false;
	awake |= 1u << vcpu;
	if (v->called_at > v->halted_at)
		v->halted_at = v->called_at;
	v->called_at = 0;
	v->live->slice = v->halted_at > window_base ? v->halted_at - window_base : 0;
	v->busy_since = v->live->slice;
}

static void grow_tlbs(void)
{
	FOR_AWAKE (i, left)
		tlb_flush(cpu_states[i]);
	tlb_grown_at = window_base;
}

/* Moves the window by `by` ticks, and the device clock with it. */
static void move_window(uint64_t by)
{
	int64_t ns, deadline;

	FOR_AWAKE (i, left) {
		forget_early(&vcpus[i]);
		vcpus[i].live->slice -= by;
		vcpus[i].busy_since -= by;
	}
	window_base += by;
	/* Who holds a contested line meets no transfer that would end its turn. */
	FOR_AWAKE (i, left)
		if (vcpus[i].shares && --vcpus[i].shares)
			end_turn_when_ahead(i);
	stuck_turns = 0;
	if (window_base - tlb_grown_at >= GROW_TLB_TICKS)
		grow_tlbs();
	memory_window(window_base);
	truth_tick(window_base);
	ring_counters_show();
	ns = window_base / TICKS_PER_NS;
	deadline = qemu_clock_deadline_ns_all(QEMU_CLOCK_VIRTUAL, QEMU_TIMER_ATTR_ALL);
	/* Without a timer that is due, there is no need to leave translated code. */
	if (deadline < 0 || device_ns + deadline > ns)
		device_ns = ns;
	else
		qemu_plugin_update_ns(time_control, ns);
}

/* vCPUs that made no progress in many turns wait for something that no instruction shows. */
static void release_stuck(void)
{
	FOR_AWAKE (i, left)
		if (slice_of(&vcpus[i]) < settings.window)
			fall_idle(i);
	stuck_turns = 0;
}

/* The smallest slice of all running vCPUs; counts turns in which none of them moved. */
static uint64_t slowest(void)
{
	uint64_t least = UINT64_MAX, slices = window_base;

	FOR_AWAKE (i, left) {
		uint64_t slice = slice_of(&vcpus[i]);

		least = slice < least ? slice : least;
		slices = slices * 31 + slice;
	}
	if (slices != last_slices)
		stuck_turns = 0;
	last_slices = slices;
	if (++stuck_turns > STUCK_TURNS)
		release_stuck();
	return least;
}

void clock_window_full(unsigned vcpu, void *unused)
{
	struct vcpu *v = &vcpus[vcpu];
	uint64_t least;

	if (!running) {
		v->live->slice = 0;
		return;
	}
	if (v->idle)
		wake(vcpu);
	forget_early(v);
	if (v->live->slice < settings.window && !is_ahead(vcpu))
		return;
	least = slowest();
	if (v->live->slice < settings.window)
		end_turn_when_ahead(vcpu);
	else if (least >= settings.window && (!any_called() || stuck_turns > STUCK_TURNS / 2))
		move_window(least);
	if (v->live->slice >= settings.window)
		hook_leave((uintptr_t)__builtin_return_address(0));
}

void clock_halt(unsigned vcpu, void *unused)
{
	if (!running || vcpus[vcpu].idle)
		return;
	fall_idle(vcpu);
	if (!awake) {
		pthread_mutex_lock(&helper_lock);
		pthread_cond_signal(&helper_wanted);
		pthread_mutex_unlock(&helper_lock);
	}
}

static void wait_until_wanted(void)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += HELPER_PERIOD_NS;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	pthread_mutex_lock(&helper_lock);
	pthread_cond_timedwait(&helper_wanted, &helper_lock, &until);
	pthread_mutex_unlock(&helper_lock);
}

/* Runs timers one after the other until one wakes a vCPU. */
static void *skip_idle_time(void *unused)
{
	for (;;) {
		wait_until_wanted();
		if (!running || awake)
			continue;
		bql_lock_impl(__FILE__, __LINE__);
		while (!awake && all_cpu_threads_idle()) {
			int64_t deadline =
				qemu_clock_deadline_ns_all(QEMU_CLOCK_VIRTUAL, QEMU_TIMER_ATTR_ALL);

			if (deadline < 0)
				break;
			qemu_clock_advance_virtual_time(device_ns + (deadline ? deadline : 1));
			if ((uint64_t)device_ns * TICKS_PER_NS > window_base)
				window_base = (uint64_t)device_ns * TICKS_PER_NS;
		}
		bql_unlock();
	}
	return NULL;
}

static bool pause_stays(void)
{
	unsigned vcpu = current_vcpu();

	if (is_ahead(vcpu))
		end_turn_when_ahead(vcpu);
	return vcpus[vcpu].live->slice < settings.window;
}

void clock_start(void)
{
	pthread_t helper;

	for (unsigned i = 0; i < settings.vcpus; i++)
		vcpus[i].idle = true;
	time_control = qemu_plugin_request_time_control();
	if (!time_control)
		refuse("another plugin owns the guest's time: use the timing plugin alone");
	if (pthread_create(&helper, NULL, skip_idle_time, NULL))
		refuse("no thread can be started: %s", strerror(errno));
	pthread_detach(helper);
	hook_pause(pause_stays);
}

void clock_vcpu_added(unsigned vcpu)
{
	static const struct guest_clocks clocks = {get_virtual_clock, set_virtual_clock,
						   get_elapsed_ticks};

	cpu_states[vcpu] = qemu_get_cpu(vcpu);
	hook_vcpu(cpu_states[vcpu]);
	vcpus[vcpu].live->slice = HALTED_SLICE;
	if (!running) {
		device_ns = cpu_get_clock() + settings.boot_offset_ns;
		window_base = (uint64_t)device_ns * TICKS_PER_NS;
		hook_clocks(&clocks);
		running = true;
	}
}
