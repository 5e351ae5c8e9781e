// SPDX-License-Identifier: GPL-2.0-only
//! What each instruction does to what is known of a thread.
//!
//! Instructions that are not spelled out here are stepped over: what they touch is noted, what they write is unknown.

use hashbrown::HashSet;
use iced_x86::{ConditionCode, FlowControl, Instruction, Mnemonic, OpKind, Register, RflagsBits};
use tandem_policies::model::PAGE_BYTES;

use super::counters::StopReason;
use super::decode::{Decoded, Kind};
use super::emulator::{Registers, Touch};
use super::filter::STACK_BYTES;
use super::memory::{Memory, NoData};
use super::tls::{DESCRIPTOR_BYTES, is_descriptor};
use super::values::{ALL_FLAGS, Cause, STACK_POINTER, State, Value};

/// Loads that are remembered to be needed; the set starts anew beyond that.
const MOST_NEEDED: usize = 8192;

/// Pages among which a run is said to return to one: as many as a loop goes through side by side.
const LAST_PAGES: usize = 8;

/// Why a run does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    Stop(StopReason),
    /// The value that the load at this address brings is needed; the run ends for this reason if it cannot be had.
    Needs(u64, StopReason),
}

/// Where a thread goes on.
type Next = Result<u64, Halt>;

/// What is known of a thread's TLS base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadLocal {
    Unknown,
    /// Not looked at in this run yet.
    Claimed(u64),
    Known(u64),
    /// What was claimed is no descriptor.
    Wrong,
}

/// A thread that is run ahead.
pub(super) struct Thread {
    pub(super) state: State,
    pub(super) memory: Memory,
    pub(super) touches: Vec<Touch>,
    pub(super) thread_local: ThreadLocal,
    pub(super) stepped_over: u32,
    /// Accesses to pages where the run had been a short time before, but for those near the stack pointer that it began with.
    pub(super) returns: u32,
    pages: Vec<u64>,
    stack_pointer: u64,
    process: u32,
    /// Loads whose values decided an address or a branch, by process and address of the instruction.
    needed: HashSet<(u32, u64)>,
    /// Whether loads are put off until they are known to be needed.
    pub(super) puts_off: bool,
}

impl Thread {
    pub(super) fn new(memory: Memory) -> Self {
        Self {
            state: State::new(&[0; 16], 0),
            memory,
            touches: Vec::new(),
            thread_local: ThreadLocal::Unknown,
            stepped_over: 0,
            returns: 0,
            pages: Vec::new(),
            stack_pointer: 0,
            process: 0,
            needed: HashSet::new(),
            puts_off: true,
        }
    }

    /// At the beginning of a run, or of another attempt at it.
    pub(super) fn start(&mut self, process: u32, registers: &Registers, fs_base: Option<u64>) {
        (self.process, self.state) = (process, State::new(&registers.general, registers.flags));
        (self.stack_pointer, self.returns) = (registers.general[STACK_POINTER], 0);
        self.touches.clear();
        self.pages.clear();
        self.memory.forget_stores();
        self.thread_local = fs_base.map_or(ThreadLocal::Unknown, ThreadLocal::Claimed);
        self.stepped_over = 0;
    }

    /// From now on the load at `address` is carried out. Whether it was not before.
    pub(super) fn need(&mut self, address: u64) -> bool {
        if self.needed.len() >= MOST_NEEDED {
            self.needed.clear();
        }
        self.needed.insert((self.process, address))
    }

    /// Code has changed: what was learned of it is forgotten.
    pub(super) fn forget_code(&mut self) {
        self.needed.clear();
    }

    /// Does what the instruction does; where the thread goes on.
    pub(super) fn step(&mut self, decoded: &Decoded) -> Next {
        let instruction = &decoded.instruction;
        match decoded.kind {
            Kind::Syscall => Err(Halt::Stop(StopReason::Syscall)),
            Kind::Unsupported => Err(Halt::Stop(StopReason::Unsupported)),
            Kind::Branch => self.branch(instruction),
            Kind::Plain if instruction.is_string_instruction() => self.string(instruction),
            Kind::Plain => {
                if !self.compute(instruction)? && !self.compute_vector(instruction)? {
                    self.step_over(decoded)?;
                }
                Ok(instruction.next_ip())
            }
        }
    }

