// SPDX-License-Identifier: GPL-2.0-only
//! Every form of every instruction that is spelled out, with register and memory operands, does what this CPU does.

use iced_x86::code_asm::*;
use iced_x86::{
    Code, CpuidFeature, Encoder, EncodingKind, FlowControl, Instruction, MemoryOperand, OpCodeOperandKind, OpKind,
    Register,
};

use super::decode::DecodeCache;
use super::emulator::Registers;
use super::execute::{Halt, Thread};
use super::memory::{CopyLimits, Memory};
use super::values::{ALL_FLAGS, State, Value};
use crate::fresh_pages::FreshPages;
use tandem_policies::model::ProcessId;

/// Trials of each form.
const TRIALS: usize = 40;
/// Registers that instructions get; rdi points to data, rsp and r15 are the harness's.
const POOL: [usize; 13] = [0, 1, 2, 3, 5, 6, 8, 9, 10, 11, 12, 13, 14];
const DATA_POINTER: usize = 7;
/// CF, PF, AF, ZF, SF and OF.
const STATUS: u64 = 0x8d5;

/// What the harness loads before the instruction and stores after it.
#[repr(C)]
struct Context {
    general: [u64; 16],
    flags: u64,
    vector: [[u64; 2]; 8],
}

const FLAGS_AT: i32 = 128;
const VECTOR_AT: i32 = 136;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Small, large and special numbers.
    fn word(&mut self) -> u64 {
        let value = self.next();
        match self.below(6) {
            0 => value % 70,
            1 => value >> self.below(64),
            2 => u64::MAX << self.below(64),
            3 => 1 << self.below(64),
            4 => ((value % 2000) as f64 - 1000.0).to_bits() ^ (value >> 60),
            _ => value,
        }
    }

    fn register(&mut self, first: Register, high: bool) -> Register {
        let number = POOL[self.below(POOL.len())];
        // ah to bh follow al to bl where iced counts, and cannot be named beside new registers.
        if high && number < 4 && self.below(3) == 0 { Register::AH + number as u32 } else { byte_or(first, number) }
    }
}

/// Register `number` of the kind whose register 0 is `first`.
fn byte_or(first: Register, number: usize) -> Register {
    if first != Register::AL {
        return first + number as u32;
    }
    // iced numbers al cl dl bl ah ch dh bh spl bpl sil dil r8l ...
    if number < 4 { Register::AL + number as u32 } else { Register::SPL + (number as u32 - 4) }
}

/// An instruction of this form with random operands; `None` if it has operands of other kinds.
fn instruction(code: Code, random: &mut Random) -> Option<Instruction> {
    use OpCodeOperandKind as K;
    let (mut instruction, description) = (Instruction::default(), code.op_code());
    instruction.set_code(code);
    let has_immediate = (0..description.op_count()).any(|at| {
        matches!(description.op_kind(at), K::imm8 | K::imm8sex16 | K::imm8sex32 | K::imm8sex64 | K::imm8_const_1)
    });
    for at in 0..description.op_count() {
        let in_memory = random.below(3) == 0;
        let first = match description.op_kind(at) {
            K::r8_reg | K::r8_or_mem | K::r8_opcode => Register::AL,
            K::r16_reg | K::r16_rm | K::r16_or_mem | K::r16_opcode => Register::AX,
            K::r32_reg | K::r32_rm | K::r32_or_mem | K::r32_opcode | K::r32_vvvv => Register::EAX,
            K::r64_reg | K::r64_rm | K::r64_or_mem | K::r64_opcode | K::r64_vvvv => Register::RAX,
            K::xmm_reg | K::xmm_rm | K::xmm_or_mem => Register::XMM0,
            _ => Register::None,
        };
        let may_be_memory = matches!(
            description.op_kind(at),
            K::r8_or_mem | K::r16_or_mem | K::r32_or_mem | K::r64_or_mem | K::xmm_or_mem | K::mem
        );
        let must_be_memory = description.op_kind(at) == K::mem;
        if may_be_memory && (in_memory || must_be_memory) {
            instruction.set_op_kind(at, OpKind::Memory);
            let at = random.below(64) as i64 * 16;
            let operand = MemoryOperand::with_base_displ(Register::RDI, at);
            instruction.set_memory_base(operand.base);
            instruction.set_memory_displacement64(at as u64);
            instruction.set_memory_displ_size(4);
            continue;
        }
        if first == Register::XMM0 {
            instruction.set_op_register(at, Register::XMM0 + random.below(8) as u32);
            continue;
        }
        if first != Register::None {
            // A high byte beside another register could need a prefix that hides it.
            instruction.set_op_register(at, random.register(first, description.op_count() == 1 || has_immediate));
            continue;
        }
        let value = random.word();
        match description.op_kind(at) {
            K::imm8 => set(&mut instruction, at, OpKind::Immediate8, value as u8 as u64),
            K::imm8_const_1 => set(&mut instruction, at, OpKind::Immediate8, 1),
            K::imm8sex16 => set(&mut instruction, at, OpKind::Immediate8to16, value as i8 as u64),
            K::imm8sex32 => set(&mut instruction, at, OpKind::Immediate8to32, value as i8 as u64),
            K::imm8sex64 => set(&mut instruction, at, OpKind::Immediate8to64, value as i8 as u64),
            K::imm16 => set(&mut instruction, at, OpKind::Immediate16, value as u16 as u64),
            K::imm32 => set(&mut instruction, at, OpKind::Immediate32, value as u32 as u64),
            K::imm32sex64 => set(&mut instruction, at, OpKind::Immediate32to64, value as i32 as u64),
            K::imm64 => set(&mut instruction, at, OpKind::Immediate64, value),
            K::al => instruction.set_op_register(at, Register::AL),
            K::cl => instruction.set_op_register(at, Register::CL),
            K::ax => instruction.set_op_register(at, Register::AX),
            K::eax => instruction.set_op_register(at, Register::EAX),
            K::rax => instruction.set_op_register(at, Register::RAX),
            _ => return None,
        }
    }
    Some(instruction)
}

