/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Entry of the timing plugin: what is added to the guest's code when QEMU translates it.
 *
 * Every block of code adds its instructions' time, and ends the vCPU's turn when its window is
 * full. Every memory access asks L1, and the directory when L1 does not know. HLT, marks, and
 * changes of address spaces have calls of their own. usage: -plugin timing.so,settings=FILE
 */
#include <stdio.h>
#include <string.h>

#include <qemu-plugin.h>

#include "dataflow.h"
#include "qemu_hooks.h"
#include "timing.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

/* The interface of QEMU 10.0. */
#define KNOWN_INTERFACE 4

/* The kernel's half of the address space begins far above. */
#define USER_END (1ull << 47)

static struct qemu_plugin_scoreboard *scoreboard;

/*
 * How an instruction's accesses are charged. WAITED: the vCPU waits for its misses. FLYING: it does
 * not, see flight.c. REPEATED: flying; a string instruction repeats without leaving translated
 * code, and one instruction's time per line and side stands for it. LOCKED: its load already asks
 * for the line as its store does, and all earlier misses are waited for.
 */
enum kind { WAITED, FLYING, REPEATED, LOCKED };

/* What a memory access needs to know of its instruction; of a string instruction, what a line
 * costs. */
struct access {
	enum kind kind;
	const struct load *load;
	const uint64_t *line_ticks;
};

/* A string instruction came to `address`. It may read and write by turns, so each side has its own
 * last line. */
static void charge_line(unsigned vcpu, const struct access *access, uint64_t address, bool store)
{
	uint64_t *last = &vcpus[vcpu].string_line[store], line = address >> LINE_SHIFT;

	if (*last == line)
		return;
	*last = line;
	clock_charge(vcpu, *access->line_ticks);
}

static void charge(unsigned vcpu, const struct access *access, struct cost cost, bool store)
{
	bool flies = cost.source == FROM_L3 || cost.source == FROM_MEMORY;

	if (access->kind == LOCKED)
		flight_land(vcpu);
	if (flies && (access->kind == FLYING || access->kind == REPEATED))
		flight_start(vcpu, store ? NULL : access->load, cost.ticks);
	else if (cost.ticks > settings.instruction)
		/* The machine file's times count from load to use: the load's own time is in them.
		 */
		clock_charge(vcpu, cost.ticks - settings.instruction);
	/* Cores that pass a line on are interleaved by transfers, not by windows. */
	if (cost.source == FROM_CORE)
		clock_let_others_catch_up(vcpu);
}

static void missed(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t address, bool store,
		   const struct access *access)
{
	struct qemu_plugin_hwaddr *physical = qemu_plugin_get_hwaddr(info, address);
	struct cost cost;
	uint64_t line, at;

	if (!physical)
		return;
	if (qemu_plugin_hwaddr_is_io(physical)) {
		if (store)
			clock_device_written(vcpu);
		return;
	}
	at = qemu_plugin_hwaddr_phys_addr(physical);
	line = memory_line(at);
	if (line == NO_LINE)
		return;
	cost = directory_access(vcpu, address, line, store);
	cost.ticks += walks_access(vcpu, address, at);
	charge(vcpu, access, cost, store);
	if (cost.source != FROM_OWN_CACHE)
		ring_miss(vcpu, address, line, &cost, store);
}

static void on_store(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t address, void *opaque)
{
	const struct access *access = opaque;
	uint64_t tag = address >> LINE_SHIFT << 1 | 1, found;

	if (vcpus[vcpu].last == tag)
		return;
	if (access->kind == REPEATED)
		charge_line(vcpu, access, address, true);
	found = *caches_l1_tag(vcpu, address);
	if (found == tag)
		vcpus[vcpu].last = found;
	else
		missed(vcpu, info, address, true, access);
}

