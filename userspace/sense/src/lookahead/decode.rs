// SPDX-License-Identifier: GPL-2.0-only
//! What one instruction reads and writes, as register bit masks, decoded once and kept by address.

use iced_x86::{
    Code, Decoder, DecoderOptions, EncodingKind, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    Register, UsedRegister,
};

/// Registers and flags as bits: 0..16 general registers, 16..32 xmm0..xmm15, 32..39 flags, 40 anything else.
pub(super) type RegisterMask = u64;

/// Vector registers outside xmm0..xmm15, mask, MMX and x87 registers: their contents are never known.
pub(super) const OTHER_REGISTERS: RegisterMask = 1 << 40;
/// xmm0..xmm15.
pub(super) const XMM_REGISTERS: RegisterMask = 0xffff << 16;
const FLAG_SHIFT: u32 = 32;
/// OF, SF, ZF, AF, CF, PF and DF as iced numbers them.
const KNOWN_FLAGS: u32 = 0x7f;
/// Longest x86 instruction.
pub(super) const MAX_INSTRUCTION_BYTES: usize = 15;
const CACHE_SLOTS: usize = 1 << 13;

/// How the emulation treats an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Runs in the emulator.
    Plain,
    /// Runs, but only if what decides its target is known.
    Branch,
    /// Its result depends on the machine (time stamp, CPU number, random numbers): stepped over.
    Unknowable,
    /// AVX or AVX-512, which the engine does not have: stepped over.
    Vector,
    /// Enters the kernel.
    Syscall,
    /// Privileged, or not an instruction.
    Unsupported,
}

/// One decoded instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decoded {
    pub(super) instruction: Instruction,
    pub(super) kind: Kind,
    /// Everything it reads.
    pub(super) inputs: RegisterMask,
    /// The part of `inputs` that forms addresses of memory it touches.
    pub(super) address: RegisterMask,
    /// Written as a whole: what was there before is gone.
    pub(super) replaced: RegisterMask,
    /// Written in part, or only under a condition.
    pub(super) merged: RegisterMask,
    /// Touches memory through FS.
    pub(super) uses_fs: bool,
    /// Touches memory through GS.
    pub(super) uses_gs: bool,
}

impl Decoded {
    /// Whether it works on vector or mask registers (what the emulator may not know and may be stepped over).
    pub(super) fn is_vector(&self) -> bool {
        (self.inputs | self.replaced | self.merged) & (XMM_REGISTERS | OTHER_REGISTERS) != 0
    }
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
    ) -> Decoded {
        let slot = (address ^ u64::from(process).wrapping_mul(0x9e37_79b9)) as usize % CACHE_SLOTS;
        if let Some((kept_process, kept_address, decoded)) = &self.slots[slot]
            && (*kept_process, *kept_address) == (process, address)
        {
            return *decoded;
        }
        let mut code = [0; MAX_INSTRUCTION_BYTES];
        let length = bytes(&mut code);
        let decoded = decode(&mut self.factory, &code[..length], address);
        self.slots[slot] = Some((process, address, decoded));
        decoded
    }

    /// Forgets everything: some code changed.
    pub(super) fn clear(&mut self) {
        self.slots.fill(None);
    }
}

fn register_bit(register: Register) -> RegisterMask {
    let full = register.full_register();
    if full.is_gpr64() {
        1 << full.number()
    } else if full.is_vector_register() && full.number() < 16 {
        1 << (16 + full.number())
    } else if full.is_segment_register() || full == Register::RIP || full == Register::None {
        0
    } else {
        OTHER_REGISTERS
    }
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

/// A 32-bit write clears the upper half; 8 and 16-bit writes keep the rest of the register.
fn replaces(used: &UsedRegister) -> bool {
    let register = used.register();
    matches!(used.access(), OpAccess::Write | OpAccess::ReadWrite) && (!register.is_gpr() || register.size() >= 4)
}

fn classify(instruction: &Instruction) -> Kind {
    match instruction.mnemonic() {
        Mnemonic::Syscall | Mnemonic::Sysenter => Kind::Syscall,
        Mnemonic::Rdtsc | Mnemonic::Rdtscp | Mnemonic::Rdpid | Mnemonic::Cpuid | Mnemonic::Xgetbv => Kind::Unknowable,
        Mnemonic::Rdrand | Mnemonic::Rdseed | Mnemonic::Rdfsbase | Mnemonic::Rdgsbase | Mnemonic::Rdpkru => {
            Kind::Unknowable
        }
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
    let flags = |bits: u32| RegisterMask::from(bits & KNOWN_FLAGS) << FLAG_SHIFT;
    let mut decoded = Decoded {
        instruction,
        kind: classify(&instruction),
        inputs: flags(instruction.rflags_read()),
        address: 0,
        replaced: flags(instruction.rflags_modified()),
        merged: 0,
        uses_fs: false,
        uses_gs: false,
    };
    for used in info.used_registers() {
        let bit = register_bit(used.register());
        if is_read(used.access()) {
            decoded.inputs |= bit;
        }
        if replaces(used) {
            decoded.replaced |= bit;
        } else if is_write(used.access()) {
            decoded.merged |= bit;
        }
    }
    for memory in info.used_memory().iter().filter(|memory| touches_memory(memory.access())) {
        if !memory.index().is_vector_register() {
            decoded.address |= register_bit(memory.index());
        }
        decoded.address |= register_bit(memory.base());
        decoded.uses_fs |= memory.segment() == Register::FS;
        decoded.uses_gs |= memory.segment() == Register::GS;
    }
    if decoded.kind == Kind::Plain && instruction.encoding() != EncodingKind::Legacy && decoded.is_vector() {
        decoded.kind = Kind::Vector;
    }
    // What these step along by a constant does not take on the unknown of the data that moves.
    let mut stepped = 0;
    if instruction.is_stack_instruction() && instruction.op0_register() != Register::RSP {
        stepped |= register_bit(Register::RSP);
    }
    if instruction.is_string_instruction() {
        stepped |= register_bit(Register::RSI) | register_bit(Register::RDI) | register_bit(Register::RCX);
        let repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
        if repeated {
            decoded.address |= register_bit(Register::RCX);
            if matches!(
                decoded.instruction.mnemonic(),
                Mnemonic::Cmpsb | Mnemonic::Cmpsw | Mnemonic::Cmpsd | Mnemonic::Cmpsq
            ) || matches!(
                decoded.instruction.mnemonic(),
                Mnemonic::Scasb | Mnemonic::Scasw | Mnemonic::Scasd | Mnemonic::Scasq
            ) {
                decoded.kind = Kind::Branch;
            }
        }
    }
    decoded.replaced &= !stepped;
    decoded.merged &= !stepped;
    decoded
}
