// SPDX-License-Identifier: GPL-2.0-only
//! Runs a sampled thread's own code forward on a private copy of its memory and notes what it touches.
//!
//! One engine lives as long as the sampler. Values the engine cannot know (vector registers, the time stamp
//! counter, thread-local storage without a known base) are tracked as unknown through registers, flags and
//! memory; the run ends when an address or a branch depends on one. Memory contents stay in the engine.

use iced_x86::{InstructionInfoFactory, Register};
use tandem_policies::model::ProcessId;
use unicorn_engine::unicorn_const::{Arch, HookType, MemType, Mode, Prot, TlbEntry, TlbType, uc_error};
use unicorn_engine::{RegisterX86, Unicorn};

use super::LookaheadError;
use super::counters::StopReason;
use super::decode::{DecodeCache, Decoded, Kind, is_write, touches_memory};
use super::pages::{PageCache, PageLimits, Stale};
use super::taint::Taint;
use super::tls::{DESCRIPTOR_BYTES, is_descriptor};

/// General registers in the order of [`Registers::general`] (the hardware's numbering).
const GENERAL: [RegisterX86; 16] = [
    RegisterX86::RAX,
    RegisterX86::RCX,
    RegisterX86::RDX,
    RegisterX86::RBX,
    RegisterX86::RSP,
    RegisterX86::RBP,
    RegisterX86::RSI,
    RegisterX86::RDI,
    RegisterX86::R8,
    RegisterX86::R9,
    RegisterX86::R10,
    RegisterX86::R11,
    RegisterX86::R12,
    RegisterX86::R13,
    RegisterX86::R14,
    RegisterX86::R15,
];
/// Index of the stack pointer in [`Registers::general`].
pub const STACK_POINTER: usize = 4;
/// Flags that user code computes with; the trap flag would stop the engine.
const USER_FLAGS: u64 = 0xcd5;

/// A thread's user registers at the moment of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to r15.
    pub general: [u64; 16],
    /// Instruction pointer.
    pub ip: u64,
    /// rflags.
    pub flags: u64,
}

/// One load or store of an emulated run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Virtual address.
    pub address: u64,
    /// Bytes.
    pub bytes: u16,
    /// A store.
    pub store: bool,
}

/// How an emulated run went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Why it ended.
    pub stop: StopReason,
    /// Instructions run, the stepped-over ones included.
    pub instructions: u32,
    /// Instructions stepped over because the engine cannot run them.
    pub stepped_over: u32,
}

/// What is known of a thread's TLS base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadLocal {
    Unknown,
    /// Not looked at in this run yet.
    Claimed(u64),
    Known,
    /// What was claimed is no descriptor.
    Wrong,
}

struct State {
    pages: PageCache,
    decoded: DecodeCache,
    taint: Taint,
    touches: Vec<Touch>,
    limit: u32,
    process: u32,
    thread_local: ThreadLocal,
    /// The instruction in flight and whether its result is unknown.
    current: Option<(Decoded, bool)>,
    run: Run,
    stopped: bool,
}

impl State {
    fn stop(&mut self, reason: StopReason) {
        if !self.stopped {
            self.stopped = true;
            self.run.stop = reason;
        }
    }

    /// Whether the TLS base is known, which is looked at when it is used first.
    fn knows_thread_local(&mut self) -> bool {
        if let ThreadLocal::Claimed(base) = self.thread_local {
            let mut start = [0; DESCRIPTOR_BYTES];
            let right = self.pages.data(base, &mut start) && is_descriptor(&start, base);
            self.thread_local = if right { ThreadLocal::Known } else { ThreadLocal::Wrong };
        }
        self.thread_local == ThreadLocal::Known
    }

    fn finish_instruction(&mut self) {
        if let Some((decoded, unknown)) = self.current.take() {
            self.taint.commit(&decoded, unknown);
        }
    }
}

/// What to do with the instruction that comes next.
enum Next {
    Run,
    StepOver,
    Stop(StopReason),
}

/// The long-lived engine.
pub struct Emulator {
    engine: Unicorn<'static, State>,
}

impl Emulator {
    /// An engine that runs at most `instructions` per sample.
    ///
    /// # Errors
    /// [`LookaheadError::Engine`] when the engine cannot be set up.
    pub fn new(instructions: u32, limits: PageLimits) -> Result<Self, LookaheadError> {
        let state = State {
            pages: PageCache::new(limits),
            decoded: DecodeCache::new(),
            taint: Taint::new(),
            touches: Vec::new(),
            limit: instructions,
            process: 0,
            thread_local: ThreadLocal::Unknown,
            current: None,
            run: Run { stop: StopReason::Limit, instructions: 0, stepped_over: 0 },
            stopped: false,
        };
        let engine = Unicorn::new_with_data(Arch::X86, Mode::MODE_64, state).map_err(LookaheadError::Engine)?;
        Self { engine }.set_up().map_err(LookaheadError::Engine)
    }