fn set(instruction: &mut Instruction, at: u32, kind: OpKind, value: u64) {
    instruction.set_op_kind(at, kind);
    instruction.set_immediate_u64(at, value);
}

/// Whether this CPU has what the form needs and the harness bears it.
fn can_run(code: Code) -> bool {
    let description = code.op_code();
    let has = |feature: &CpuidFeature| match feature {
        CpuidFeature::INTEL8086 | CpuidFeature::INTEL186 | CpuidFeature::INTEL286 | CpuidFeature::INTEL386 => true,
        CpuidFeature::INTEL486 | CpuidFeature::X64 | CpuidFeature::CMOV | CpuidFeature::SSE | CpuidFeature::SSE2 => {
            true
        }
        CpuidFeature::SSE3 => is_x86_feature_detected!("sse3"),
        CpuidFeature::POPCNT => is_x86_feature_detected!("popcnt"),
        CpuidFeature::LZCNT => is_x86_feature_detected!("lzcnt"),
        CpuidFeature::BMI1 => is_x86_feature_detected!("bmi1"),
        CpuidFeature::BMI2 => is_x86_feature_detected!("bmi2"),
        _ => false,
    };
    description.mode64()
        && description.is_instruction()
        && matches!(code.encoding(), EncodingKind::Legacy | EncodingKind::VEX)
        && code.flow_control() == FlowControl::Next
        && !code.is_privileged()
        && !code.is_stack_instruction()
        && !code.is_string_instruction()
        && code.cpuid_features().iter().all(has)
}

/// Code that loads the context that rdi points to, runs the instruction, and stores the context.
fn harness(bytes: &[u8]) -> Vec<u8> {
    let mut a = CodeAssembler::new(64).unwrap();
    let saved = [rbx, rbp, r12, r13, r14, r15];
    let all = [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14];
    let vectors = [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7];
    saved.iter().for_each(|&register| a.push(register).unwrap());
    a.mov(r15, rdi).unwrap();
    for (at, &register) in vectors.iter().enumerate() {
        a.movups(register, xmmword_ptr(r15 + (VECTOR_AT + at as i32 * 16))).unwrap();
    }
    a.push(qword_ptr(r15 + FLAGS_AT)).unwrap();
    a.popfq().unwrap();
    for (at, &register) in all.iter().enumerate().filter(|(at, _)| *at != 4) {
        a.mov(register, qword_ptr(r15 + at as i32 * 8)).unwrap();
    }
    a.db(bytes).unwrap();
    for (at, &register) in all.iter().enumerate().filter(|(at, _)| *at != 4) {
        a.mov(qword_ptr(r15 + at as i32 * 8), register).unwrap();
    }
    a.pushfq().unwrap();
    a.pop(qword_ptr(r15 + FLAGS_AT)).unwrap();
    for (at, &register) in vectors.iter().enumerate() {
        a.movups(xmmword_ptr(r15 + (VECTOR_AT + at as i32 * 16)), register).unwrap();
    }
    a.cld().unwrap();
    saved.iter().rev().for_each(|&register| a.pop(register).unwrap());
    a.ret().unwrap();
    a.assemble(0).unwrap()
}

struct Bench {
    code: FreshPages,
    data: FreshPages,
    thread: Thread,
    decoded: DecodeCache,
}

impl Bench {
    fn new() -> Self {
        let code = FreshPages::small(1).unwrap();
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        // SAFETY: a page of this test's own.
        assert_eq!(unsafe { libc::mprotect(code.start() as *mut libc::c_void, 4096, all) }, 0);
        let limits = CopyLimits { pieces_per_run: 64, ..CopyLimits::default() };
        let mut thread = Thread::new(Memory::new(limits));
        thread.puts_off = false;
        Self { code, data: FreshPages::small(1).unwrap(), thread, decoded: DecodeCache::new() }
    }