static void on_load(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t address, void *opaque)
{
	const struct access *access = opaque;
	uint64_t tag = address >> LINE_SHIFT << 1, found;

	if ((vcpus[vcpu].last & ~1ull) == tag)
		return;
	if (access->kind == REPEATED)
		charge_line(vcpu, access, address, false);
	found = *caches_l1_tag(vcpu, address);
	if ((found & ~1ull) == tag)
		vcpus[vcpu].last = found;
	else
		missed(vcpu, info, address, false, access);
}

static void on_changed_addresses(unsigned vcpu, void *unused)
{
	caches_forget_addresses(vcpu);
	walks_forget_addresses(vcpu);
}

static void on_mark(unsigned vcpu, void *mark)
{
	truth_record(clock_now(vcpu), (intptr_t)mark);
}

/* The mark NN of a program: nopl 0x4d554eNN(%rax,%rax,1). -1 for other instructions. */
static int mark_of(const uint8_t *code, size_t length)
{
	static const uint8_t head[] = {0x0f, 0x1f, 0x84, 0x00}, tail[] = {0x4e, 0x55, 0x4d};

	if (length != 8 || memcmp(code, head, sizeof(head)) || memcmp(code + 5, tail, sizeof(tail)))
		return -1;
	return code[4];
}

/* Whether it changes what addresses mean: mov to %cr3, invlpg, invpcid. */
static bool changes_addresses(const uint8_t *code, size_t length)
{
	while (length > 2 && (*code == 0x66 || (*code & 0xf0) == 0x40)) {
		code++;
		length--;
	}
	if (length < 3 || code[0] != 0x0f)
		return false;
	return (code[1] == 0x22 && (code[2] & 0x38) == 0x18) ||
	       (code[1] == 0x01 && (code[2] & 0x38) == 0x38 && code[2] < 0xc0) ||
	       (code[1] == 0x38 && code[2] == 0x82);
}

static enum kind kind_of(const uint8_t *code, size_t length, bool user)
{
	bool repeat = false, lock = false;

	for (; length > 1 && (*code == 0xf0 || *code == 0xf2 || *code == 0xf3 || *code == 0x66 ||
			      *code == 0x67 || (*code & 0xf0) == 0x40);
	     code++, length--) {
		repeat |= *code == 0xf2 || *code == 0xf3;
		lock |= *code == 0xf0;
	}
	if (repeat && ((*code >= 0xa4 && *code <= 0xa7) || (*code >= 0xaa && *code <= 0xaf)))
		return REPEATED;
	/* xchg with memory locks without a prefix. */
	if (lock || *code == 0x86 || *code == 0x87)
		return LOCKED;
	return user ? FLYING : WAITED;
}

/* The access of an instruction; `block` is NULL for the kernel's code. Lives as long as the
 * translated code may. */
static struct access *access_of(struct qemu_plugin_insn *instruction, enum kind kind,
				struct block *block)
{
	static struct access kernels[] = {{WAITED, NULL, NULL},
					  {FLYING, NULL, NULL},
					  {REPEATED, NULL, &settings.kernel_instruction},
					  {LOCKED, NULL, NULL}};
	static struct access programs[] = {{WAITED, NULL, NULL},
					   {FLYING, NULL, NULL},
					   {REPEATED, NULL, &settings.instruction},
					   {LOCKED, NULL, NULL}};
	struct access *access = &programs[kind];
	struct load *load;
	char *text;

	if (!block)
		return &kernels[kind];
	text = qemu_plugin_insn_disas(instruction);
	load = dataflow_read(block, text);
	if (load && kind == FLYING) {
		access = g_new0(struct access, 1);
		*access = (struct access){FLYING, load, NULL};
	}
	g_free(text);
	return access;
}

static void instrument(struct qemu_plugin_insn *instruction, qemu_plugin_u64 slice,
		       struct block *block)
{
	uint8_t code[16];
	size_t length = qemu_plugin_insn_data(instruction, code, sizeof(code));
	enum kind kind = kind_of(code, length, block);
	struct access *access = access_of(instruction, kind, block);
	int mark = mark_of(code, length);

