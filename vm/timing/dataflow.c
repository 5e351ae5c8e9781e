/* SPDX-License-Identifier: GPL-2.0-only */
/* See dataflow.h. Reads the disassembler's text: the last operand is where a result goes, all
 * others are sources. */
#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "dataflow.h"
#include "timing.h"

#define MAX_OPERANDS 5
#define RAX 0
#define RDX 2

struct operand {
	uint16_t registers;
	/* The register that it is; -1 when it is none, or is memory. */
	int itself;
	bool memory;
};

struct instruction {
	char mnemonic[16];
	unsigned operands;
	struct operand operand[MAX_OPERANDS];
};

/* Number of the general register at `name` ("rax", "eax", "al", "r8d"); -1 for other registers. */
static int general_register(const char *name, size_t length)
{
	static const char *const ends[] = {"ax", "cx", "dx", "bx", "sp", "bp", "si", "di"};

	if (length >= 2 && name[0] == 'r' && isdigit(name[1])) {
		int number = atoi(name + 1);

		return number < REGISTERS ? number : -1;
	}
	if (length == 2 && (name[1] == 'l' || name[1] == 'h') && strchr("acdb", name[0]))
		return strchr("acdb", name[0]) - "acdb";
	if (length > 2 && (name[0] == 'r' || name[0] == 'e')) {
		name++;
		length--;
	}
	for (int i = 0; i < 8; i++)
		if (length >= 2 && !strncmp(name, ends[i], 2) && (length == 2 || name[2] == 'l'))
			return i;
	return -1;
}

static struct operand read_operand(const char *text, size_t length)
{
	struct operand operand = {.itself = -1, .memory = memchr(text, '(', length)};

	for (const char *at = text; at < text + length; at++) {
		size_t name = 1;
		int number;

		if (*at != '%')
			continue;
		while (at + name < text + length && isalnum(at[name]))
			name++;
		number = general_register(at + 1, name - 1);
		if (number >= 0) {
			operand.registers |= 1u << number;
			if (!operand.memory)
				operand.itself = number;
		}
	}
	return operand;
}

static bool is_prefix(const char *word, size_t length)
{
	static const char *const prefixes[] = {"lock",	"rep",	 "repz", "repe",
					       "repne", "repnz", "bnd",	 "notrack"};

	for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++)
		if (strlen(prefixes[i]) == length && !strncmp(word, prefixes[i], length))
			return true;
	return false;
}

static struct instruction parse(const char *text)
{
	struct instruction in = {.operands = 0};
	size_t length;
	unsigned depth = 0;

	for (;; text += length + strspn(text + length, " \t")) {
		length = strcspn(text, " \t");
		if (!is_prefix(text, length))
			break;
	}
	memcpy(in.mnemonic, text, length < sizeof(in.mnemonic) ? length : sizeof(in.mnemonic) - 1);
	text += length + strspn(text + length, " \t");
	for (const char *at = text; *text && in.operands < MAX_OPERANDS; at++) {
		depth += *at == '(';
		depth -= *at == ')';
		if ((*at == ',' && !depth) || !*at) {
			in.operand[in.operands++] = read_operand(text, at - text);
			text = *at ? at + 1 : at;
		}
	}
	return in;
}

static bool begins(const struct instruction *in, const char *with)
{
	return !strncmp(in->mnemonic, with, strlen(with));
}

static bool any_of(const struct instruction *in, const char *const *words)
{
	for (; *words; words++)
		if (begins(in, *words))
			return true;
	return false;
}

/* Whether the last operand is only read. */
static bool only_reads(const struct instruction *in)
{
	static const char *const words[] = {"cmp",  "test",   "push",	  "call",  "j",
					    "ret",  "nop",    "prefetch", "bt",	   "ucomi",
					    "comi", "vucomi", "vcomi",	  "ptest", "vptest",
					    "mul",  "div",    "idiv",	  NULL};
	static const char *const bit_writers[] = {"cmpxchg", "btc", "btr", "bts", NULL};

	return any_of(in, words) && !any_of(in, bit_writers);
}