    fn data(&mut self) -> &mut [u64; 512] {
        // SAFETY: a page of this test's own, which nothing else refers to now.
        unsafe { &mut *(self.data.start() as *mut [u64; 512]) }
    }

    /// What differs; `None` if the instruction is not spelled out and could not be compared.
    fn differences(&mut self, bytes: &[u8], random: &mut Random) -> Option<Vec<String>> {
        self.data().iter_mut().for_each(|word| *word = random.word());
        let mut context = Context { general: [0; 16], flags: 0x202 | random.next() & STATUS, vector: [[0; 2]; 8] };
        context.general.iter_mut().for_each(|word| *word = random.word());
        context.general[DATA_POINTER] = self.data.start();
        context.vector.iter_mut().flatten().for_each(|word| *word = random.word());

        let me = std::process::id();
        self.decoded.forget(me, 0x1000);
        let decoded = self.decoded.get(me, 0x1000, |into| {
            into[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        });
        self.thread.memory.begin(ProcessId(me), 0);
        self.thread.start(me, &Registers { general: context.general, ip: 0x1000, flags: context.flags }, None);
        for (halves, known) in self.thread.state.vector.iter_mut().zip(context.vector) {
            *halves = known.map(Value::Known);
        }
        let text = decoded.instruction;
        match self.thread.step(decoded) {
            Err(Halt::Stop(super::StopReason::Fault)) => return None,
            Err(halt) => panic!("{text:?}: {halt:?}"),
            Ok(_) if self.thread.stepped_over > 0 => return None,
            Ok(next) => assert_eq!(next, 0x1000 + bytes.len() as u64),
        }
        let code = harness(bytes);
        // SAFETY: the page is as long and this test's own; the code keeps to the calling convention and touches the context
        // and the data only.
        unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), self.code.start() as *mut u8, code.len());
            let run: extern "C" fn(*mut Context) = std::mem::transmute(self.code.start() as usize);
            run(&mut context);
        }
        Some(self.compare(&context).into_iter().map(|difference| format!("{:?}: {difference}", text.code())).collect())
    }

    fn compare(&mut self, real: &Context) -> Vec<String> {
        let (state, mut differences) = (&self.thread.state, Vec::new());
        for number in POOL {
            let value = state.general[number];
            if !matches!(value, Value::Unknown(_)) && value != Value::Known(real.general[number]) {
                differences.push(format!("register {number}: {value:x?}, really {:x}", real.general[number]));
            }
        }
        let expected = State::new(&real.general, real.flags);
        for flag in (0..7).map(|bit| 1 << bit & ALL_FLAGS) {
            let value = state.flags(flag);
            if !matches!(value, Value::Unknown(_)) && value != expected.flags(flag) {
                differences.push(format!("flag {flag:#x}: {value:?}"));
            }
        }
        for (number, halves) in real.vector.iter().enumerate() {
            for (half, &real) in halves.iter().enumerate() {
                let Value::Known(value) = state.vector[number][half] else { continue };
                let is_nan = |value: u64| f64::from_bits(value).is_nan() || f32::from_bits(value as u32).is_nan();
                if value != real && !(is_nan(value) && is_nan(real)) {
                    differences.push(format!("half {half} of xmm{number}: {value:x}, really {real:x}"));
                }
            }
        }
        let start = self.data.start();
        for (at, &real) in self.data().clone().iter().enumerate() {
            for byte in 0..8 {
                let stored = self.thread.memory.stored(start + at as u64 * 8 + byte, 1);
                if let Some(Value::Known(value)) =
                    stored.filter(|value| *value != Value::Known(real >> (byte * 8) & 0xff))
                {
                    differences.push(format!("byte {byte} of word {at}: {value:x}, really in {real:x}"));
                }
            }
        }
        differences
    }
}

#[test]
fn instructions_do_what_this_cpu_does() {
    let (mut bench, mut random) = (Bench::new(), Random(0x9e37_79b9_7f4a_7c15));
    let (mut forms, mut differences) = (0, Vec::new());
    for code in Code::values().filter(|&code| can_run(code)) {
        let mut compared = false;
        for _ in 0..TRIALS {
            let Some(instruction) = instruction(code, &mut random) else { break };
            let mut encoder = Encoder::new(64);
            if encoder.encode(&instruction, 0x1000).is_err() {
                continue;
            }
            let bytes = encoder.take_buffer();
            let Some(found) = bench.differences(&bytes, &mut random) else { continue };
            compared = true;
            if !found.is_empty() {
                differences.push(found.join("; "));
                break;
            }
        }
        forms += usize::from(compared);
    }
    println!("{forms} forms");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(forms >= 300, "{forms} forms were compared");
}