    /// A value that must be known to go on.
    pub(super) fn must_know(&self, value: Value, otherwise: StopReason) -> Result<u64, Halt> {
        match value {
            Value::Known(value) => Ok(value),
            Value::Unknown(Cause::Load(address)) => Err(Halt::Needs(address, otherwise)),
            Value::Unknown(Cause::Never) => Err(Halt::Stop(otherwise)),
        }
    }

    /// The offset that a memory operand spells out.
    pub(super) fn offset(&self, instruction: &Instruction) -> Value {
        if instruction.is_ip_rel_memory_operand() {
            return Value::Known(instruction.ip_rel_memory_address());
        }
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let mut offset = Value::Known(instruction.memory_displacement64());
        let mut bytes = 8;
        for (register, scale) in [(base, 1), (index, u64::from(instruction.memory_index_scale()))] {
            if register == Register::None {
                continue;
            }
            bytes = register.size();
            offset = match offset.and(self.state.register(register)) {
                Ok((offset, value)) => Value::Known(offset.wrapping_add(value.wrapping_mul(scale))),
                Err(cause) => cause.into(),
            };
        }
        offset.low(bytes)
    }

    /// The address of the memory operand; `None` if its segment's base is not known.
    pub(super) fn address(&mut self, instruction: &Instruction) -> Result<Option<u64>, Halt> {
        let segment = match instruction.memory_segment() {
            Register::FS => self.thread_local_base(),
            Register::GS => None,
            _ => Some(0),
        };
        let Some(segment) = segment else { return Ok(None) };
        let offset = self.must_know(self.offset(instruction), StopReason::UnknownAddress)?;
        Ok(Some(segment.wrapping_add(offset)))
    }

    /// The TLS base, which is looked at when it is used first.
    fn thread_local_base(&mut self) -> Option<u64> {
        if let ThreadLocal::Claimed(base) = self.thread_local {
            let mut start = [0; DESCRIPTOR_BYTES];
            let right = self.memory.data(base, &mut start).is_ok() && is_descriptor(&start, base);
            self.thread_local = if right { ThreadLocal::Known(base) } else { ThreadLocal::Wrong };
        }
        if let ThreadLocal::Known(base) = self.thread_local { Some(base) } else { None }
    }

    /// Notes the load of `bytes` by `instruction`; their value, if they are 8 at most.
    pub(super) fn load(&mut self, instruction: &Instruction, address: u64, bytes: usize) -> Result<Value, Halt> {
        self.touch(address, bytes, false);
        self.value_at(instruction, address, bytes)
    }

    pub(super) fn touch(&mut self, address: u64, bytes: usize, store: bool) {
        self.touches.push(Touch { address, bytes: bytes as u16, store });
        if address.abs_diff(self.stack_pointer) < STACK_BYTES {
            return;
        }
        let page = address / PAGE_BYTES;
        if self.pages.iter().rev().take(LAST_PAGES).any(|&last| last == page) {
            self.returns += 1;
        } else {
            self.pages.push(page);
        }
    }

    /// The value of `bytes` (8 at most) at `address`, or which load was put off.
    pub(super) fn value_at(&mut self, instruction: &Instruction, address: u64, bytes: usize) -> Result<Value, Halt> {
        if let Some(value) = self.memory.stored(address, bytes) {
            return Ok(value);
        }
        if self.puts_off && !self.needed.contains(&(self.process, instruction.ip())) {
            return Ok(Value::Unknown(Cause::Load(instruction.ip())));
        }
        self.memory.load(address, bytes).map_err(|error| {
            Halt::Stop(match error {
                NoData::Unreadable => StopReason::UnreadableData,
                NoData::TooMuch => StopReason::Copies,
            })
        })
    }

    pub(super) fn store(&mut self, address: u64, bytes: usize, value: Value) {
        self.touch(address, bytes, true);
        self.memory.store(address, bytes, value);
    }

