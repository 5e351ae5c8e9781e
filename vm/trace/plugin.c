/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Entry of the trace plugin: what is added to the program's code when QEMU translates it.
 * usage: qemu-x86_64 -plugin trace.so,folder=DIR,slice=INSTRUCTIONS PROGRAM
 *
 * Debian's qemu-user of bookworm-backports is linked statically and takes no plugins, so that of
 * bookworm is used, whose interface is the first. Only what the first and the present interface
 * have in common is used here, because the headers are those of the system emulator.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include <qemu-plugin.h>

#include "trace.h"

/* Instead of the header's QEMU_PLUGIN_VERSION: see above. */
QEMU_PLUGIN_EXPORT int qemu_plugin_version = 1;

static struct thread *running(unsigned vcpu)
{
	struct thread *thread = thread_self();

	return thread ? thread : thread_begins(vcpu);
}

static void on_block(unsigned vcpu, void *instructions)
{
	clock_ran(running(vcpu), (uintptr_t)instructions);
}

static void on_access(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t address, void *unused)
{
	uint64_t last = address + (1u << qemu_plugin_mem_size_shift(info)) - 1;
	struct thread *thread = running(vcpu);

	page_touched(thread, address, true);
	if (address >> LINE_SHIFT != last >> LINE_SHIFT)
		/* One access, of two lines; it counts for the second page if there is one. */
		page_touched(thread, last, address >> PAGE_SHIFT != last >> PAGE_SHIFT);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *translated)
{
	uintptr_t count = qemu_plugin_tb_n_insns(translated);

	qemu_plugin_register_vcpu_tb_exec_cb(translated, on_block, QEMU_PLUGIN_CB_NO_REGS,
					     (void *)count);
	for (size_t i = 0; i < count; i++)
		qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(translated, i), on_access,
						 QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, NULL);
}

static void on_syscall(qemu_plugin_id_t id, unsigned vcpu, int64_t number, uint64_t a1, uint64_t a2,
		       uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8)
{
	struct thread *thread = thread_self();

	if (!thread)
		return;
	if (number == SYS_exit || number == SYS_execve || number == SYS_execveat)
		record_thread(thread);
	if (number == SYS_execve || number == SYS_execveat)
		record_exec();
	clock_left(thread);
}

static void on_syscall_end(qemu_plugin_id_t id, unsigned vcpu, int64_t number, int64_t result)
{
	if (thread_self())
		clock_resumed(thread_self());
}

static void on_vcpu(qemu_plugin_id_t id, unsigned vcpu)
{
	thread_created(vcpu);
}

static void at_end(qemu_plugin_id_t id, void *unused)
{
	record_end();
}

static const char *value_of(const char *key, int argc, char **argv)
{
	size_t length = strlen(key);

	for (int i = 0; i < argc; i++)
		if (!strncmp(argv[i], key, length) && argv[i][length] == '=')
			return argv[i] + length + 1;
	refuse("usage: -plugin trace.so,folder=DIR,slice=INSTRUCTIONS");
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
					   char **argv)
{
	uint64_t slice = strtoull(value_of("slice", argc, argv), NULL, 10);

	if (info->system_emulation || strcmp(info->target_name, "x86_64"))
		refuse("it traces programs in qemu-x86_64, not %s", info->target_name);
	if (!slice)
		refuse("a slice has at least one instruction");
	clock_start(slice);
	record_start(value_of("folder", argc, argv));
	pages_start();
	threads_start();
	qemu_plugin_register_vcpu_init_cb(id, on_vcpu);
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	qemu_plugin_register_vcpu_syscall_cb(id, on_syscall);
	qemu_plugin_register_vcpu_syscall_ret_cb(id, on_syscall_end);
	qemu_plugin_register_atexit_cb(id, at_end, NULL);
	return 0;
}