/* Whether the last operand's old value does not matter. */
static bool overwrites(const struct instruction *in)
{
	static const char *const words[] = {
		"mov",	"lea",	"pop",	 "bsf",	   "bsr",     "tzcnt",	  "lzcnt", "cvt",
		"vcvt", "vmov", "pextr", "vpextr", "pmovmsk", "vpmovmsk", "set",   NULL};

	if (in->operands >= 3)
		return !begins(in, "shld") && !begins(in, "shrd");
	if (in->operands == 2 && (begins(in, "xor") || begins(in, "sub")) &&
	    in->operand[0].itself >= 0 && in->operand[0].itself == in->operand[1].itself)
		return true;
	return any_of(in, words);
}

static void join(struct origin *into, const struct origin *from)
{
	into->loads |= from->loads;
	into->registers |= from->registers;
}

static struct origin origin_of(const struct block *block, uint16_t registers)
{
	struct origin origin = {0, 0};

	for (unsigned i = 0; i < REGISTERS; i++)
		if (registers & 1u << i)
			join(&origin, &block->now[i]);
	return origin;
}

static struct load *add_load(struct block *block, uint16_t address)
{
	struct load *load = calloc(1, sizeof(*load));

	if (!load)
		refuse("the host has no memory left");
	load->block = block;
	load->index = block->loads < MAX_LOADS ? block->loads++ : MAX_LOADS - 1;
	load->address = origin_of(block, address);
	return load;
}

struct block *dataflow_block(void)
{
	struct block *block = calloc(1, sizeof(*block));

	if (!block)
		refuse("the host has no memory left");
	for (unsigned i = 0; i < REGISTERS; i++)
		block->now[i].registers = 1u << i;
	return block;
}

/* Puts the result of `in`, which comes from `sources`, where it goes. */
static void write_result(struct block *block, const struct instruction *in, struct origin sources)
{
	const struct operand *last = &in->operand[in->operands - 1];

	if (in->operands == 1 &&
	    (begins(in, "mul") || begins(in, "imul") || begins(in, "div") || begins(in, "idiv"))) {
		join(&sources, &block->now[RAX]);
		block->now[RAX] = block->now[RDX] = sources;
		return;
	}
	if (begins(in, "cmpxchg"))
		join(&block->now[RAX], &sources);
	if (begins(in, "xchg") || begins(in, "xadd"))
		for (unsigned i = 0; i < in->operands; i++)
			if (in->operand[i].itself >= 0)
				block->now[in->operand[i].itself] = sources;
	if (only_reads(in) || last->itself < 0)
		return;
	if (!overwrites(in))
		join(&sources, &block->now[last->itself]);
	block->now[last->itself] = sources;
}

struct load *dataflow_read(struct block *block, const char *text)
{
	struct instruction in = parse(text);
	struct origin sources = {0, 0};
	struct load *load = NULL;
	bool zeroes =
		overwrites(&in) && in.operands == 2 && (begins(&in, "xor") || begins(&in, "sub"));

	if (!in.operands)
		return NULL;
	for (unsigned i = 0; i < in.operands && !zeroes; i++) {
		const struct operand *operand = &in.operand[i];
		struct origin origin = origin_of(block, operand->registers);

		if (i + 1 == in.operands && in.operands > 1 && !only_reads(&in) &&
		    !operand->memory && overwrites(&in))
			continue;
		join(&sources, &origin);
		if (operand->memory && !begins(&in, "lea")) {
			load = add_load(block, operand->registers);
			sources.loads |= 1ull << load->index;
		}
	}
	write_result(block, &in, sources);
	return load;
}

void dataflow_end(struct block *block)
{
	for (unsigned r = 0; r < REGISTERS; r++) {
		for (unsigned i = 0; i < REGISTERS; i++)
			if (block->now[r].registers & 1u << i)
				block->passes[i] |= 1u << r;
		for (unsigned i = 0; i < MAX_LOADS; i++)
			if (block->now[r].loads & 1ull << i)
				block->load_passes[i] |= 1u << r;
	}
}