    /// Bytes of an operand.
    pub(super) fn bytes(instruction: &Instruction, operand: u32) -> usize {
        match instruction.op_kind(operand) {
            OpKind::Register => instruction.op_register(operand).size(),
            OpKind::Memory => instruction.memory_size().size(),
            _ => 8,
        }
    }

    /// The value of an operand of 8 bytes at most.
    pub(super) fn read(&mut self, instruction: &Instruction, operand: u32) -> Result<Value, Halt> {
        Ok(match instruction.op_kind(operand) {
            OpKind::Register => self.state.register(instruction.op_register(operand)),
            OpKind::Memory => match self.address(instruction)? {
                Some(address) => self.load(instruction, address, Self::bytes(instruction, operand))?,
                None => Value::NEVER,
            },
            _ => Value::Known(instruction.immediate(operand)),
        })
    }

    /// Writes an operand of 8 bytes at most.
    pub(super) fn write(&mut self, instruction: &Instruction, operand: u32, value: Value) -> Result<(), Halt> {
        match instruction.op_kind(operand) {
            OpKind::Register => self.state.set_register(instruction.op_register(operand), value),
            _ => {
                if let Some(address) = self.address(instruction)? {
                    self.store(address, Self::bytes(instruction, operand), value);
                }
            }
        }
        Ok(())
    }

    /// Sets the flags that the instruction writes as they are in `flags`.
    pub(super) fn set_flags(&mut self, instruction: &Instruction, flags: u32) {
        let undefined = instruction.rflags_undefined();
        self.state.set_flags(instruction.rflags_modified() & ALL_FLAGS & !undefined, flags);
        self.state.forget_flags(undefined, Cause::Never);
    }

    /// A result and flags that are not known.
    pub(super) fn unknown(&mut self, instruction: &Instruction, cause: Cause) -> Value {
        self.state.forget_flags(instruction.rflags_modified(), cause);
        cause.into()
    }

    /// Whether the instruction's condition holds, as 0 or 1.
    pub(super) fn condition(&self, instruction: &Instruction) -> Value {
        self.state.flags(instruction.rflags_read()).map(|flags| {
            let set = |flag: u32| flags as u32 & flag != 0;
            let (zero, carry, less) =
                (set(RflagsBits::ZF), set(RflagsBits::CF), set(RflagsBits::SF) != set(RflagsBits::OF));
            u64::from(match instruction.condition_code() {
                ConditionCode::None => true,
                ConditionCode::o => set(RflagsBits::OF),
                ConditionCode::no => !set(RflagsBits::OF),
                ConditionCode::b => carry,
                ConditionCode::ae => !carry,
                ConditionCode::e => zero,
                ConditionCode::ne => !zero,
                ConditionCode::be => carry || zero,
                ConditionCode::a => !carry && !zero,
                ConditionCode::s => set(RflagsBits::SF),
                ConditionCode::ns => !set(RflagsBits::SF),
                ConditionCode::p => set(RflagsBits::PF),
                ConditionCode::np => !set(RflagsBits::PF),
                ConditionCode::l => less,
                ConditionCode::ge => !less,
                ConditionCode::le => zero || less,
                ConditionCode::g => !zero && !less,
            })
        })
    }

    /// Notes what the instruction touches; what it writes is unknown from then on.
    fn step_over(&mut self, decoded: &Decoded) -> Result<(), Halt> {
        let instruction = &decoded.instruction;
        if let Some(operand) = decoded.operand {
            if operand.gathers && operand.written {
                // It may have changed any word.
                return Err(Halt::Stop(StopReason::UnknownAddress));
            }
            let address = if operand.gathers { None } else { self.address(instruction)? };
            if let Some(address) = address {
                if operand.read {
                    self.touch(address, operand.bytes.into(), false);
                }
                if operand.written {
                    self.touch(address, operand.bytes.into(), true);
                    for word in (0..u64::from(operand.bytes)).step_by(8) {
                        let bytes = (u64::from(operand.bytes) - word).min(8) as usize;
                        self.memory.store(address.wrapping_add(word), bytes, Value::NEVER);
                    }
                }
            }
        }
        if instruction.is_stack_instruction() {
            let by = i64::from(instruction.stack_pointer_increment()) as u64;
            let stack_pointer = &mut self.state.general[STACK_POINTER];
            *stack_pointer = stack_pointer.map(|value| value.wrapping_add(by));
        }
        // vzeroupper leaves the low halves, which are all that is tracked, as they are.
        if instruction.mnemonic() != Mnemonic::Vzeroupper {
            self.state.forget(decoded.written);
        }
        self.stepped_over += 1;
        Ok(())
    }