    fn set_up(mut self) -> Result<Self, uc_error> {
        let engine = &mut self.engine;
        engine.ctl_set_tlb_type(TlbType::VIRTUAL)?;
        let (arena, bytes) = (engine.get_data().pages.arena(), engine.get_data().pages.arena_bytes());
        // SAFETY: the arena is owned by the engine's data, which is dropped after the engine is closed.
        unsafe { engine.mem_map_ptr(0, bytes, Prot::ALL, arena.cast())? };
        engine.add_code_hook(1, 0, |engine, address, _| before_instruction(engine, address))?;
        engine.add_mem_hook(HookType::MEM_READ | HookType::MEM_WRITE, 1, 0, |engine, kind, offset, bytes, _| {
            on_touch(engine, kind, offset, bytes);
            true
        })?;
        engine.add_tlb_hook(1, 0, |engine, address, kind| {
            let fetch = kind == MemType::FETCH;
            let state = engine.get_data_mut();
            let Some(paddr) = state.pages.translate(address, fetch) else {
                state.stop(if fetch { StopReason::UnreadableCode } else { StopReason::UnreadableData });
                return None;
            };
            let perms = if fetch { Prot::ALL } else { Prot::READ | Prot::WRITE };
            Some(TlbEntry { paddr, perms })
        })?;
        engine.add_insn_invalid_hook(on_invalid)?;
        engine.add_intr_hook(|engine, _| {
            engine.get_data_mut().stop(StopReason::Fault);
            // Only fails on a closed engine.
            let _ = engine.emu_stop();
        })?;
        Ok(self)
    }

    /// Runs on from `registers` of a thread of `process`, sampled at `sample_ns`, read now (`now_ns`, same clock).
    ///
    /// `fs_base` is the thread's TLS base if known; it is checked when the code uses it. The touches are in [`Emulator::touches`], in order.
    ///
    /// # Errors
    /// [`LookaheadError::Engine`] when the engine itself refuses; how the sampled code ends is in [`Run::stop`].
    pub fn run(
        &mut self,
        process: ProcessId,
        registers: &Registers,
        fs_base: Option<u64>,
        sample_ns: u64,
        now_ns: u64,
    ) -> Result<Run, LookaheadError> {
        self.prepare(process, registers, fs_base, sample_ns, now_ns).map_err(LookaheadError::Engine)?;
        let ended = self.engine.emu_start(registers.ip, 0, 0, 0);
        let state = self.engine.get_data_mut();
        state.finish_instruction();
        if ended.is_err() {
            state.stop(StopReason::Fault);
        }
        Ok(state.run)
    }

    /// What the last run touched, in order.
    pub fn touches(&self) -> &[Touch] {
        &self.engine.get_data().touches
    }

    /// Whether the last run met something else than a thread's descriptor at the TLS base that it was given.
    pub fn thread_local_was_wrong(&self) -> bool {
        self.engine.get_data().thread_local == ThreadLocal::Wrong
    }

    /// Pages copied from processes so far.
    pub fn pages_read(&self) -> u64 {
        self.engine.get_data().pages.pages_read
    }

    fn prepare(
        &mut self,
        process: ProcessId,
        registers: &Registers,
        fs_base: Option<u64>,
        sample_ns: u64,
        now_ns: u64,
    ) -> Result<(), uc_error> {
        let state = self.engine.get_data_mut();
        let stale = state.pages.begin(process, sample_ns, now_ns);
        state.taint.reset();
        state.touches.clear();
        state.process = process.0;
        state.thread_local = fs_base.map_or(ThreadLocal::Unknown, ThreadLocal::Claimed);
        state.current = None;
        state.stopped = false;
        state.run = Run { stop: StopReason::Limit, instructions: 0, stepped_over: 0 };
        if stale == Stale::Code {
            state.decoded.clear();
            self.engine.ctl_flush_tb()?;
        }
        self.engine.ctl_flush_tlb()?;
        for (register, value) in GENERAL.into_iter().zip(registers.general) {
            self.engine.reg_write(register, value)?;
        }
        self.engine.reg_write(RegisterX86::EFLAGS, registers.flags & USER_FLAGS | 2)?;
        self.engine.reg_write(RegisterX86::FS_BASE, fs_base.unwrap_or(0))
    }
}

fn judge(state: &mut State, decoded: &Decoded) -> Next {
    match decoded.kind {
        Kind::Syscall => return Next::Stop(StopReason::Syscall),
        Kind::Unsupported => return Next::Stop(StopReason::Unsupported),
        Kind::Plain | Kind::Branch | Kind::Unknowable | Kind::Vector => {}
    }
    if state.taint.any(decoded.address) {
        return Next::Stop(StopReason::UnknownAddress);
    }
    let unknown = state.taint.any(decoded.inputs);
    if decoded.kind == Kind::Branch && unknown {
        return Next::Stop(StopReason::UnknownBranch);
    }
    let unknown_segment = decoded.uses_gs || decoded.uses_fs && !state.knows_thread_local();
    if unknown_segment && decoded.kind == Kind::Branch {
        return Next::Stop(StopReason::UnknownBranch);
    }
    if unknown_segment || matches!(decoded.kind, Kind::Unknowable | Kind::Vector) {
        return Next::StepOver;
    }
    state.current = Some((*decoded, unknown));
    Next::Run
}