	if (length == 1 && code[0] == 0xf4)
		qemu_plugin_register_vcpu_insn_exec_cb(instruction, clock_halt,
						       QEMU_PLUGIN_CB_NO_REGS, NULL);
	if (length == 2 && code[0] == 0xf3 && code[1] == 0x90)
		qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
			instruction, QEMU_PLUGIN_INLINE_ADD_U64, slice, settings.pause);
	if (mark >= 0)
		qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_mark, QEMU_PLUGIN_CB_NO_REGS,
						       (void *)(intptr_t)mark);
	if (changes_addresses(code, length))
		qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_changed_addresses,
						       QEMU_PLUGIN_CB_NO_REGS, NULL);
	qemu_plugin_register_vcpu_mem_cb(instruction, kind == LOCKED ? on_store : on_load,
					 QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_R, access);
	qemu_plugin_register_vcpu_mem_cb(instruction, on_store, QEMU_PLUGIN_CB_NO_REGS,
					 QEMU_PLUGIN_MEM_W, access);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *translated)
{
	size_t count = qemu_plugin_tb_n_insns(translated);
	struct block *block = qemu_plugin_tb_vaddr(translated) < USER_END ? dataflow_block() : NULL;
	qemu_plugin_u64 slice =
		qemu_plugin_scoreboard_u64_in_struct(scoreboard, struct live, slice);
	qemu_plugin_u64 instructions =
		qemu_plugin_scoreboard_u64_in_struct(scoreboard, struct live, instructions);

	uint64_t time = block ? settings.instruction : settings.kernel_instruction;
	qemu_plugin_u64 in_flight =
		qemu_plugin_scoreboard_u64_in_struct(scoreboard, struct live, in_flight);

	qemu_plugin_register_vcpu_tb_exec_cond_cb(translated, clock_window_full,
						  QEMU_PLUGIN_CB_RW_REGS, QEMU_PLUGIN_COND_GE,
						  slice, settings.window, NULL);
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(translated, QEMU_PLUGIN_INLINE_ADD_U64,
							  slice, count * time);
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(translated, QEMU_PLUGIN_INLINE_ADD_U64,
							  instructions, count);
	if (block)
		qemu_plugin_register_vcpu_tb_exec_cond_cb(translated, flight_block,
							  QEMU_PLUGIN_CB_NO_REGS,
							  QEMU_PLUGIN_COND_GT, in_flight, 0, block);
	for (size_t i = 0; i < count; i++)
		instrument(qemu_plugin_tb_get_insn(translated, i), slice, block);
	if (block)
		dataflow_end(block);
}

static void on_vcpu(qemu_plugin_id_t id, unsigned vcpu)
{
	if (vcpu >= settings.vcpus || settings.node_of[vcpu] < 0)
		refuse("QEMU has a vCPU %u that the settings do not describe", vcpu);
	/* The scoreboard may have moved. */
	for (unsigned i = 0; i < settings.vcpus; i++)
		if (i == vcpu || vcpus[i].live)
			vcpus[i].live = qemu_plugin_scoreboard_find(scoreboard, i);
	clock_vcpu_added(vcpu);
}

static void at_end(qemu_plugin_id_t id, void *unused)
{
	truth_close();
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
					   char **argv)
{
	if (info->version.cur != KNOWN_INTERFACE)
		refuse("QEMU has plugin interface %d, known is %d: install the QEMU of "
		       "bookworm-backports (vm/setup/packages.sh)",
		       info->version.cur, KNOWN_INTERFACE);
	if (argc != 1 || strncmp(argv[0], "settings=", 9))
		refuse("usage: -plugin timing.so,settings=FILE");
	settings_read(argv[0] + 9);
	caches_init();
	walks_init();
	memory_init();
	directory_init();
	truth_open();
	ring_open();
	scoreboard = qemu_plugin_scoreboard_new(sizeof(struct live));
	clock_start();
	qemu_plugin_register_vcpu_init_cb(id, on_vcpu);
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	qemu_plugin_register_atexit_cb(id, at_end, NULL);
	return 0;
}