    pub(super) fn push(&mut self, bytes: usize, value: Value) -> Result<(), Halt> {
        let top = self.must_know(self.state.general[STACK_POINTER], StopReason::UnknownAddress)?;
        let top = top.wrapping_sub(bytes as u64);
        self.store(top, bytes, value.low(bytes));
        self.state.general[STACK_POINTER] = Value::Known(top);
        Ok(())
    }

    pub(super) fn pop(&mut self, instruction: &Instruction, bytes: usize) -> Result<Value, Halt> {
        let top = self.must_know(self.state.general[STACK_POINTER], StopReason::UnknownAddress)?;
        let value = self.load(instruction, top, bytes)?;
        self.state.general[STACK_POINTER] = Value::Known(top.wrapping_add(bytes as u64));
        Ok(value)
    }

    fn branch(&mut self, instruction: &Instruction) -> Next {
        let unsupported = Err(Halt::Stop(StopReason::Unsupported));
        let next = instruction.next_ip();
        match instruction.flow_control() {
            FlowControl::UnconditionalBranch if instruction.op0_kind() == OpKind::NearBranch64 => {
                Ok(instruction.near_branch_target())
            }
            FlowControl::IndirectBranch if instruction.is_jmp_near_indirect() => self.target(instruction),
            FlowControl::ConditionalBranch => {
                let Some(taken) = self.is_taken(instruction)? else { return unsupported };
                Ok(if taken { instruction.near_branch_target() } else { next })
            }
            FlowControl::Call if instruction.op0_kind() == OpKind::NearBranch64 => {
                self.push(8, Value::Known(next))?;
                Ok(instruction.near_branch_target())
            }
            FlowControl::IndirectCall if instruction.is_call_near_indirect() => {
                let target = self.target(instruction)?;
                self.push(8, Value::Known(next))?;
                Ok(target)
            }
            FlowControl::Return if instruction.mnemonic() == Mnemonic::Ret => {
                let target = self.pop(instruction, 8)?;
                if instruction.op_count() == 1 {
                    let by = instruction.immediate(0);
                    let stack_pointer = &mut self.state.general[STACK_POINTER];
                    *stack_pointer = stack_pointer.map(|value| value.wrapping_add(by));
                }
                self.must_know(target, StopReason::UnknownBranch)
            }
            _ => unsupported,
        }
    }

    fn target(&mut self, instruction: &Instruction) -> Next {
        let target = self.read(instruction, 0)?;
        self.must_know(target, StopReason::UnknownBranch)
    }

    /// Whether a conditional branch is taken; `None` for one that is not known here.
    fn is_taken(&mut self, instruction: &Instruction) -> Result<Option<bool>, Halt> {
        let counter = self.state.register(Register::RCX);
        let taken = match instruction.mnemonic() {
            Mnemonic::Jrcxz => counter.map(|counter| u64::from(counter == 0)),
            Mnemonic::Loop => {
                let left = counter.map(|counter| counter.wrapping_sub(1));
                self.state.set_register(Register::RCX, left);
                left.map(|left| u64::from(left != 0))
            }
            Mnemonic::Loope | Mnemonic::Loopne | Mnemonic::Jecxz | Mnemonic::Jcxz => return Ok(None),
            _ if instruction.condition_code() == ConditionCode::None => return Ok(None),
            _ => self.condition(instruction),
        };
        Ok(Some(self.must_know(taken, StopReason::UnknownBranch)? != 0))
    }
}
