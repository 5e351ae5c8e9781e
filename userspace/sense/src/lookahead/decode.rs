// SPDX-License-Identifier: GPL-2.0-only
//! What an instruction is and what it writes, decoded once and kept by address.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};

/// Registers and flags as bits: 0..16 general registers, 16..32 xmm0..xmm15, 32..39 flags.
pub(super) type RegisterMask = u64;

const FLAG_SHIFT: u32 = 32;
/// OF, SF, ZF, AF, CF, PF and DF as iced numbers them.
const KNOWN_FLAGS: u32 = 0x7f;
/// Longest x86 instruction.
pub(super) const MAX_INSTRUCTION_BYTES: usize = 15;
const CACHE_SLOTS: usize = 1 << 13;

/// How the emulation treats an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Computes.
    Plain,
    /// Goes on elsewhere, if what decides that is known.
    Branch,
    /// Enters the kernel.
    Syscall,
    /// Privileged, or not an instruction.
    Unsupported,
}

/// The one memory operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operand {
    pub(super) bytes: u16,
    pub(super) read: bool,
    pub(super) written: bool,
    /// An index that is a vector: many addresses, none of them known.
    pub(super) gathers: bool,
}

/// One decoded instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decoded {
    pub(super) instruction: Instruction,
    pub(super) kind: Kind,
    /// Registers and flags that it writes, unless they only step along by a constant.
    pub(super) written: RegisterMask,
    /// What it touches, if its address is spelled out in it.
    pub(super) operand: Option<Operand>,
}

/// Decoded instructions by process and address; direct-mapped, so its size is fixed.
pub(super) struct DecodeCache {
    slots: Vec<Option<(u32, u64, Decoded)>>,
    factory: InstructionInfoFactory,
}

impl DecodeCache {
    pub(super) fn new() -> Self {
        Self { slots: vec![None; CACHE_SLOTS], factory: InstructionInfoFactory::new() }
    }

    /// The instruction at `address` of process `process`; `bytes` fetches its code when it is not kept.
    pub(super) fn get(
        &mut self,
        process: u32,
        address: u64,
        bytes: impl FnOnce(&mut [u8; MAX_INSTRUCTION_BYTES]) -> usize,
    ) -> &Decoded {
        let slot = slot_of(process, address);
        let kept = self.slots[slot].as_ref().is_some_and(|kept| (kept.0, kept.1) == (process, address));
        if !kept {
            let mut code = [0; MAX_INSTRUCTION_BYTES];
            let length = bytes(&mut code);
            self.slots[slot] = None;
            let decoded = decode(&mut self.factory, &code[..length], address);
            return &self.slots[slot].insert((process, address, decoded)).2;
        }
        &self.slots[slot].as_ref().expect("it is kept").2
    }

    /// Forgets one instruction.
    pub(super) fn forget(&mut self, process: u32, address: u64) {
        let slot = slot_of(process, address);
        self.slots[slot] = None;
    }

    /// Forgets everything: some code changed.
    pub(super) fn clear(&mut self) {
        self.slots.fill(None);
    }
}

fn slot_of(process: u32, address: u64) -> usize {
    (address ^ u64::from(process).wrapping_mul(0x9e37_79b9)) as usize % CACHE_SLOTS
}

/// The bit of a register in a mask; 0 for those that are not tracked.
pub(super) fn register_bit(register: Register) -> RegisterMask {
    let full = register.full_register();
    if full.is_gpr64() {
        1 << full.number()
    } else if full.is_vector_register() && full.number() < 16 {
        1 << (16 + full.number())
    } else {
        0
    }
}

/// The flags of a mask, as iced numbers them.
pub(super) fn flag_bits(mask: RegisterMask) -> u32 {
    (mask >> FLAG_SHIFT) as u32 & KNOWN_FLAGS
}

fn is_read(access: OpAccess) -> bool {
    matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

/// Whether an access of this kind changes its operand.
pub(super) fn is_write(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

/// Whether a memory operand with this access is really touched (`lea` and prefetches are not).
pub(super) fn touches_memory(access: OpAccess) -> bool {
    is_read(access) || is_write(access)
}

fn classify(instruction: &Instruction) -> Kind {
    match instruction.mnemonic() {
        Mnemonic::Syscall | Mnemonic::Sysenter => Kind::Syscall,
        // Their results are the machine's; nobody can tell them.
        Mnemonic::Rdtsc | Mnemonic::Rdtscp | Mnemonic::Rdpid | Mnemonic::Cpuid | Mnemonic::Xgetbv => Kind::Plain,
        Mnemonic::Wrfsbase | Mnemonic::Wrgsbase | Mnemonic::Hlt | Mnemonic::INVALID => Kind::Unsupported,
        _ if instruction.code() == Code::INVALID || instruction.is_privileged() => Kind::Unsupported,
        _ => match instruction.flow_control() {
            FlowControl::Next => Kind::Plain,
            FlowControl::Interrupt => Kind::Syscall,
            FlowControl::Exception | FlowControl::XbeginXabortXend => Kind::Unsupported,
            _ => Kind::Branch,
        },
    }
}

fn decode(factory: &mut InstructionInfoFactory, code: &[u8], address: u64) -> Decoded {
    let instruction = Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode();
    let info = factory.info(&instruction);
    let mut written = RegisterMask::from(instruction.rflags_modified() & KNOWN_FLAGS) << FLAG_SHIFT;
    for used in info.used_registers().iter().filter(|used| is_write(used.access())) {
        written |= register_bit(used.register());
    }
    if instruction.is_stack_instruction() {
        written &= !register_bit(Register::RSP);
    }
    let has_operand = (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::Memory);
    let used_memory = info.used_memory().iter().find(|memory| touches_memory(memory.access()));
    let operand = used_memory.filter(|_| has_operand).map(|memory| Operand {
        bytes: instruction.memory_size().size().max(1) as u16,
        read: is_read(memory.access()),
        written: is_write(memory.access()),
        gathers: memory.index().is_vector_register(),
    });
    Decoded { instruction, kind: classify(&instruction), written, operand }
}