fn before_instruction(engine: &mut Unicorn<'_, State>, address: u64) {
    let state = engine.get_data_mut();
    if state.stopped {
        return;
    }
    state.finish_instruction();
    let next = if state.run.instructions >= state.limit {
        Next::Stop(StopReason::Limit)
    } else {
        let State { pages, decoded, process, .. } = state;
        let decoded = decoded.get(*process, address, |bytes| pages.code(address, bytes));
        let next = judge(state, &decoded);
        if matches!(next, Next::StepOver) {
            return step_over(engine, &decoded);
        }
        next
    };
    match next {
        Next::Stop(reason) => {
            state.stop(reason);
            // Only fails on a closed engine.
            let _ = engine.emu_stop();
        }
        Next::Run | Next::StepOver => state.run.instructions += 1,
    }
}

fn on_touch(engine: &mut Unicorn<'_, State>, kind: MemType, offset: u64, bytes: usize) {
    let state = engine.get_data_mut();
    if state.stopped {
        return;
    }
    let Some(address) = state.pages.virtual_address(offset) else { return };
    let store = kind == MemType::WRITE;
    state.touches.push(Touch { address, bytes: bytes as u16, store });
    let unknown = state.current.as_ref().is_some_and(|(_, unknown)| *unknown);
    if store {
        state.pages.note_write(offset, bytes as u64);
        state.taint.store(address, bytes as u64, unknown);
    } else if state.taint.memory(address, bytes as u64)
        && let Some((decoded, unknown)) = &mut state.current
    {
        *unknown = true;
        if decoded.kind == Kind::Branch {
            state.stop(StopReason::UnknownBranch);
            // Only fails on a closed engine.
            let _ = engine.emu_stop();
        }
    }
}

/// The engine does not know the instruction: newer SSE code is stepped over, anything else ends the run.
fn on_invalid(engine: &mut Unicorn<'_, State>) -> bool {
    let state = engine.get_data_mut();
    if state.stopped {
        return false;
    }
    let Some((decoded, _)) = state.current.take() else {
        state.stop(StopReason::Unsupported);
        return false;
    };
    if !decoded.is_vector() || decoded.kind == Kind::Branch {
        state.stop(StopReason::Unsupported);
        return false;
    }
    state.run.instructions -= 1;
    step_over(engine, &decoded);
    !engine.get_data().stopped
}

/// Notes the memory operands of an instruction without running it; what it writes is unknown from then on.
fn step_over(engine: &mut Unicorn<'_, State>, decoded: &Decoded) {
    let instruction = &decoded.instruction;
    let mut factory = InstructionInfoFactory::new();
    for memory in factory.info(instruction).used_memory().iter().filter(|memory| touches_memory(memory.access())) {
        let store = is_write(memory.access());
        let address = memory.virtual_address(0, |register, _, _| general_value(engine, register));
        let segment_known = !matches!(memory.segment(), Register::FS | Register::GS);
        let state = engine.get_data_mut();
        match address {
            Some(address) if segment_known && !memory.index().is_vector_register() => {
                let bytes = memory.memory_size().size().max(1) as u16;
                state.touches.push(Touch { address, bytes, store });
                if store {
                    state.taint.store(address, u64::from(bytes), true);
                }
            }
            // A scatter may have changed any word; thread-local words are reached through the segment alone.
            _ if store && segment_known => {
                state.stop(StopReason::UnknownAddress);
                let _ = engine.emu_stop();
                return;
            }
            _ => {}
        }
    }
    let next = instruction.next_ip();
    let state = engine.get_data_mut();
    // vzeroupper leaves the low halves, which are all that is tracked, as they are.
    if instruction.mnemonic() != iced_x86::Mnemonic::Vzeroupper {
        state.taint.commit(decoded, true);
    }
    state.run.instructions += 1;
    state.run.stepped_over += 1;
    if engine.reg_write(RegisterX86::RIP, next).is_err() {
        engine.get_data_mut().stop(StopReason::Fault);
    }
}

fn general_value(engine: &Unicorn<'_, State>, register: Register) -> Option<u64> {
    match register {
        Register::ES | Register::CS | Register::SS | Register::DS | Register::FS | Register::GS => Some(0),
        _ if register.is_gpr() => {
            let value = engine.reg_read(GENERAL[register.full_register().number()]).ok()?;
            Some(if register.size() == 4 { value & 0xffff_ffff } else { value })
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "emulator_tests.rs"]
mod tests;
